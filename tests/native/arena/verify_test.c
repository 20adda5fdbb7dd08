/* SPDX-License-Identifier: Apache-2.0
 *
 * verify reports nothing about a sound arena in any state. It finds each planted inconsistency at the expected depth,
 * and reports nothing else. It reads an arena of hostile bytes without writing, hanging or leaving it.
 */
#include "arena/verify.h"

#include <pthread.h>

#include "arena/attach.h"
#include "arena/counters.h"
#include "arena/process.h"
#include "arena/registry.h"
#include "core/planting.h"
#include "randomness.h"

enum { SLOT_COUNT = 16, BATCH_SIZE = 512, FINDINGS_MAX = 4, HOSTILE_ROUNDS = 3000 };
enum { NUMBER_AFTER_RECOVERY = 4711 };

struct verdict {
    uint32_t count;
    struct finding findings[FINDINGS_MAX];
};

static struct verdict verified(const struct arena *arena, enum verify_depth depth, bool is_idle)
{
    struct verdict verdict;
    const struct verify_options options = {.depth = depth, .is_idle = is_idle};
    verdict.count = verify(arena, &options, verdict.findings, FINDINGS_MAX);
    return verdict;
}

static void expect_nothing_found(const struct arena *arena, enum verify_depth depth, bool is_idle, const char *where)
{
    struct verdict verdict = verified(arena, depth, is_idle);
    for (uint32_t i = 0; i < verdict.count && i < FINDINGS_MAX; i++) {
        EXPECT_OR_SAY(false, "%s, depth %d, idle %d: slot %d: %s", where, (int)depth, is_idle,
                      (int)verdict.findings[i].slot_index, verdict.findings[i].text);
    }
    EXPECT_EQ_U64(verdict.count, 0);
}

/* ---- sound arenas ---- */

static void become_untouched(struct arena *arena)
{
    (void)arena;
}

static void become_open(struct arena *arena)
{
    batch_plant(arena, 3);
}

static void become_sealed(struct arena *arena)
{
    ready_batch_plant(arena, 3);
}

static void become_chained(struct arena *arena)
{
    chain_plant(arena);
}

/* Make a batch that was in flight when its sender left the role. */
static void become_drained(struct arena *arena)
{
    struct drained_batch batches[4];
    chain_plant(arena);
    batch_plant(arena, 3);
    struct accumulator *sender = sender_opened(arena);
    EXPECT_EQ_U64(drain_round(sender, 2, batches), 1);
    EXPECT_EQ_U64(drain_round(sender, 2, batches), 1);
    accumulator_close(sender);
}

static void become_quarantined(struct arena *arena)
{
    struct drained_batch batches[4];
    chain_plant(arena);
    struct accumulator *sender = sender_opened(arena);
    EXPECT_EQ_U64(drain_round(sender, 1, batches), 1);
    EXPECT_STATUS(sender_quarantine(sender->sender, batches[0].slot_index, batches[0].seq), STATUS_OK);
    accumulator_close(sender);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_BAD), 1);
}

/* Make the last process wait: it was granted slots, and needs more. */
static void become_waited_for(struct arena *arena)
{
    struct buffer_wait wait;
    uint32_t slots[SLOT_COUNT + 1];
    uint32_t count = 0;
    while (buffer_pool_try_allocate(arena, &slots[count]) == STATUS_OK) {
        count++;
    }
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 2, &wait, NULL), STATUS_OK);
    buffer_pool_return(arena, slots, 1, NULL);
    EXPECT_EQ_U64(slots_in_state(arena, SLOT_GRANT), 1);
}

static void become_granted(struct arena *arena)
{
    struct buffer_wait wait;
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 3, &wait, NULL), STATUS_OK);
    EXPECT_STATUS(buffer_pool_poll(arena, &wait), STATUS_OK);
}

/* Make a batch that the sender has completed, and to which a living process may still write. */
static void become_deferred(struct arena *arena)
{
    struct ledger ledger = {0};
    uint32_t slot_index = batch_plant(arena, 3);
    store_relaxed_u32(&arena->me->writing, slot_index + 1);
    struct accumulator *sender = sender_opened(arena);
    deliver_everything(sender, &ledger);
    accumulator_close(sender);
    EXPECT_EQ_U64(slot_state_at(arena, slot_index), SLOT_DONE);
}

static void become_named(struct arena *arena)
{
    struct registry *registry;
    uint32_t topic_index, partition_index;
    EXPECT_STATUS(registry_open(arena, &registry, NULL), STATUS_OK);
    EXPECT_STATUS(registry_topic(registry, "flights", 7, &topic_index), STATUS_OK);
    EXPECT_STATUS(registry_partition(registry, topic_index, 3, &partition_index), STATUS_OK);
    registry_close(registry);
}

TEST(a_sound_arena_has_no_findings_in_any_state)
{
    static const struct {
        const char *name;
        void (*become)(struct arena *arena);
        bool is_idle; /* no process holds a slot or lock */
    } rows[] = {
        {"untouched", become_untouched, true},       {"open", become_open, true},
        {"sealed", become_sealed, true},             {"chained", become_chained, true},
        {"drained", become_drained, true},           {"quarantined", become_quarantined, true},
        {"named", become_named, true},               {"granted", become_granted, true},
        {"waited for", become_waited_for, false},    {"deferred", become_deferred, false},
    };
    for (uint32_t i = 0; i < COUNT_OF(rows); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        rows[i].become(arena);
        for (enum verify_depth depth = VERIFY_QUICK; depth <= VERIFY_DEEP; depth++) {
            expect_nothing_found(arena, depth, false, rows[i].name);
            if (rows[i].is_idle) {
                expect_nothing_found(arena, depth, true, rows[i].name);
            }
        }
        arena_detach(arena);
        close(file);
    }
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), slots_are_counted_by_their_state)
{
    uint32_t counts[SLOT_BAD + 1];
    become_quarantined(arena);
    become_open(arena);
    verify_count_states(arena, counts);
    EXPECT_EQ_U64(counts[SLOT_FREE], SLOT_COUNT - 4);
    EXPECT_EQ_U64(counts[SLOT_OPEN], 1);
    EXPECT_EQ_U64(counts[SLOT_CONT], 2);
    EXPECT_EQ_U64(counts[SLOT_BAD], 1);
    EXPECT_EQ_U64(counts[SLOT_GRANT] + counts[SLOT_OWNED] + counts[SLOT_READY] + counts[SLOT_DONE], 0);
}

/* ---- planted: superblock and tables ---- */

/* A plant makes the arena unsound and returns the slot that the finding must name. */

static uint32_t plant_other_magic(struct arena *arena)
{
    store_relaxed_u64(&arena->superblock->magic, ARENA_MAGIC + 1);
    return NO_SLOT;
}

static uint32_t plant_other_fingerprint(struct arena *arena)
{
    arena->superblock->layout_fingerprint++;
    return NO_SLOT;
}

static uint32_t plant_other_geometry(struct arena *arena)
{
    arena->superblock->geometry.slot_count--;
    return NO_SLOT;
}

static uint32_t plant_huge_options(struct arena *arena)
{
    arena->superblock->options_size = UINT32_MAX;
    return NO_SLOT;
}

static uint32_t plant_poison(struct arena *arena)
{
    arena_poison(arena, STATUS_CORRUPT, "planted");
    return NO_SLOT;
}

static uint32_t plant_poison_of_no_status(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->poisoned_status, UINT32_MAX);
    return NO_SLOT;
}

static uint32_t plant_topic_count(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->topic_count, arena->geometry.topic_count + 1);
    return NO_SLOT;
}

static uint32_t plant_partition_count(struct arena *arena)
{
    become_named(arena);
    store_relaxed_u32(&arena->globals->partition_count, arena->geometry.partition_count + 1);
    return NO_SLOT;
}

static uint32_t plant_name_heap_used(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->name_heap_used, arena->geometry.name_heap_size + 1);
    return NO_SLOT;
}

static uint32_t plant_process_count_used(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->process_count_used, arena->geometry.process_count + 1);
    return NO_SLOT;
}

static uint32_t plant_waiter_count_used(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->waiter_count_used, arena->geometry.waiter_count + 1);
    return NO_SLOT;
}

static uint32_t plant_sink_name_without_end(struct arena *arena)
{
    memset((void *)arena->globals->sink_name, 'a', SINK_NAME_SIZE);
    return NO_SLOT;
}

static uint32_t plant_name_at_the_end(struct arena *arena)
{
    become_named(arena);
    arena->topics[0].name_index = arena->geometry.name_heap_size - arena->topics[0].name_size + 1;
    return NO_SLOT;
}

static uint32_t plant_name_too_long(struct arena *arena)
{
    become_named(arena);
    arena->topics[0].name_size = TOPIC_NAME_SIZE_MAX + 1;
    return NO_SLOT;
}

static uint32_t plant_partition_of_no_topic(struct arena *arena)
{
    become_named(arena);
    arena->partitions[0].topic_index = 1;
    return NO_SLOT;
}

static uint32_t plant_hazard(struct arena *arena)
{
    store_relaxed_u32(&arena->processes[5].writing, SLOT_COUNT + 1);
    return NO_SLOT;
}

static uint32_t plant_open_word(struct arena *arena)
{
    store_relaxed_u64(&arena->partitions[7].open, open_word(1, SLOT_COUNT));
    return NO_SLOT;
}

/* ---- planted: batches ---- */

static uint32_t plant_filled(struct arena *arena, enum slot_state state, uint32_t count, uint32_t size)
{
    uint32_t slot_index = ready_batch_plant(arena, 2);
    word_plant(arena, slot_index, state, 0, slot_payload_filled(count, size));
    return slot_index;
}

static uint32_t plant_size_below_a_header(struct arena *arena)
{
    return plant_filled(arena, SLOT_OPEN, 0, RECORDS_START - 1);
}

static uint32_t plant_size_above_a_slot(struct arena *arena)
{
    return plant_filled(arena, SLOT_READY, 1, BATCH_SIZE + 1);
}

static uint32_t plant_size_above_a_record(struct arena *arena)
{
    uint32_t head = chain_plant(arena);
    word_plant(arena, head, SLOT_READY, 0, slot_payload_filled(1, arena->geometry.record_size_max + 1));
    return head;
}

static uint32_t plant_bytes_without_records(struct arena *arena)
{
    return plant_filled(arena, SLOT_OPEN, 0, RECORDS_START + 1);
}

static uint32_t plant_ready_and_empty(struct arena *arena)
{
    return plant_filled(arena, SLOT_READY, 0, RECORDS_START);
}

static uint32_t plant_records_without_bytes(struct arena *arena)
{
    return plant_filled(arena, SLOT_OPEN, 1, RECORDS_START);
}

static uint32_t plant_chain_of_two_records(struct arena *arena)
{
    uint32_t head = chain_plant(arena);
    word_plant(arena, head, SLOT_READY, 0, slot_payload_filled(2, slot_word_size(slot_word_at(arena, head))));
    return head;
}

static uint32_t plant_no_partition(struct arena *arena)
{
    uint32_t slot_index = ready_batch_plant(arena, 2);
    store_relaxed_u32(&arena->slots[slot_index].partition_index, arena->geometry.partition_count);
    return slot_index;
}

static uint32_t plant_seq_not_given_out(struct arena *arena)
{
    uint32_t slot_index = ready_batch_plant(arena, 2);
    store_relaxed_u64(&arena->slots[slot_index].seq, load_relaxed_u64(&arena->partitions[0].next_seq));
    return slot_index;
}

static uint32_t plant_unwritten_records(struct arena *arena)
{
    uint32_t slot_index = batch_plant(arena, 2);
    store_relaxed_u32(&arena->slots[slot_index].written_end, slot_word_size(slot_word_at(arena, slot_index)) - 1);
    return slot_index;
}

static uint32_t plant_damaged_record(struct arena *arena)
{
    uint32_t slot_index = batch_plant(arena, 2);
    arena_slot_data(arena, slot_index)[slot_word_size(slot_word_at(arena, slot_index)) - 1] ^= 1;
    return slot_index;
}

static uint32_t last_piece(const struct arena *arena, uint32_t head)
{
    uint32_t slots[3];
    EXPECT_EQ_U64(slot_chain_walk(arena, head, slots, 3), 3);
    return slots[2];
}

static uint32_t plant_damaged_piece(struct arena *arena)
{
    uint32_t head = chain_plant(arena);
    arena_slot_data(arena, last_piece(arena, head))[0] ^= 1;
    return head;
}

static uint32_t plant_other_checksum(struct arena *arena)
{
    uint32_t slot_index = batch_plant(arena, 3);
    arena->slots[slot_index].meta[1].records_crc ^= 1;
    return slot_index;
}

/* Raise the count by two. The checksum does not cover the count, and is in meta[count & 1], which stays the same. */
static uint32_t plant_wrong_count(struct arena *arena)
{
    uint32_t slot_index = batch_plant(arena, 3);
    uint32_t size = slot_word_size(slot_word_at(arena, slot_index));
    word_plant(arena, slot_index, SLOT_OPEN, 0, slot_payload_filled(5, size));
    return slot_index;
}

static uint32_t plant_drained_and_damaged(struct arena *arena)
{
    become_drained(arena);
    uint32_t slot_index = open_word_slot(load_relaxed_u64(&arena->partitions[0].open));
    arena_slot_data(arena, slot_index)[RECORDS_START - 1] ^= 1; /* the record count of the header */
    return slot_index;
}

static uint32_t plant_unlinked_piece(struct arena *arena)
{
    uint32_t slots[3];
    uint32_t head = chain_plant(arena);
    EXPECT_EQ_U64(slot_chain_walk(arena, head, slots, 3), 3);
    arena->slots[slots[1]].chain_next = 0;
    return head;
}

static uint32_t plant_link_to_nowhere(struct arena *arena)
{
    uint32_t head = chain_plant(arena);
    arena->slots[head].chain_next = UINT32_MAX;
    return head;
}

static uint32_t plant_link_to_a_stranger(struct arena *arena)
{
    uint32_t head = chain_plant(arena);
    arena->slots[head].chain_next = SLOT_COUNT;
    return head;
}

/* Plant a chain of the right length that has its second piece twice. */
static uint32_t plant_cycle(struct arena *arena)
{
    uint32_t slots[3];
    uint32_t head = chain_plant(arena);
    EXPECT_EQ_U64(slot_chain_walk(arena, head, slots, 3), 3);
    arena->slots[slots[1]].chain_next = slots[1] + 1;
    return head;
}

/* ---- planted: slots without a batch ---- */

static uint32_t plant_word(struct arena *arena, enum slot_state state, uint64_t payload)
{
    word_plant(arena, 4, state, 0, payload);
    return 4;
}

static uint32_t plant_owned_by_nobody(struct arena *arena)
{
    return plant_word(arena, SLOT_OWNED, 0);
}

static uint32_t plant_owned_by_a_stranger(struct arena *arena)
{
    return plant_word(arena, SLOT_OWNED, owner_of(arena->geometry.process_count, 1));
}

static uint32_t plant_still_owned(struct arena *arena)
{
    return plant_word(arena, SLOT_OWNED, arena->owner);
}

static uint32_t plant_done(struct arena *arena)
{
    return plant_word(arena, SLOT_DONE, slot_payload_filled(1, 100));
}

static uint32_t plant_free_with_payload(struct arena *arena)
{
    return plant_word(arena, SLOT_FREE, 1);
}

static uint32_t plant_free_and_linked(struct arena *arena)
{
    arena->slots[4].chain_next = 1;
    return 4;
}

static uint32_t plant_free_without_hint(struct arena *arena)
{
    and_bits_u64(&arena->free_hints[0], ~(UINT64_C(1) << 4));
    return 4;
}

static uint32_t plant_first_byte(struct arena *arena)
{
    arena_slot_data(arena, 4)[0] = 1;
    return 4;
}

static uint32_t plant_last_byte(struct arena *arena)
{
    arena_slot_data(arena, 4)[arena->geometry.slot_stride - 1] = 1;
    return 4;
}

static uint32_t plant_grant_of_a_stranger(struct arena *arena)
{
    return plant_word(arena, SLOT_GRANT, slot_payload_grant(arena->geometry.waiter_count, 7));
}

static uint32_t plant_grant_of_nobody(struct arena *arena)
{
    return plant_word(arena, SLOT_GRANT, slot_payload_grant(2, 7));
}

static uint32_t plant_grant_of_another_ticket(struct arena *arena)
{
    store_relaxed_u64(&arena->waiters[2].word, waiter_word(WAITER_GOT, 1, 8));
    return plant_grant_of_nobody(arena);
}

static uint32_t plant_piece(struct arena *arena, uint32_t head, uint32_t head_generation)
{
    store_relaxed_u64(&arena->globals->oversized_bytes, 1 * BATCH_SIZE);
    return plant_word(arena, SLOT_CONT, slot_payload_cont(head, head_generation));
}

static uint32_t plant_piece_of_a_stranger(struct arena *arena)
{
    return plant_piece(arena, SLOT_COUNT, 0);
}

static uint32_t plant_piece_of_nothing(struct arena *arena)
{
    return plant_piece(arena, 9, 0);
}

static uint32_t plant_piece_of_another_generation(struct arena *arena)
{
    return plant_piece(arena, ready_batch_plant(arena, 1), 1);
}

static uint32_t plant_piece_of_a_grant(struct arena *arena)
{
    become_granted(arena);
    uint32_t slot_index = plant_piece(arena, 0, 0);
    store_relaxed_u64(&arena->globals->oversized_bytes, 4 * BATCH_SIZE);
    return slot_index;
}

static uint32_t plant_waiting_count(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->waiting_count, 1);
    return NO_SLOT;
}

static uint32_t plant_uncounted_waiter(struct arena *arena)
{
    store_relaxed_u64(&arena->waiters[7].word, waiter_word(WAITER_WAIT, 1, 8));
    return NO_SLOT;
}

static uint32_t plant_parked_count(struct arena *arena)
{
    store_relaxed_u32(&arena->globals->parked_count, 1);
    return NO_SLOT;
}

static uint32_t plant_uncounted_parked_waiter(struct arena *arena)
{
    store_relaxed_u64(&arena->waiters[7].word, waiter_word(WAITER_PARKED, 1, 8));
    return NO_SLOT;
}

static uint32_t plant_oversized_count(struct arena *arena)
{
    chain_plant(arena);
    store_relaxed_u64(&arena->globals->oversized_bytes, 2 * BATCH_SIZE);
    return NO_SLOT;
}

/* ---- planted damage: its finding, and its outcome in recovery ---- */

enum when { ALWAYS, WHEN_IDLE };
enum fate { RECOVERED, REFUSED, KEPT }; /* if KEPT, the arena starts, and verify still finds it */

static const struct planted {
    const char *text;
    enum verify_depth depth; /* the lowest depth at which it is found */
    enum when when;
    enum fate fate;
    uint32_t (*plant)(struct arena *arena);
} planted_rows[] = {
    {"the superblock was overwritten", VERIFY_QUICK, ALWAYS, REFUSED, plant_other_magic},
    {"the superblock was overwritten", VERIFY_QUICK, ALWAYS, REFUSED, plant_other_fingerprint},
    {"the superblock was overwritten", VERIFY_QUICK, ALWAYS, REFUSED, plant_other_geometry},
    {"the superblock was overwritten", VERIFY_QUICK, ALWAYS, REFUSED, plant_huge_options},
    {"the arena is poisoned: ", VERIFY_QUICK, ALWAYS, KEPT, plant_poison},
    {"the arena is poisoned: unknown status", VERIFY_QUICK, ALWAYS, KEPT, plant_poison_of_no_status},
    {"the count of a table exceeds its size", VERIFY_QUICK, ALWAYS, REFUSED, plant_topic_count},
    {"the count of a table exceeds its size", VERIFY_QUICK, ALWAYS, REFUSED, plant_partition_count},
    {"the count of a table exceeds its size", VERIFY_QUICK, ALWAYS, REFUSED, plant_name_heap_used},
    {"the count of a table exceeds its size", VERIFY_QUICK, ALWAYS, REFUSED, plant_process_count_used},
    {"the count of a table exceeds its size", VERIFY_QUICK, ALWAYS, REFUSED, plant_waiter_count_used},
    {"the name of the sender's sink has no terminating NUL",
     VERIFY_QUICK, ALWAYS, RECOVERED, plant_sink_name_without_end},

    {"topic 0: its name lies outside", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_name_at_the_end},
    {"topic 0: its name lies outside", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_name_too_long},
    {"partition 0: its topic does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_partition_of_no_topic},
    {"partition 7: its open batch does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_open_word},
    {"process entry 5: its hazard names a slot", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_hazard},

    {"its size is impossible", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_size_below_a_header},
    {"its size is impossible", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_size_above_a_slot},
    {"its size is impossible", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_size_above_a_record},
    {"its record count contradicts its size", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_bytes_without_records},
    {"its record count contradicts its size", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_ready_and_empty},
    {"its record count contradicts its size", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_records_without_bytes},
    {"its record count contradicts its size", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_chain_of_two_records},
    {"it names a partition that does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_no_partition},
    {"its number in the partition was never assigned", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_seq_not_given_out},
    {"it has records past the written bytes", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_unwritten_records},
    {"its bytes contradict the running checksum", VERIFY_DEEP, ALWAYS, RECOVERED, plant_damaged_record},
    {"its bytes contradict the running checksum", VERIFY_DEEP, ALWAYS, RECOVERED, plant_damaged_piece},
    {"its bytes contradict the running checksum", VERIFY_DEEP, ALWAYS, RECOVERED, plant_other_checksum},
    {"its bytes contradict the running checksum", VERIFY_DEEP, ALWAYS, RECOVERED, plant_cycle},
    {"its records differ from the count in its word", VERIFY_DEEP, ALWAYS, RECOVERED, plant_wrong_count},
    {"is not a valid record batch", VERIFY_DEEP, WHEN_IDLE, RECOVERED, plant_drained_and_damaged},
    {"its chain is too short for its size", VERIFY_DEEP, ALWAYS, RECOVERED, plant_unlinked_piece},
    {"its chain is too short for its size", VERIFY_DEEP, ALWAYS, RECOVERED, plant_link_to_nowhere},
    {"its chain is too short for its size", VERIFY_DEEP, ALWAYS, RECOVERED, plant_link_to_a_stranger},

    {"its owner does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_owned_by_nobody},
    {"its owner does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_owned_by_a_stranger},
    {"it is still owned", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_still_owned},
    {"it is done and was never freed", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_done},
    {"a free slot's word is not empty", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_free_with_payload},
    {"a free slot is linked", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_free_and_linked},
    {"a free slot has no hint", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_free_without_hint},
    {"a free slot is not all zeros", VERIFY_DEEP, ALWAYS, RECOVERED, plant_first_byte},
    {"a free slot is not all zeros", VERIFY_DEEP, ALWAYS, RECOVERED, plant_last_byte},
    {"it is granted to a waiter that does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_grant_of_a_stranger},
    {"it is granted to a waiter that no longer waits", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_grant_of_nobody},
    {"it is granted to a waiter that no longer waits",
     VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_grant_of_another_ticket},
    {"it continues a slot that does not exist", VERIFY_NORMAL, ALWAYS, RECOVERED, plant_piece_of_a_stranger},
    {"it continues a batch that no longer exists", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_piece_of_nothing},
    {"it continues a batch that no longer exists",
     VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_piece_of_another_generation},
    {"it continues a batch that no longer exists", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_piece_of_a_grant},

    {"waiting_count is 1, but 0 waiters wait", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_waiting_count},
    {"waiting_count is 0, but 1 waiters wait", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_uncounted_waiter},
    {"parked_count is 1, but 0 waiters are parked", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_parked_count},
    {"parked_count is 0, but 1 waiters are parked", VERIFY_NORMAL, WHEN_IDLE, RECOVERED, plant_uncounted_parked_waiter},
    {"oversized_bytes is 1024, the slots of oversized records have 1536", VERIFY_NORMAL, WHEN_IDLE, RECOVERED,
     plant_oversized_count},
};

static void expect_found_alone(const struct arena *arena, const struct planted *row, enum verify_depth depth,
                               bool is_idle, uint32_t slot_index)
{
    struct verdict verdict = verified(arena, depth, is_idle);
    for (uint32_t i = 0; i < verdict.count && i < FINDINGS_MAX; i++) {
        const struct finding *finding = &verdict.findings[i];
        EXPECT_OR_SAY(strstr(finding->text, row->text) != NULL, "expected only '%s', found '%s'", row->text,
                      finding->text);
        EXPECT_OR_SAY(finding->slot_index == slot_index, "'%s' names slot %d instead of %d", row->text,
                      (int)finding->slot_index, (int)slot_index);
    }
    EXPECT_OR_SAY(verdict.count == 1, "'%s' (row %d) found %u times at depth %d, idle %d", row->text,
                  (int)(row - planted_rows), verdict.count, (int)depth, is_idle);
}

static void expect_found_as_told(const struct arena *arena, const struct planted *row, uint32_t slot_index)
{
    for (enum verify_depth depth = VERIFY_QUICK; depth <= VERIFY_DEEP; depth++) {
        for (int is_idle = 0; is_idle <= 1; is_idle++) {
            if (depth >= row->depth && (row->when == ALWAYS || is_idle)) {
                expect_found_alone(arena, row, depth, is_idle, slot_index);
            } else if (is_idle || row->when == WHEN_IDLE) {
                expect_nothing_found(arena, depth, is_idle, row->text);
            }
        }
    }
}

TEST(each_planted_inconsistency_is_found_and_nothing_else)
{
    for (uint32_t i = 0; i < COUNT_OF(planted_rows); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        expect_found_as_told(arena, &planted_rows[i], planted_rows[i].plant(arena));
        arena_detach(arena);
        close(file);
    }
}

/* Findings past the end of the array are counted. */
TEST(more_findings_than_asked_for_are_counted)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        arena->slots[i].chain_next = 1;
    }
    struct finding untouched = {.slot_index = 77};
    EXPECT_EQ_U64(verify(arena, &(struct verify_options){.depth = VERIFY_NORMAL}, &untouched, 0), SLOT_COUNT);
    EXPECT_EQ_U64(untouched.slot_index, 77);
    EXPECT_EQ_U64(verified(arena, VERIFY_NORMAL, false).count, SLOT_COUNT);
    arena_detach(arena);
    close(file);
}

/* Check that the records are delivered or reported as damaged, and that the arena accepts new ones. */
static void expect_working(struct arena *arena)
{
    struct ledger ledger = {0};
    struct accumulator *sender = sender_opened(arena);
    EXPECT_STATUS(append_number(sender, 5, NUMBER_AFTER_RECOVERY), STATUS_OK);
    deliver_everything(sender, &ledger);
    EXPECT_EQ_U64(ledger_count_of(&ledger, NUMBER_AFTER_RECOVERY), 1);
    accumulator_close(sender);
    expect_sound(arena);
}

static void expect_fate(int file, const struct planted *row)
{
    struct arena *arena = NULL;
    struct error error = {0};
    enum status status = arena_attach(file_opened_again(file), file_opened_again(file), &arena, &error);
    EXPECT_OR_SAY((status != STATUS_OK) == (row->fate == REFUSED), "after '%s': %s %s", row->text,
                  status_name(status), error.message);
    if (status != STATUS_OK) {
        EXPECT(error.message[0] != 0);
        return;
    }
    if (row->fate == RECOVERED) {
        expect_working(arena);
    } else {
        EXPECT(strstr(verified(arena, row->depth, true).findings[0].text, row->text) != NULL);
    }
    arena_detach(arena);
}

TEST(an_arena_with_a_planted_inconsistency_starts_up_or_is_refused_with_a_sentence)
{
    for (uint32_t i = 0; i < COUNT_OF(planted_rows); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
        planted_rows[i].plant(arena);
        boot_again(arena);
        arena_detach(arena);
        expect_fate(file, &planted_rows[i]);
        close(file);
    }
}

/* ---- a living arena ---- */

enum { LIVE_COUNT = 3000, LIVE_OVERSIZED_EVERY = 7, LIVE_OVERSIZED_SIZE = 1200 };

struct live {
    struct arena *producing;
    struct arena *sending;
    atomic_u32 is_appended;
    atomic_u32 is_delivered;
};

static void *produce(void *argument)
{
    struct live *live = argument;
    struct accumulator *producer = accumulator_opened(live->producing);
    for (uint64_t number = 0; number < LIVE_COUNT; number++) {
        uint8_t value[LIVE_OVERSIZED_SIZE] = {0};
        struct append_result result;
        memcpy(value, &number, sizeof number);
        uint32_t size = number % LIVE_OVERSIZED_EVERY == 0 ? LIVE_OVERSIZED_SIZE : 50;
        append_waiting(producer, 0, record_of(value, size, 1000), &result);
    }
    accumulator_close(producer);
    store_release_u32(&live->is_appended, 1);
    return NULL;
}

static void *consume(void *argument)
{
    struct live *live = argument;
    struct ledger *ledger = calloc(1, sizeof *ledger);
    struct accumulator *sender = sender_opened(live->sending);
    while (deliver_round(sender, ledger) > 0 || load_acquire_u32(&live->is_appended) == 0) {
        sender_maintain(sender->sender, NULL);
    }
    deliver_everything(sender, ledger);
    expect_delivered_once(ledger, 0, LIVE_COUNT);
    accumulator_close(sender);
    store_release_u32(&live->is_delivered, 1);
    free(ledger);
    return NULL;
}

TEST_IN_ARENA(geometry_of(SLOT_COUNT, BATCH_SIZE), beside_a_working_producer_and_a_working_sender_nothing_is_found)
{
    struct live live = {.producing = arena_attached(file), .sending = arena_attached(file)};
    pthread_t threads[2];
    EXPECT_EQ_U64((uint64_t)pthread_create(&threads[0], NULL, produce, &live), 0);
    EXPECT_EQ_U64((uint64_t)pthread_create(&threads[1], NULL, consume, &live), 0);
    do {
        expect_nothing_found(arena, VERIFY_DEEP, false, "live");
    } while (load_acquire_u32(&live.is_delivered) == 0);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    arena_detach(live.producing);
    arena_detach(live.sending);
    expect_all_free(arena);
}

/* ---- hostile bytes ---- */

/* Copy the arena to memory that ends with the arena's last byte, so that the sanitizer detects a read past it. */
static uint8_t *copy_taken(const struct arena *arena)
{
    uint8_t *copy = aligned_alloc(PAGE_SIZE_BYTES, arena->size);
    memcpy(copy, arena->base, arena->size);
    return copy;
}

static struct arena moved_to(const struct arena *arena, uint8_t *base)
{
    struct arena moved = *arena;
    const struct layout *layout = &arena->layout;
    moved.base = base;
    moved.superblock = (struct superblock *)(void *)(base + SUPERBLOCK_REF);
    moved.globals = (struct globals *)(void *)(base + GLOBALS_REF);
    moved.processes = (struct process_entry *)(void *)(base + layout->processes);
    moved.waiters = (struct waiter_entry *)(void *)(base + layout->waiters);
    moved.topics = (struct topic_entry *)(void *)(base + layout->topics);
    moved.partitions = (struct partition_entry *)(void *)(base + layout->partitions);
    moved.names = base + layout->names;
    moved.free_hints = (atomic_u64 *)(void *)(base + layout->free_hints);
    moved.ready_hints = (atomic_u64 *)(void *)(base + layout->ready_hints);
    moved.ready_groups = (atomic_u64 *)(void *)(base + layout->ready_groups);
    moved.slots = (struct slot_header *)(void *)(base + layout->slot_headers);
    moved.completions = (struct completion_entry *)(void *)(base + layout->completions);
    moved.slot_data = base + layout->slot_data;
    return moved;
}

struct span {
    uint64_t start;
    uint64_t end;
};

/* Return one region of the arena, or the whole arena for the last number. */
static struct span region_of(const struct arena *arena, uint32_t number)
{
    const struct layout *layout = &arena->layout;
    const uint64_t starts[] = {SUPERBLOCK_REF,       GLOBALS_REF,        layout->processes,    layout->waiters,
                               layout->topics,       layout->partitions, layout->names,        layout->free_hints,
                               layout->ready_hints,   layout->ready_groups, layout->slot_headers, layout->completions,
                               layout->counters,     layout->error_log,  layout->slot_data,    arena->size};
    uint32_t count = COUNT_OF(starts) - 1;
    number %= count + 1;
    return number == count ? (struct span){.start = 0, .end = arena->size}
                           : (struct span){.start = starts[number], .end = starts[number + 1]};
}

static void flip_bits(struct randomness *randomness, uint8_t *bytes, struct span span)
{
    for (uint64_t count = 1 + random_below(randomness, 20); count > 0; count--) {
        bytes[span.start + random_below(randomness, span.end - span.start)] ^=
            (uint8_t)(1 << random_below(randomness, 8));
    }
}

/* Plant large numbers, because they make a reader read too far: a run of ones, a sign bit, an index just past a
 * table. */
static void plant_numbers(struct randomness *randomness, uint8_t *bytes, struct span span)
{
    static const uint32_t numbers[] = {UINT32_MAX, UINT32_MAX - 1, 1u << 31, INT32_MAX, SLOT_COUNT, SLOT_COUNT + 1, 0};
    for (uint64_t count = 1 + random_below(randomness, 20); count > 0; count--) {
        uint64_t place = span.start + random_below(randomness, (span.end - span.start) / 4) * 4;
        memcpy(bytes + place, &numbers[random_below(randomness, COUNT_OF(numbers))], sizeof numbers[0]);
    }
}

static void fill_with_noise(struct randomness *randomness, uint8_t *bytes, struct span span)
{
    random_fill(randomness, bytes + span.start, span.end - span.start);
}

static void expect_verify_keeps_its_hands_off(const struct arena *arena, const uint8_t *before)
{
    for (enum verify_depth depth = VERIFY_QUICK; depth <= VERIFY_DEEP; depth++) {
        struct verdict live = verified(arena, depth, false);
        struct verdict idle = verified(arena, depth, true);
        EXPECT(live.count <= idle.count);
        for (uint32_t i = 0; i < idle.count && i < FINDINGS_MAX; i++) {
            EXPECT(idle.findings[i].slot_index < SLOT_COUNT || idle.findings[i].slot_index == NO_SLOT);
            EXPECT(memchr(idle.findings[i].text, 0, VERIFY_TEXT_SIZE) != NULL);
        }
    }
    EXPECT(memcmp(before, arena->base, arena->size) == 0);
}

static void (*const spoilers[])(struct randomness *randomness, uint8_t *bytes, struct span span) = {
    flip_bits, plant_numbers, fill_with_noise};

/* An arena with batches, waiters and results in many states. */
static struct arena *arena_inhabited(int file)
{
    struct arena *arena = arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE));
    become_named(arena);
    become_quarantined(arena);
    become_drained(arena);
    ready_batch_plant(arena, 2);
    become_open(arena);
    become_waited_for(arena);
    return arena;
}

TEST(hostile_bytes_in_any_region_are_read_without_harm)
{
    struct randomness randomness = randomness_seeded(__func__);
    int file = arena_file_new();
    struct arena *arena = arena_inhabited(file);
    for (uint32_t round = 0; round < HOSTILE_ROUNDS; round++) {
        uint8_t *bytes = copy_taken(arena);
        struct arena copy = moved_to(arena, bytes);
        spoilers[round % COUNT_OF(spoilers)](&randomness, bytes, region_of(arena, round / COUNT_OF(spoilers)));
        uint8_t *before = copy_taken(&copy);
        expect_verify_keeps_its_hands_off(&copy, before);
        free(before);
        free(bytes);
    }
    arena_detach(arena);
    close(file);
}

/* Recovery either rejects the arena with a sentence, or makes it sound. It leaves two things unchanged: the arena stays
 * poisoned, and the header of a drained batch stays, because the sender writes it again. */
static void expect_start_up(int file, uint32_t round)
{
    struct arena *arena = NULL;
    struct error error = {0};
    enum status status = arena_attach(file_opened_again(file), file_opened_again(file), &arena, &error);
    if (status != STATUS_OK) {
        EXPECT(error.message[0] != 0);
        return;
    }
    struct verdict verdict = verified(arena, VERIFY_DEEP, true);
    for (uint32_t i = 0; i < verdict.count && i < FINDINGS_MAX; i++) {
        const struct finding *finding = &verdict.findings[i];
        bool is_kept = strstr(finding->text, "poisoned") != NULL ||
                       strstr(finding->text, "is not a valid record batch") != NULL;
        EXPECT_OR_SAY(is_kept, "round %u: slot %d: %s", round, (int)finding->slot_index, finding->text);
    }
    arena_detach(arena);
}

TEST(hostile_bytes_in_any_region_stop_no_start_up_or_are_refused)
{
    struct randomness randomness = randomness_seeded(__func__);
    int file = arena_file_new();
    struct arena *arena = arena_inhabited(file);
    boot_again(arena);
    uint8_t *sound = copy_taken(arena);
    uint64_t size = arena->size;
    struct arena regions = *arena;
    arena_detach(arena);
    for (uint32_t round = 0; round < HOSTILE_ROUNDS; round++) {
        uint8_t *bytes = malloc(size);
        memcpy(bytes, sound, size);
        spoilers[round % COUNT_OF(spoilers)](&randomness, bytes, region_of(&regions, round / COUNT_OF(spoilers)));
        EXPECT_EQ_U64((uint64_t)pwrite(file, bytes, size, 0), size);
        expect_start_up(file, round);
        free(bytes);
    }
    free(sound);
    close(file);
}

RUN_ALL()
