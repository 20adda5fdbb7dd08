/* SPDX-License-Identifier: Apache-2.0
 *
 * The buffer pool allocates and frees slots, and serves waiters in their order (Kafka's BufferPool, across processes).
 *
 * FAST PATH, if no process waits and one slot is wanted:
 *     CAS FREE -> OWNED(me). The same CAS stores the owner, so a process that dies at any moment leaks no slot.
 *
 * QUEUE, if the pool is exhausted, a process waits already, a limit is reached, or several slots are wanted (an
 * oversized record):
 *     enqueue   pool lock: raise parked_count → take a ticket → word = PARKED(ticket, need) → admit → fix →
 *               unlock
 *     admit     the limits of its topic and partition (topic_share.h) allow it: raise waiting_count → word = WAIT
 *     sleep     on the waiter's semaphore, in slices; the semaphore is a hint, the waiter word is the truth
 *     wait on   every slice. WAIT: pool lock (stolen if its owner died) → repair → fix → revoke → unlock. One living
 *               waiter is enough to repair everything. PARKED: at its turn, and when it was posted, check the limits
 *               without a lock. If they allow it: pool lock → admit → fix → unlock
 *     take      pool lock: word is GOT: GRANT -> OWNED(me) for each slot → word = IDLE → unlock. If the word is PARKED
 *               again, keep waiting
 *     leave     max_block_ms is over: pool lock: GOT: take; else word = IDLE → free its grants → fix → unlock
 *
 *   Files: the steps are in buffer_pool.c, the sleep is in waiter_sleep.c. slots_wait_briefly
 *   (native/python/producer/append.c) runs them up to the first slice of the sleep, and BufferWaiter
 *   (shmaccum/producer/buffer_wait.py) runs the rest.
 *
 *   The queue is the order of the tickets, so there is no list to corrupt. New arrivals queue after waiters.
 *
 * PARKED: the waiter keeps its ticket and its partition. It is not eligible, and it does not repair. waiting_count does
 *     not include it, so other processes still use the fast path and let their batches linger. When slots are freed,
 *     the sender posts as many parked waiters as now fit. Otherwise they check in turns (parked_waiters.h). Only its
 *     owner changes PARKED to WAIT, so a stopped process is not served again before it is continued. The records of a
 *     process stay in order within a partition: a thread waits for one buffer at a time, and the tasks of an event loop
 *     send to a topic one after another.
 *
 * FIX (under the pool lock; any number of times): while there is a free slot and an eligible waiter, the lowest ticket
 *     gets it: CAS FREE -> GRANT(waiter, ticket), and when it has all it needs: WAIT -> GOT. At the end waiting_count =
 *     number of WAIT, parked_count = number of PARKED. The fast path runs without the lock, so the grant is a CAS.
 *     A waiter for an oversized record is eligible while oversized_bytes and the bytes that it still needs stay within
 *     oversized_bytes_max. An ineligible waiter does not block later ones, but oversized records are served in order.
 *     Only the lowest eligible ticket gathers slots, so two partly served waiters never wait for each other.
 *
 * REVOKE (under the pool lock, after fix): no slot is free, a waiter has held grants for GRANT_NS_MAX (chains:
 *     GRANT_CHAIN_NS_MAX), and another one is eligible. Then the process of the first one is stopped, and nothing was
 *     written into its grants. First its word: GOT or WAIT -> PARKED(its ticket), then its slots: GRANT -> FREE. If a
 *     slot became FREE while the word is WAIT, this lowest ticket would get it again at once. A living waiter that
 *     gathers slots renews granted_ns at each slice.
 *
 * REPAIR (under the pool lock, from the words alone): GRANT of a dead, cancelled, parked or older ticket -> FREE; OWNED
 *     by a dead process -> scrubbed, FREE; CONT whose head is gone -> scrubbed, FREE; waiter words of dead processes ->
 *     IDLE; then recount what is cached (hints, grants, oversized bytes). locked_free_abandoned (buffer_pool.c) frees
 *     the slots. The pool is repaired by a waiter (wait on), by an attach that finds the entry of a dead process
 *     (attach.c), and by the sender (sender_maintain, native/sender/sender_role.c).
 *
 * SHARES: a process holds at most its share of the slots (process_share.h). A process that has used up its share is not
 *     queued, so it blocks no other process in the queue.
 *
 * A slot is scrubbed before it becomes FREE: a free slot is all zeros, so nothing of one topic is readable in another.
 *
 * DEATHS. Every store above leaves a word that names its owner or its ticket, and repair undoes it. A semaphore that
 * was not posted delays its waiter by one slice. See docs/explanation/crash-stories.rst, rows 1-3, 8, 9.
 * STOPS. A stopped waiter loses its grants (REVOKE) and is PARKED. The pool lock is not taken from a stopped holder,
 * because its plain stores could follow. So an exhausted pool allocates nothing until it continues (stat names it). No
 * call waits for it longer than LOCK_PATIENCE_NS, and then acts as if this process were slow:
 *     enqueue, take        the caller tries again until its deadline
 *     wait on, fix         left to the next slice of any waiter. Slots are FREE without the lock
 *     leave, return chain  the wait, or the chain, stays as it is, and the process ends it later (unfinished_waits.h)
 *     free chain, repair   the sender repeats them in its next maintenance
 *
 *   W1 waiter: waiting_count raised, full barrier, then free slots are searched for (fix)
 *   W2 freer:  slot word = FREE, full barrier, then waiting_count is read
 *   Either the freer sees the waiter or the waiter sees the free slot.
 *   W3 parker: parked_count raised and PARKED stored, full barrier, then the limits are checked (admit)
 *   W2 sender: slot word = FREE, full barrier, then parked_count is read
 *   Either the sender sees the parked waiter or the waiter sees the free slot.
 * tests/model/pool_model.py explores all of this exhaustively, with deaths and stops.
 */
#ifndef ARENA_BUFFER_POOL_H
#define ARENA_BUFFER_POOL_H

#include "arena/arena.h"
#include "arena/topic_share.h"

/* A grant that its waiter has not taken for this long may be revoked. */
#define GRANT_NS_MAX (UINT64_C(40) * NS_PER_MS)
#define GRANT_CHAIN_NS_MAX NS_PER_S /* for a waiter for several slots, counted from the last grant */

/* The waiters whose semaphores to post after the pool lock is released. */
struct wake_set {
    uint64_t bits[WAITER_COUNT_MAX / 64];
    uint32_t count;
};

static inline void wake_add(struct wake_set *wakes, uint32_t waiter_index)
{
    CHECK(waiter_index < WAITER_COUNT_MAX);
    if (wakes != NULL) {
        wakes->bits[waiter_index / 64] |= UINT64_C(1) << (waiter_index % 64);
        wakes->count++;
    }
}

/* A process does not wake itself: it checks its word before it sleeps. */
static inline void wake_set_remove(struct wake_set *wakes, uint32_t waiter_index)
{
    uint64_t bit = UINT64_C(1) << (waiter_index % 64);
    CHECK(waiter_index < WAITER_COUNT_MAX);
    if ((wakes->bits[waiter_index / 64] & bit) != 0) {
        wakes->bits[waiter_index / 64] ^= bit;
        wakes->count--;
    }
}

struct buffer_wait {
    uint32_t waiter_index;
    uint32_t need;
    uint64_t ticket;
    uint64_t turn_ns;          /* its next turn while it is parked (parked_waiters.h); 0 before it is computed */
    atomic_u32 is_interrupted; /* sleeps of this wait end at once (waiter_interrupt) */
};

/* Returns the number of entries that were ever used. */
static inline uint32_t waiter_count_used(const struct arena *arena)
{
    uint32_t used = load_relaxed_u32(&arena->globals->waiter_count_used);
    return used < arena->geometry.waiter_count ? used : arena->geometry.waiter_count;
}

static inline uint32_t waiter_partition_index(const struct waiter_entry *waiter)
{
    return load_relaxed_u32(&waiter->partition) - 1; /* 0 becomes NO_PARTITION */
}

/* Returns STATUS_EXHAUSTED if no slot is free, a process waits already, or the share may be used up. Lock-free. */
enum status buffer_pool_try_allocate(struct arena *arena, uint32_t *slot_index) MUST_USE;

/* Joins the queue for `need` slots of a partition, or of none (NO_PARTITION). The wait may be granted at once: poll
 * before sleeping. Returns STATUS_RECORD_TOO_LARGE if `need` exceeds the limit, STATUS_NO_WAITER if too many processes
 * wait, and STATUS_BUSY if a stopped process keeps the pool lock: try again until the deadline. Returns
 * STATUS_SHARE_USED while this process holds its share: sleep until a result is recorded (completion.h), then try
 * again. */
enum status buffer_pool_enqueue(struct arena *arena, uint32_t partition_index, uint32_t need, struct buffer_wait *wait,
                                struct wake_set *wakes) MUST_USE;

/* Returns STATUS_OK if the wait was granted (call buffer_pool_take), else STATUS_EXHAUSTED. */
enum status buffer_pool_poll(const struct arena *arena, const struct buffer_wait *wait) MUST_USE;

bool buffer_pool_is_parked(const struct arena *arena, const struct buffer_wait *wait);

/* Returns true while the waiter is parked and its limits do not allow its slots. Takes no lock. */
bool buffer_pool_stays_parked(const struct arena *arena, const struct buffer_wait *wait);

/* Ends the linger of the topic of a parked waiter that does not fit. */
void buffer_pool_end_linger(const struct arena *arena, const struct waiter_entry *waiter);

/* Called after a slice without a grant. If the waiter is parked, checks its limits again, else helps the pool. Does
 * nothing while a stopped process keeps the pool lock. */
void buffer_pool_wait_on(struct arena *arena, const struct buffer_wait *wait, struct wake_set *wakes);

/* Repairs the pool, serves waiters, and revokes grants. Returns false, and does nothing, while a stopped process keeps
 * the pool lock. */
bool buffer_pool_help(struct arena *arena, struct wake_set *wakes);

/* Fills `slots`, of size `need`, with slots that are now OWNED by this process. Returns STATUS_EXHAUSTED if they are
 * not granted, were revoked, or cannot be taken because a stopped process keeps the pool lock. */
enum status buffer_pool_take(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots) MUST_USE;

/* Ends the wait. Returns STATUS_OK if it was granted meanwhile and `slots` are now OWNED by this process, else
 * STATUS_EXHAUSTED. Returns STATUS_BUSY while a stopped process keeps the pool lock: the wait has not ended then. */
enum status buffer_pool_leave(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots,
                              struct wake_set *wakes) MUST_USE;

/* Frees slots OWNED by this process (a spare, a chain that was not used). Returns false, and frees nothing, if it is a
 * chain and a stopped process keeps the pool lock. */
bool buffer_pool_return(struct arena *arena, const uint32_t *slots, uint32_t count, struct wake_set *wakes);

/* Sender only: DONE -> scrubbed -> FREE, with the rest of the chain. Requires that no process writes into it
 * (process.h). Returns false, and frees nothing, if it is a chain and a stopped process keeps the pool lock. */
bool buffer_pool_free(struct arena *arena, uint32_t slot_index, struct wake_set *wakes);

/* Takes the pool lock and repairs. Any process that detects a death may call it. Waiters notice after their slice.
 * Returns false, and does nothing, while a stopped process keeps the pool lock. */
bool buffer_pool_repair(struct arena *arena);

/* Returns the process that keeps the pool lock, if this process was refused the lock and the process still has it, or
 * 0. */
uint32_t buffer_pool_lock_keeper(const struct arena *arena);

/* Fills `slots` with at most `slots_max` indices of the chain, the head first, and returns their number. Stops at the
 * first link that is not a CONT of this head. */
uint32_t slot_chain_walk(const struct arena *arena, uint32_t head_index, uint32_t *slots, uint32_t slots_max);

#endif
