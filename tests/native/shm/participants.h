/* SPDX-License-Identifier: Apache-2.0
 *
 * The company a test of the arena needs: an arena in a memfd, any number of participants in this process (each handle
 * has an entry and a lock descriptor of its own, so a thread with one poses as a process), and children that stop or
 * die at a POINT of the code.
 *
 *   int file = arena_file_new();
 *   struct arena *arena = arena_created(file, geometry_of(8, 512));
 *   struct arena *other = arena_attached(file);
 *   pid_t child = child_started(file, run, argument, "slot_opened", SIGSTOP);
 *   EXPECT(child_is_stopped(child)); ... child_killed(child);
 *
 * A child attaches anew from `file`: it inherits no handle of its parent. Waiting is always waitpid or a look at shared
 * memory, never a sleep.
 */
#ifndef PARTICIPANTS_H
#define PARTICIPANTS_H

#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/point.h"
#include "shm/arena.h"
#include "shm/counters.h"

/* ---- arenas ---- */

static inline struct geometry geometry_of(uint32_t slot_count, uint32_t batch_size)
{
    return (struct geometry){
        .buffer_memory = (uint64_t)slot_count * batch_size,
        .batch_size = batch_size,
        .slot_stride = (uint32_t)round_up(batch_size, PAGE_SIZE_BYTES),
        .slot_count = slot_count,
        .process_count = 16,
        .waiter_count = 8,
        .topic_count = 4,
        .partition_count = 8,
        .name_heap_size = 4096,
        .completion_count = 256,
        .oversized_slot_count_max = slot_count / 2,
        .record_size_max = batch_size * (slot_count / 2 + 1),
    };
}

static inline int arena_file_new(void)
{
    int file = memfd_create("arena", MFD_CLOEXEC);
    EXPECT(file >= 0);
    return file;
}

/* Another open file description of the same file. */
static inline int file_opened_again(int file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int again = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(again >= 0);
    return again;
}

/* A test that has no arena has nothing to say: end it here. */
static inline struct arena *arena_or_exit(enum status status, struct arena *arena, const struct error *error)
{
    if (status != STATUS_OK) {
        fprintf(stderr, "no arena: %s: %s\n", status_name(status), error->message);
        exit(1);
    }
    return arena;
}

static inline struct arena *arena_created(int file, struct geometry geometry)
{
    struct arena *arena = NULL;
    struct error error = {0};
    enum status status =
        arena_create(file_opened_again(file), file_opened_again(file), &geometry, NULL, 0, &arena, &error);
    return arena_or_exit(status, arena, &error);
}

static inline struct arena *arena_attached(int file)
{
    struct arena *arena = NULL;
    struct error error = {0};
    enum status status = arena_attach(file_opened_again(file), file_opened_again(file), &arena, &error);
    return arena_or_exit(status, arena, &error);
}

/* A participant for a thread of this process: its entry and lock descriptor are its own, its mapping is that of
 * `first`, because the thread sanitizer knows a cell by its address. */
static inline struct arena *arena_attached_beside(struct arena *first, int file)
{
    struct arena *own = arena_attached(file);
    struct arena regions = *first;
    munmap(own->base, own->size);
    own->base = NULL; /* so that nobody unmaps what is not ours */
    own->me = &regions.processes[own->entry_index];
    own->superblock = regions.superblock;
    own->globals = regions.globals;
    own->processes = regions.processes;
    own->waiters = regions.waiters;
    own->topics = regions.topics;
    own->partitions = regions.partitions;
    own->names = regions.names;
    own->free_hints = regions.free_hints;
    own->news_hints = regions.news_hints;
    own->slots = regions.slots;
    own->completions = regions.completions;
    own->counters = regions.counters;
    own->error_log = regions.error_log;
    own->slot_data = regions.slot_data;
    return own;
}

static inline uint64_t counter_value(const struct arena *arena, enum counter counter)
{
    return load_acquire_u64(&arena->counters[counter].value);
}

static inline uint64_t slot_word_at(const struct arena *arena, uint32_t slot_index)
{
    return load_acquire_u64(&arena->slots[slot_index].word);
}

static inline enum slot_state slot_state_at(const struct arena *arena, uint32_t slot_index)
{
    return slot_word_state(slot_word_at(arena, slot_index));
}

static inline uint32_t slots_in_state(const struct arena *arena, enum slot_state state)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        count += slot_state_at(arena, i) == state;
    }
    return count;
}

static inline bool slot_is_all_zeros(const struct arena *arena, uint32_t slot_index)
{
    const uint8_t *bytes = arena_slot_data(arena, slot_index);
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, arena->geometry.slot_stride - 1) == 0;
}

static inline bool slot_is_hinted_free(const struct arena *arena, uint32_t slot_index)
{
    return (load_acquire_u64(&arena->free_hints[slot_index / 64]) >> (slot_index % 64) & 1) != 0;
}

/* What an arena looks like when all work is done: nothing held, nothing leaked, nothing readable left behind. */
static inline void expect_all_free(const struct arena *arena)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        EXPECT_OR_SAY(slot_state_at(arena, i) == SLOT_FREE, "slot %u is in state %d", i, (int)slot_state_at(arena, i));
        EXPECT_OR_SAY(slot_is_all_zeros(arena, i), "slot %u is free and not all zeros", i);
        EXPECT_OR_SAY(slot_is_hinted_free(arena, i), "no hint says that slot %u is free", i);
    }
    for (uint32_t i = 0; i < arena->geometry.waiter_count; i++) {
        EXPECT_EQ_U64(waiter_word_state(load_acquire_u64(&arena->waiters[i].word)), WAITER_IDLE);
    }
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->waiting_count), 0);
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->oversized_slot_count), 0);
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->poisoned_status), STATUS_OK);
}

static inline void arena_end(struct arena *arena, int file)
{
    arena_detach(arena);
    close(file);
}

/* ---- children ---- */

struct child_plan {
    const char *point;
    int signal;
    uint32_t passes_before; /* how often the point is passed before the signal comes */
};
static struct child_plan child_plan;

static inline void child_signal_at_point(const char *name)
{
    if (child_plan.point != NULL && strcmp(name, child_plan.point) == 0 && child_plan.passes_before-- == 0) {
        child_plan.point = NULL;
        raise(child_plan.signal);
    }
}

/* Runs `run` in a new process, which gets `signal` when it comes to `point` (NULL: never). */
static inline pid_t child_started(void (*run)(struct arena *arena, void *argument), int file, void *argument,
                                  const char *point, int signal)
{
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        struct arena *arena = arena_attached(file);
        child_plan = (struct child_plan){.point = point, .signal = signal};
        point_hook = child_signal_at_point;
        run(arena, argument);
        point_hook = NULL;
        arena_detach(arena);
        _exit(testing_exit_code());
    }
    return child;
}

static inline int child_status(pid_t child, int options)
{
    int status = 0;
    while (waitpid(child, &status, options) < 0 && errno == EINTR) {
    }
    return status;
}

/* Waits until it stopped (true) or ended (false). */
static inline bool child_is_stopped(pid_t child)
{
    return WIFSTOPPED(child_status(child, WUNTRACED));
}

/* Waits for its end: true when it ended by itself and all its expectations held. */
static inline bool child_is_content(pid_t child)
{
    int status = child_status(child, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Waits for its end: true when a SIGKILL ended it. */
static inline bool child_was_killed(pid_t child)
{
    int status = child_status(child, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static inline void child_kill(pid_t child)
{
    kill(child, SIGKILL);
    EXPECT(child_was_killed(child));
}

static inline void child_stop(pid_t child)
{
    kill(child, SIGSTOP);
    EXPECT(child_is_stopped(child));
}

/* Wakes a stopped child and waits for its end. */
static inline bool child_finishes(pid_t child)
{
    kill(child, SIGCONT);
    return child_is_content(child);
}

#endif
