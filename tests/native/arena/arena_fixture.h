/* SPDX-License-Identifier: Apache-2.0
 *
 * The fixture of arena tests. It has an arena in a memfd, any number of participants in this process, interruptions at
 * a POINT of the code, and children that stop or die at a POINT. Each handle of arena_attach has its own entry and lock
 * descriptor, so a thread with one counts as a process.
 *
 *   int file = arena_file_new();
 *   struct arena *arena = arena_created(file, geometry_of(8, 512));
 *   struct arena *other = arena_attached(file);
 *
 * A participant that is interrupted at a point continues after the interruption. To every other participant it is a
 * living process that was stopped there.
 *
 *   interrupt_at("slot_opened", 0, interruption, argument); ... the next pass calls interruption(argument)
 *   pid_t child = child_started(file, run, argument, "slot_opened", SIGKILL);
 *
 * A child attaches again through `file`: it inherits no handle of its parent. Tests wait with waitpid or by reading
 * shared memory, never with a sleep. arena_end verifies the arena to its last byte.
 */
#ifndef ARENA_FIXTURE_H
#define ARENA_FIXTURE_H

#include "testing.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arena/arena.h"
#include "arena/attach.h"
#include "arena/counters.h"
#include "arena/registry.h"
#include "arena/verify.h"
#include "base/bytes.h"
#include "base/point.h"

#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

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
        .oversized_bytes_max = (uint64_t)slot_count / 2 * batch_size,
        .record_size_max = batch_size * (slot_count / 2 + 1),
    };
}

static inline int arena_file_new(void)
{
    int file = memfd_create("arena", MFD_CLOEXEC);
    EXPECT(file >= 0);
    return file;
}

/* Returns another open file description of the same file. */
static inline int file_opened_again(int file)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int again = open(path, O_RDWR | O_CLOEXEC);
    EXPECT(again >= 0);
    return again;
}

/* A test whose arena could not be created cannot continue: end it. */
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

/* Make the entries of all partitions, as partitions of one topic, unless the arena has some. Recovery after a crash of
 * the host rejects a batch whose partition has no entry. */
static inline void partitions_register(struct arena *arena)
{
    struct registry *registry;
    struct error error = {0};
    uint32_t topic_index, partition_index;
    if (registry_partition_count(arena) > 0) {
        return;
    }
    EXPECT_STATUS(registry_open(arena, &registry, &error), STATUS_OK);
    EXPECT_STATUS(registry_topic(registry, "topic", 5, &topic_index), STATUS_OK);
    for (uint32_t i = 0; i < arena->geometry.partition_count; i++) {
        EXPECT_STATUS(registry_partition(registry, topic_index, (int32_t)i, &partition_index), STATUS_OK);
        EXPECT_EQ_U64(partition_index, i);
    }
    registry_close(registry);
}

/* Attach for another thread, with its own entry and lock descriptor, but at the addresses of `shared`. TSan identifies
 * memory by its address, so it would find no race between two mappings. */
static inline struct arena *arena_attached_for_thread(int file, const struct arena *shared)
{
    struct arena *arena = arena_attached(file);
    arena->superblock = shared->superblock;
    arena->globals = shared->globals;
    arena->processes = shared->processes;
    arena->waiters = shared->waiters;
    arena->topics = shared->topics;
    arena->partitions = shared->partitions;
    arena->names = shared->names;
    arena->free_hints = shared->free_hints;
    arena->ready_hints = shared->ready_hints;
    arena->ready_groups = shared->ready_groups;
    arena->slots = shared->slots;
    arena->completions = shared->completions;
    arena->counters = shared->counters;
    arena->error_log = shared->error_log;
    arena->slot_data = shared->slot_data;
    arena->me = &shared->processes[arena->entry_index];
    return arena;
}

enum { THREAD_COUNT_MAX = 8 };

/* Run this many participants, each in its own thread, and join them. */
static inline void run_in_threads(int file, const struct arena *arena, uint32_t count, void *(*run)(void *arena))
{
    struct arena *participants[THREAD_COUNT_MAX];
    pthread_t threads[THREAD_COUNT_MAX];
    EXPECT(count <= THREAD_COUNT_MAX);
    for (uint32_t i = 0; i < count; i++) {
        participants[i] = arena_attached_for_thread(file, arena);
        EXPECT(pthread_create(&threads[i], NULL, run, participants[i]) == 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        arena_detach(participants[i]);
    }
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
    uint32_t counts[SLOT_BAD + 1];
    verify_count_states(arena, counts);
    return counts[state];
}

/* Check every invariant of an arena that no other process uses. */
static inline void expect_sound(const struct arena *arena)
{
    struct finding findings[8];
    const struct verify_options options = {.depth = VERIFY_DEEP, .is_idle = true};
    uint32_t count = verify(arena, &options, findings, COUNT_OF(findings));
    for (uint32_t i = 0; i < count && i < COUNT_OF(findings); i++) {
        EXPECT_OR_SAY(false, "slot %d: %s", (int)findings[i].slot_index, findings[i].text);
    }
    EXPECT_EQ_U64(count, 0);
}

/* Check that the arena is sound, and that no buffer is in use or leaked. */
static inline void expect_all_free(const struct arena *arena)
{
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_FREE), arena->geometry.slot_count);
    for (uint32_t i = 0; i < arena->geometry.waiter_count; i++) {
        EXPECT_EQ_U64(waiter_word_state(load_acquire_u64(&arena->waiters[i].word)), WAITER_IDLE);
    }
    expect_sound(arena);
}

static inline void arena_end(struct arena *arena, int file)
{
    expect_sound(arena);
    arena_detach(arena);
    close(file);
}

/* A test in a new arena. The arena is sound when the test ends. */
#define TEST_IN_ARENA(new_geometry, test_name)                                 \
    static void test_##test_name(struct arena *arena, int file);               \
    static void run_##test_name(void)                                          \
    {                                                                          \
        int file = arena_file_new();                                           \
        struct arena *arena = arena_created(file, new_geometry);               \
        test_##test_name(arena, file);                                         \
        arena_end(arena, file);                                                \
    }                                                                          \
    TESTING_REGISTER(test_name, run_##test_name)                               \
    static void test_##test_name(__attribute__((unused)) struct arena *arena, __attribute__((unused)) int file)

/* ---- interruptions ---- */

struct interruption {
    const char *point;
    uint32_t passes_before; /* the number of times the point is passed before the interruption */
    void (*act)(void *argument);
    void *argument;
};
static struct interruption interruption;

static inline void interrupt(const char *name)
{
    if (interruption.point != NULL && strcmp(name, interruption.point) == 0 && interruption.passes_before-- == 0) {
        interruption.point = NULL;
        interruption.act(interruption.argument);
    }
}

/* Interrupt once. The interruption may call this again. If `point` is NULL, do nothing. */
static inline void interrupt_at(const char *point, uint32_t passes_before, void (*act)(void *argument), void *argument)
{
    interruption = (struct interruption){
        .point = point, .passes_before = passes_before, .act = act, .argument = argument};
    point_hook = interrupt;
}

/* Return true if the point was reached since interrupt_at. */
static inline bool interruption_is_over(void)
{
    point_hook = NULL;
    return interruption.point == NULL;
}

/* ---- children ---- */

static inline void raise_signal(void *argument)
{
    raise(*(int *)argument);
}

/* fork() for a test: the child counts its own failures, and ends with _exit(testing_exit_code()). A child that a failed
 * test leaves, also a stopped one, ends with this program. Otherwise it would keep the program's output open. */
static inline pid_t child_forked(void)
{
    fflush(NULL);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        store_relaxed_u32(&testing_failure_count, 0);
    }
    return child;
}

/* Run `run` in a new process, which gets `signal` when it reaches `point`, or never if `point` is NULL. */
static inline pid_t child_started(int file, void (*run)(struct arena *arena, void *argument), void *argument,
                                  const char *point, int signal)
{
    pid_t child = child_forked();
    if (child == 0) {
        struct arena *arena = arena_attached(file);
        interrupt_at(point, 0, raise_signal, &signal);
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

/* Wait until the child has stopped (return true) or ended (return false). */
static inline bool child_is_stopped(pid_t child)
{
    return WIFSTOPPED(child_status(child, WUNTRACED));
}

/* Return without waiting. The end of the child can still be waited for. */
static inline bool child_has_ended(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) < 0 || info.si_pid == child;
}

/* Wait for the end of a child. Return true if it exited by itself and all its expectations held. */
static inline bool child_is_content(pid_t child)
{
    int status = child_status(child, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Wait for the end of a child. Return true if a SIGKILL ended it. */
static inline bool child_was_killed(pid_t child)
{
    int status = child_status(child, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static inline bool child_kill(pid_t child)
{
    kill(child, SIGKILL);
    return child_was_killed(child);
}

/* Continue a stopped child, and wait for its end. */
static inline bool child_finishes(pid_t child)
{
    kill(child, SIGCONT);
    return child_is_content(child);
}

#endif
