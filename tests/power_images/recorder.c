/* SPDX-License-Identifier: Apache-2.0
 *
 * A library that is loaded before all others (LD_PRELOAD). It records each change that a tree of processes makes below
 * a folder, with the data, and each call that forces changes to disk:
 *
 *   POWER_ROOT   the folder, without symbolic links
 *   POWER_LOG    the file to which the entries are appended; the recorder's other files have it as a prefix
 *   POWER_BOOT   a file whose content replaces the kernel's boot id; this works without the other two
 *
 *   log     | entry | entry | ...       struct entry, then the name, the other name, the site and the data
 *   site    of a call that forces: the caller in a library of shmaccum and the frames of Python, the innermost first:
 *           native:PATH+0xOFFSET|FILE:LINE:FUNCTION|FILE:LINE:FUNCTION...
 *
 * A mutex in shared memory covers a call together with its entry, so the order of the entries is that of the calls.
 * Stores into a shared mapping are no calls. So the recorder compares each mapped file with a copy, which all processes
 * share, and writes the sectors that have changed before the next entry. It does the same before a call that forces,
 * because the kernel forces what was stored before the call.
 *
 * Calls that the C library makes internally (fopen, fwrite) are not recorded. shmaccum and CPython make none of them on
 * files that must survive.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { SECTOR = 512, BLOCK = 65536, MAPS_MAX = 64, SITE_SIZE = 4096, FRAMES_MAX = 40, SHORT_PATH = 64 };

enum kind {
    KIND_WRITE = 1,
    KIND_STORE = 2, /* stores into a mapping */
    KIND_SIZE = 3,
    KIND_SYNC = 4,
    KIND_RANGE = 5, /* sync_file_range, which guarantees nothing */
    KIND_CREATE = 6,
    KIND_LINK = 7,
    KIND_UNLINK = 8,
    KIND_RENAME = 9,
    KIND_MODE = 10,
    KIND_MARK = 11
};

struct entry {
    uint32_t kind;
    uint32_t mode;
    uint32_t process;
    uint32_t name_size;
    uint32_t other_size;
    uint32_t site_size;
    uint64_t inode;
    uint64_t folder;
    uint64_t other_folder;
    int64_t offset; /* the position of the data, or the size for KIND_SIZE */
    uint64_t data_size;
};

struct map {
    uint64_t inode;
    int file; /* the recorder's own descriptor */
    uint8_t *copy;
    size_t copy_size;
    const uint8_t *address;
    size_t length;
};

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(&name) real_##name;                                                                          \
        if (real_##name == NULL) {                                                                                     \
            *(void **)&real_##name = dlsym(RTLD_NEXT, #name);                                                          \
        }                                                                                                              \
        real_##name;                                                                                                   \
    })

static char root[PATH_MAX];
static size_t root_size;
static dev_t root_device;
static char log_path[PATH_MAX];
static char boot_path[PATH_MAX];
static int log_file = -1;
static pthread_mutex_t *mutex;
static struct map maps[MAPS_MAX];
static int map_count;
static __thread bool is_inside;

static void fail(const char *what)
{
    dprintf(2, "the recorder of changes cannot %s: %s\n", what, strerror(errno));
    abort();
}

/* ---- start ---- */

static void mutex_make(const char *path)
{
    int file = REAL(open)(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool is_first = file >= 0;
    if (!is_first) {
        file = REAL(open)(path, O_RDWR | O_CLOEXEC);
    }
    if (file < 0 || (is_first && REAL(ftruncate)(file, sizeof *mutex) < 0)) {
        fail("open its mutex");
    }
    mutex = REAL(mmap)(NULL, sizeof *mutex, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mutex == MAP_FAILED) {
        fail("map its mutex");
    }
    close(file);
    if (is_first) {
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(mutex, &attributes);
    }
}

__attribute__((constructor)) static void start(void)
{
    const char *folder = getenv("POWER_ROOT");
    const char *log = getenv("POWER_LOG");
    const char *boot = getenv("POWER_BOOT");
    if (boot != NULL) {
        snprintf(boot_path, sizeof boot_path, "%s", boot);
    }
    if (folder == NULL || log == NULL) {
        return;
    }
    struct stat found;
    char path[PATH_MAX + SHORT_PATH];
    root_size = (size_t)snprintf(root, sizeof root, "%s", folder);
    snprintf(log_path, sizeof log_path, "%s", log);
    snprintf(path, sizeof path, "%s.mutex", log);
    if (stat(root, &found) < 0) {
        fail("find its folder");
    }
    root_device = found.st_dev;
    mutex_make(path);
    log_file = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    log_file = log_file < 0 ? -1 : fcntl(log_file, F_DUPFD_CLOEXEC, 900);
    if (log_file < 0) {
        fail("open its log");
    }
}

/* ---- entries ---- */

static void entry_write(const struct entry *given, const char *name, const char *other, const char *site,
                        const void *data)
{
    struct entry entry = *given;
    entry.process = (uint32_t)getpid();
    entry.name_size = (uint32_t)strlen(name);
    entry.other_size = (uint32_t)strlen(other);
    entry.site_size = (uint32_t)strlen(site);
    struct iovec parts[] = {{&entry, sizeof entry},
                            {(void *)(uintptr_t)name, entry.name_size},
                            {(void *)(uintptr_t)other, entry.other_size},
                            {(void *)(uintptr_t)site, entry.site_size},
                            {(void *)(uintptr_t)data, entry.data_size}};
    size_t size = sizeof entry + entry.name_size + entry.other_size + entry.site_size + entry.data_size;
    if (REAL(writev)(log_file, parts, 5) != (ssize_t)size) {
        fail("write its log");
    }
}

/* ---- mappings ---- */

static void copy_path(uint64_t inode, char *path)
{
    snprintf(path, PATH_MAX + SHORT_PATH, "%s.copy-%llu", log_path, (unsigned long long)inode);
}

static void copy_extend(struct map *map, size_t size)
{
    if (size <= map->copy_size) {
        return;
    }
    char path[PATH_MAX + SHORT_PATH];
    copy_path(map->inode, path);
    int file = REAL(open)(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat found;
    size_t rounded = (size + BLOCK - 1) / BLOCK * BLOCK;
    if (file < 0 || fstat(file, &found) < 0 ||
        ((size_t)found.st_size < rounded && REAL(ftruncate)(file, (off_t)rounded) < 0)) {
        fail("extend the copy of a mapped file");
    }
    uint8_t *copy = REAL(mmap)(NULL, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (copy == MAP_FAILED) {
        fail("map the copy of a mapped file");
    }
    close(file);
    if (map->copy != NULL) {
        munmap(map->copy, map->copy_size);
    }
    map->copy = copy;
    map->copy_size = rounded;
}

static void block_compare(struct map *map, const uint8_t *block, size_t size, size_t position)
{
    size_t start = 0;
    while (start < size) {
        size_t end = start;
        while (end < size &&
               memcmp(block + end, map->copy + position + end, size - end < SECTOR ? size - end : SECTOR) != 0) {
            end += size - end < SECTOR ? size - end : SECTOR;
        }
        if (end > start) {
            struct entry entry = {.kind = KIND_STORE,
                                  .inode = map->inode,
                                  .offset = (int64_t)(position + start),
                                  .data_size = end - start};
            memcpy(map->copy + position + start, block + start, end - start);
            entry_write(&entry, "", "", "", block + start);
        } else {
            end += SECTOR;
        }
        start = end;
    }
}

static void maps_compare(void)
{
    static uint8_t block[BLOCK];
    for (int i = 0; i < map_count; i++) {
        struct stat found;
        if (fstat(maps[i].file, &found) < 0) {
            continue;
        }
        copy_extend(&maps[i], (size_t)found.st_size);
        for (off_t position = 0; position < found.st_size; position += BLOCK) {
            ssize_t size = pread(maps[i].file, block, BLOCK, position);
            if (size > 0 && memcmp(block, maps[i].copy + position, (size_t)size) != 0) {
                block_compare(&maps[i], block, (size_t)size, (size_t)position);
            }
        }
    }
}

static void map_add(int file, const uint8_t *address, size_t length)
{
    struct stat found;
    char path[SHORT_PATH];
    if (map_count == MAPS_MAX || fstat(file, &found) < 0) {
        fail("follow another mapping");
    }
    for (int i = 0; i < map_count; i++) {
        if (maps[i].inode == found.st_ino) {
            return; /* the recorder's descriptor keeps the inode in use, so it is the same file */
        }
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int own = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    own = own < 0 ? -1 : fcntl(own, F_DUPFD_CLOEXEC, 900);
    if (own < 0) {
        fail("open a mapped file");
    }
    maps[map_count++] = (struct map){.inode = found.st_ino, .file = own, .address = address, .length = length};
}

/* ---- a call ---- */

static bool lock_begin(void)
{
    if (log_file < 0 || is_inside) {
        return false;
    }
    is_inside = true;
    if (pthread_mutex_lock(mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(mutex);
    }
    maps_compare();
    return true;
}

static void lock_end(void)
{
    pthread_mutex_unlock(mutex);
    is_inside = false;
}

static bool is_below_root(int file)
{
    char link[SHORT_PATH];
    char path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path);
    return size >= (ssize_t)root_size && memcmp(path, root, root_size) == 0 &&
           (size == (ssize_t)root_size || path[root_size] == '/');
}

/* Return true for a regular file or a folder below the root. */
static bool is_followed(int file, struct stat *found)
{
    if (log_file < 0 || is_inside || fstat(file, found) < 0 || found->st_dev != root_device) {
        return false;
    }
    return (S_ISREG(found->st_mode) || S_ISDIR(found->st_mode)) && is_below_root(file);
}

struct place {
    uint64_t folder; /* 0 if not below the root */
    char name[NAME_MAX + 1];
};

static struct place place_of(int folder, const char *path)
{
    struct place place = {0};
    const char *slash = strrchr(path, '/');
    const char *name = slash == NULL ? path : slash + 1;
    char parent[PATH_MAX];
    struct stat found;
    if (log_file < 0 || is_inside || strlen(name) > NAME_MAX || strlen(path) >= sizeof parent) {
        return place;
    }
    int size = slash == NULL ? 0 : (int)(slash - path);
    snprintf(parent, sizeof parent, "%.*s", size, path);
    const char *opened = slash == NULL ? "." : size == 0 ? "/" : parent;
    int file = REAL(openat)(folder, opened, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (file >= 0 && fstat(file, &found) == 0 && found.st_dev == root_device && is_below_root(file)) {
        place.folder = found.st_ino;
        memcpy(place.name, name, strlen(name) + 1);
    }
    if (file >= 0) {
        close(file);
    }
    return place;
}

/* ---- sites ---- */

struct python {
    int (*is_initialized)(void);
    int (*ensure)(void);
    void (*release)(int);
    void *(*frame)(void);
    void *(*back)(void *);
    void *(*code)(void *);
    int (*line)(void *);
    void *(*attribute)(void *, const char *);
    const char *(*text)(void *);
    void (*forget)(void *);
};

static bool python_find(struct python *python)
{
    const struct {
        const char *name;
        void *target;
    } names[] = {{"Py_IsInitialized", &python->is_initialized}, {"PyGILState_Ensure", &python->ensure},
                 {"PyGILState_Release", &python->release},      {"PyEval_GetFrame", &python->frame},
                 {"PyFrame_GetBack", &python->back},            {"PyFrame_GetCode", &python->code},
                 {"PyFrame_GetLineNumber", &python->line},      {"PyObject_GetAttrString", &python->attribute},
                 {"PyUnicode_AsUTF8", &python->text},           {"Py_DecRef", &python->forget}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        *(void **)names[i].target = dlsym(RTLD_DEFAULT, names[i].name);
        if (*(void **)names[i].target == NULL) {
            return false;
        }
    }
    return python->is_initialized() != 0;
}

static void site_add(char *site, const char *format, ...)
{
    size_t size = strlen(site);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(site + size, SITE_SIZE - size, format, arguments);
    va_end(arguments);
}

static void site_add_frame(const struct python *python, void *frame, char *site)
{
    void *code = python->code(frame);
    void *file = python->attribute(code, "co_filename");
    void *name = python->attribute(code, "co_name");
    if (file != NULL && name != NULL) {
        site_add(site, "%s:%d:%s|", python->text(file), python->line(frame), python->text(name));
    }
    python->forget(name);
    python->forget(file);
    python->forget(code);
}

static void site_add_python(char *site)
{
    struct python python;
    if (!python_find(&python)) {
        return;
    }
    int state = python.ensure();
    void *frame = python.frame(); /* borrowed */
    for (int i = 0; frame != NULL && i < FRAMES_MAX; i++) {
        site_add_frame(&python, frame, site);
        void *back = python.back(frame);
        if (i > 0) {
            python.forget(frame);
        }
        frame = back;
    }
    python.release(state);
}

/* Must run before the mutex is locked, because another thread may wait for the mutex while it holds the interpreter's
 * lock. */
static void site_take(char *site, const void *caller)
{
    Dl_info found;
    site[0] = '\0';
    if (is_inside) {
        return;
    }
    if (dladdr(caller, &found) != 0 && found.dli_fname != NULL && strstr(found.dli_fname, "_native") != NULL) {
        site_add(site, "native:%s+0x%zx|", found.dli_fname,
                 (size_t)((uintptr_t)caller - (uintptr_t)found.dli_fbase));
    }
    site_add_python(site);
}

/* ---- files ---- */

static void sync_write(int file, const char *site)
{
    struct stat found;
    if (fstat(file, &found) == 0) {
        struct entry entry = {.kind = KIND_SYNC, .inode = found.st_ino, .mode = found.st_mode};
        entry_write(&entry, "", "", site, NULL);
    }
}

/* Record a completed write. The entry has the written bytes, read from the file. */
static void written(int file, off_t position, ssize_t size, const char *site)
{
    struct stat found;
    char path[SHORT_PATH];
    int flags = fcntl(file, F_GETFL);
    if (size <= 0 || fstat(file, &found) < 0) {
        return;
    }
    if ((flags & O_APPEND) != 0) {
        position = found.st_size - size;
    } else if (position < 0) {
        position = lseek(file, 0, SEEK_CUR) - size;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int own = REAL(open)(path, O_RDONLY | O_CLOEXEC);
    uint8_t *data = malloc((size_t)size);
    if (own < 0 || data == NULL || pread(own, data, (size_t)size, position) != size) {
        fail("read what was written");
    }
    struct entry entry = {
        .kind = KIND_WRITE, .inode = found.st_ino, .offset = position, .data_size = (uint64_t)size};
    entry_write(&entry, "", "", "", data);
    free(data);
    close(own);
    if ((flags & (O_SYNC | O_DSYNC)) != 0) {
        sync_write(file, site);
    }
}

static void sized(int file)
{
    struct stat found;
    if (fstat(file, &found) == 0) {
        struct entry entry = {.kind = KIND_SIZE, .inode = found.st_ino, .offset = found.st_size};
        entry_write(&entry, "", "", "", NULL);
    }
}

#define WRITING(file, position, call)                                                                                  \
    do {                                                                                                               \
        struct stat followed;                                                                                          \
        char site[SITE_SIZE] = "";                                                                                     \
        if (!is_followed(file, &followed)) {                                                                           \
            return call;                                                                                               \
        }                                                                                                              \
        if ((fcntl(file, F_GETFL) & (O_SYNC | O_DSYNC)) != 0) {                                                        \
            site_take(site, __builtin_return_address(0));                                                              \
        }                                                                                                              \
        lock_begin();                                                                                                  \
        ssize_t size = call;                                                                                           \
        int error = errno;                                                                                             \
        written(file, position, size, site);                                                                           \
        lock_end();                                                                                                    \
        errno = error;                                                                                                 \
        return size;                                                                                                   \
    } while (0)

ssize_t write(int file, const void *data, size_t count)
{
    WRITING(file, -1, REAL(write)(file, data, count));
}

ssize_t pwrite(int file, const void *data, size_t count, off_t position)
{
    WRITING(file, position, REAL(pwrite)(file, data, count, position));
}

ssize_t pwrite64(int file, const void *data, size_t count, off64_t position)
{
    WRITING(file, position, REAL(pwrite64)(file, data, count, position));
}

ssize_t writev(int file, const struct iovec *parts, int count)
{
    WRITING(file, -1, REAL(writev)(file, parts, count));
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t position)
{
    WRITING(file, position, REAL(pwritev)(file, parts, count, position));
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t position)
{
    WRITING(file, position, REAL(pwritev64)(file, parts, count, position));
}

ssize_t pwritev2(int file, const struct iovec *parts, int count, off_t position, int flags)
{
    WRITING(file, position, REAL(pwritev2)(file, parts, count, position, flags));
}

ssize_t pwritev64v2(int file, const struct iovec *parts, int count, off64_t position, int flags)
{
    WRITING(file, position, REAL(pwritev64v2)(file, parts, count, position, flags));
}

ssize_t sendfile(int file, int source, off_t *position, size_t count)
{
    WRITING(file, -1, REAL(sendfile)(file, source, position, count));
}

ssize_t sendfile64(int file, int source, off64_t *position, size_t count)
{
    WRITING(file, -1, REAL(sendfile64)(file, source, position, count));
}

ssize_t copy_file_range(int source, off64_t *source_position, int file, off64_t *position, size_t count,
                        unsigned int flags)
{
    off64_t start = position == NULL ? -1 : *position;
    WRITING(file, start, REAL(copy_file_range)(source, source_position, file, position, count, flags));
}

#define SIZING(type, file, call)                                                                                       \
    do {                                                                                                               \
        struct stat followed;                                                                                          \
        if (!is_followed(file, &followed)) {                                                                           \
            return call;                                                                                               \
        }                                                                                                              \
        lock_begin();                                                                                                  \
        type result = call;                                                                                            \
        int error = errno;                                                                                             \
        sized(file);                                                                                                   \
        lock_end();                                                                                                    \
        errno = error;                                                                                                 \
        return result;                                                                                                 \
    } while (0)

int ftruncate(int file, off_t size)
{
    SIZING(int, file, REAL(ftruncate)(file, size));
}

int ftruncate64(int file, off64_t size)
{
    SIZING(int, file, REAL(ftruncate64)(file, size));
}

int posix_fallocate(int file, off_t position, off_t size)
{
    SIZING(int, file, REAL(posix_fallocate)(file, position, size));
}

int posix_fallocate64(int file, off64_t position, off64_t size)
{
    SIZING(int, file, REAL(posix_fallocate64)(file, position, size));
}

/* Record fallocate. Holes and zeros within the file are recorded as changed data. */
static int fallocated(int file, int mode, off64_t position, off64_t size)
{
    struct stat followed;
    if (!is_followed(file, &followed)) {
        return REAL(fallocate64)(file, mode, position, size);
    }
    lock_begin();
    int result = REAL(fallocate64)(file, mode, position, size);
    int error = errno;
    if (result == 0 && (mode & ~FALLOC_FL_KEEP_SIZE) != 0) {
        off64_t end = position + size < followed.st_size ? position + size : followed.st_size;
        written(file, position, (ssize_t)(end - position), "");
    }
    sized(file);
    lock_end();
    errno = error;
    return result;
}

int fallocate(int file, int mode, off_t position, off_t size)
{
    return fallocated(file, mode, position, size);
}

int fallocate64(int file, int mode, off64_t position, off64_t size)
{
    return fallocated(file, mode, position, size);
}

static int truncated(const char *path, off64_t size)
{
    int file = REAL(open)(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) {
        return -1;
    }
    int result = ftruncate64(file, size);
    int error = errno;
    close(file);
    errno = error;
    return result;
}

int truncate(const char *path, off_t size)
{
    return truncated(path, size);
}

int truncate64(const char *path, off64_t size)
{
    return truncated(path, size);
}

/* ---- forcing ---- */

#define FORCING(file, call)                                                                                            \
    do {                                                                                                               \
        struct stat followed;                                                                                          \
        char site[SITE_SIZE];                                                                                          \
        if (!is_followed(file, &followed)) {                                                                           \
            return call;                                                                                               \
        }                                                                                                              \
        site_take(site, __builtin_return_address(0));                                                                  \
        lock_begin();                                                                                                  \
        sync_write(file, site);                                                                                        \
        lock_end();                                                                                                    \
        return 0;                                                                                                      \
    } while (0)

int fsync(int file)
{
    FORCING(file, REAL(fsync)(file));
}

int fdatasync(int file)
{
    FORCING(file, REAL(fdatasync)(file));
}

int sync_file_range(int file, off64_t position, off64_t size, unsigned int flags)
{
    struct stat followed;
    if (is_followed(file, &followed)) {
        lock_begin();
        struct entry entry = {.kind = KIND_RANGE, .inode = followed.st_ino};
        entry_write(&entry, "", "", "", NULL);
        lock_end();
    }
    return REAL(sync_file_range)(file, position, size, flags);
}

int msync(void *address, size_t length, int flags)
{
    char site[SITE_SIZE];
    if (log_file >= 0 && !is_inside && (flags & MS_SYNC) != 0) {
        site_take(site, __builtin_return_address(0));
        lock_begin();
        for (int i = 0; i < map_count; i++) {
            const uint8_t *start = address;
            if (start < maps[i].address + maps[i].length && start + length > maps[i].address) {
                sync_write(maps[i].file, site);
            }
        }
        lock_end();
    }
    return REAL(msync)(address, length, flags);
}

/* ---- mappings ---- */

static void mapped(void *address, size_t length, int protection, int flags, int file)
{
    struct stat found;
    bool is_shared = (flags & MAP_SHARED) != 0 && (protection & PROT_WRITE) != 0;
    if (address != MAP_FAILED && is_shared && file >= 0 && is_followed(file, &found)) {
        int error = errno;
        lock_begin();
        map_add(file, address, length);
        lock_end();
        errno = error;
    }
}

void *mmap(void *wanted, size_t length, int protection, int flags, int file, off_t offset)
{
    void *address = REAL(mmap)(wanted, length, protection, flags, file, offset);
    mapped(address, length, protection, flags, file);
    return address;
}

void *mmap64(void *wanted, size_t length, int protection, int flags, int file, off64_t offset)
{
    void *address = REAL(mmap64)(wanted, length, protection, flags, file, offset);
    mapped(address, length, protection, flags, file);
    return address;
}

/* ---- names ---- */

static void created(const struct place *place, const struct stat *found, const char *link)
{
    char path[PATH_MAX + SHORT_PATH];
    copy_path(found->st_ino, path); /* the copy of an earlier file with this number */
    REAL(unlink)(path);
    struct entry entry = {.kind = KIND_CREATE,
                          .mode = found->st_mode,
                          .inode = found->st_ino,
                          .folder = place->folder,
                          .data_size = strlen(link)};
    entry_write(&entry, place->name, "", "", link);
}

static bool is_there(int folder, const char *path, struct stat *found)
{
    return fstatat(folder, path, found, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Record the entry of a file before another process can write to it, unless that process has already found the name. */
static int opened(int folder, const char *path, int flags, mode_t mode)
{
    if (boot_path[0] != '\0' && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) {
        return REAL(open)(boot_path, flags);
    }
    bool is_change = (flags & (O_CREAT | O_TRUNC)) != 0 && (flags & O_TMPFILE) != O_TMPFILE;
    struct place place = is_change ? place_of(folder, path) : (struct place){0};
    if (place.folder == 0) {
        return REAL(openat)(folder, path, flags, mode);
    }
    struct stat found;
    lock_begin();
    bool was_there = is_there(folder, path, &found);
    bool was_file = was_there && S_ISREG(found.st_mode);
    off_t former_size = found.st_size;
    int file = REAL(openat)(folder, path, flags, mode);
    int error = errno;
    if (file >= 0 && !was_there && fstat(file, &found) == 0) {
        created(&place, &found, "");
    } else if (file >= 0 && was_file && (flags & O_TRUNC) != 0 && former_size != 0) {
        sized(file);
    }
    lock_end();
    errno = error;
    return file;
}

#define OPENING(folder, path, flags)                                                                                   \
    do {                                                                                                               \
        mode_t mode = 0;                                                                                               \
        if ((flags & (O_CREAT | O_TMPFILE)) != 0) {                                                                    \
            va_list arguments;                                                                                         \
            va_start(arguments, flags);                                                                                \
            mode = va_arg(arguments, mode_t);                                                                          \
            va_end(arguments);                                                                                         \
        }                                                                                                              \
        return opened(folder, path, flags, mode);                                                                      \
    } while (0)

int open(const char *path, int flags, ...)
{
    OPENING(AT_FDCWD, path, flags);
}

int open64(const char *path, int flags, ...)
{
    OPENING(AT_FDCWD, path, flags);
}

int openat(int folder, const char *path, int flags, ...)
{
    OPENING(folder, path, flags);
}

int openat64(int folder, const char *path, int flags, ...)
{
    OPENING(folder, path, flags);
}

int creat(const char *path, mode_t mode)
{
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

int mkdirat(int folder, const char *path, mode_t mode)
{
    struct place place = place_of(folder, path);
    if (place.folder == 0) {
        return REAL(mkdirat)(folder, path, mode);
    }
    struct stat found;
    lock_begin();
    int result = REAL(mkdirat)(folder, path, mode);
    int error = errno;
    if (result == 0 && is_there(folder, path, &found)) {
        created(&place, &found, "");
    }
    lock_end();
    errno = error;
    return result;
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int symlinkat(const char *target, int folder, const char *path)
{
    struct place place = place_of(folder, path);
    if (place.folder == 0) {
        return REAL(symlinkat)(target, folder, path);
    }
    struct stat found;
    lock_begin();
    int result = REAL(symlinkat)(target, folder, path);
    int error = errno;
    if (result == 0 && is_there(folder, path, &found)) {
        created(&place, &found, target);
    }
    lock_end();
    errno = error;
    return result;
}

int symlink(const char *target, const char *path)
{
    return symlinkat(target, AT_FDCWD, path);
}

int linkat(int source_folder, const char *source, int folder, const char *path, int flags)
{
    struct place place = place_of(folder, path);
    if (place.folder == 0) {
        return REAL(linkat)(source_folder, source, folder, path, flags);
    }
    struct stat found;
    lock_begin();
    int result = REAL(linkat)(source_folder, source, folder, path, flags);
    int error = errno;
    if (result == 0 && is_there(folder, path, &found)) {
        struct entry entry = {.kind = KIND_LINK, .mode = found.st_mode, .inode = found.st_ino, .folder = place.folder};
        entry_write(&entry, place.name, "", "", NULL);
    }
    lock_end();
    errno = error;
    return result;
}

int link(const char *source, const char *path)
{
    return linkat(AT_FDCWD, source, AT_FDCWD, path, 0);
}

int unlinkat(int folder, const char *path, int flags)
{
    struct place place = place_of(folder, path);
    if (place.folder == 0) {
        return REAL(unlinkat)(folder, path, flags);
    }
    struct stat found = {0};
    lock_begin();
    (void)is_there(folder, path, &found);
    int result = REAL(unlinkat)(folder, path, flags);
    int error = errno;
    if (result == 0) {
        struct entry entry = {.kind = KIND_UNLINK, .inode = found.st_ino, .folder = place.folder};
        entry_write(&entry, place.name, "", "", NULL);
    }
    lock_end();
    errno = error;
    return result;
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

static long renamed(int source_folder, const char *source, int folder, const char *path, unsigned int flags)
{
    struct place from = place_of(source_folder, source);
    struct place to = place_of(folder, path);
    if (from.folder == 0 || to.folder == 0) {
        return REAL(syscall)(SYS_renameat2, source_folder, source, folder, path, flags);
    }
    struct stat found = {0};
    lock_begin();
    (void)is_there(source_folder, source, &found);
    long result = REAL(syscall)(SYS_renameat2, source_folder, source, folder, path, flags);
    int error = errno;
    if (result == 0) {
        struct entry entry = {
            .kind = KIND_RENAME, .inode = found.st_ino, .folder = from.folder, .other_folder = to.folder};
        entry_write(&entry, from.name, to.name, "", NULL);
    }
    lock_end();
    errno = error;
    return result;
}

int rename(const char *source, const char *path)
{
    return (int)renamed(AT_FDCWD, source, AT_FDCWD, path, 0);
}

int renameat(int source_folder, const char *source, int folder, const char *path)
{
    return (int)renamed(source_folder, source, folder, path, 0);
}

int renameat2(int source_folder, const char *source, int folder, const char *path, unsigned int flags)
{
    return (int)renamed(source_folder, source, folder, path, flags);
}

long syscall(long number, ...)
{
    long given[6];
    va_list arguments;
    va_start(arguments, number);
    for (int i = 0; i < 6; i++) {
        given[i] = va_arg(arguments, long);
    }
    va_end(arguments);
    if (number == SYS_renameat2) {
        return renamed((int)given[0], (const char *)given[1], (int)given[2], (const char *)given[3],
                       (unsigned int)given[4]);
    }
    return REAL(syscall)(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

/* ---- modes: a mode counts as forced at once ---- */

static void mode_write(const struct stat *found)
{
    struct entry entry = {.kind = KIND_MODE, .inode = found->st_ino, .mode = found->st_mode};
    lock_begin();
    entry_write(&entry, "", "", "", NULL);
    lock_end();
}

int fchmod(int file, mode_t mode)
{
    struct stat found;
    int result = REAL(fchmod)(file, mode);
    if (result == 0 && is_followed(file, &found)) {
        mode_write(&found);
    }
    return result;
}

int fchmodat(int folder, const char *path, mode_t mode, int flags)
{
    struct stat found;
    int result = REAL(fchmodat)(folder, path, mode, flags);
    if (result == 0 && place_of(folder, path).folder != 0 && fstatat(folder, path, &found, 0) == 0) {
        mode_write(&found);
    }
    return result;
}

int chmod(const char *path, mode_t mode)
{
    return fchmodat(AT_FDCWD, path, mode, 0);
}

/* ---- marks ---- */

/* Record a promise that the product made to the recorded program. */
void power_mark(const char *text)
{
    if (lock_begin()) {
        struct entry entry = {.kind = KIND_MARK, .data_size = strlen(text)};
        entry_write(&entry, "", "", "", text);
        lock_end();
    }
}
