/* SPDX-License-Identifier: Apache-2.0 */
#include "shm/process.h"

#include "participants.h"

/* ---- entries ---- */

TEST(entries_are_given_from_the_lowest_and_describe_their_process)
{
    int file = arena_file_new();
    struct arena *first = arena_created(file, geometry_of(2, 512));
    struct arena *second = arena_attached(file);
    EXPECT_EQ_U64(first->entry_index, 0);
    EXPECT_EQ_U64(second->entry_index, 1);
    EXPECT(first->owner != second->owner);
    EXPECT(second->me == &second->processes[1]);
    EXPECT_EQ_U64(load_acquire_u32(&second->me->pid), (uint64_t)getpid());
    EXPECT_EQ_U64(load_acquire_u32(&second->me->role), ROLE_PRODUCER);
    EXPECT(second->me->name[0] != 0);
    EXPECT(load_acquire_u64(&second->me->start_time_ticks) != 0);
    EXPECT_EQ_U64(load_acquire_u32(&first->globals->process_count_used), 2);
    arena_detach(second);
    arena_end(first, file);
}

TEST(an_entry_used_again_has_a_higher_generation_and_the_old_owner_is_dead)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    for (uint32_t round = 1; round <= 3; round++) {
        struct arena *other = arena_attached(file);
        uint32_t owner = other->owner;
        EXPECT_EQ_U64(other->entry_index, 1);
        EXPECT_EQ_U64(owner_generation(owner), round);
        EXPECT(process_is_alive(arena, owner));
        EXPECT(process_is_alive(other, owner));
        EXPECT(!process_is_alive(arena, owner_of(1, round - 1)));
        EXPECT(!process_is_alive(arena, owner_of(1, round + 1)));
        arena_detach(other);
        EXPECT(!process_is_alive(arena, owner));
    }
    arena_end(arena, file);
}

TEST(a_generation_wraps_within_an_owner)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    store_relaxed_u32(&arena->processes[1].generation, (uint32_t)LOW_BITS(OWNER_GENERATION_BITS));
    struct arena *other = arena_attached(file);
    EXPECT_EQ_U64(owner_generation(other->owner), 0);
    EXPECT(process_is_alive(arena, other->owner));
    EXPECT(!process_is_alive(arena, owner_of(1, (uint32_t)LOW_BITS(OWNER_GENERATION_BITS))));
    arena_detach(other);
    arena_end(arena, file);
}

TEST(garbage_owners_are_dead)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    const uint32_t garbage[] = {0,
                                (uint32_t)LOW_BITS(31),
                                UINT32_MAX,
                                arena->geometry.process_count + 1,
                                owner_of(arena->geometry.process_count - 1, 0),
                                owner_of(0, 0),
                                UINT32_C(1) << OWNER_INDEX_BITS};
    for (size_t i = 0; i < sizeof garbage / sizeof garbage[0]; i++) {
        EXPECT_OR_SAY(!process_is_alive(arena, garbage[i]), "%u lives", garbage[i]);
    }
    EXPECT(process_is_alive(arena, arena->owner));
    arena_end(arena, file);
}

TEST(when_every_entry_is_taken_the_next_one_is_told_and_leaves_no_trace)
{
    int file = arena_file_new();
    struct geometry geometry = geometry_of(2, 512);
    geometry.process_count = 2;
    struct arena *first = arena_created(file, geometry);
    struct arena *second = arena_attached(file);
    struct arena *third = NULL;
    struct error error = {0};
    EXPECT_STATUS(arena_attach(file_opened_again(file), file_opened_again(file), &third, &error), STATUS_NO_ENTRY);
    EXPECT(strstr(error.message, "process_count") != NULL);
    EXPECT(third == NULL);
    arena_detach(second);
    third = arena_attached(file);
    EXPECT_EQ_U64(third->entry_index, 1);
    arena_detach(third);
    arena_end(first, file);
}

static void stand_by(struct arena *arena, void *argument)
{
    (void)arena;
    (void)argument;
    raise(SIGSTOP);
}

TEST(a_stopped_process_lives_and_a_killed_one_does_not)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t child = child_started(stand_by, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(child));
    uint32_t owner = owner_of(1, load_acquire_u32(&arena->processes[1].generation));
    EXPECT(process_is_alive(arena, owner));
    child_kill(child);
    EXPECT(!process_is_alive(arena, owner));
    EXPECT(load_acquire_u32(&arena->processes[1].role) != ROLE_NONE);
    arena_end(arena, file);
}

static void nothing(struct arena *arena, void *argument)
{
    (void)argument;
    EXPECT(arena->owner != 0);
}

/* The plan of child_started begins after the attach, so these children attach once more themselves. */
static void attach_again(struct arena *arena, void *argument)
{
    (void)arena;
    arena_detach(arena_attached(*(const int *)argument));
}

static void detach_was_stopped(const char *point)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t child = fork();
    if (child == 0) {
        struct arena *own = arena_attached(file);
        child_plan = (struct child_plan){.point = point, .signal = SIGKILL};
        point_hook = child_signal_at_point;
        attach_again(own, &file);
        _exit(2);
    }
    EXPECT(child_was_killed(child));
    struct arena *next = arena_attached(file);
    EXPECT_EQ_U64(next->entry_index, 1);
    EXPECT(process_is_alive(arena, next->owner));
    arena_detach(next);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_process_killed_anywhere_in_its_registration_leaves_its_entry_to_the_next)
{
    detach_was_stopped("process_byte_locked");
    detach_was_stopped("process_generation_raised");
    detach_was_stopped("process_unregistered");
}

TEST(who_left_in_order_leaves_no_role_and_no_hazard)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    struct arena *other = arena_attached(file);
    store_release_u32(&other->me->writing, 2);
    arena_detach(other);
    EXPECT_EQ_U64(load_acquire_u32(&arena->processes[1].role), ROLE_NONE);
    EXPECT_EQ_U64(load_acquire_u32(&arena->processes[1].writing), 0);
    EXPECT(child_is_content(child_started(nothing, file, NULL, NULL, 0)));
    EXPECT_EQ_U64(load_acquire_u32(&arena->processes[1].role), ROLE_NONE);
    arena_end(arena, file);
}

/* ---- hazards ---- */

static void write_hazard(struct arena *arena, void *argument)
{
    (void)argument;
    store_release_u32(&arena->me->writing, 2);
    raise(SIGSTOP);
}

TEST(a_hazard_holds_while_its_process_lives)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    EXPECT(!process_anyone_writes(arena, 0));
    pid_t child = child_started(write_hazard, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(child));
    EXPECT(process_anyone_writes(arena, 1));
    EXPECT(!process_anyone_writes(arena, 0));
    child_kill(child);
    EXPECT(!process_anyone_writes(arena, 1));
    store_release_u32(&arena->me->writing, 1);
    EXPECT(process_anyone_writes(arena, 0));
    store_release_u32(&arena->me->writing, 0);
    arena_end(arena, file);
}

TEST(who_takes_over_an_entry_does_not_take_over_its_hazard)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    pid_t child = child_started(write_hazard, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(child));
    child_kill(child);
    EXPECT_EQ_U64(load_acquire_u32(&arena->processes[1].writing), 2);
    struct arena *next = arena_attached(file);
    EXPECT(!process_anyone_writes(arena, 1));
    EXPECT_EQ_U64(load_acquire_u32(&arena->processes[1].writing), 0);
    arena_detach(next);
    arena_end(arena, file);
}

/* ---- the sender role ---- */

static void be_sender(struct arena *arena, void *argument)
{
    (void)argument;
    EXPECT_STATUS(process_take_sender_role(arena), STATUS_OK);
    raise(SIGSTOP);
}

TEST(one_process_is_the_sender_until_it_leaves_or_dies)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(2, 512));
    EXPECT(!process_sender_is_alive(arena));
    pid_t child = child_started(be_sender, file, NULL, NULL, 0);
    EXPECT(child_is_stopped(child));
    EXPECT(process_sender_is_alive(arena));
    EXPECT_STATUS(process_take_sender_role(arena), STATUS_BUSY);
    EXPECT_EQ_U64(load_acquire_u32(&arena->me->role), ROLE_PRODUCER);
    EXPECT_EQ_U64(load_acquire_u64(&arena->globals->sender_epoch), 1);
    child_kill(child);
    EXPECT(!process_sender_is_alive(arena));
    EXPECT_STATUS(process_take_sender_role(arena), STATUS_OK);
    EXPECT_EQ_U64(load_acquire_u64(&arena->globals->sender_epoch), 2);
    EXPECT_EQ_U64(load_acquire_u32(&arena->me->role), ROLE_SENDER);
    EXPECT_EQ_U64(load_acquire_u32(&arena->globals->sender_owner), arena->owner);
    process_leave_sender_role(arena);
    struct arena *other = arena_attached(file);
    EXPECT(!process_sender_is_alive(other));
    EXPECT_STATUS(process_take_sender_role(other), STATUS_OK);
    arena_detach(other);
    EXPECT(!process_sender_is_alive(arena));
    arena_end(arena, file);
}

/* ---- byte locks ---- */

TEST(byte_locks_are_shared_or_exclusive_and_go_with_their_descriptor)
{
    int file = arena_file_new();
    int first = file_opened_again(file);
    int second = file_opened_again(file);
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_SHARED, NULL), STATUS_OK);
    EXPECT_STATUS(byte_lock_try(second, 9, BYTE_SHARED, NULL), STATUS_OK);
    EXPECT(!byte_is_locked(second, 9));
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_EXCLUSIVE, NULL), STATUS_BUSY);
    EXPECT_STATUS(byte_lock_try(second, 9, BYTE_UNLOCKED, NULL), STATUS_OK);
    EXPECT_STATUS(byte_lock_try(first, 9, BYTE_EXCLUSIVE, NULL), STATUS_OK);
    EXPECT(byte_is_locked(second, 9));
    EXPECT(!byte_is_locked(first, 9));
    EXPECT(!byte_is_locked(second, 8));
    close(first);
    EXPECT(!byte_is_locked(second, 9));
    close(second);
    close(file);
}

TEST(a_descriptor_that_cannot_be_asked_proves_nobody_dead)
{
    struct error error = {0};
    EXPECT(byte_is_locked(-1, 3));
    EXPECT_STATUS(byte_lock_try(-1, 3, BYTE_EXCLUSIVE, &error), STATUS_OS);
    EXPECT_EQ_U64((uint64_t)error.os_error, EBADF);
}

RUN_ALL()
