/* SPDX-License-Identifier: Apache-2.0
 *
 * The completion ring: the result of each batch, written by the sender, readable from every process.
 *
 *   cell = number % completion_count, number = 0, 1, 2, ... for ever
 *   slot header: last_completion = number + 1 of the newest result of that slot
 *   cell: previous = last_completion before this one. So the results of a slot form a list back in time, which ends
 *   where the ring has overwritten it.
 *
 * record (sender):  cell.number = 0 (C1) → fields → cell.number = number + 1 (release, C2) → slot.last_completion
 *                   (release) → completion_tail = number + 1 (release)
 * find (anybody):   a batch is known by (partition, seq), which is never used twice. Look at the slot's word: still
 *                   OPEN or READY with these: pending. Else walk the list from last_completion: number (acquire, C2),
 *                   fields, number again (C1): changed = overwritten. The batch's own cell not found: the result has
 *                   expired. A batch that lies in the sender's overflow (spilled.h) is in no slot, and pending too.
 *                   A batch that is OPEN or READY may have a result as well: it was split, or decided in flight. The
 *                   walk for it ends at the first result of a batch that had the slot before.
 *
 * WAITING for results: completion_wait, one word that is a count of wake-ups, two flags and a futex. The word is a
 * hint, and the truth is found again.
 *
 *   completion_wait   | wake-ups so far 30 | a loop listens 1 | somebody waits 1 |
 *
 *   waiter   raise the flag and keep the word as it is now, full barrier (C3), completion_tail or the word of the
 *            transaction; as it was: sleep, at most a slice, unless the word is another one
 *   sender   results recorded, or the transaction ended or failed, full barrier (C4), the word; flag up: CAS to the
 *            word with the flag down and one wake-up more, and wake all
 *   So either the sender sees somebody waiting, or the waiter sees the news. And the flag that the sender takes
 *   down for an earlier result is not taken from one who waits for the next: the word that it would sleep on is gone,
 *   so it does not sleep, looks, and raises the flag again (docs/decisions/0043).
 *   It is a flag and no count of waiters: one that dies leaves at most one wake-up for nobody. Killed between the CAS
 *   and the wake, the sender costs the sleepers the rest of their slice.
 *
 *   An event loop cannot sleep on a futex, and hears the results bell (shmaccum/arena/results_bell.py). It raises the
 *   other flag (C3) and looks. The sender takes that flag down behind its results (C4), and rings. Where no loop
 *   listens, the bell costs a load.
 *
 * A batch may have several results, one per part, if it was split; the parts are contiguous and in order.
 *
 * DEATHS. The sender dies before C2: the cell is void, and since completion_tail was not raised the next sender
 * writes the same cell; readers see number 0. Between C2 and the slot's DONE: the next sender sends the batch again
 * (the broker recognises it) and records a second result; the older one is further back in the list, the newer one is
 * found first, and both say the same.
 */
#ifndef ARENA_COMPLETION_H
#define ARENA_COMPLETION_H

#include "arena/arena.h"

enum batch_result {
    RESULT_NONE = 0,
    RESULT_SUCCEEDED = 1,
    RESULT_FAILED = 2,  /* the sink refused it: error_code says why */
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
    int64_t base_offset;        /* of first_record; -1 unknown */
    int64_t log_append_time_ms; /* -1: the records' own timestamps hold */
};

/* Names one record for ever: which batch, and its place in it. */
struct record_token {
    uint64_t seq;
    uint32_t partition_index;
    uint32_t slot_index;
    uint32_t record_index;
};

/* Sender only. */
void completion_record(struct arena *arena, const struct completion *completion);

/* STATUS_OK and the result of the token's record; STATUS_PENDING; STATUS_RESULT_EXPIRED; STATUS_CORRUPT. */
enum status completion_find(const struct arena *arena, const struct record_token *token,
                            struct completion *completion) MUST_USE;

/* True while a sender has taken the record's batch out and there is no result. The sender comes back to the batch by
 * itself then, whether it waits for an answer or tries again. */
bool completion_is_under_way(const struct arena *arena, const struct record_token *token);

/* The result with this number in history. STATUS_PENDING: not recorded yet. STATUS_RESULT_EXPIRED: overwritten. */
enum status completion_at(const struct arena *arena, uint64_t number, struct completion *completion) MUST_USE;

/* Sleeps until *cell is not `seen` any more, at most timeout_ns and at most COMPLETION_SLICE_NS, within the arena's
 * blocking hooks. May return early: look, and wait again. `cell` is completion_tail or the word of the transaction.
 * Requires arena->owner != 0. */
#define COMPLETION_SLICE_NS (UINT64_C(50) * NS_PER_MS)
void completion_wait_slice(struct arena *arena, const atomic_u64 *cell, uint64_t seen, uint64_t timeout_ns);

/* Sender, once after one or more results, and after the end or a failure of the transaction: wakes whoever waits. */
void completion_wake(struct arena *arena);

/* Says that an event loop listens to the results bell from now on. */
void completion_listen(struct arena *arena);

/* Sender, behind completion_wake: true when a loop said so since the last call; the caller rings the bell. */
bool completion_take_listening(struct arena *arena);

/* Sender take-over: raises completion_tail past cells that a dead sender finished without raising it. */
void completion_repair(struct arena *arena);

#endif
