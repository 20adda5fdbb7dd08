/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a transaction in the sender (transaction.h has the states and the repairs).
 *
 *   state        what the sender does in each round               until                     the task of the sink
 *   OPEN         aborts it if its coordinator is dead or late
 *   ABORT_ONLY   aborts it if its coordinator is dead
 *   COMMITTING   seals open batches, and continues to deliver     no slot holds a record
 *   DECIDED      discards batches that a host crash restored      no slot holds a record    commit
 *   ABORTING     seals open batches, and discards all batches     no slot holds a record    abort
 *
 * A batch that is discarded while it is in flight keeps its memory until its I/O is over. Until then, the transaction
 * does not end.
 */
#include "arena/batch_seal.h"
#include "arena/transaction.h"
#include "base/point.h"
#include "sender/sender_half.h"

static bool slot_holds_records(const struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* P6 */
    return slot_word_state(word) == SLOT_READY ||
           (slot_word_state(word) == SLOT_OPEN && slot_word_count(word) > 0);
}

static bool arena_holds_records(const struct arena *arena)
{
    bool holds_records = load_relaxed_u64(&arena->globals->spilled_batch_count) != 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count && !holds_records; i++) {
        holds_records = slot_holds_records(arena, i);
    }
    return holds_records;
}

/* Aborts the transaction if its coordinator is dead or late. Also aborts an impossible state of a corrupt arena. */
static void transaction_watch(struct arena *arena, uint64_t word, uint64_t timeout_ns)
{
    uint32_t state = transaction_word_state(word);
    uint64_t begun_ns = load_relaxed_u64(&arena->globals->transaction_begun_ns);
    uint64_t now_ns = arena_now_ns(arena);
    enum transaction_why why = TRANSACTION_WHY_NOT;
    if (!transaction_has_coordinator(arena) || state > TRANSACTION_ABORT_ONLY) {
        why = TRANSACTION_WHY_DEATH;
    } else if (state == TRANSACTION_OPEN && begun_ns < now_ns && now_ns - begun_ns >= timeout_ns) {
        why = TRANSACTION_WHY_TIMEOUT;
    }
    if (why != TRANSACTION_WHY_NOT) {
        enum status status = transaction_abort(arena, transaction_word_number(word), why);
        (void)status; /* the coordinator may have ended it first */
    }
}

/* Seals all batches again, because the process that changed the word may have died before it had sealed all. */
static void transaction_advance(struct sender_half *half, uint64_t word, struct wake_set *wakes)
{
    struct arena *arena = half->arena;
    uint32_t state = transaction_word_state(word);
    batch_seal_all(arena);
    POINT(transaction_sealed);
    if (state == TRANSACTION_ABORTING || state == TRANSACTION_DECIDED) {
        (void)sender_abort(half, true, wakes);
    } else if (!arena_holds_records(arena)) {
        transaction_decide(arena, word);
    }
}

static enum transaction_task task_of(const struct arena *arena, uint64_t word)
{
    uint32_t state = transaction_word_state(word);
    if ((state != TRANSACTION_DECIDED && state != TRANSACTION_ABORTING) || arena_holds_records(arena)) {
        return TRANSACTION_TASK_NOTHING;
    }
    return state == TRANSACTION_DECIDED ? TRANSACTION_TASK_COMMIT : TRANSACTION_TASK_ABORT;
}

static bool transaction_is_ending(uint64_t word)
{
    uint32_t state = transaction_word_state(word);
    return state == TRANSACTION_COMMITTING || state == TRANSACTION_DECIDED || state == TRANSACTION_ABORTING;
}

enum transaction_task sender_next_transaction_task(struct sender_half *half, uint64_t timeout_ns, uint64_t *number,
                                                   struct wake_set *wakes)
{
    struct arena *arena = half->arena;
    uint64_t word = transaction_read(arena);
    if (!arena_is_transactional(arena) || transaction_word_state(word) == TRANSACTION_NONE) {
        return TRANSACTION_TASK_NOTHING;
    }
    if (!transaction_is_ending(word)) {
        POINT(transaction_seen);
        transaction_watch(arena, word, timeout_ns);
        word = transaction_read(arena); /* a transaction without batches may have ended */
    }
    if (transaction_is_ending(word)) {
        transaction_advance(half, word, wakes);
    }
    word = transaction_read(arena);
    *number = transaction_word_number(word);
    return task_of(arena, word);
}

enum status sender_end_transaction(struct sender_half *half, uint64_t number, enum transaction_why why)
{
    enum status status = transaction_end(half->arena, number, why);
    completion_wake(half->arena);
    return status;
}
