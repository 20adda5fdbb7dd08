/* SPDX-License-Identifier: Apache-2.0
 *
 * The completion ring: the result of each batch, written by the sender, readable from every process.
 *
 *   cell = number % completion_count, number = 0, 1, 2, ... without end
 *   slot header: last_completion = number + 1 of the newest result of that slot
 *   cell: previous = last_completion before this one. So the results of a slot form a list from new to old, which ends
 *   at a cell that was overwritten.
 *
 * record (sender):  cell.number = 0 (C1) → fields → cell.number = number + 1 (release, C2) → slot.last_completion
 *                   (release) → completion_tail = number + 1 (release)
 * find (anyone):    (partition, seq) identifies a batch, and is never used twice. If the slot's word is still OPEN or
 *                   READY with this pair, the batch is pending. Else walk the list from last_completion: number
 *                   (acquire, C2), fields, number again (C1). If the number has changed, the cell was overwritten. If
 *                   no cell is the batch's, its result has expired. A batch in the sender's overflow (spilled.h) is
 *                   also pending. An OPEN or READY batch may have a result, too: it was split, or decided in flight.
 *                   The walk for it ends at the first result of an earlier batch of the slot.
 *
 * WAITING for results: completion_wait is one word with a count of wake-ups, two flags and a futex. The word is a hint;
 * after a wake-up, the process reads completion_tail or the transaction again.
 *
 *   completion_wait   | wake-ups so far 30 | a loop listens 1 | a process waits 1 |
 *
 *   waiter   set the flag and remember the word, full barrier (C3), read completion_tail or the word of the
 *            transaction. If that is unchanged: sleep, at most a slice, unless the word has changed
 *   sender   results recorded, or the transaction ended or failed, full barrier (C4), read the word. If the flag is
 *            set: CAS to the word without the flag and with one more wake-up, and wake all
 *   So either the sender sees that a process waits, or the waiter sees the change. If the sender clears the flag for an
 *   earlier result, it does not cancel a wait for the next one. The word that the process would sleep on has changed,
 *   so it does not sleep: it checks, and sets the flag again (docs/decisions/0043). It is a flag and not a count of
 *   waiters: a waiter that dies leaves at most one unneeded wake-up. If the sender is killed between the CAS and the
 *   wake, the sleepers wait for the rest of their slice.
 *
 *   An event loop cannot sleep on a futex, so it polls a FIFO (shmaccum/arena/results_fifo.py). It sets the other flag
 *   (C3) and checks. The sender clears that flag after its results (C4), and wakes the loops. Without a loop this costs
 *   a load.
 *
 * A batch that was split has several results, one per part. The parts are contiguous and in order.
 *
 * DEATHS. The sender dies before C2: readers see number 0, and the next sender writes the same cell, because
 * completion_tail was not raised. Between C2 and the slot's DONE: the next sender sends the batch again (the broker
 * recognises it) and records a second result. The newer one is found first, and both are equal.
 */
#ifndef ARENA_COMPLETION_H
#define ARENA_COMPLETION_H

#include "arena/arena.h"

enum batch_result {
    RESULT_NONE = 0,
    RESULT_SUCCEEDED = 1,
    RESULT_FAILED = 2,  /* the sink rejected it: error_code is the reason */
    RESULT_EXPIRED = 3, /* delivery_timeout_ms passed */
    RESULT_ABORTED = 4, /* closed by force */
    RESULT_CORRUPT = 5, /* its bytes contradicted their checksum; the slot is BAD */
    RESULT_COUNT
};

struct completion {
    uint64_t seq;
    uint32_t slot_index;
    uint32_t partition_index;
    uint32_t first_record;
    uint32_t record_count;
    enum batch_result result;
    int32_t error_code;
    int64_t base_offset;        /* of first_record, or -1 */
    int64_t log_append_time_ms; /* -1 if the records' own timestamps are valid */
};

/* Identifies one record permanently: its batch, and its place in it. */
struct record_token {
    uint64_t seq;
    uint32_t partition_index;
    uint32_t slot_index;
    uint32_t record_index;
};

/* Sender only. */
void completion_record(struct arena *arena, const struct completion *completion);

/* Returns STATUS_OK and the result of the token's record, or STATUS_PENDING, STATUS_RESULT_EXPIRED or STATUS_CORRUPT.
 */
enum status completion_find(const struct arena *arena, const struct record_token *token,
                            struct completion *completion) MUST_USE;

/* Returns true while the record's batch is drained and has no result: the sender waits for a response, or retries. */
bool completion_is_under_way(const struct arena *arena, const struct record_token *token);

/* Finds the result with this number. Returns STATUS_PENDING before it is recorded, or STATUS_RESULT_EXPIRED. */
enum status completion_at(const struct arena *arena, uint64_t number, struct completion *completion) MUST_USE;

/* Sleeps until *cell differs from `seen`, at most timeout_ns and at most COMPLETION_SLICE_NS. May return early: check,
 * and wait again. `cell` is completion_tail or the word of the transaction. Requires arena->owner != 0. */
#define COMPLETION_SLICE_NS (UINT64_C(50) * NS_PER_MS)
void completion_wait_slice(struct arena *arena, const atomic_u64 *cell, uint64_t seen, uint64_t timeout_ns);

/* Sender only: wakes all waiters. Called after results were recorded, and after a transaction ended or failed. */
void completion_wake(struct arena *arena);

/* Records that an event loop waits for results from now on. */
void completion_listen(struct arena *arena);

/* Sender only, after completion_wake: returns true once after completion_listen. The caller then wakes the loops. */
bool completion_take_listening(struct arena *arena);

/* Sender takeover: raises completion_tail past cells that a dead sender finished without raising it. */
void completion_repair(struct arena *arena);

#endif
