/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/completion.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena/spilled.h"
#include "base/point.h"

static struct completion_entry *completion_cell(const struct arena *arena, uint64_t number)
{
    CHECK((arena->geometry.completion_count & (arena->geometry.completion_count - 1)) == 0);
    return &arena->completions[number & (arena->geometry.completion_count - 1)];
}

/* ---- record ---- */

static void completion_write(struct completion_entry *cell, const struct completion *completion, uint64_t previous)
{
    CHECK(completion->result > RESULT_NONE && completion->result < RESULT_COUNT);
    store_relaxed_u64(&cell->previous, previous);
    store_relaxed_u64(&cell->seq, completion->seq);
    store_relaxed_u32(&cell->slot_index, completion->slot_index);
    store_relaxed_u32(&cell->partition_index, completion->partition_index);
    store_relaxed_u64(&cell->base_offset, (uint64_t)completion->base_offset);
    store_relaxed_u64(&cell->log_append_time_ms, (uint64_t)completion->log_append_time_ms);
    store_relaxed_u32(&cell->first_record, completion->first_record);
    store_relaxed_u32(&cell->record_count, completion->record_count);
    store_relaxed_u32(&cell->result, (uint32_t)completion->result);
    store_relaxed_u32(&cell->error_code, (uint32_t)completion->error_code);
}

void completion_record(struct arena *arena, const struct completion *completion)
{
    CHECK(completion->slot_index < arena->geometry.slot_count);
    struct slot_header *slot = &arena->slots[completion->slot_index];
    uint64_t number = load_relaxed_u64(&arena->globals->completion_tail);
    struct completion_entry *cell = completion_cell(arena, number);
    store_seq_cst_u64(&cell->number, 0); /* C8 */
    barrier_store_load(); /* C1 */
    POINT(completion_cleared);
    completion_write(cell, completion, load_relaxed_u64(&slot->last_completion));
    store_release_u64(&cell->number, number + 1); /* C2 */
    POINT(completion_numbered);
    store_release_u64(&slot->last_completion, number + 1); /* C6 */
    POINT(completion_linked);
    store_release_u64(&arena->globals->completion_tail, number + 1); /* C7 */
}

/* If the cell after the tail is complete, its sender died before it raised the tail. */
void completion_repair(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    uint64_t tail = load_relaxed_u64(&arena->globals->completion_tail);
    struct completion_entry *cell = completion_cell(arena, tail);
    uint32_t slot_index = load_relaxed_u32(&cell->slot_index);
    if (load_acquire_u64(&cell->number) != tail + 1 || slot_index >= arena->geometry.slot_count) { /* V5 */
        return;
    }
    store_release_u64(&arena->slots[slot_index].last_completion, tail + 1); /* C6 */
    store_release_u64(&arena->globals->completion_tail, tail + 1); /* C7 */
}

/* ---- find ---- */

/* Returns false if the cell does not hold result `number`, or was overwritten during the read. */
static bool completion_read(const struct arena *arena, uint64_t number, struct completion *completion,
                            uint64_t *previous)
{
    const struct completion_entry *cell = completion_cell(arena, number);
    if (load_acquire_u64(&cell->number) != number + 1) { /* C2 */
        return false;
    }
    *completion = (struct completion){
        .seq = load_acquire_u64(&cell->seq), /* C1 */
        .slot_index = load_acquire_u32(&cell->slot_index), /* C1 */
        .partition_index = load_acquire_u32(&cell->partition_index), /* C1 */
        .first_record = load_acquire_u32(&cell->first_record), /* C1 */
        .record_count = load_acquire_u32(&cell->record_count), /* C1 */
        .result = (enum batch_result)load_acquire_u32(&cell->result), /* C1 */
        .error_code = (int32_t)load_acquire_u32(&cell->error_code), /* C1 */
        .base_offset = (int64_t)load_acquire_u64(&cell->base_offset), /* C1 */
        .log_append_time_ms = (int64_t)load_acquire_u64(&cell->log_append_time_ms), /* C1 */
    };
    *previous = load_acquire_u64(&cell->previous); /* C1 */
    return load_acquire_u64(&cell->number) == number + 1; /* C9: the loads above precede this one */
}

static bool completion_is_of(const struct completion *completion, const struct record_token *token)
{
    return completion->seq == token->seq && completion->partition_index == token->partition_index &&
           token->record_index - completion->first_record < completion->record_count;
}

/* Returns true while the slot still has this batch. If it completes between the loads, the ring has its result. */
static bool token_is_in_slot(const struct arena *arena, const struct record_token *token)
{
    CHECK(token->slot_index < arena->geometry.slot_count);
    const struct slot_header *slot = &arena->slots[token->slot_index];
    enum slot_state state = slot_word_state(load_acquire_u64(&slot->word)); /* C5 */
    return (state == SLOT_OPEN || state == SLOT_READY) && load_relaxed_u64(&slot->seq) == token->seq &&
           load_relaxed_u32(&slot->partition_index) == token->partition_index;
}

/* Returns true if the result was recorded before the token's batch was opened. Requires that this batch is still in its
 * slot. If both are of one partition, their numbers are compared: a partition numbers its batches in the order of
 * opening. If the result is of another partition, its batch was in the slot before. Only a spilled batch gets its
 * result after it has left its slot, and the sender stores the spilled range before it frees the slot. */
static bool completion_is_before(const struct arena *arena, const struct completion *completion,
                                 const struct record_token *token)
{
    if (completion->partition_index == token->partition_index) {
        return completion->seq < token->seq;
    }
    return !spilled_may_have_had(arena, completion->partition_index, completion->seq);
}

/* Walks from the newest result of the slot to older ones. Their numbers decrease, so the walk ends within one pass over
 * the ring. For a batch in its slot, it ends at the first result recorded before the batch was opened. */
static enum status completion_walk(const struct arena *arena, const struct record_token *token, bool is_in_slot,
                                   struct completion *completion)
{
    CHECK(token->slot_index < arena->geometry.slot_count);
    uint64_t next = load_acquire_u64(&arena->slots[token->slot_index].last_completion); /* C6 */
    uint64_t before = UINT64_MAX;
    while (next != 0 && next - 1 < before) {
        uint64_t previous;
        before = next - 1;
        if (!completion_read(arena, before, completion, &previous) || completion->slot_index != token->slot_index) {
            return STATUS_RESULT_EXPIRED;
        }
        if (completion_is_of(completion, token)) {
            return (uint32_t)completion->result < RESULT_COUNT ? STATUS_OK : STATUS_CORRUPT;
        }
        if (is_in_slot && completion_is_before(arena, completion, token)) {
            return STATUS_RESULT_EXPIRED;
        }
        next = previous;
    }
    return STATUS_RESULT_EXPIRED;
}

/* Reads the slot first, then the overflow (spilled.h), then the ring: a batch that is in neither has its result in the
 * ring. A READY batch may have a result, too: one that was decided in flight. So the ring is always searched. */
enum status completion_find(const struct arena *arena, const struct record_token *token, struct completion *completion)
{
    if (token->slot_index >= arena->geometry.slot_count) {
        return STATUS_INVALID;
    }
    bool is_in_slot = token_is_in_slot(arena, token);
    bool is_pending = is_in_slot || spilled_has(arena, token->partition_index, token->seq);
    enum status status = completion_walk(arena, token, is_in_slot, completion);
    return status == STATUS_RESULT_EXPIRED && is_pending ? STATUS_PENDING : status;
}

bool completion_is_under_way(const struct arena *arena, const struct record_token *token)
{
    return token->slot_index < arena->geometry.slot_count && token_is_in_slot(arena, token) &&
           load_relaxed_u32(&arena->slots[token->slot_index].attempt_count) > 0;
}

enum status completion_at(const struct arena *arena, uint64_t number, struct completion *completion)
{
    uint64_t previous;
    if (number >= load_acquire_u64(&arena->globals->completion_tail)) { /* C7 */
        return STATUS_PENDING;
    }
    return completion_read(arena, number, completion, &previous) ? STATUS_OK : STATUS_RESULT_EXPIRED;
}

/* ---- wait ---- */

enum { COMPLETION_IS_AWAITED = 1, COMPLETION_IS_LISTENED_FOR = 2, COMPLETION_WAKE_UP = 4 };

/* Not FUTEX_PRIVATE: sleeper and waker are different processes. */
static uint32_t *wait_futex(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    return (uint32_t *)(void *)&arena->globals->completion_wait;
}

/* Sleeps until the wake-up count differs from that in `raised`. */
static void wake_up_sleep(struct arena *arena, uint32_t raised, uint64_t timeout_ns)
{
    uint64_t slice_ns = timeout_ns < COMPLETION_SLICE_NS ? timeout_ns : COMPLETION_SLICE_NS;
    struct timespec slice = {.tv_sec = 0, .tv_nsec = (long)slice_ns};
    syscall(SYS_futex, wait_futex(arena), FUTEX_WAIT, raised, &slice, NULL, 0);
}

void completion_wait_slice(struct arena *arena, const atomic_u64 *cell, uint64_t seen, uint64_t timeout_ns)
{
    CHECK(arena->owner != 0);
    uint32_t raised = or_bits_u32(&arena->globals->completion_wait, COMPLETION_IS_AWAITED); /* C3 */
    barrier_store_load(); /* C3 */
    POINT(completion_awaited);
    if (load_acquire_u64(cell) == seen) { /* C7 */
        wake_up_sleep(arena, raised | COMPLETION_IS_AWAITED, timeout_ns);
    }
}

/* Clears the flag and counts a wake-up. Returns false if no process waits. An event loop may set its flag meanwhile, so
 * the CAS is repeated. */
static bool wake_up_count(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    uint32_t wait = load_relaxed_u32(&arena->globals->completion_wait);
    while (UNLIKELY((wait & COMPLETION_IS_AWAITED) != 0)) {
        uint32_t counted = wait - COMPLETION_IS_AWAITED + COMPLETION_WAKE_UP;
        if (cas_u32(&arena->globals->completion_wait, &wait, counted)) { /* C4 */
            return true;
        }
    }
    return false;
}

void completion_wake(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    barrier_store_load(); /* C4 */
    if (wake_up_count(arena)) {
        POINT(completion_wake_counted);
        syscall(SYS_futex, wait_futex(arena), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
}

/* ---- listen ---- */

void completion_listen(struct arena *arena)
{
    CHECK(arena->owner != 0);
    (void)or_bits_u32(&arena->globals->completion_wait, COMPLETION_IS_LISTENED_FOR); /* C3 */
    barrier_store_load(); /* C3 */
}

bool completion_take_listening(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    barrier_store_load(); /* C4 */
    if (LIKELY((load_relaxed_u32(&arena->globals->completion_wait) & COMPLETION_IS_LISTENED_FOR) == 0)) {
        return false;
    }
    (void)and_bits_u32(&arena->globals->completion_wait, ~(uint32_t)COMPLETION_IS_LISTENED_FOR); /* C4 */
    return true;
}
