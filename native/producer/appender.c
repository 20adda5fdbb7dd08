/* SPDX-License-Identifier: Apache-2.0
 *
 * Appends and flushes.
 */
#include "producer/appender.h"

#include <stdlib.h>
#include <string.h>

#include "arena/batch_seal.h"
#include "arena/closing.h"
#include "arena/counters.h"
#include "arena/process.h"
#include "arena/process_share.h"
#include "arena/registry.h"
#include "arena/spilled.h"
#include "arena/unfinished_waits.h"
#include "producer/producer_batch_append.h"

/* The largest number of record bytes that is prefetched before a partition is locked. */
enum { LINES_PREFETCHED_SIZE = 256 };

/* Copying this many bytes takes longer than releasing and acquiring an interpreter lock. */
enum { LONG_COPY_SIZE = 128 * 1024 };

/* ---- open and close ---- */

enum status appender_open(struct arena *arena, struct appender **result, struct error *error)
{
    struct appender *appender = calloc(1, sizeof *appender);
    struct touched_batch *touched = calloc(arena->geometry.slot_count, sizeof *touched);
    struct appender_note *notes = calloc(arena->geometry.partition_count, sizeof *notes);
    if (appender == NULL || touched == NULL || notes == NULL) {
        free(appender);
        free(touched);
        free(notes);
        return error_set(error, STATUS_OS, "no memory for the tables of the appender");
    }
    appender->arena = arena;
    appender->owner = arena->owner;
    appender->touched = touched;
    appender->notes = notes;
    *result = appender;
    return STATUS_OK;
}

void appender_close(struct appender *appender)
{
    CHECK(appender->touched != NULL);
    free(appender->touched);
    free(appender->notes);
    free(appender);
}

static COLD void appender_forget(struct appender *appender)
{
    CHECK(appender->owner != appender->arena->owner);
    memset(appender->touched, 0, appender->arena->geometry.slot_count * sizeof *appender->touched);
    memset(appender->notes, 0, appender->arena->geometry.partition_count * sizeof *appender->notes);
    appender->owner = appender->arena->owner;
}

static inline enum status appender_check(struct appender *appender)
{
    const struct arena *arena = appender->arena;
    if (UNLIKELY(arena->owner == 0)) {
        return STATUS_DETACHED;
    }
    if (UNLIKELY(appender->owner != arena->owner)) {
        appender_forget(appender);
    }
    return UNLIKELY(arena_is_poisoned(arena)) ? STATUS_POISONED : STATUS_OK;
}

/* ---- append ---- */

/* Returns how many slots the record may need. Computes the exact size only if its bound exceeds one slot. */
static inline uint32_t record_slots_needed(const struct arena *arena, const struct record_size *size)
{
    return LIKELY(record_fits_batch(arena, size)) ? 1 : slots_needed(arena, record_encoded_size(size, 0, 0));
}

enum status appender_check_size(const struct appender *appender, const struct record_size *size)
{
    const struct geometry *geometry = &appender->arena->geometry;
    uint64_t bound = (uint64_t)RECORDS_START + record_size_upper_bound(size);
    uint32_t need = record_slots_needed(appender->arena, size);
    bool fits = bound <= geometry->record_size_max &&
                (need == 1 || need <= oversized_slot_count_max(appender->arena));
    return fits ? STATUS_OK : STATUS_RECORD_TOO_LARGE;
}

/* Gets a slot for a new batch: `*spare` if there is one, else a free slot within the topic's limits. If this process
 * waited for the slot, the limits are not checked again. */
static enum status spare_get(struct arena *arena, uint32_t partition_index, uint32_t *spare)
{
    CHECK(*spare == NO_SLOT || *spare < arena->geometry.slot_count);
    if (*spare != NO_SLOT) {
        return STATUS_OK;
    }
    return LIKELY(topic_share_admits(arena, partition_index, 1)) ? buffer_pool_try_allocate(arena, spare)
                                                                 : STATUS_EXHAUSTED;
}

static COLD enum status locked_open_batch(struct arena *arena, struct partition_hold *hold, int64_t base_timestamp_ms,
                                          uint64_t linger, uint32_t *spare)
{
    CHECK(lock_word_owner(hold->lock) == arena->owner);
    RETURN_IF_FAILED(spare_get(arena, hold->partition_index, spare));
    hold->linger = linger;
    bool is_kept = false;
    enum status status = producer_batch_open(arena, hold, *spare, base_timestamp_ms, &is_kept);
    if (status == STATUS_OK || !is_kept) {
        *spare = NO_SLOT;
    }
    return status;
}

/* Prefetches the cache lines that an append to this partition writes. The address of each line is in the previous one,
 * and no load passes the locked instructions in between. So without this, an append would wait for one line after
 * another (docs/decisions/0008). Not inlined, so that an append to the same partition saves no registers. */
static __attribute__((noinline)) void lines_prefetch(const struct appender *appender, const struct append_order *order)
{
    CHECK(order->partition_index < appender->arena->geometry.partition_count);
    const struct arena *arena = appender->arena;
    const struct appender_note *note = &appender->notes[order->partition_index];
    if (note->seq == 0) {
        return;
    }
    prefetch_for_write(&arena->partitions[order->partition_index]);
    prefetch_for_write(&arena->slots[note->slot_index]);
    uint64_t size = record_size_upper_bound(&order->records[0].size);
    const uint8_t *bytes = arena_slot_data(arena, note->slot_index) + note->end;
    const uint8_t *end = bytes + (order->count == 1 && size < LINES_PREFETCHED_SIZE ? size : LINES_PREFETCHED_SIZE);
    for (bytes -= (uintptr_t)bytes % CACHE_LINE; bytes < end; bytes += CACHE_LINE) {
        prefetch_for_write(bytes);
    }
}

/* Prefetches after an append to another partition, because the lines may have left the cache. */
static inline void lines_prefetch_if_other(struct appender *appender, const struct append_order *order)
{
    CHECK(order->count >= 1);
    if (UNLIKELY(order->partition_index != appender->last_partition_index)) {
        appender->last_partition_index = order->partition_index;
        lines_prefetch(appender, order);
    }
}

struct append_call {
    const struct append_order *order;
    uint64_t linger;
    uint32_t count; /* how many records to try */
    uint32_t spare;
    bool is_reserved; /* a slot was taken from the reservation */
    bool has_opened;
    bool has_filled;
    bool has_moved_on; /* the sticky partition has changed */
};

static COLD bool locked_may_open(struct arena *arena, const struct partition_hold *hold, struct append_call *call)
{
    CHECK(hold->partition_index == call->order->partition_index);
    const struct sticky *sticky = call->order->sticky;
    call->has_moved_on = sticky != NULL && !sticky_stays(arena, sticky, hold->has_sealed_full);
    return !call->has_moved_on;
}

/* Called if the record fits in no open batch. */
static COLD enum status locked_make_room(struct arena *arena, struct partition_hold *hold, struct append_call *call)
{
    CHECK(hold->partition_index == call->order->partition_index);
    call->has_filled |= hold->has_sealed_full;
    RETURN_IF_FAILED(transaction_admits(arena, hold->joined)); /* checked even if no buffer is free */
    if (!locked_may_open(arena, hold, call)) {
        return STATUS_TRY_AGAIN;
    }
    int64_t base_timestamp_ms = call->order->records[0].record.timestamp_ms;
    RETURN_IF_FAILED(locked_open_batch(arena, hold, base_timestamp_ms, call->linger, &call->spare));
    call->has_opened = true;
    return STATUS_OK;
}

/* Opens batches until one takes a record, because another process may seal each of them first. */
static COLD enum status locked_open_and_append(struct arena *arena, struct partition_hold *hold,
                                               struct append_call *call, struct append_result *result)
{
    CHECK(call->count >= 1);
    CHECK(call->count <= call->order->count);
    enum status status;
    do {
        RETURN_IF_FAILED(locked_make_room(arena, hold, call));
        status =
            producer_batch_append(arena, hold, call->order->records, call->count, &result->appended, &result->first);
    } while (status == STATUS_EXHAUSTED);
    return status;
}

static uint32_t reservation_take_one(struct reservation *reservation)
{
    if (reservation == NULL || reservation->count == 0) {
        return NO_SLOT;
    }
    reservation->count--;
    return *reservation->slots++;
}

/* Called if the sticky partition has changed before a batch was opened. Returns the slot to the reservation. */
static COLD void reservation_keep(struct append_call *call)
{
    CHECK(!call->is_reserved || call->order->reservation != NULL);
    struct reservation *reservation = call->order->reservation;
    if (call->has_moved_on && call->is_reserved && call->spare != NO_SLOT) {
        reservation->count++;
        *--reservation->slots = call->spare;
        call->spare = NO_SLOT;
    }
}

/* Returns true if the batch of this call is ready before the sender wakes by itself. */
static COLD bool sender_is_wanted(const struct arena *arena, const struct append_call *call)
{
    CHECK(arena->owner != 0);
    uint32_t sleep = load_acquire_u32(&arena->globals->sender_sleep); /* D3 */
    if (sleep == SENDER_ASLEEP || process_sender_is_silent(arena)) {
        return true;
    }
    if (sleep <= SENDER_SHORT_WAIT) {
        return false;
    }
    uint64_t short_wait_ns = (sleep - SENDER_SHORT_WAIT) * NS_PER_US;
    bool lingers_less = call->has_opened && call->linger != 0 && call->linger - 1 < short_wait_ns;
    return call->has_filled || lingers_less;
}

/* The last step of an append that opened or filled a batch. D1: the stores of this append, full barrier, then
 * sender_sleep. The sender stores sender_sleep, full barrier (D2), then checks for new batches before it sleeps. */
static COLD void append_finish(struct appender *appender, struct append_call *call, enum status status,
                               struct append_result *result)
{
    struct arena *arena = appender->arena;
    reservation_keep(call);
    if (call->spare != NO_SLOT) {
        buffer_pool_return(arena, &call->spare, 1, &appender->wakes);
    }
    if (call->has_opened) {
        unfinished_waits_end(arena, &appender->wakes);
        closing_check(arena);
    }
    result->need = status == STATUS_EXHAUSTED ? 1 : 0;
    barrier_store_load(); /* D1 */
    result->is_sender_wanted = sender_is_wanted(arena, call);
    if (status == STATUS_CORRUPT) {
        arena_poison(arena, status, "the open batch of a partition has an impossible slot word");
    }
}

/* Returns the size of the records for Kafka's metric record-size: their upper bounds, independent of other records. */
static inline uint64_t appended_size(const struct append_order *order, uint32_t appended)
{
    CHECK(appended >= 1);
    uint64_t size = record_size_upper_bound(&order->records[0].size);
    for (uint32_t i = 1; i < appended; i++) {
        size += record_size_upper_bound(&order->records[i].size);
    }
    return size;
}

static inline void touched_count_records(struct touched_batch *touched, uint32_t generation, uint32_t record_count)
{
    CHECK(record_count >= 1);
    const uint32_t known = touched->generation_plus_one == generation + 1 ? touched->record_count : 0;
    *touched = (struct touched_batch){.generation_plus_one = generation + 1, .record_count = known + record_count};
}

/* Only this process writes its own entry, so a load and a store are enough. */
static inline void count_appended(struct appender *appender, const struct append_order *order,
                                  const struct append_result *result)
{
    CHECK(result->first.slot_index < appender->arena->geometry.slot_count);
    struct process_entry *me = appender->arena->me;
    const uint64_t size = appended_size(order, result->appended);
    store_relaxed_u64(&me->record_count, load_relaxed_u64(&me->record_count) + result->appended);
    store_relaxed_u64(&me->record_bytes, load_relaxed_u64(&me->record_bytes) + size);
    touched_count_records(&appender->touched[result->first.slot_index], result->first.generation, result->appended);
    appender->notes[order->partition_index] = (struct appender_note){
        .seq = result->first.seq + 1, .slot_index = result->first.slot_index, .end = result->first.end};
    if (order->sticky != NULL) {
        order->sticky->size += size;
    }
}

/* Requires no lock and no hazard, because this process owns the slots. So other threads run while a large record is
 * copied. */
static enum status chain_fill(struct arena *arena, uint32_t partition_index, const uint32_t *slots, uint32_t count,
                              const struct measured_record *record)
{
    CHECK(count > 1);
    bool is_long = (uint64_t)count * arena->geometry.batch_size >= LONG_COPY_SIZE && arena->blocking.begin != NULL;
    void *state = is_long ? arena->blocking.begin() : NULL;
    enum status status = producer_batch_fill_chain(arena, partition_index, slots, count, record);
    if (is_long) {
        arena->blocking.end(state);
    }
    return status;
}

static enum status chain_commit(struct arena *arena, uint64_t joined, const struct append_order *order,
                                struct append_result *result)
{
    CHECK(order->count >= 1);
    CHECK(order->reservation->count > 1);
    enum status status;
    do {
        struct partition_hold hold;
        partition_lock(arena, order->partition_index, &hold);
        hold.joined = joined;
        status = producer_batch_commit_chain(arena, &hold, order->reservation->slots, order->records, &result->first);
        partition_unlock(arena, &hold);
    } while (status == STATUS_TRY_AGAIN);
    return status;
}

static COLD enum status append_oversized(struct appender *appender, const struct append_order *order, uint32_t need,
                                    struct append_result *result)
{
    CHECK(need > 1);
    struct arena *arena = appender->arena;
    struct reservation *reservation = order->reservation;
    RETURN_IF_FAILED(transaction_admits(arena, appender->joined));
    result->need = need; /* used if it has too few slots. If the arena closes, the next enqueue returns the reason */
    if (reservation == NULL || reservation->count < need) {
        return STATUS_EXHAUSTED;
    }
    RETURN_IF_FAILED(chain_fill(arena, order->partition_index, reservation->slots, need, order->records));
    enum status status = chain_commit(arena, appender->joined, order, result);
    if (status != STATUS_OK && status != STATUS_STALE) {
        return status == STATUS_REMOVED ? STATUS_EXHAUSTED : status;
    }
    reservation->slots += need;
    reservation->count -= need;
    if (status == STATUS_STALE) {
        return STATUS_EXHAUSTED;
    }
    barrier_store_load(); /* X2 */
    if (UNLIKELY(arena_closing(arena) == CLOSING_DONE)) {
        return STATUS_EXHAUSTED;
    }
    closing_check(arena);
    result->appended = 1;
    count_appended(appender, order, result);
    struct append_call call = {.order = order, .spare = NO_SLOT, .has_filled = true};
    append_finish(appender, &call, status, result);
    return status;
}

/* Locks again and appends half as many records, because the section may exceed the patience of other processes. */
static COLD enum status locked_append_again(struct appender *appender, struct partition_hold *hold,
                                            struct append_call *call, struct append_result *result)
{
    CHECK(call->count >= 1);
    const struct append_order *order = call->order;
    call->count = (uint32_t)divide_rounded_up(call->count, 2);
    partition_lock(appender->arena, order->partition_index, hold);
    hold->joined = appender->joined;
    return producer_batch_append(appender->arena, hold, order->records, call->count, &result->appended,
                                 &result->first);
}

/* Continues an append whose first attempt returned `status`, usually because the batch is full. The lock is held. */
static COLD enum status append_continue(struct appender *appender, const struct append_order *order,
                                     struct partition_hold hold, enum status status, struct append_result *result)
{
    struct arena *arena = appender->arena;
    struct append_call call = {.order = order,
                               .linger = appender->linger,
                               .count = order->count,
                               .spare = reservation_take_one(order->reservation)};
    call.is_reserved = call.spare != NO_SLOT;
    for (;;) {
        if (status == STATUS_EXHAUSTED) {
            status = locked_open_and_append(arena, &hold, &call, result);
        }
        partition_unlock(arena, &hold);
        if (status != STATUS_TRY_AGAIN || call.has_moved_on) {
            break;
        }
        status = locked_append_again(appender, &hold, &call, result);
    }
    if (status == STATUS_OK) {
        count_appended(appender, order, result);
    }
    if (call.has_opened || call.spare != NO_SLOT || status != STATUS_OK) {
        append_finish(appender, &call, status, result);
    }
    return status;
}

enum status appender_append(struct appender *appender, const struct append_order *order, struct append_result *result)
{
    struct arena *arena = appender->arena;
    RETURN_IF_FAILED(appender_check(appender));
    if (UNLIKELY(order->count == 0 || order->partition_index >= arena->geometry.partition_count)) {
        return STATUS_INVALID;
    }
    result->appended = 0;
    result->need = 0;
    result->is_sender_wanted = false;
    lines_prefetch_if_other(appender, order);
    uint32_t need = record_slots_needed(arena, &order->records[0].size);
    if (UNLIKELY(need > 1)) {
        return append_oversized(appender, order, need, result);
    }
    struct partition_hold hold;
    partition_lock(arena, order->partition_index, &hold);
    hold.joined = appender->joined;
    enum status status =
        producer_batch_append(arena, &hold, order->records, order->count, &result->appended, &result->first);
    if (UNLIKELY(status != STATUS_OK || order->reservation != NULL)) {
        return append_continue(appender, order, hold, status, result);
    }
    partition_unlock(arena, &hold);
    count_appended(appender, order, result);
    return STATUS_OK;
}

/* ---- flush ---- */

static bool batch_is_incomplete(const struct arena *arena, uint32_t slot_index, uint32_t generation, uint64_t *word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    *word = load_acquire_u64(&arena->slots[slot_index].word); /* C5 */
    enum slot_state state = slot_word_state(*word);
    return slot_word_generation(*word) == generation && (state == SLOT_OPEN || state == SLOT_READY);
}

/* Needs neither a lock nor a hazard: sealing another batch by mistake only makes that one shorter. */
static bool batch_seal_for_flush(struct arena *arena, uint32_t slot_index, uint32_t generation)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint64_t word;
    while (batch_is_incomplete(arena, slot_index, generation, &word)) {
        if (slot_word_state(word) == SLOT_READY) {
            return true;
        }
        if (batch_seal(arena, slot_index, word)) {
            counter_add(arena, COUNTER_BATCHES_SEALED_FLUSH, 1);
        }
    }
    return false;
}

/* Adds every partition that this process appended to, because a batch may be spilled during the wait. */
static void flush_note_partitions(const struct appender *appender, struct flush_ticket *ticket)
{
    CHECK(ticket->partitions != NULL);
    for (uint32_t i = 0; i < registry_partition_count(appender->arena); i++) {
        if (appender->notes[i].seq != 0) {
            ticket->partitions[ticket->partition_count++] =
                (struct flush_partition){.partition_index = i, .seq = appender->notes[i].seq - 1};
        }
    }
}

enum status appender_flush_begin(struct appender *appender, struct flush_ticket *ticket)
{
    struct arena *arena = appender->arena;
    uint32_t slot_count = arena->geometry.slot_count;
    *ticket = (struct flush_ticket){0};
    if (appender->owner != arena->owner) { /* true in a forked child, also before it attaches */
        appender_forget(appender);
    }
    ticket->items = malloc(slot_count * sizeof *ticket->items);
    ticket->partitions = malloc(arena->geometry.partition_count * sizeof *ticket->partitions);
    if (ticket->items == NULL || ticket->partitions == NULL) {
        appender_flush_end(ticket);
        return STATUS_OS;
    }
    flush_note_partitions(appender, ticket);
    for (uint32_t i = 0; i < slot_count; i++) {
        if (appender->touched[i].generation_plus_one == 0) {
            continue;
        }
        uint32_t generation = appender->touched[i].generation_plus_one - 1;
        if (batch_seal_for_flush(arena, i, generation)) {
            ticket->items[ticket->count++] = (struct flush_item){.slot_index = i, .generation = generation};
        } else {
            appender->touched[i] = (struct touched_batch){0};
        }
    }
    return STATUS_OK;
}

/* Call after the slots were read: a batch that has left its slot is in its partition's range, or has a result. */
static uint32_t flush_spilled_remaining(const struct appender *appender, const struct flush_ticket *ticket)
{
    CHECK(ticket->partition_count <= appender->arena->geometry.partition_count);
    uint32_t count = 0;
    for (uint32_t i = 0; i < ticket->partition_count; i++) {
        const struct flush_partition *partition = &ticket->partitions[i];
        count += spilled_has_up_to(appender->arena, partition->partition_index, partition->seq);
    }
    return count;
}

uint32_t appender_flush_remaining(struct appender *appender, struct flush_ticket *ticket)
{
    CHECK(ticket->count <= appender->arena->geometry.slot_count);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < ticket->count; i++) {
        uint64_t word;
        if (batch_is_incomplete(appender->arena, ticket->items[i].slot_index, ticket->items[i].generation, &word)) {
            ticket->items[kept++] = ticket->items[i];
        }
    }
    ticket->count = kept;
    return kept + flush_spilled_remaining(appender, ticket);
}

uint64_t appender_flush_record_count(const struct appender *appender, const struct flush_ticket *ticket)
{
    CHECK(ticket->count <= appender->arena->geometry.slot_count);
    uint64_t count = 0;
    for (uint32_t i = 0; i < ticket->count; i++) {
        uint64_t word;
        if (batch_is_incomplete(appender->arena, ticket->items[i].slot_index, ticket->items[i].generation, &word)) {
            count += slot_word_count(word);
        }
    }
    return count;
}

void appender_flush_end(struct flush_ticket *ticket)
{
    free(ticket->items);
    free(ticket->partitions);
    *ticket = (struct flush_ticket){0};
}

/* Parts of a split batch may have results. If other processes also appended to it, it is unknown whose records
 * remain. */
static uint32_t incomplete_in_batch(const struct appender *appender, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < appender->arena->geometry.slot_count);
    uint32_t acked = load_acquire_u32(&appender->arena->slots[slot_index].acked_record_count); /* C11 */
    uint32_t count = slot_word_count(word);
    uint32_t left = count - (acked < count ? acked : 0);
    uint32_t own = appender->touched[slot_index].record_count;
    return left < own ? left : own;
}

static uint64_t incomplete_in_slots(const struct appender *appender)
{
    CHECK(appender->touched != NULL);
    uint64_t count = 0;
    for (uint32_t i = 0; i < appender->arena->geometry.slot_count; i++) {
        const struct touched_batch *touched = &appender->touched[i];
        uint64_t word;
        if (touched->generation_plus_one != 0 &&
            batch_is_incomplete(appender->arena, i, touched->generation_plus_one - 1, &word)) {
            count += incomplete_in_batch(appender, i, word);
        }
    }
    return count;
}

static uint64_t incomplete_in_overflow(const struct appender *appender)
{
    CHECK(appender->notes != NULL);
    uint64_t count = 0;
    for (uint32_t i = 0; i < registry_partition_count(appender->arena); i++) {
        count += appender->notes[i].seq != 0 && spilled_has_up_to(appender->arena, i, appender->notes[i].seq - 1);
    }
    return count;
}

uint64_t appender_incomplete_count(const struct appender *appender)
{
    if (appender->owner != appender->arena->owner) {
        return 0; /* a forked child has appended nothing */
    }
    return incomplete_in_slots(appender) + incomplete_in_overflow(appender);
}
