/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/process.h"

#include "arena/arena_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#include "arena/attach.h"
#include "arena/buffer_pool.h"
#include "arena/byte_lock.h"

/* ---- entries ---- */

TEST_IN_ARENA(geometry_of(8, 512), each_handle_has_an_entry_and_is_alive_to_the_others)
{
    struct arena *other = arena_attached(file);
    EXPECT_EQ_U64(arena->entry_index, 0);
    EXPECT_EQ_U64(other->entry_index, 1);
    EXPECT(arena->owner != other->owner);
    EXPECT(process_is_alive(arena, arena->owner));
    EXPECT(process_is_alive(arena, other->owner));
    EXPECT(process_is_alive(other, arena->owner));
    EXPECT_EQ_U64(load_relaxed_u32(&other->me->pid), (uint64_t)getpid());
    EXPECT_EQ_U64(load_relaxed_u32(&other->me->role), ROLE_PRODUCER);
    EXPECT(load_relaxed_u64(&other->me->start_time_ticks) > 0);
    EXPECT(other->me->name[0] != 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->process_count_used), 2);
    arena_detach(other);
}

TEST_IN_ARENA(geometry_of(8, 512), an_entry_is_used_again_under_a_new_generation)
{
    uint32_t owners[5];
    for (uint32_t i = 0; i < 5; i++) {
        struct arena *other = arena_attached(file);
        owners[i] = other->owner;
        EXPECT_EQ_U64(other->entry_index, 1);
        EXPECT_EQ_U64(owner_generation(owners[i]), i + 1);
        for (uint32_t j = 0; j < i; j++) {
            EXPECT(!process_is_alive(arena, owners[j]));
        }
        EXPECT(process_is_alive(arena, owners[i]));
        arena_detach(other);
        EXPECT(!process_is_alive(arena, owners[i]));
    }
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->process_count_used), 2);
}

TEST_IN_ARENA(geometry_of(8, 512), a_generation_wraps_and_stays_the_owner_s)
{
    store_relaxed_u32(&arena->processes[1].generation, (uint32_t)LOW_BITS(OWNER_GENERATION_BITS));
    struct arena *other = arena_attached(file);
    EXPECT_EQ_U64(owner_generation(other->owner), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->processes[1].generation), 0);
    EXPECT(process_is_alive(arena, other->owner));
    EXPECT(other->owner != 0);
    arena_detach(other);
}

TEST(when_all_entries_are_taken_the_next_is_reported_and_leaves_no_trace)
{
    int file = arena_file_new();
    struct geometry geometry = geometry_of(8, 512);
    geometry.process_count = 2;
    struct arena *arena = arena_created(file, geometry);
    struct arena *second = arena_attached(file);
    struct arena *third = NULL;
    struct error error = {0};
    EXPECT_STATUS(arena_attach(file_opened_again(file), file_opened_again(file), &third, &error), STATUS_NO_ENTRY);
    EXPECT(third == NULL);
    EXPECT(strstr(error.message, "2 process entries") != NULL);
    arena_detach(second);
    third = arena_attached(file);
    EXPECT_EQ_U64(third->entry_index, 1);
    arena_detach(third);
    arena_end(arena, file);
}

/* ---- the dead ---- */

TEST_IN_ARENA(geometry_of(8, 512), owners_that_cannot_exist_are_dead)
{
    EXPECT(!process_is_alive(arena, 0));
    EXPECT(!process_is_alive(arena, owner_of(15, 0)));
    EXPECT(!process_is_alive(arena, owner_of(16, 0)));
    EXPECT(!process_is_alive(arena, (uint32_t)LOW_BITS(31)));
    EXPECT(!process_is_alive(arena, owner_of(0, owner_generation(arena->owner) + 1)));
    EXPECT(!process_is_alive(arena, (owner_generation(arena->owner) << OWNER_INDEX_BITS))); /* the index is -1 */
}

static void run_nothing(struct arena *arena, void *argument)
{
    store_release_u32((atomic_u32 *)argument, arena->owner);
}

static atomic_u32 *shared_cell(void)
{
    void *page = mmap(NULL, PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT(page != MAP_FAILED);
    return page;
}

static void run_stop(struct arena *arena, void *argument)
{
    run_nothing(arena, argument);
    raise(SIGSTOP);
}

TEST_IN_ARENA(geometry_of(8, 512), the_stopped_live_and_the_killed_are_dead_at_once)
{
    atomic_u32 *owner = shared_cell();
    pid_t child = child_started(file, run_stop, owner, NULL, 0);
    EXPECT(child_is_stopped(child));
    EXPECT(process_is_alive(arena, load_acquire_u32(owner)));
    EXPECT(child_kill(child));
    EXPECT(!process_is_alive(arena, load_acquire_u32(owner)));
    munmap(owner, PAGE_SIZE_BYTES);
}

TEST_IN_ARENA(geometry_of(8, 512), a_zombie_is_dead)
{
    atomic_u32 *owner = shared_cell();
    pid_t child = child_started(file, run_stop, owner, NULL, 0);
    siginfo_t info;
    EXPECT(child_is_stopped(child));
    kill(child, SIGKILL);
    EXPECT(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0); /* it is not reaped yet */
    EXPECT(!process_is_alive(arena, load_acquire_u32(owner)));
    EXPECT(child_was_killed(child));
    munmap(owner, PAGE_SIZE_BYTES);
}

/* ---- death while an entry is taken ---- */

static void expect_entry_survives_death_at(const char *point)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    pid_t child = child_forked();
    if (child == 0) {
        int signal = SIGKILL;
        interrupt_at(point, 0, raise_signal, &signal);
        arena_detach(arena_attached(file));
        _exit(0);
    }
    EXPECT_OR_SAY(child_was_killed(child), "%s was not reached", point);
    struct arena *next = arena_attached(file);
    EXPECT_EQ_U64(next->entry_index, 1);
    EXPECT(process_is_alive(arena, next->owner));
    arena_detach(next);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(an_entry_can_be_taken_whatever_its_last_taker_died_in)
{
    expect_entry_survives_death_at("process_byte_locked");
    expect_entry_survives_death_at("process_generation_raised");
    expect_entry_survives_death_at("process_unregistered");
}

static void run_own_and_hazard(struct arena *arena, void *unused)
{
    (void)unused;
    uint32_t slot_index;
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_OK);
    store_seq_cst_u32(&arena->me->writing, 5);
    raise(SIGKILL);
}

TEST_IN_ARENA(geometry_of(8, 512), a_process_that_takes_the_entry_of_a_dead_process_repairs_its_slots)
{
    EXPECT(child_was_killed(child_started(file, run_own_and_hazard, NULL, NULL, 0)));
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_OWNED), 1);
    struct arena *next = arena_attached(file);
    EXPECT_EQ_U64(next->entry_index, 1);
    EXPECT_EQ_U64(load_relaxed_u32(&next->me->writing), 0);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_OWNED), 0);
    arena_detach(next);
    expect_all_free(arena);
}

/* ---- hazards ---- */

TEST_IN_ARENA(geometry_of(8, 512), only_hazards_of_living_processes_count)
{
    struct arena *other = arena_attached(file);
    EXPECT(!process_anyone_writes(arena, 3));
    store_seq_cst_u32(&other->me->writing, 4);
    EXPECT(process_anyone_writes(arena, 3));
    EXPECT(!process_anyone_writes(arena, 4));
    EXPECT(!process_anyone_writes(arena, 2));
    store_seq_cst_u32(&other->me->writing, 0);
    store_seq_cst_u32(&arena->me->writing, 4);
    EXPECT(process_anyone_writes(arena, 3)); /* this process counts, too */
    store_seq_cst_u32(&arena->me->writing, 0);
    store_seq_cst_u32(&arena->processes[7].writing, 4); /* an unused entry */
    store_relaxed_u32(&arena->globals->process_count_used, UINT32_MAX);
    EXPECT(!process_anyone_writes(arena, 3));
    store_relaxed_u32(&arena->globals->process_count_used, 2);
    store_seq_cst_u32(&arena->processes[7].writing, 0);
    arena_detach(other);
}

/* ---- byte locks ---- */

TEST(byte_locks_exclude_between_descriptions_and_not_between_bytes)
{
    int file = arena_file_new();
    int first = file_opened_again(file);
    int second = file_opened_again(file);
    EXPECT(!byte_is_locked(second, 9));
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_EXCLUSIVE, NULL), STATUS_OK);
    EXPECT(byte_is_locked(second, 9));
    EXPECT(!byte_is_locked(first, 9)); /* the lock of the same description does not count */
    EXPECT(!byte_is_locked(second, 8));
    EXPECT(!byte_is_locked(second, 10));
    EXPECT_STATUS(byte_lock_try(second, 9, BYTE_EXCLUSIVE, NULL), STATUS_BUSY);
    EXPECT_STATUS(byte_lock_try(second, 9, BYTE_SHARED, NULL), STATUS_BUSY);
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_SHARED, NULL), STATUS_OK);
    EXPECT_STATUS(byte_lock_try(second, 9, BYTE_SHARED, NULL), STATUS_OK);
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_EXCLUSIVE, NULL), STATUS_BUSY);
    close(second);
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_EXCLUSIVE, NULL), STATUS_OK);
    close(first);
    close(file);
}

TEST(a_descriptor_that_cannot_be_asked_proves_no_death)
{
    struct error error = {0};
    EXPECT(byte_is_locked(-1, 9));
    EXPECT_STATUS(byte_lock_try(-1, 9, BYTE_EXCLUSIVE, &error), STATUS_OS);
    EXPECT_EQ_U64((uint64_t)error.os_error, EBADF);
}

/* ---- the sender role ---- */

TEST_IN_ARENA(geometry_of(8, 512), the_sender_role_is_one_s_at_a_time_and_ends_with_the_handle)
{
    struct arena *other = arena_attached(file);
    EXPECT(!process_sender_is_alive(arena));
    EXPECT_STATUS(process_take_sender_role(other, "", NULL), STATUS_OK);
    EXPECT(process_sender_is_alive(arena));
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->sender_owner), other->owner);
    EXPECT_EQ_U64(load_relaxed_u32(&other->me->role), ROLE_SENDER);
    EXPECT_STATUS(process_take_sender_role(arena, "", NULL), STATUS_BUSY);
    arena_detach(other);
    EXPECT(!process_sender_is_alive(arena));
    EXPECT_STATUS(process_take_sender_role(arena, "", NULL), STATUS_OK);
    EXPECT(process_sender_is_alive(arena)); /* the lock of the same process does not count, but the sender is alive */
    process_leave_sender_role(arena);
    EXPECT(!process_sender_is_alive(arena));
    EXPECT_EQ_U64(load_relaxed_u32(&arena->me->role), ROLE_PRODUCER);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->sender_epoch), 2);
}

TEST_IN_ARENA(geometry_of(8, 512), the_free_role_shows_whether_the_sender_died_or_left)
{
    EXPECT(!process_sender_died(arena)); /* there has never been a sender */
    struct arena *dying = arena_attached(file);
    EXPECT_STATUS(process_take_sender_role(dying, "", NULL), STATUS_OK);
    arena_detach(dying);
    EXPECT(process_sender_died(arena));
    EXPECT_STATUS(process_take_sender_role(arena, "", NULL), STATUS_OK);
    process_sender_leaves_cleanly(arena);
    process_leave_sender_role(arena);
    EXPECT(!process_sender_died(arena));
    EXPECT_STATUS(process_take_sender_role(arena, "", NULL), STATUS_OK);
    process_leave_sender_role(arena);
    EXPECT(process_sender_died(arena));
}

/* ---- the name of its sink ---- */

/* Returns a name of the maximum length whose words all differ. */
static const char *longest_name(void)
{
    static char name[SINK_NAME_SIZE] = "log:/";
    for (size_t i = strlen(name); i < SINK_NAME_SIZE - 1; i++) {
        name[i] = (char)('a' + i % 25);
    }
    return name;
}

static void expect_sink_name(const struct arena *arena, const char *expected)
{
    char name[SINK_NAME_SIZE];
    bool is_known = process_sink_name(arena, name);
    EXPECT_OR_SAY(is_known && strcmp(name, expected) == 0, "the sink is %s, expected %s", is_known ? name : "not known",
                  expected);
}

static void expect_no_sink_name(const struct arena *arena)
{
    char name[SINK_NAME_SIZE];
    EXPECT(!process_sink_name(arena, name));
}

static void sender_role_taken(struct arena *arena, const char *sink_name)
{
    EXPECT_STATUS(process_take_sender_role(arena, sink_name, NULL), STATUS_OK);
}

TEST_IN_ARENA(geometry_of(8, 512), a_sink_has_a_name_as_long_as_its_sender_lives_and_has_the_role)
{
    struct arena *other = arena_attached(file);
    expect_no_sink_name(arena);
    sender_role_taken(other, longest_name());
    expect_sink_name(arena, longest_name());
    expect_sink_name(other, longest_name());
    process_leave_sender_role(other);
    expect_no_sink_name(arena);
    sender_role_taken(other, "log:/a");
    expect_sink_name(arena, "log:/a");
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->sink_name[SINK_NAME_SIZE / 8 - 1]), 0);
    arena_detach(other);
    expect_no_sink_name(arena);
    sender_role_taken(arena, "");
    expect_sink_name(arena, "");
    process_leave_sender_role(arena);
}

TEST_IN_ARENA(geometry_of(8, 512), a_process_with_the_role_of_a_dead_sender_has_no_sink_name_yet)
{
    struct arena *other = arena_attached(file);
    uint32_t dead = other->owner;
    sender_role_taken(other, "log:/dead");
    arena_detach(other);
    other = arena_attached(file);
    store_relaxed_u32(&arena->globals->sender_owner, dead);
    EXPECT_STATUS(byte_lock_try(other->lock_descriptor, SENDER_LOCK_BYTE, BYTE_EXCLUSIVE, NULL), STATUS_OK);
    EXPECT(process_sender_is_alive(arena));
    expect_no_sink_name(arena);
    sender_role_taken(other, "log:/living");
    expect_sink_name(arena, "log:/living");
    arena_detach(other);
}

static void take_role_named(struct arena *arena, void *sink_name)
{
    sender_role_taken(arena, sink_name);
}

static void expect_whole_name_after(const char *point, int signal)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    struct arena *before = arena_attached(file);
    sender_role_taken(before, "log:/before");
    arena_detach(before);
    char name[SINK_NAME_SIZE];
    memcpy(name, longest_name(), sizeof name);
    pid_t child = child_started(file, take_role_named, name, point, signal);
    int status;
    EXPECT(waitpid(child, &status, WUNTRACED) == child);
    EXPECT(process_sender_is_alive(arena) == (signal == SIGSTOP));
    expect_no_sink_name(arena);
    if (signal == SIGSTOP) {
        kill(child, SIGKILL);
        EXPECT(waitpid(child, &status, 0) == child);
    }
    sender_role_taken(arena, "log:/next");
    expect_sink_name(arena, "log:/next");
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->sink_name[SINK_NAME_SIZE / 8 - 1]), 0);
    process_leave_sender_role(arena);
    arena_end(arena, file);
}

TEST(a_sender_that_dies_or_stops_while_it_publishes_its_sink_has_published_nothing)
{
    expect_whole_name_after("sink_name_word_written", SIGKILL);
    expect_whole_name_after("sink_name_word_written", SIGSTOP);
    expect_whole_name_after("sender_epoch_raised", SIGKILL);
    expect_whole_name_after("sender_epoch_raised", SIGSTOP);
}

struct successor {
    struct arena *leaving;
    struct arena *coming;
};

static void take_over(void *argument)
{
    struct successor *successor = argument;
    process_leave_sender_role(successor->leaving);
    sender_role_taken(successor->coming, "log:/new");
}

static void expect_new_name_after(const char *point, bool is_same_process)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    struct arena *old = arena_attached(file);
    struct arena *new = arena_attached(file);
    struct successor successor = {.leaving = old, .coming = is_same_process ? old : new};
    sender_role_taken(old, longest_name());
    interrupt_at(point, 0, take_over, &successor);
    expect_sink_name(arena, "log:/new");
    EXPECT(interruption_is_over());
    arena_detach(old);
    arena_detach(new);
    arena_end(arena, file);
}

TEST(a_role_that_changes_hands_between_two_reads_is_read_again)
{
    expect_new_name_after("sink_name_copied", false);
    expect_new_name_after("sink_name_copied", true);
}

/* A reader has read one half of the old name and one half of the new name. */
TEST_IN_ARENA(geometry_of(8, 512), a_name_that_is_half_read_when_the_role_changes_hands_is_not_taken)
{
    struct arena *old = arena_attached(file);
    struct arena *new = arena_attached(file);
    struct successor successor = {.leaving = old, .coming = new};
    sender_role_taken(old, longest_name());
    interrupt_at("sink_name_word_copied", SINK_NAME_SIZE / 16, take_over, &successor);
    expect_sink_name(arena, "log:/new");
    EXPECT(interruption_is_over());
    arena_detach(old);
    arena_detach(new);
}

static struct arena *restless;

static void raise_epoch(const char *name)
{
    if (strcmp(name, "sink_name_copied") == 0) {
        add_u64(&restless->globals->sender_epoch, 1);
    }
}

TEST_IN_ARENA(geometry_of(8, 512), hostile_bytes_in_the_name_of_a_sink_have_an_end_and_delay_no_process)
{
    char name[SINK_NAME_SIZE];
    sender_role_taken(arena, "log:/a");
    memset((void *)arena->globals->sink_name, 0xff, SINK_NAME_SIZE);
    EXPECT(process_sink_name(arena, name));
    EXPECT_EQ_U64(strlen(name), SINK_NAME_SIZE - 1);
    restless = arena;
    point_hook = raise_epoch;
    expect_no_sink_name(arena);
    point_hook = NULL;
    store_relaxed_u32(&arena->globals->sender_owner, UINT32_MAX);
    expect_no_sink_name(arena);
    memset((void *)arena->globals->sink_name, 0, SINK_NAME_SIZE);
    process_leave_sender_role(arena);
}

RUN_ALL()
