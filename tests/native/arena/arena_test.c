/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/arena.h"

#include "arena/arena_fixture.h"

#include <sched.h>
#include <stddef.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "arena/attach.h"
#include "arena/byte_lock.h"
#include "arena/counters.h"
#include "arena/process.h"
#include "format/crc32c.h"

static enum status attach_status(int file, struct error *error)
{
    struct arena *arena = NULL;
    *error = (struct error){0};
    enum status status = arena_attach(file_opened_again(file), file_opened_again(file), &arena, error);
    if (status == STATUS_OK) {
        arena_detach(arena);
    } else {
        EXPECT(arena == NULL);
        EXPECT(error->message[0] != 0);
    }
    return status;
}

static enum status read_only_status(int file)
{
    struct arena *arena = NULL;
    enum status status = arena_open_read_only(file_opened_again(file), file_opened_again(file), &arena, NULL);
    if (status == STATUS_OK) {
        arena_detach(arena);
    }
    return status;
}

static enum status create_status(int file, const struct geometry *geometry, uint32_t options_size, struct error *error)
{
    static const uint8_t options[2 * OPTIONS_SIZE_MAX];
    struct arena *arena = NULL;
    *error = (struct error){0};
    enum status status = arena_create(file_opened_again(file), file_opened_again(file), geometry, options,
                                      options_size, &arena, error);
    if (status == STATUS_OK) {
        arena_detach(arena);
    } else {
        EXPECT(error->message[0] != 0);
    }
    return status;
}

static void overwrite(int file, size_t position, const void *bytes, size_t size)
{
    EXPECT_EQ_U64((uint64_t)pwrite(file, bytes, size, (off_t)position), size);
}

static int finished_arena_file(void)
{
    int file = arena_file_new();
    arena_detach(arena_created(file, geometry_of(4, 512)));
    return file;
}

/* Returns the number of descriptors of this process. If a handle is rejected, it must leave none open. */
static uint32_t descriptor_count(void)
{
    uint32_t count = 0;
    for (int descriptor = 0; descriptor < 256; descriptor++) {
        count += fcntl(descriptor, F_GETFD) >= 0;
    }
    return count;
}

/* ---- create and attach ---- */

TEST(a_new_arena_is_empty_and_keeps_what_its_creator_chose)
{
    int file = arena_file_new();
    struct geometry geometry = geometry_of(70, 512);
    struct arena *arena = NULL;
    EXPECT_STATUS(arena_create(file_opened_again(file), file_opened_again(file), &geometry, "options", 7, &arena, NULL),
                  STATUS_OK);
    expect_all_free(arena);
    EXPECT_EQ_U64(load_acquire_u64(&arena->superblock->magic), ARENA_MAGIC);
    EXPECT_EQ_U64(load_acquire_u64(&arena->globals->producer_id), UINT64_MAX);
    EXPECT(!arena->was_recovered);
    EXPECT(byte_is_locked(file, PROCESS_LOCK_START + 0));
    struct arena *other = arena_attached(file);
    EXPECT(memcmp(&other->geometry, &geometry, sizeof geometry) == 0);
    EXPECT(memcmp(other->uuid, arena->uuid, sizeof arena->uuid) == 0);
    EXPECT_EQ_U64(other->superblock->options_size, 7);
    EXPECT(memcmp(other->superblock->options, "options", 7) == 0);
    EXPECT(!other->was_recovered);
    arena_detach(other);
    arena_end(arena, file);
}

TEST(two_arenas_have_different_identities)
{
    int files[2] = {arena_file_new(), arena_file_new()};
    struct arena *first = arena_created(files[0], geometry_of(2, 512));
    struct arena *second = arena_created(files[1], geometry_of(2, 512));
    EXPECT(memcmp(first->uuid, second->uuid, sizeof first->uuid) != 0);
    arena_end(first, files[0]);
    arena_end(second, files[1]);
}

TEST(an_arena_is_not_created_over_another_file)
{
    int file = finished_arena_file();
    struct geometry geometry = geometry_of(4, 512);
    struct error error;
    uint8_t before[PAGE_SIZE_BYTES], after[PAGE_SIZE_BYTES];
    EXPECT_EQ_U64((uint64_t)pread(file, before, sizeof before, 0), sizeof before);
    EXPECT_STATUS(create_status(file, &geometry, 0, &error), STATUS_INVALID);
    EXPECT_EQ_U64((uint64_t)pread(file, after, sizeof after, 0), sizeof after);
    EXPECT(memcmp(before, after, sizeof before) == 0);
    close(file);
}

TEST(a_bad_geometry_or_too_many_options_create_nothing)
{
    int file = arena_file_new();
    struct geometry geometry = geometry_of(4, 512);
    struct error error;
    struct stat found;
    EXPECT_STATUS(create_status(file, &geometry, OPTIONS_SIZE_MAX + 1, &error), STATUS_INVALID);
    geometry.slot_count = 0;
    EXPECT_STATUS(create_status(file, &geometry, 0, &error), STATUS_INVALID);
    fstat(file, &found);
    EXPECT_EQ_U64((uint64_t)found.st_size, 0);
    geometry = geometry_of(4, 512);
    EXPECT_STATUS(create_status(file, &geometry, OPTIONS_SIZE_MAX, &error), STATUS_OK);
    EXPECT_STATUS(attach_status(file, &error), STATUS_OK);
    close(file);
}

TEST(the_first_to_attach_recovers_and_the_others_join)
{
    int file = finished_arena_file();
    struct arena *first = arena_attached(file);
    struct arena *second = arena_attached(file);
    EXPECT(first->was_recovered);
    EXPECT(!second->was_recovered);
    EXPECT_EQ_U64(counter_value(first, COUNTER_ARENA_RECOVERIES), 1);
    arena_detach(second);
    arena_end(first, file);
}

TEST(an_arena_is_clean_from_the_last_detach_to_the_next_attach)
{
    int file = arena_file_new();
    struct arena *observer = NULL;
    struct arena *first = arena_created(file, geometry_of(4, 512));
    struct arena *second = arena_attached(file);
    EXPECT_STATUS(arena_open_read_only(file_opened_again(file), file_opened_again(file), &observer, NULL), STATUS_OK);
    arena_detach(first);
    EXPECT_EQ_U64(load_acquire_u32(&observer->globals->is_clean), 0);
    arena_detach(second);
    EXPECT_EQ_U64(load_acquire_u32(&observer->globals->is_clean), 1);
    first = arena_attached(file);
    EXPECT_EQ_U64(load_acquire_u32(&observer->globals->is_clean), 0);
    arena_detach(first);
    EXPECT_EQ_U64(observer->owner, 0);
    EXPECT_STATUS(arena_ensure_attached(observer, NULL), STATUS_DETACHED);
    arena_end(observer, file);
}

/* ---- files that are no arena ---- */

TEST(an_arena_whose_creator_died_before_the_magic_is_reported_as_unfinished)
{
    int file = arena_file_new();
    struct error error;
    pid_t child = child_forked();
    if (child == 0) {
        interrupt_at("arena_before_magic", 0, raise_signal, &(int){SIGKILL});
        arena_created(file, geometry_of(4, 512));
        _exit(2);
    }
    EXPECT(child_was_killed(child));
    EXPECT_STATUS(attach_status(file, &error), STATUS_UNFINISHED);
    EXPECT_STATUS(read_only_status(file), STATUS_UNFINISHED);
    close(file);
}

TEST(an_attach_to_an_unfinished_arena_is_rejected)
{
    int file = arena_file_new();
    struct error error;
    pid_t child = child_forked();
    if (child == 0) {
        interrupt_at("arena_before_magic", 0, raise_signal, &(int){SIGSTOP});
        arena_detach(arena_created(file, geometry_of(4, 512)));
        _exit(testing_exit_code());
    }
    EXPECT(child_is_stopped(child));
    EXPECT_STATUS(attach_status(file, &error), STATUS_BUSY);
    EXPECT(child_finishes(child));
    EXPECT_STATUS(attach_status(file, &error), STATUS_OK);
    close(file);
}

TEST(garbage_is_not_an_arena)
{
    int file = arena_file_new();
    struct error error;
    EXPECT_STATUS(attach_status(file, &error), STATUS_UNFINISHED);
    overwrite(file, 0, "x", 1);
    EXPECT_STATUS(attach_status(file, &error), STATUS_NOT_AN_ARENA);
    uint8_t garbage[3 * PAGE_SIZE_BYTES];
    memset(garbage, 0xa5, sizeof garbage);
    overwrite(file, 0, garbage, sizeof garbage);
    EXPECT_STATUS(attach_status(file, &error), STATUS_NOT_AN_ARENA);
    EXPECT_STATUS(read_only_status(file), STATUS_NOT_AN_ARENA);
    close(file);
}

TEST(a_truncated_arena_is_refused_at_any_length_and_never_read_beyond_its_end)
{
    struct error error;
    int file = finished_arena_file();
    struct stat found;
    fstat(file, &found);
    const off_t lengths[] = {found.st_size - 1, found.st_size / 2, PAGE_SIZE_BYTES + 1, PAGE_SIZE_BYTES,
                             PAGE_SIZE_BYTES - 1, 100, 8};
    for (size_t i = 0; i < COUNT_OF(lengths); i++) {
        EXPECT_EQ_U64((uint64_t)ftruncate(file, lengths[i]), 0);
        EXPECT_STATUS(attach_status(file, &error), STATUS_TRUNCATED);
        EXPECT_STATUS(read_only_status(file), STATUS_TRUNCATED);
    }
    close(file);
}

TEST(another_version_or_fingerprint_is_another_layout)
{
    struct error error;
    int file = finished_arena_file();
    uint32_t version = LAYOUT_VERSION + 1;
    uint64_t fingerprint = layout_fingerprint() ^ 1;
    overwrite(file, offsetof(struct superblock, layout_version), &version, sizeof version);
    EXPECT_STATUS(attach_status(file, &error), STATUS_OTHER_LAYOUT);
    close(file);
    file = finished_arena_file();
    overwrite(file, offsetof(struct superblock, layout_fingerprint), &fingerprint, sizeof fingerprint);
    EXPECT_STATUS(attach_status(file, &error), STATUS_OTHER_LAYOUT);
    EXPECT_STATUS(read_only_status(file), STATUS_OTHER_LAYOUT);
    close(file);
}

TEST(no_byte_of_a_superblock_changes_unseen)
{
    struct error error;
    int file = finished_arena_file();
    size_t end = offsetof(struct superblock, options);
    for (size_t position = 0; position < end; position++) {
        uint8_t byte, flipped;
        EXPECT_EQ_U64((uint64_t)pread(file, &byte, 1, (off_t)position), 1);
        flipped = byte ^ 0x40;
        overwrite(file, position, &flipped, 1);
        EXPECT_OR_SAY(attach_status(file, &error) != STATUS_OK, "byte %zu changed unseen", position);
        overwrite(file, position, &byte, 1);
    }
    EXPECT_STATUS(attach_status(file, &error), STATUS_OK);
    close(file);
}

/* Change the superblock, and compute its checksum again. */
static void expect_signed_superblock_refused(size_t position, const void *bytes, size_t size, enum status expected)
{
    struct error error;
    static struct superblock superblock;
    int file = finished_arena_file();
    overwrite(file, position, bytes, size);
    EXPECT_EQ_U64((uint64_t)pread(file, &superblock, sizeof superblock, 0), sizeof superblock);
    size_t start = offsetof(struct superblock, layout_fingerprint);
    size_t end = offsetof(struct superblock, options) + superblock.options_size;
    superblock.superblock_crc = crc32c_extend(0, (const uint8_t *)&superblock + start, end - start);
    overwrite(file, 0, &superblock, sizeof superblock);
    EXPECT_STATUS(attach_status(file, &error), expected);
    EXPECT_STATUS(read_only_status(file), expected);
    close(file);
}

TEST(numbers_that_cannot_be_are_refused_even_under_a_right_checksum)
{
    const uint32_t none = 0;
    const uint64_t size = 77;
    size_t geometry = offsetof(struct superblock, geometry);
    expect_signed_superblock_refused(geometry + offsetof(struct geometry, slot_count), &none, 4, STATUS_INVALID);
    expect_signed_superblock_refused(geometry + offsetof(struct geometry, slot_stride), &none, 4, STATUS_INVALID);
    expect_signed_superblock_refused(geometry + offsetof(struct geometry, process_count), &none, 4, STATUS_INVALID);
    expect_signed_superblock_refused(offsetof(struct superblock, arena_size), &size, 8, STATUS_CORRUPT);
}

TEST(options_beyond_their_room_are_not_read)
{
    struct error error;
    const uint32_t sizes[] = {OPTIONS_SIZE_MAX + 1, UINT32_MAX};
    for (uint32_t i = 0; i < COUNT_OF(sizes); i++) {
        int file = finished_arena_file();
        overwrite(file, offsetof(struct superblock, options_size), &sizes[i], sizeof sizes[i]);
        EXPECT_STATUS(attach_status(file, &error), STATUS_CORRUPT);
        close(file);
    }
}

TEST(two_descriptors_of_different_files_are_refused)
{
    int files[2] = {finished_arena_file(), finished_arena_file()};
    int pipe_ends[2];
    struct arena *arena = NULL;
    struct geometry geometry = geometry_of(4, 512);
    struct error error;
    uint32_t descriptors = descriptor_count();
    EXPECT_STATUS(arena_attach(file_opened_again(files[0]), file_opened_again(files[1]), &arena, &error),
                  STATUS_NOT_AN_ARENA);
    EXPECT_EQ_U64((uint64_t)ftruncate(files[0], 0), 0);
    EXPECT_EQ_U64((uint64_t)ftruncate(files[1], 0), 0);
    EXPECT_STATUS(arena_create(file_opened_again(files[0]), file_opened_again(files[1]), &geometry, NULL, 0, &arena,
                               &error), STATUS_NOT_AN_ARENA);
    EXPECT_EQ_U64((uint64_t)pipe(pipe_ends), 0);
    EXPECT(arena_attach(pipe_ends[0], pipe_ends[1], &arena, &error) != STATUS_OK);
    EXPECT(arena == NULL);
    EXPECT_EQ_U64(descriptor_count(), descriptors);
    close(files[0]);
    close(files[1]);
}

TEST(one_open_file_given_twice_is_refused)
{
    struct error error;
    struct arena *arena = NULL;
    int file = arena_file_new();
    struct geometry geometry = geometry_of(4, 512);
    int map_descriptor = file_opened_again(file);
    EXPECT_STATUS(arena_create(map_descriptor, dup(map_descriptor), &geometry, NULL, 0, &arena, &error), STATUS_OS);
    close(file);
}

/* ---- death and delay of the recovering process ---- */

static void attach_meanwhile(void *argument)
{
    int *file = argument;
    struct error error;
    EXPECT_STATUS(attach_status(*file, &error), STATUS_BUSY);
    EXPECT(strstr(error.message, "creating or recovering") != NULL);
}

TEST(no_process_attaches_while_the_recovering_one_is_stopped)
{
    int file = finished_arena_file();
    interrupt_at("arena_recovered", 0, attach_meanwhile, &file); /* attach retries for a second */
    struct arena *arena = arena_attached(file);
    EXPECT(interruption_is_over());
    arena_end(arena, file);
}

static void expect_recovered_after_death_at(const char *point)
{
    int file = finished_arena_file();
    pid_t child = child_forked();
    if (child == 0) {
        int signal = SIGKILL;
        interrupt_at(point, 0, raise_signal, &signal);
        (void)arena_attached(file);
        _exit(0);
    }
    EXPECT_OR_SAY(child_was_killed(child), "%s was not reached", point);
    struct arena *arena = arena_attached(file);
    EXPECT(arena->was_recovered);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_recoverer_that_dies_is_followed_by_the_next)
{
    expect_recovered_after_death_at("arena_recovered");
    expect_recovered_after_death_at("process_byte_locked");
    expect_recovered_after_death_at("process_generation_raised");
}

/* ---- no space ---- */

static void create_beyond_the_size_limit(int file)
{
    struct geometry geometry = geometry_of(256, 4096);
    struct error error;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){.rlim_cur = 1 << 18, .rlim_max = 1 << 18});
    EXPECT_STATUS(create_status(file, &geometry, 0, &error), STATUS_OS);
    EXPECT_EQ_U64((uint64_t)error.os_error, EFBIG);
}

TEST(a_file_size_limit_is_an_error_at_creation)
{
    int file = arena_file_new();
    pid_t child = child_forked();
    if (child == 0) {
        create_beyond_the_size_limit(file);
        _exit(testing_exit_code());
    }
    EXPECT(child_is_content(child));
    close(file);
}

/* If this process may mount, use a tmpfs of 64 KiB. Otherwise, nothing is tested. */
TEST(a_full_tmpfs_is_an_error_at_creation_and_never_a_sigbus)
{
    char folder[] = "/tmp/shmaccum-full-XXXXXX";
    char path[64];
    EXPECT(mkdtemp(folder) != NULL);
    if (mount("none", folder, "tmpfs", 0, "size=64k") == 0) {
        snprintf(path, sizeof path, "%s/arena", folder);
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        struct geometry geometry = geometry_of(64, 4096);
        struct error error;
        EXPECT_STATUS(create_status(file, &geometry, 0, &error), STATUS_OS);
        EXPECT_EQ_U64((uint64_t)error.os_error, ENOSPC);
        close(file);
        EXPECT_EQ_U64((uint64_t)umount(folder), 0);
    }
    EXPECT_EQ_U64((uint64_t)rmdir(folder), 0);
}

/* ---- many ---- */

enum { CROWD_SIZE = 200 };

TEST(two_hundred_are_attached_at_once)
{
    int file = arena_file_new();
    struct geometry geometry = geometry_of(4, 512);
    geometry.process_count = CROWD_SIZE;
    struct arena *arenas[CROWD_SIZE] = {arena_created(file, geometry)};
    for (uint32_t i = 1; i < CROWD_SIZE; i++) {
        arenas[i] = arena_attached(file);
        EXPECT_EQ_U64(arenas[i]->entry_index, i);
    }
    for (uint32_t i = 0; i < CROWD_SIZE; i++) {
        EXPECT(process_is_alive(arenas[CROWD_SIZE - 1 - i], arenas[i]->owner));
    }
    uint32_t gone = arenas[77]->owner;
    arena_detach(arenas[77]);
    EXPECT(!process_is_alive(arenas[0], gone));
    arenas[77] = arena_attached(file);
    EXPECT_EQ_U64(arenas[77]->entry_index, 77);
    for (uint32_t i = 1; i < CROWD_SIZE; i++) {
        arena_detach(arenas[i]);
    }
    expect_all_free(arenas[0]);
    arena_end(arenas[0], file);
}

/* Locks the bytes of `count` entries in one call, as that many living processes would. */
static int entries_occupied(int file, uint32_t first, uint32_t count)
{
    int descriptor = file_opened_again(file);
    struct flock request = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = PROCESS_LOCK_START + first, .l_len = count};
    EXPECT(fcntl(descriptor, F_OFD_SETLK, &request) == 0);
    return descriptor;
}

TEST(the_thousand_and_twenty_fourth_finds_its_entry_and_the_next_is_reported)
{
    enum { MANY = 1024 };
    int file = arena_file_new();
    struct geometry geometry = geometry_of(1, 512);
    struct error error;
    geometry.process_count = MANY;
    struct arena *arena = arena_created(file, geometry);
    int others = entries_occupied(file, 1, MANY - 2);
    struct arena *last = arena_attached(file);
    EXPECT_EQ_U64(last->entry_index, MANY - 1);
    EXPECT(process_is_alive(arena, last->owner));
    EXPECT(process_is_alive(arena, owner_of(MANY / 2, 0)));
    EXPECT_STATUS(attach_status(file, &error), STATUS_NO_ENTRY);
    close(others);
    EXPECT(!process_is_alive(arena, owner_of(MANY / 2, 0)));
    struct arena *next = arena_attached(file);
    EXPECT_EQ_U64(next->entry_index, 1);
    arena_detach(next);
    arena_detach(last);
    arena_end(arena, file);
}

/* ---- fork ---- */

struct family {
    struct arena *arena;
    uint32_t parent_owner;
    int file;
};

static void child_takes_an_entry_of_its_own(const struct family *family)
{
    struct arena *arena = family->arena;
    EXPECT_EQ_U64(arena->owner, 0);
    EXPECT(arena->me == NULL);
    EXPECT_EQ_U64((uint64_t)arena->lock_descriptor, (uint64_t)-1);
    EXPECT_STATUS(arena_ensure_attached(arena, NULL), STATUS_OK);
    EXPECT(arena->owner != 0 && arena->owner != family->parent_owner);
    EXPECT(process_is_alive(arena, family->parent_owner));
    EXPECT(process_is_alive(arena, arena->owner));
    uint32_t owner = arena->owner;
    EXPECT_STATUS(arena_ensure_attached(arena, NULL), STATUS_OK);
    EXPECT_EQ_U64(arena->owner, owner);
}

TEST_IN_ARENA(geometry_of(4, 512), a_forked_child_takes_an_entry_of_its_own_and_its_death_frees_only_that)
{
    struct family family = {.arena = arena, .parent_owner = arena->owner, .file = file};
    pid_t child = child_forked();
    if (child == 0) {
        child_takes_an_entry_of_its_own(&family);
        if (testing_exit_code() == 0) {
            raise(SIGSTOP);
        }
        _exit(1);
    }
    EXPECT(child_is_stopped(child));
    uint32_t child_owner = owner_of(1, load_acquire_u32(&arena->processes[1].generation));
    EXPECT(process_is_alive(arena, child_owner));
    EXPECT_EQ_U64(arena->owner, family.parent_owner);
    EXPECT(child_kill(child));
    EXPECT(!process_is_alive(arena, child_owner));
    struct arena *observer = arena_attached(file);
    EXPECT(process_is_alive(observer, family.parent_owner));
    arena_detach(observer);
}

/* The parent's byte lock must not live on in a descriptor or mapping that the child inherited. */
TEST(a_parent_s_death_frees_its_entry_while_its_child_lives)
{
    int file = arena_file_new();
    struct arena *observer = arena_created(file, geometry_of(4, 512));
    atomic_u32 *grandchild = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t parent = fork();
    if (parent == 0) {
        struct arena *arena = arena_attached(file);
        struct family family = {.arena = arena, .parent_owner = arena->owner, .file = file};
        pid_t child = fork();
        if (child == 0) {
            child_takes_an_entry_of_its_own(&family);
            store_release_u32(grandchild, testing_exit_code() == 0 ? (uint32_t)getpid() : 1);
            for (;;) {
                pause();
            }
        }
        for (;;) {
            pause();
        }
    }
    while (load_acquire_u32(grandchild) == 0) {
        sched_yield();
    }
    pid_t child = (pid_t)load_acquire_u32(grandchild);
    EXPECT(child > 1);
    uint32_t parent_owner = owner_of(1, load_acquire_u32(&observer->processes[1].generation));
    uint32_t child_owner = owner_of(2, load_acquire_u32(&observer->processes[2].generation));
    EXPECT(process_is_alive(observer, parent_owner));
    EXPECT(child_kill(parent));
    EXPECT(!process_is_alive(observer, parent_owner));
    EXPECT(process_is_alive(observer, child_owner));
    kill(child, SIGKILL);
    while (process_is_alive(observer, child_owner)) {
        sched_yield();
    }
    munmap(grandchild, 4096);
    arena_end(observer, file);
}

/* Even a child that never uses the arena again must not keep its parent's entry alive. */
TEST(a_child_that_does_not_attach_holds_nothing)
{
    int file = arena_file_new();
    struct arena *observer = arena_created(file, geometry_of(4, 512));
    struct arena *arena = arena_attached(file);
    uint32_t owner = arena->owner;
    pid_t child = fork();
    if (child == 0) {
        raise(SIGSTOP);
        arena_detach(arena);
        _exit(0);
    }
    EXPECT(child_is_stopped(child));
    arena_detach(arena);
    EXPECT(!process_is_alive(observer, owner));
    EXPECT(child_finishes(child));
    arena_end(observer, file);
}

TEST_IN_ARENA(geometry_of(8, 512), an_executed_program_keeps_nothing)
{
    struct arena *parent = arena_attached(file);
    uint32_t owner = parent->owner;
    int input[2];
    int executed[2];
    char byte;
    EXPECT(pipe2(input, O_CLOEXEC) == 0 && pipe2(executed, O_CLOEXEC) == 0);
    pid_t child = child_forked();
    if (child == 0) {
        dup2(input[0], STDIN_FILENO);
        execlp("cat", "cat", (char *)NULL);
        _exit(127);
    }
    close(executed[1]);
    EXPECT(read(executed[0], &byte, 1) == 0); /* closed by exec */
    arena_detach(parent);
    EXPECT(!process_is_alive(arena, owner));
    close(input[1]); /* the program ends only now */
    EXPECT(child_is_content(child));
    close(input[0]);
    close(executed[0]);
}

/* ---- poison ---- */

TEST_IN_ARENA(geometry_of(4, 512), the_first_poison_is_the_one_that_is_kept_and_all_are_logged)
{
    EXPECT(!arena_is_poisoned(arena));
    arena_poison(arena, STATUS_CORRUPT, "first");
    arena_poison(arena, STATUS_INVALID, "second");
    EXPECT(arena_is_poisoned(arena));
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->poisoned_status), STATUS_CORRUPT);
    EXPECT(strcmp(arena->error_log[1].text, "second") == 0);
    store_release_u32(&arena->globals->poisoned_status, STATUS_OK);
}

RUN_ALL()
