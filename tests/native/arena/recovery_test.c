/* SPDX-License-Identifier: Apache-2.0
 *
 * Cold recovery, called on an arena that no other process uses: the outcome for each slot, for locks and roles (which
 * only living processes hold), and for arenas full of garbage.
 */
#include "arena/recovery.h"

#include "arena/attach.h"
#include "arena/process.h"
#include "arena/registry.h"
#include "core/planting.h"
#include "randomness.h"

enum { SLOT_COUNT = 8, BATCH_SIZE = 512, GARBAGE_ROUNDS = 400 };

/* ---- the arena after recovery ---- */

static struct recovery_report recovered(struct arena *arena)
{
    struct recovery_report report;
    struct error error = {0};
    EXPECT_STATUS(recovery_run(arena, &report, &error), STATUS_OK);
    return report;
}

/* Recovers an arena. The plan must report exactly what the recovery then does. */
static struct recovery_report recovered_as_planned(struct arena *arena)
{
    struct recovery_report plan;
    struct error error = {0};
    EXPECT_STATUS(recovery_plan(arena, &plan, &error), STATUS_OK);
    struct recovery_report report = recovered(arena);
    EXPECT_EQ_U64(report.freed_count, plan.freed_count);
    EXPECT_EQ_U64(report.sealed_count, plan.sealed_count);
    EXPECT_EQ_U64(report.ready_count, plan.ready_count);
    EXPECT_EQ_U64(report.quarantined_count, plan.quarantined_count);
    EXPECT_EQ_U64(report.record_count, plan.record_count);
    EXPECT_EQ_U64(report.is_same_boot, plan.is_same_boot);
    return report;
}

static void expect_scrubbed(const struct arena *arena, uint32_t slot_index)
{
    static const uint8_t zeros[PAGE_SIZE_BYTES];
    EXPECT_EQ_U64(arena->geometry.slot_stride, sizeof zeros);
    EXPECT_OR_SAY(memcmp(arena_slot_data(arena, slot_index), zeros, sizeof zeros) == 0, "slot %u is not scrubbed",
                  slot_index);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->slots[slot_index].written_end), 0);
    EXPECT_EQ_U64(arena->slots[slot_index].chain_next, 0);
}

static uint64_t errors_logged(const struct arena *arena)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < ERROR_LOG_COUNT; i++) {
        count += load_relaxed_u64(&arena->error_log[i].count);
    }
    return count;
}

/* ---- the transition table ---- */

TEST(slots_of_dead_processes_are_freed_and_scrubbed_in_any_boot)
{
    static const struct {
        const char *name;
        enum slot_state state;
        uint64_t payload;
    } rows[] = {
        {"granted", SLOT_GRANT, 3},
        {"owned", SLOT_OWNED, 5},
        {"owned as part of a chain", SLOT_OWNED, UINT64_C(1) << 31 | 5},
        {"open and empty", SLOT_OPEN, RECORDS_START},
        {"done", SLOT_DONE, UINT64_C(2) << SLOT_SIZE_BITS | 200},
        {"a piece of a free slot", SLOT_CONT, UINT64_C(1) << SLOT_GENERATION_BITS},
        {"a piece of a head of another generation", SLOT_CONT, UINT64_C(1) << SLOT_GENERATION_BITS | 9},
        {"a piece of a slot that does not exist", SLOT_CONT, UINT64_C(77) << SLOT_GENERATION_BITS},
        {"a piece of itself", SLOT_CONT, UINT64_C(4) << SLOT_GENERATION_BITS | 6},
    };
    for (uint32_t i = 0; i < COUNT_OF(rows) * 2; i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        word_plant(arena, 4, rows[i / 2].state, 6, rows[i / 2].payload);
        bytes_plant(arena, 4, 200);
        if (i % 2 != 0) {
            boot_again(arena);
        }
        struct recovery_report report = recovered_as_planned(arena);
        EXPECT_OR_SAY(slot_word_at(arena, 4) == slot_word(SLOT_FREE, 7, 0), "%s was not freed", rows[i / 2].name);
        EXPECT_EQ_U64(report.freed_count, 1);
        EXPECT_EQ_U64(report.quarantined_count + report.ready_count + report.sealed_count, 0);
        expect_scrubbed(arena, 4);
        expect_all_free(arena);
        arena_end(arena, file);
    }
}

TEST(an_open_batch_is_sealed_with_its_committed_records)
{
    for (int is_other_boot = 0; is_other_boot <= 1; is_other_boot++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        uint32_t slot_index = batch_plant(arena, 3);
        uint64_t word = slot_word_at(arena, slot_index);
        EXPECT_EQ_U64(slot_word_state(word), SLOT_OPEN);
        if (is_other_boot) {
            boot_again(arena);
        }
        struct recovery_report report = recovered_as_planned(arena);
        EXPECT_EQ_U64(slot_word_at(arena, slot_index), slot_word_with_state(word, SLOT_READY));
        EXPECT_EQ_U64(report.sealed_count, 1);
        EXPECT_EQ_U64(report.ready_count, 1);
        EXPECT_EQ_U64(report.record_count, 3);
        EXPECT_EQ_U64(report.is_same_boot, !is_other_boot);
        expect_exactly(arena, 0, 3);
        arena_end(arena, file);
    }
}

TEST(recovery_keeps_the_word_of_a_ready_batch)
{
    for (int is_other_boot = 0; is_other_boot <= 1; is_other_boot++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        uint32_t slot_index = ready_batch_plant(arena, 4);
        uint64_t word = slot_word_at(arena, slot_index);
        if (is_other_boot) {
            boot_again(arena);
        }
        struct recovery_report report = recovered_as_planned(arena);
        EXPECT_EQ_U64(slot_word_at(arena, slot_index), word);
        EXPECT_EQ_U64(report.ready_count, 1);
        EXPECT_EQ_U64(report.record_count, 4);
        EXPECT_EQ_U64(report.sealed_count + report.freed_count + report.quarantined_count, 0);
        expect_exactly(arena, 0, 4);
        arena_end(arena, file);
    }
}

TEST(an_oversized_batch_is_kept_with_its_pieces)
{
    for (int is_other_boot = 0; is_other_boot <= 1; is_other_boot++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        uint32_t head = chain_plant(arena);
        if (is_other_boot) {
            boot_again(arena);
        }
        store_relaxed_u64(&arena->globals->oversized_bytes, 0);
        struct recovery_report report = recovered_as_planned(arena);
        EXPECT_EQ_U64(report.ready_count, 1);
        EXPECT_EQ_U64(report.freed_count, 0);
        EXPECT_EQ_U64(slot_state_at(arena, head), SLOT_READY);
        EXPECT_EQ_U64(slots_in_state(arena, SLOT_CONT), 2);
        EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->oversized_bytes), (uint64_t)3 * BATCH_SIZE);
        arena_end(arena, file);
    }
}

/* ---- after a crash of the host ---- */

static void damage_byte(struct arena *arena, uint32_t slot_index)
{
    arena_slot_data(arena, slot_index)[RECORDS_START + 3] ^= 1;
}

static void damage_last_piece(struct arena *arena, uint32_t slot_index)
{
    uint32_t slots[3];
    EXPECT_EQ_U64(slot_chain_walk(arena, slot_index, slots, 3), 3);
    arena_slot_data(arena, slots[2])[10] ^= 1;
}

/* Raises the count by two. The place of the checksum depends only on the parity, so the checksum stays the same. */
static void damage_count(struct arena *arena, uint32_t slot_index)
{
    uint64_t word = slot_word_at(arena, slot_index);
    word_plant(arena, slot_index, slot_word_state(word), slot_word_generation(word),
               slot_payload_filled(slot_word_count(word) + 2, slot_word_size(word)));
}

static void damage_size(struct arena *arena, uint32_t slot_index)
{
    uint64_t word = slot_word_at(arena, slot_index);
    word_plant(arena, slot_index, slot_word_state(word), slot_word_generation(word),
               slot_payload_filled(slot_word_count(word), slot_word_size(word) - 1));
}

TEST(after_a_crash_of_the_host_a_contradictory_batch_is_quarantined_and_logged)
{
    static const struct {
        const char *name;
        bool is_chain;
        void (*damage)(struct arena *arena, uint32_t slot_index);
    } rows[] = {
        {"a byte of a record", false, damage_byte},
        {"a byte of the last piece", true, damage_last_piece},
        {"the count", false, damage_count},
        {"the size", false, damage_size},
    };
    for (uint32_t i = 0; i < COUNT_OF(rows); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        uint32_t slot_index = rows[i].is_chain ? chain_plant(arena) : ready_batch_plant(arena, 3);
        rows[i].damage(arena, slot_index);
        boot_again(arena);
        struct recovery_report report = recovered_as_planned(arena);
        EXPECT_OR_SAY(slot_state_at(arena, slot_index) == SLOT_BAD, "%s: not quarantined", rows[i].name);
        EXPECT_EQ_U64(report.quarantined_count, 1);
        EXPECT_EQ_U64(report.ready_count, 0);
        EXPECT_EQ_U64(slots_in_state(arena, SLOT_CONT), rows[i].is_chain ? 2 : 0);
        EXPECT_EQ_U64(errors_logged(arena), 1);
        arena_end(arena, file);
    }
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), in_the_same_boot_the_words_are_true_and_bytes_are_not_read)
{
    uint32_t slot_index = ready_batch_plant(arena, 3);
    damage_byte(arena, slot_index);
    EXPECT_EQ_U64(recovered_as_planned(arena).ready_count, 1);
    EXPECT_EQ_U64(slot_state_at(arena, slot_index), SLOT_READY);
    damage_byte(arena, slot_index);
}

/* A data page may be on the disk although the page with its header is not. */
TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE),
              after_a_crash_of_the_host_free_slots_are_zeros_whatever_their_headers_say)
{
    bytes_plant(arena, 2, 300);
    store_relaxed_u32(&arena->slots[2].written_end, 0);
    word_plant(arena, 3, SLOT_OWNED, 1, arena->owner);
    bytes_plant(arena, 3, BATCH_SIZE);
    store_relaxed_u32(&arena->slots[3].written_end, 70);
    boot_again(arena);
    EXPECT_EQ_U64(recovered_as_planned(arena).freed_count, 1);
    expect_scrubbed(arena, 2);
    expect_scrubbed(arena, 3);
}

/* ---- partitions whose entries the disk does not have ---- */

static void lose_counts(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->partition_count, 0);
}

static void lose_partition(struct arena *arena)
{
    arena->partitions[0].crc = 0;
}

static void lose_topic(struct arena *arena)
{
    memset(&arena->topics[0], 0, sizeof arena->topics[0]);
}

static void lose_name(struct arena *arena)
{
    memset(arena->names, 0, 5);
}

static void rename_partition(struct arena *arena)
{
    arena->partitions[0].partition = 1;
}

static uint32_t force_count;

static int count_force(int descriptor)
{
    force_count++;
    return fdatasync(descriptor);
}

/* A later entry gets the index, and the batch must not be sent to that partition. */
TEST(after_a_crash_of_the_host_a_batch_of_a_partition_without_an_entry_is_quarantined)
{
    static void (*const losses[])(struct arena *arena) = {lose_counts, lose_partition, lose_topic, lose_name,
                                                          rename_partition};
    for (uint32_t i = 0; i < COUNT_OF(losses); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        uint32_t slot_index = ready_batch_plant(arena, 2);
        uint64_t next_seq = load_relaxed_u64(&arena->partitions[0].next_seq);
        losses[i](arena);
        arena->force = count_force;
        force_count = 0;
        boot_again(arena);
        EXPECT_EQ_U64(recovered_as_planned(arena).quarantined_count, 1);
        EXPECT_OR_SAY(slot_state_at(arena, slot_index) == SLOT_BAD, "row %u: not quarantined", i);
        EXPECT_EQ_U64(registry_partition_count(arena), 0);
        for (uint32_t partition = 0; partition < arena->geometry.partition_count; partition++) {
            EXPECT_EQ_U64(arena->partitions[partition].crc, 0);
        }
        EXPECT_EQ_U64(load_relaxed_u64(&arena->partitions[0].next_seq), next_seq);
        EXPECT_EQ_U64(load_relaxed_u64(&arena->topics[0].opened), 0);
        EXPECT_EQ_U64(force_count, 1);
        partitions_register(arena);
        expect_sound(arena);
        arena_detach(arena);
        close(file);
    }
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), the_entries_before_the_first_one_that_is_lost_are_kept)
{
    ready_batch_plant(arena, 2);
    memset(&arena->partitions[3], 0, sizeof arena->partitions[3]);
    boot_again(arena);
    struct recovery_report report = recovered_as_planned(arena);
    EXPECT_EQ_U64(report.quarantined_count, 0);
    EXPECT_EQ_U64(report.ready_count, 1);
    EXPECT_EQ_U64(registry_topic_count(arena), 1);
    EXPECT_EQ_U64(registry_partition_count(arena), 3);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->name_heap_used), 5);
    EXPECT_EQ_U64(errors_logged(arena), 1);
}

/* A creator that dies after it has raised name_heap_used, and before topic_count, leaves its name in the heap. */
TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), topics_after_the_name_of_a_dead_creator_are_kept)
{
    struct registry *registry;
    struct error error = {0};
    uint32_t topic_index;
    store_relaxed_u32(&arena->globals->name_heap_used, 7);
    uint32_t slot_index = ready_batch_plant(arena, 2);
    add_u32(&arena->globals->name_heap_used, 3);
    EXPECT_STATUS(registry_open(arena, &registry, &error), STATUS_OK);
    EXPECT_STATUS(registry_topic(registry, "second", 6, &topic_index), STATUS_OK);
    registry_close(registry);
    boot_again(arena);
    EXPECT_EQ_U64(recovered_as_planned(arena).ready_count, 1);
    EXPECT_EQ_U64(slot_state_at(arena, slot_index), SLOT_READY);
    EXPECT_EQ_U64(registry_topic_count(arena), 2);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->name_heap_used), 7 + 5 + 3 + 6);
    EXPECT_EQ_U64(errors_logged(arena), 0);
}

static int refuse_force(int descriptor)
{
    (void)descriptor;
    errno = EIO;
    return -1;
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), an_arena_that_cannot_be_forced_is_recovered_again)
{
    struct recovery_report report;
    struct error error = {0};
    boot_again(arena);
    arena->force = refuse_force;
    EXPECT_STATUS(recovery_run(arena, &report, &error), STATUS_OS);
    arena->force = fdatasync;
    EXPECT(!recovered(arena).is_same_boot);
    EXPECT(recovered(arena).is_same_boot);
}

/* ---- impossible words ---- */

static void spoil_partition(struct arena *arena, uint32_t slot_index)
{
    store_relaxed_u32(&arena->slots[slot_index].partition_index, UINT32_MAX);
}

static void spoil_seq(struct arena *arena, uint32_t slot_index)
{
    store_relaxed_u64(&arena->slots[slot_index].seq, UINT64_MAX);
}

static void spoil_count(struct arena *arena, uint32_t slot_index)
{
    word_plant(arena, slot_index, SLOT_READY, 1, slot_payload_filled(0, 200));
}

static void spoil_size_low(struct arena *arena, uint32_t slot_index)
{
    word_plant(arena, slot_index, SLOT_READY, 1, slot_payload_filled(1, RECORDS_START));
}

static void spoil_size_high(struct arena *arena, uint32_t slot_index)
{
    word_plant(arena, slot_index, SLOT_OPEN, 1, slot_payload_filled(1, BATCH_SIZE + 1));
}

static void spoil_chain(struct arena *arena, uint32_t slot_index)
{
    word_plant(arena, slot_index, SLOT_READY, 1, slot_payload_filled(1, BATCH_SIZE + 1));
    arena->slots[slot_index].chain_next = UINT32_MAX;
}

TEST(an_impossible_batch_is_quarantined_in_any_boot)
{
    static void (*const spoilers[])(struct arena *arena, uint32_t slot_index) = {
        spoil_partition, spoil_seq, spoil_count, spoil_size_low, spoil_size_high, spoil_chain,
    };
    for (uint32_t i = 0; i < COUNT_OF(spoilers); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        uint32_t slot_index = ready_batch_plant(arena, 2);
        spoilers[i](arena, slot_index);
        struct recovery_report report = recovered_as_planned(arena);
        EXPECT_OR_SAY(slot_state_at(arena, slot_index) == SLOT_BAD, "row %u: not quarantined", i);
        EXPECT_EQ_U64(report.quarantined_count, 1);
        EXPECT_EQ_U64(errors_logged(arena), 1);
        arena_detach(arena);
        close(file);
    }
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), a_bad_slot_is_unchanged_and_its_number_is_not_used_again)
{
    uint32_t slot_index = ready_batch_plant(arena, 2);
    uint64_t word = slot_word_with_state(slot_word_at(arena, slot_index), SLOT_BAD);
    store_release_u64(&arena->slots[slot_index].word, word);
    store_relaxed_u64(&arena->slots[slot_index].seq, 40);
    struct recovery_report report = recovered_as_planned(arena);
    EXPECT_EQ_U64(slot_word_at(arena, slot_index), word);
    EXPECT_EQ_U64(report.quarantined_count + report.freed_count + report.ready_count, 0);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->partitions[0].next_seq), 41);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), tables_that_claim_too_much_are_refused_and_nothing_is_changed)
{
    atomic_u32 *const counts[] = {
        &arena->globals->topic_count,        &arena->globals->partition_count,   &arena->globals->name_heap_used,
        &arena->globals->process_count_used, &arena->globals->waiter_count_used,
    };
    for (uint32_t i = 0; i < COUNT_OF(counts); i++) {
        struct recovery_report report;
        struct error error = {0};
        uint32_t before = load_relaxed_u32(counts[i]);
        store_relaxed_u32(counts[i], 5000);
        EXPECT_STATUS(recovery_plan(arena, &report, &error), STATUS_CORRUPT);
        EXPECT_STATUS(recovery_run(arena, &report, &error), STATUS_CORRUPT);
        EXPECT(error.message[0] != 0);
        EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->arena_epoch), 0);
        store_relaxed_u32(counts[i], before);
    }
}

/* ---- locks, roles and entries, which only the living hold ---- */

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), locks_hazards_roles_and_waiters_are_cleared_and_acquisitions_go_on)
{
    atomic_u64 *const locks[] = {&arena->globals->pool_lock, &arena->globals->registry_lock};
    struct producer_lock *producer_lock = &arena->partitions[7].lock;
    for (uint32_t i = 0; i < COUNT_OF(locks); i++) {
        store_relaxed_u64(locks[i], lock_word(70 + i, owner_of(3, 2)) | LOCK_WAITERS);
    }
    store_relaxed_u64(&producer_lock->word, lock_word(73, owner_of(3, 2)));
    store_relaxed_u64(&producer_lock->released, lock_word(72, owner_of(2, 1)));
    store_relaxed_u64(&arena->partitions[7].open, open_word(72, 2));
    store_relaxed_u32(&arena->processes[3].writing, 5);
    store_relaxed_u32(&arena->processes[3].role, ROLE_SENDER);
    store_relaxed_u32(&arena->globals->sender_owner, owner_of(3, 2));
    store_relaxed_u32(&arena->globals->sender_sleep, 1);
    store_relaxed_u64(&arena->waiters[2].word, waiter_word(WAITER_WAIT, 1, 9));
    store_relaxed_u64(&arena->waiters[1].word, waiter_word(WAITER_PARKED, 1, 8));
    store_relaxed_u32(&arena->globals->waiting_count, 1);
    store_relaxed_u32(&arena->globals->parked_count, 1);
    store_relaxed_u64(&arena->globals->stuck_epoch, 4);
    store_relaxed_u64(&arena->partitions[7].stuck, stuck_word(STUCK_NO_LEADER, 5, 1000));
    store_relaxed_u32(&arena->topics[1].is_parked_for, 1);
    store_relaxed_u32(&arena->processes[3].fallback, 1);
    recovered(arena);
    EXPECT_EQ_U64(waiter_word_state(load_relaxed_u64(&arena->waiters[1].word)), WAITER_IDLE);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->parked_count), 0);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->stuck_epoch), 0);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->partitions[7].stuck), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->topics[1].is_parked_for), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->processes[3].fallback), 0);
    for (uint32_t i = 0; i < COUNT_OF(locks); i++) {
        EXPECT_EQ_U64(load_relaxed_u64(locks[i]), lock_word(70 + i, 0));
    }
    EXPECT_EQ_U64(load_relaxed_u64(&producer_lock->word), lock_word(73, owner_of(3, 2)));
    EXPECT_EQ_U64(load_relaxed_u64(&producer_lock->released), lock_word(73, owner_of(3, 2)));
    EXPECT_EQ_U64(load_relaxed_u64(&arena->partitions[7].open), open_word(73, NO_SLOT));
    EXPECT_EQ_U64(load_relaxed_u32(&arena->processes[3].writing), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->processes[3].role), ROLE_NONE);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->sender_owner), 0);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->sender_sleep), 0);
    EXPECT_EQ_U64(waiter_word_state(load_relaxed_u64(&arena->waiters[2].word)), WAITER_IDLE);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->globals->waiting_count), 0);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), numbers_of_a_partition_are_raised_and_never_lowered)
{
    struct slot_header *slot = &arena->slots[ready_batch_plant(arena, 5)];
    store_relaxed_u64(&slot->seq, 20);
    store_relaxed_u32(&slot->base_sequence, INT32_MAX - 1);
    store_relaxed_u32(&slot->producer_epoch, 1 << 16 | 3);
    store_relaxed_u32(&arena->partitions[0].producer_epoch, 1 << 16 | 3);
    store_relaxed_u64(&slot->producer_id, 7);
    store_relaxed_u64(&arena->partitions[0].producer_id, 7);
    store_relaxed_u32(&arena->partitions[0].next_base_sequence, INT32_MAX - 1);
    recovered(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->partitions[0].next_seq), 21);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->partitions[0].next_base_sequence), 3);
    store_relaxed_u64(&arena->partitions[0].next_seq, 90);
    store_relaxed_u32(&arena->partitions[0].next_base_sequence, 50);
    recovered(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->partitions[0].next_seq), 90);
    EXPECT_EQ_U64(load_relaxed_u32(&arena->partitions[0].next_base_sequence), 50);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), hints_are_rebuilt_from_the_words)
{
    uint32_t slot_index = ready_batch_plant(arena, 1);
    store_relaxed_u64(&arena->free_hints[0], UINT64_C(1) << slot_index);
    store_relaxed_u64(&arena->ready_hints[0], 0);
    store_relaxed_u64(&arena->ready_groups[0], UINT64_MAX - 1);
    recovered(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->free_hints[0]), LOW_BITS(SLOT_COUNT) & ~(UINT64_C(1) << slot_index));
    EXPECT_EQ_U64(load_relaxed_u64(&arena->ready_hints[0]), UINT64_C(1) << slot_index);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->ready_groups[0]), 1);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), a_topic_holds_the_slots_of_the_batches_that_are_left)
{
    uint64_t held = 0;
    ready_batch_plant(arena, 3);
    chain_plant(arena);
    store_relaxed_u64(&arena->topics[0].opened, 77);
    store_relaxed_u64(&arena->topics[0].released, 5);
    store_relaxed_u64(&arena->topics[1].released, 5);
    recovered(arena);
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        held += slot_word_state(slot_word_at(arena, i)) != SLOT_FREE;
    }
    EXPECT(held > 2);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->topics[0].opened), held);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->topics[0].released), 0);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->topics[1].opened), 0);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->topics[1].released), 0);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), the_time_of_the_last_acknowledgement_is_one_of_this_boot)
{
    store_relaxed_u64(&arena->globals->acked_ns, 1234);
    recovered(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->acked_ns), 1234);
    boot_again(arena);
    recovered(arena);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->acked_ns), 0);
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), the_boot_id_is_that_of_this_boot_and_is_stored)
{
    uint8_t boot_id[16], again[16];
    static const uint8_t unknown[16];
    boot_id_read(boot_id);
    boot_id_read(again);
    EXPECT(memcmp(boot_id, again, sizeof boot_id) == 0);
    EXPECT(memcmp(boot_id, unknown, sizeof boot_id) != 0);
    boot_again(arena);
    EXPECT(!recovered(arena).is_same_boot);
    EXPECT(memcmp(arena->globals->boot_id, boot_id, sizeof boot_id) == 0);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->arena_epoch), 1);
}

TEST(a_batch_of_another_boot_begins_a_new_span_and_one_of_this_boot_keeps_its_own)
{
    static const uint64_t uptimes_ns[] = {1, 600 * NS_PER_S, 30 * 24 * 3600 * NS_PER_S};
    for (uint32_t i = 0; i < COUNT_OF(uptimes_ns) * 2; i++) {
        bool is_other_boot = i % 2 != 0;
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        struct slot_header *slot = &arena->slots[ready_batch_plant(arena, 1)];
        slot->created_ns = uptimes_ns[i / 2];
        slot->delivery_stamp_ms = 7;
        store_relaxed_u64(&arena->globals->delivery_clock_ns, 60 * NS_PER_S);
        arena->clock = (struct clock){.is_manual = true, .manual_ns = 800 * NS_PER_S};
        if (is_other_boot) {
            boot_again(arena);
        }
        recovered(arena);
        EXPECT_EQ_U64(slot->created_ns, is_other_boot ? 800 * NS_PER_S : uptimes_ns[i / 2]);
        EXPECT_EQ_U64(slot->delivery_stamp_ms, is_other_boot ? 60000 : 7);
        EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->delivery_clock_ns), 60 * NS_PER_S);
        arena_end(arena, file);
    }
}

/* ---- arbitrary bytes ---- */

/* Returns a word with small parts, so that indices, generations and links are often equal. */
static uint64_t random_word(struct randomness *randomness)
{
    enum slot_state state = (enum slot_state)random_below(randomness, 8);
    uint32_t generation = (uint32_t)random_below(randomness, 2);
    if (state == SLOT_CONT) {
        return slot_word(state, generation, slot_payload_cont((uint32_t)random_below(randomness, SLOT_COUNT + 1),
                                                              (uint32_t)random_below(randomness, 2)));
    }
    uint32_t size = (uint32_t)random_below(randomness, 3) == 0 ? RECORDS_START
                                                               : (uint32_t)random_below(randomness, 3 * BATCH_SIZE);
    return slot_word(state, generation, slot_payload_filled((uint32_t)random_below(randomness, 3), size));
}

static void slots_fill_randomly(struct arena *arena, struct randomness *randomness)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        struct slot_header *slot = &arena->slots[i];
        random_fill(randomness, slot, sizeof *slot);
        store_relaxed_u64(&slot->word, random_below(randomness, 8) == 0 ? random_bits(randomness)
                                                                        : random_word(randomness));
        slot->chain_next = (uint32_t)random_below(randomness, SLOT_COUNT + 2);
        store_relaxed_u64(&slot->seq, random_magnitude(randomness));
        store_relaxed_u32(&slot->partition_index, (uint32_t)random_below(randomness, 9));
        store_relaxed_u32(&slot->written_end, (uint32_t)random_magnitude(randomness));
        random_fill(randomness, arena_slot_data(arena, i), 64);
    }
}

/* Fills everything with random bytes but the superblock and the tables of names, which recovery does not change. */
static void arena_fill_randomly(struct arena *arena, struct randomness *randomness)
{
    struct globals *globals = arena->globals;
    random_fill(randomness, arena->partitions, arena->geometry.partition_count * sizeof *arena->partitions);
    random_fill(randomness, arena->waiters, arena->geometry.waiter_count * sizeof *arena->waiters);
    random_fill(randomness, arena->completions, arena->geometry.completion_count * sizeof *arena->completions);
    random_fill(randomness, arena->error_log, ERROR_LOG_COUNT * sizeof *arena->error_log);
    store_relaxed_u64(&arena->free_hints[0], random_bits(randomness));
    store_relaxed_u64(&arena->ready_hints[0], random_bits(randomness));
    store_relaxed_u64(&arena->ready_groups[0], random_bits(randomness));
    store_relaxed_u64(&globals->pool_lock, random_bits(randomness));
    store_relaxed_u32(&globals->waiting_count, (uint32_t)random_bits(randomness));
    store_relaxed_u64(&globals->oversized_bytes, random_magnitude(randomness));
    store_relaxed_u64(&globals->completion_tail, random_magnitude(randomness));
    for (uint32_t i = 0; i < arena->geometry.process_count; i++) {
        store_relaxed_u32(&arena->processes[i].writing, (uint32_t)random_bits(randomness));
    }
    slots_fill_randomly(arena, randomness);
}

/* A second recovery changes only the number of recoveries. */
static void expect_fixed_point(struct arena *arena)
{
    uint8_t *before = malloc(arena->size);
    memcpy(before, arena->base, arena->size);
    struct recovery_report report = recovered(arena);
    EXPECT_EQ_U64(report.freed_count + report.sealed_count + report.quarantined_count, 0);
    add_u64(&arena->globals->arena_epoch, (uint64_t)-1);
    EXPECT(memcmp(before, arena->base, arena->size) == 0);
    free(before);
}

TEST(any_arena_is_recovered_as_planned_to_a_sound_one_and_only_once)
{
    struct randomness randomness = randomness_seeded("any_arena_is_recovered");
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
    for (int round = 0; round < GARBAGE_ROUNDS; round++) {
        arena_fill_randomly(arena, &randomness);
        boot_again(arena);
        EXPECT(!recovered_as_planned(arena).is_same_boot);
        expect_sound(arena);
        expect_fixed_point(arena);
    }
    arena_detach(arena);
    close(file);
}

/* Within the same boot, recovery does not read the bytes of records, so it guarantees nothing about them. */
TEST(any_arena_of_the_same_boot_has_sound_words_afterwards)
{
    struct randomness randomness = randomness_seeded("any_arena_of_the_same_boot");
    const struct verify_options options = {.depth = VERIFY_NORMAL, .is_idle = true};
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
    for (int round = 0; round < GARBAGE_ROUNDS; round++) {
        struct finding finding = {.text = ""};
        arena_fill_randomly(arena, &randomness);
        EXPECT(recovered_as_planned(arena).is_same_boot);
        uint32_t count = verify(arena, &options, &finding, 1);
        EXPECT_OR_SAY(count == 0, "slot %d: %s", (int)finding.slot_index, finding.text);
        expect_fixed_point(arena);
    }
    arena_detach(arena);
    close(file);
}

/* ---- death in the middle ---- */

TEST(a_recovery_that_dies_anywhere_is_done_by_the_next)
{
    static const char *const points[] = {"recovery_cleared", "recovery_scrubbed", "recovery_slot_done",
                                         "recovery_rebuilt"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        batch_plant(arena, 3);
        uint32_t owned;
        EXPECT_STATUS(buffer_pool_try_allocate(arena, &owned), STATUS_OK);
        bytes_plant(arena, owned, 100);
        boot_again(arena);
        arena_detach(arena);
        pid_t child = fork();
        if (child == 0) {
            int signal = SIGKILL;
            interrupt_at(points[i], 0, raise_signal, &signal);
            arena_attached(file);
            _exit(1);
        }
        EXPECT(child_was_killed(child));
        arena = arena_attached(file);
        EXPECT(arena->was_recovered);
        EXPECT_EQ_U64(slot_state_at(arena, owned), SLOT_FREE);
        expect_exactly(arena, 0, 3);
        arena_end(arena, file);
    }
}

RUN_ALL()
