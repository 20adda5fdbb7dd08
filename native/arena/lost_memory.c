/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/lost_memory.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* A mapping of this process. Written under `list_mutex`, read by the handler. */
struct watched {
    atomic_u32 version; /* odd during a change */
    atomic_u64 base;    /* 0 in a free row */
    atomic_u64 size;
    atomic_pointer arena;
    struct watched *next; /* set before the row is on the list */
};

static atomic_pointer list;
static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static bool is_installed;
static struct sigaction former;

/* ---- the handler ---- */

static bool row_has(const struct watched *row, uint64_t address, struct arena **arena)
{
    uint32_t version = load_acquire_u32(&row->version); /* M4 */
    uint64_t base = load_acquire_u64(&row->base); /* M4 */
    uint64_t size = load_acquire_u64(&row->size); /* M4 */
    *arena = load_acquire_pointer(&row->arena); /* M4 */
    return version % 2 == 0 && base != 0 && address - base < size &&
           load_acquire_u32(&row->version) == version; /* M4 */
}

static struct arena *arena_at(uint64_t address)
{
    struct arena *arena = NULL;
    const struct watched *row = load_acquire_pointer(&list); /* M6 */
    while (row != NULL && !row_has(row, address, &arena)) {
        row = row->next;
    }
    return row == NULL ? NULL : arena;
}

/* If several threads fault at the same time, each maps private pages, and the last mapping stays. */
static bool arena_replace(struct arena *arena)
{
    store_seq_cst_u32(&arena->is_lost, 1); /* M1 */
    void *base = mmap(arena->base, arena->size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        return false;
    }
    store_release_u32(&arena->globals->poisoned_status, STATUS_TRUNCATED); /* V2 */
    return true;
}

/* SIG_IGN does not apply to a fault: the kernel ends the process. */
static void signal_pass_on(int number, siginfo_t *info, void *context)
{
    bool is_fault = info->si_code > 0;
    if ((former.sa_flags & SA_SIGINFO) != 0) {
        former.sa_sigaction(number, info, context);
    } else if (former.sa_handler == SIG_DFL || (former.sa_handler == SIG_IGN && is_fault)) {
        signal(number, SIG_DFL); /* the fault occurs again */
        if (!is_fault) {
            raise(number);
        }
    } else if (former.sa_handler != SIG_IGN) {
        former.sa_handler(number);
    }
}

static void sigbus_handle(int number, siginfo_t *info, void *context)
{
    int error_number = errno;
    struct arena *arena = info->si_code > 0 ? arena_at((uint64_t)(uintptr_t)info->si_addr) : NULL;
    if (arena == NULL || !arena_replace(arena)) {
        signal_pass_on(number, info, context);
    }
    errno = error_number;
}

static enum status handler_install(struct error *error)
{
    struct sigaction action = {.sa_sigaction = sigbus_handle, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &former) < 0 || sigaction(SIGBUS, &action, NULL) < 0) {
        return error_set_os(error, "cannot install the handler of SIGBUS");
    }
    is_installed = true;
    return STATUS_OK;
}

/* ---- the list ---- */

static void row_set(struct watched *row, const struct arena *arena)
{
    add_u32(&row->version, 1); /* M3 */
    store_seq_cst_u64(&row->base, arena == NULL ? 0 : (uint64_t)(uintptr_t)arena->base); /* M3 */
    store_seq_cst_u64(&row->size, arena == NULL ? 0 : arena->size); /* M3 */
    atomic_store(&row->arena, (void *)(uintptr_t)arena); /* M3 */
    add_u32(&row->version, 1); /* M3 */
}

static struct watched *row_of(uint64_t base)
{
    struct watched *row = load_acquire_pointer(&list); /* M6 */
    while (row != NULL && load_relaxed_u64(&row->base) != base) {
        row = row->next;
    }
    return row;
}

static struct watched *row_add(void)
{
    struct watched *row = calloc(1, sizeof *row);
    if (row != NULL) {
        row->next = load_acquire_pointer(&list); /* M6 */
        atomic_store(&list, (void *)row); /* M5 */
    }
    return row;
}

enum status lost_memory_watch(struct arena *arena, struct error *error)
{
    CHECK(arena->base != NULL);
    pthread_mutex_lock(&list_mutex);
    enum status status = is_installed ? STATUS_OK : handler_install(error);
    struct watched *row = row_of(0);
    row = row != NULL || status != STATUS_OK ? row : row_add();
    if (status == STATUS_OK && row == NULL) {
        status = error_set(error, STATUS_OS, "no memory to attach to the arena");
    }
    if (status == STATUS_OK) {
        row_set(row, arena);
    }
    pthread_mutex_unlock(&list_mutex);
    return status;
}

void lost_memory_check(struct arena *arena)
{
    struct stat found;
    if (!arena_is_lost(arena) && fstat(arena->map_descriptor, &found) == 0 && (uint64_t)found.st_size < arena->size) {
        (void)arena_replace(arena);
    }
}

void lost_memory_forget(struct arena *arena)
{
    pthread_mutex_lock(&list_mutex);
    struct watched *row = row_of((uint64_t)(uintptr_t)arena->base);
    if (row != NULL) {
        row_set(row, NULL);
    }
    pthread_mutex_unlock(&list_mutex);
}

enum status lost_memory_error(struct error *error)
{
    return error_set(error, STATUS_TRUNCATED,
                     "the memory of the arena is lost to this process: its file was truncated while the process was "
                     "attached, or the file system could not provide a page. Its content is no longer known here: "
                     "remove the arena, create it again, and attach to the new one");
}
