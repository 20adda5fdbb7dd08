/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/producer_batch.h"

#include "arena/topic_share.h"

#include <stdlib.h>

#include "arena/buffer_pool.h"
#include "arena/closing.h"
#include "arena/delivery_clock.h"
#include "arena/ready_hints.h"
#include "format/crc32c.h"
#include "format/record_batch.h"
#include "producer/producer_batch_append.h"

STATIC_CHECK((int)RECORDS_START == (int)RECORD_BATCH_HEADER_SIZE);

/* See docs/decisions/0007. */
enum { PATIENCE_NS = 20000, PATIENCE_BYTES_PER_NS = 2, PATIENCE_DOUBLINGS_MAX = 12 };

/* ---- lock ---- */

/* Returns the patience: the time of a section that fills a whole batch, with a margin. It doubles each time this
 * process is itself passed. */
static uint64_t patience_ns(const struct arena *arena)
{
    CHECK(arena->geometry.batch_size > RECORDS_START);
    uint64_t whole_batch_ns = arena->geometry.batch_size / PATIENCE_BYTES_PER_NS;
    uint32_t doublings = arena->passed_in_a_row < PATIENCE_DOUBLINGS_MAX ? arena->passed_in_a_row
                                                                         : PATIENCE_DOUBLINGS_MAX;
    return (PATIENCE_NS + whole_batch_ns) << doublings;
}

/* Clears the hazard during the wait, because a hazard keeps its slot from being freed. */
COLD struct partition_hold partition_lock_slow(struct arena *arena, uint32_t partition_index)
{
    CHECK(partition_index < arena->geometry.partition_count);
    struct partition_hold hold = {.partition = &arena->partitions[partition_index],
                                  .partition_index = partition_index};
    store_release_u32(&arena->me->writing, 0); /* H3 */
    if (producer_lock_acquire(arena, &hold.partition->lock, patience_ns(arena), &hold.lock) == LOCK_TAKEN_OVER) {
        POINT(partition_taken_over);
        partition_repair(arena, &hold);
    }
    return hold;
}

COLD void partition_count_passed(struct arena *arena)
{
    CHECK(arena->me != NULL);
    add_u64(&arena->me->passed_count, 1); /* V1 */
    arena->passed_in_a_row++;
}

/* ---- seal ---- */

void producer_batch_seal_own(struct arena *arena)
{
    CHECK(arena->owner != 0);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word); /* P2 */
        if (slot_word_state(word) == SLOT_OPEN && load_relaxed_u32(&arena->slots[i].opener) == arena->owner && /* P3 */
            batch_seal(arena, i, word)) {
            counter_add(arena, COUNTER_BATCHES_SEALED_FLUSH, 1);
        }
    }
    barrier_store_load(); /* D1 */
}

static void slot_seal_if_open(struct arena *arena, uint32_t slot_index, uint32_t partition_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* P6 */
    while (slot_word_state(word) == SLOT_OPEN && slot_is_of(&arena->slots[slot_index], partition_index)) {
        if (batch_seal(arena, slot_index, word)) {
            counter_add(arena, COUNTER_BATCHES_SEALED_REPAIR, 1);
            return;
        }
        word = load_acquire_u64(&arena->slots[slot_index].word); /* P6 */
    }
}

/* Seals before it clears `open`: if another process takes over in between, `open` still names the slot. If the CAS
 * fails, a passed holder has named another slot meanwhile, and that one is sealed, too. If this process is itself
 * passed, the loop ends, because the process that passed it makes the same repair. */
void partition_repair(struct arena *arena, struct partition_hold *hold)
{
    CHECK(lock_word_owner(hold->lock) == arena->owner);
    uint64_t none = open_word(lock_word_acquisition(hold->lock), NO_SLOT);
    uint64_t open = load_acquire_u64(&hold->partition->open); /* L6 */
    do {
        uint32_t slot_index = open_word_slot(open);
        if (slot_index < arena->geometry.slot_count) {
            slot_seal_if_open(arena, slot_index, hold->partition_index);
        }
        POINT(partition_open_sealed);
    } while (producer_lock_is_held(&hold->partition->lock, hold->lock) &&
             !cas_u64(&hold->partition->open, &open, none)); /* L7 */
}

/* ---- claim ---- */

/* Computes the CRC of all records after the last one: most of their bytes are in the cache by then, and longer steps
 * are faster. It reads the bytes in the batch, so a caller may change a value meanwhile. */
struct claim claim_run(const struct arena *arena, uint32_t slot_index, struct claim begun,
                       const struct measured_record *records, uint32_t count)
{
    CHECK(count > 1);
    const struct claim_room room = claim_room_of(arena, slot_index);
    struct claim claim = begun;
    struct claim odd = begun;
    struct claim_place place;
    for (uint32_t i = 0; i < count && claim_find_place(&room, &claim, &records[i], &place); i++) {
        written_end_raise(&arena->slots[slot_index], place.end);
        (void)record_write_body(room.bytes + claim.size, &records[i].record, place.body_size, (int32_t)claim.count,
                                place.timestamp_delta);
        claim_extend(&claim, &place, records[i].record.timestamp_ms);
        odd = (i & 1) == 0 ? claim : odd;
    }
    odd.crc = crc32c_extend(begun.crc, room.bytes + begun.size, odd.size - begun.size);
    return odd;
}

/* ---- opening ---- */

/* Sets the fields that stay unchanged until the slot is free again. The slot is OWNED by this process, so no other
 * process reads them yet. */
static void slot_prepare(struct arena *arena, uint32_t slot_index, uint32_t partition_index, int64_t base_timestamp_ms,
                         uint64_t linger)
{
    CHECK(arena->owner != 0);
    CHECK(slot_index < arena->geometry.slot_count);
    struct slot_header *slot = &arena->slots[slot_index];
    store_relaxed_u32(&slot->partition_index, partition_index);
    slot->base_timestamp_ms = base_timestamp_ms;
    slot->created_ns = arena_now_ns(arena);
    slot->delivery_stamp_ms = delivery_stamp_now(arena);
    store_relaxed_u64(&slot->linger, linger);
    store_relaxed_u32(&slot->result, 0);
    store_relaxed_u64(&slot->producer_id, UINT64_MAX);
    store_relaxed_u32(&slot->base_sequence, UINT32_MAX);
    store_relaxed_u32(&slot->producer_epoch, 0);
    store_relaxed_u32(&slot->attempt_count, 0);
    store_relaxed_u32(&slot->acked_record_count, 0);
    if (load_relaxed_u32(&slot->written_end) < RECORDS_START) {
        store_relaxed_u32(&slot->written_end, RECORDS_START);
    }
}

/* Returns false if this process was passed: the number belongs to another process. If it returns true, fields that were
 * read with acquire before this call were read under the lock. */
static bool seq_take(struct partition_hold *hold, struct slot_header *slot)
{
    CHECK(lock_word_owner(hold->lock) != 0);
    uint64_t seq = load_acquire_u64(&hold->partition->next_seq); /* L6 */
    if (!producer_lock_is_held(&hold->partition->lock, hold->lock)) {
        return false;
    }
    store_relaxed_u64(&slot->seq, seq);
    return cas_u64(&hold->partition->next_seq, &seq, seq + 1); /* L7 */
}

/* Called after OPEN and X2. */
static enum status opener_is_admitted(struct arena *arena, const struct partition_hold *hold)
{
    CHECK(lock_word_owner(hold->lock) == arena->owner);
    return arena_takes_records(arena) ? transaction_admit_batch(arena, hold->joined) : STATUS_EXHAUSTED;
}

/* Returns false if a process has sealed the slot meanwhile: then the sender frees it. */
static COLD bool slot_take_back(struct arena *arena, const struct partition_hold *hold, uint32_t slot_index,
                                uint64_t opened, uint64_t owned)
{
    CHECK(slot_word_state(opened) == SLOT_OPEN);
    CHECK(slot_word_state(owned) == SLOT_OWNED);
    if (!cas_u64(&arena->slots[slot_index].word, &opened, owned)) { /* P7 */
        return false;
    }
    POINT(slot_taken_back);
    topic_share_count_taken_back(arena, hold->partition_index, 1);
    return true;
}

enum status producer_batch_open(struct arena *arena, struct partition_hold *hold, uint32_t slot_index,
                                int64_t base_timestamp_ms, bool *is_spare_kept)
{
    CHECK(slot_index < arena->geometry.slot_count);
    struct slot_header *slot = &arena->slots[slot_index];
    uint64_t open = load_acquire_u64(&hold->partition->open); /* L6 */
    *is_spare_kept = true;
    slot_prepare(arena, slot_index, hold->partition_index, base_timestamp_ms, hold->linger);
    if (!seq_take(hold, slot)) {
        return STATUS_TRY_AGAIN;
    }
    POINT(seq_taken);
    const struct claim_room room = claim_room_of(arena, slot_index);
    prefetch_lines(&room, 0, PREFETCH_AHEAD);
    ready_hint_set(arena, slot_index); /* before OPEN, so that the sender always finds the batch */
    uint64_t owned = load_relaxed_u64(&slot->word);
    uint64_t opened =
        slot_word(SLOT_OPEN, slot_word_generation(owned), slot_payload_filled(0, RECORDS_START));
    store_seq_cst_u64(&slot->word, opened); /* P3; an OWNED slot, which no other process may change */
    POINT(slot_opened);
    topic_share_count_opened(arena, hold->partition_index, 1);
    POINT(slot_counted);
    barrier_store_load(); /* X2 */
    enum status admitted = opener_is_admitted(arena, hold);
    if (UNLIKELY(admitted != STATUS_OK)) {
        *is_spare_kept = slot_take_back(arena, hold, slot_index, opened, owned);
        return admitted;
    }
    uint64_t mine = open_word(lock_word_acquisition(hold->lock), slot_index);
    if (UNLIKELY(!cas_u64(&hold->partition->open, &open, mine))) { /* L7 */
        *is_spare_kept = slot_take_back(arena, hold, slot_index, opened, owned);
        return STATUS_TRY_AGAIN;
    }
    counter_add(arena, COUNTER_BATCHES_OPENED, 1);
    return STATUS_OK;
}

/* ---- oversized records ---- */

uint32_t slots_needed(const struct arena *arena, uint64_t size)
{
    return (uint32_t)divide_rounded_up(RECORDS_START + size, arena->geometry.batch_size);
}

/* Splits the wire bytes of an oversized batch, after the header, into pieces. */
static void chain_pieces(struct arena *arena, const uint32_t *slots, uint32_t count, uint32_t size,
                         struct piece *pieces)
{
    CHECK(count > 1);
    CHECK(size > arena->geometry.batch_size - RECORDS_START);
    uint32_t start = RECORDS_START;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t room = arena->geometry.batch_size - start;
        uint32_t used = size < room ? size : room;
        store_relaxed_u32(&arena->slots[slots[i]].written_end, start + used);
        pieces[i] = (struct piece){.start = arena_slot_data(arena, slots[i]) + start, .size = used};
        size -= used;
        start = 0;
    }
}

static enum status chain_write(struct arena *arena, const uint32_t *slots, uint32_t count,
                               const struct measured_record *measured, uint32_t *crc)
{
    CHECK(count > 1);
    struct piece *pieces = malloc(count * sizeof *pieces);
    if (pieces == NULL) {
        return STATUS_OS;
    }
    chain_pieces(arena, slots, count, record_encoded_size(&measured->size, 0, 0), pieces);
    struct scatter target = {.pieces = pieces, .piece_count = count};
    record_write_scattered(&target, &measured->record, &measured->size, 0, 0);
    *crc = pieces_crc32c(0, pieces, count);
    free(pieces);
    return STATUS_OK;
}

/* Links a piece to its head before the piece's word no longer names its owner. */
static void chain_link(struct arena *arena, const uint32_t *slots, uint32_t count)
{
    CHECK(count > 1);
    CHECK(count <= arena->chain_slot_count_max);
    uint32_t head_generation = slot_word_generation(load_relaxed_u64(&arena->slots[slots[0]].word));
    for (uint32_t i = 0; i + 1 < count; i++) {
        arena->slots[slots[i]].chain_next = slots[i + 1] + 1;
    }
    for (uint32_t i = 1; i < count; i++) {
        struct slot_header *piece = &arena->slots[slots[i]];
        uint32_t generation = slot_word_generation(load_relaxed_u64(&piece->word));
        store_release_u64(&piece->word, /* P3 */
                          slot_word(SLOT_CONT, generation, slot_payload_cont(slots[0], head_generation)));
        POINT(chain_piece_linked);
    }
}

enum status producer_batch_fill_chain(struct arena *arena, uint32_t partition_index, const uint32_t *slots,
                                      uint32_t count, const struct measured_record *record)
{
    struct slot_header *head = &arena->slots[slots[0]];
    uint32_t crc;
    slot_prepare(arena, slots[0], partition_index, record->record.timestamp_ms, 0);
    RETURN_IF_FAILED(chain_write(arena, slots, count, record, &crc));
    head->meta[1] = (struct batch_meta){.max_timestamp_ms = record->record.timestamp_ms, .records_crc = crc};
    chain_link(arena, slots, count);
    return STATUS_OK;
}

/* Seals the open batch, even if it is empty, because later records must not be appended to a batch before the chain. */
static bool chain_seal_before(struct arena *arena, struct partition_hold *hold)
{
    CHECK(lock_word_owner(hold->lock) == arena->owner);
    uint64_t open = load_acquire_u64(&hold->partition->open); /* L6 */
    uint32_t slot_index = open_word_slot(open);
    uint64_t word = 0;
    if (slot_index < arena->geometry.slot_count) {
        hazard_set(arena, hold, slot_index);
        word = load_acquire_u64(&arena->slots[slot_index].word); /* H1 */
    }
    if (!producer_lock_is_held(&hold->partition->lock, hold->lock)) {
        return false;
    }
    if (slot_word_state(word) == SLOT_OPEN && slot_is_of(&arena->slots[slot_index], hold->partition_index) &&
        batch_seal(arena, slot_index, word)) {
        counter_add(arena, COUNTER_BATCHES_SEALED_FULL, 1);
    }
    return cas_u64(&hold->partition->open, &open, open_word(lock_word_acquisition(hold->lock), NO_SLOT)); /* L7 */
}

/* In an arena with transactions, a process that ends the transaction may seal the head while it is still empty. The
 * sender does not free an empty batch until some time after its created_ns, so its opener can take it back. */
static enum status chain_become_ready_inside(struct arena *arena, const struct partition_hold *hold,
                                             struct slot_header *head, uint32_t count, uint32_t size)
{
    CHECK(arena_is_transactional(arena));
    uint64_t owned = load_relaxed_u64(&head->word);
    uint32_t generation = slot_word_generation(owned);
    uint64_t opened = slot_word(SLOT_OPEN, generation, slot_payload_filled(0, RECORDS_START));
    head->created_ns = arena_now_ns(arena);
    store_seq_cst_u64(&head->word, opened); /* P3 */
    POINT(chain_opened);
    topic_share_count_opened(arena, hold->partition_index, count);
    barrier_store_load(); /* X2 */
    enum status admitted = transaction_admit_batch(arena, hold->joined);
    uint64_t next = admitted == STATUS_OK ? slot_word(SLOT_READY, generation, slot_payload_filled(1, size)) : owned;
    if (!cas_u64(&head->word, &opened, next)) { /* P1 */
        return STATUS_STALE;
    }
    if (admitted != STATUS_OK) {
        topic_share_count_taken_back(arena, hold->partition_index, count);
    }
    return admitted;
}

static enum status chain_become_ready(struct arena *arena, const struct partition_hold *hold, struct slot_header *head,
                                      uint32_t count, uint32_t size)
{
    if (UNLIKELY(arena_is_transactional(arena))) {
        return chain_become_ready_inside(arena, hold, head, count, size);
    }
    uint32_t generation = slot_word_generation(load_relaxed_u64(&head->word));
    store_seq_cst_u64(&head->word, slot_word(SLOT_READY, generation, slot_payload_filled(1, size))); /* P1 */
    POINT(chain_ready);
    topic_share_count_opened(arena, hold->partition_index, count);
    return STATUS_OK;
}

enum status producer_batch_commit_chain(struct arena *arena, struct partition_hold *hold, const uint32_t *slots,
                                        const struct measured_record *record, struct batch_place *place)
{
    CHECK(slots[0] < arena->geometry.slot_count);
    struct slot_header *head = &arena->slots[slots[0]];
    uint32_t size = RECORDS_START + record_encoded_size(&record->size, 0, 0);
    if (!arena_takes_records(arena)) {
        return STATUS_REMOVED;
    }
    if (!chain_seal_before(arena, hold) || !seq_take(hold, head)) {
        return STATUS_TRY_AGAIN;
    }
    POINT(chain_seq_taken);
    ready_hint_set(arena, slots[0]);
    uint64_t seq = load_relaxed_u64(&head->seq);
    uint32_t generation = slot_word_generation(load_relaxed_u64(&head->word));
    uint32_t count = slots_needed(arena, size - RECORDS_START);
    RETURN_IF_FAILED(chain_become_ready(arena, hold, head, count, size));
    /* No hazard names the head, so from here on, the slot may be sent, freed and used for another batch. */
    counter_add(arena, COUNTER_BATCHES_OVERSIZED, 1);
    *place = (struct batch_place){.slot_index = slots[0],
                                  .generation = generation,
                                  .record_index = 0,
                                  .seq = seq,
                                  .timestamp_ms = record->record.timestamp_ms};
    return STATUS_OK;
}
