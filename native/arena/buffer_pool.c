/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/buffer_pool.h"

#include <string.h>

#include "arena/closing.h"
#include "arena/counters.h"
#include "arena/lock.h"
#include "arena/process.h"
#include "arena/process_share.h"
#include "base/point.h"

/* ---- hints of free slots ---- */

static void free_hint_set(struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t word_index = slot_index / 64;
    or_bits_u64(&arena->free_hints[word_index], UINT64_C(1) << (slot_index % 64)); /* F3 */
    if (word_index < load_relaxed_u32(&arena->globals->free_scan_hint)) {
        store_relaxed_u32(&arena->globals->free_scan_hint, word_index);
    }
}

/* Takes the lowest hint from the scan hint on, so that a lightly used arena stays in the processor's cache. The bit is
 * cleared before the slot word is read. If another process stores FREE later, it sets the bit again. */
static bool free_hint_take(struct arena *arena, uint32_t *slot_index)
{
    uint32_t count = arena->layout.bitmap_word_count;
    uint32_t start = load_relaxed_u32(&arena->globals->free_scan_hint) % count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t word_index = (start + i) % count;
        uint64_t bits = load_relaxed_u64(&arena->free_hints[word_index]);
        while (bits != 0) {
            uint64_t lowest = bits & -bits;
            bits ^= lowest;
            if ((and_bits_u64(&arena->free_hints[word_index], ~lowest) & lowest) != 0) { /* F4 */
                *slot_index = word_index * 64 + (uint32_t)__builtin_ctzll(lowest);
                store_relaxed_u32(&arena->globals->free_scan_hint, word_index);
                if (*slot_index < arena->geometry.slot_count) {
                    return true;
                }
            }
        }
    }
    return false;
}

/* Finds a FREE slot through the hints and changes it to `state` with `payload`. A hint may be stale: its slot may have
 * a batch by now. So `slot_index` is set only after the slot was taken. */
static bool slot_take_free(struct arena *arena, enum slot_state state, uint64_t payload, uint32_t *slot_index)
{
    CHECK(state == SLOT_OWNED || state == SLOT_GRANT);
    uint32_t hinted;
    while (free_hint_take(arena, &hinted)) {
        atomic_u64 *cell = &arena->slots[hinted].word;
        uint64_t word = load_acquire_u64(cell); /* F5 */
        while (slot_word_state(word) == SLOT_FREE) {
            if (cas_u64(cell, &word, slot_word(state, slot_word_generation(word), payload))) { /* F2 */
                *slot_index = hinted;
                return true;
            }
        }
    }
    return false;
}

/* ---- freeing a slot ---- */

/* Requires that no other process may touch the slot's bytes. */
static void slot_scrub(struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    struct slot_header *slot = &arena->slots[slot_index];
    uint32_t stride = arena->geometry.slot_stride;
    uint32_t end = load_relaxed_u32(&slot->written_end);
    memset(arena_slot_data(arena, slot_index), 0, end < stride ? end : stride);
    store_relaxed_u32(&slot->written_end, 0);
    if (slot->chain_next != 0) { /* only a caller with the pool lock has a linked slot: a recount may read others */
        slot->chain_next = 0;
    }
}

/* W2: the barrier is between the store of FREE and the load of waiting_count that follows in every caller. */
static void slot_become_free(struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    CHECK(arena->owner != 0);
    slot_scrub(arena, slot_index);
    POINT(slot_scrubbed);
    store_seq_cst_u64(&arena->slots[slot_index].word, slot_word_freed(word)); /* F1 */
    POINT(slot_freed);
    free_hint_set(arena, slot_index);
    barrier_store_load(); /* W2 */
}

/* ---- the pool lock ---- */

static void locked_repair(struct arena *arena);

uint32_t buffer_pool_lock_keeper(const struct arena *arena)
{
    uint64_t refused = arena->pool_lock_refused;
    return lock_is_kept(arena, &arena->globals->pool_lock, refused) ? lock_word_owner(refused) : 0;
}

/* Returns false if a process that is stopped, or very slow, keeps the lock. The next calls do not wait for the same
 * acquisition again. */
static bool pool_lock(struct arena *arena, uint64_t *held)
{
    CHECK(arena->owner != 0);
    if (buffer_pool_lock_keeper(arena) != 0) {
        return false;
    }
    enum lock_outcome outcome = lock_acquire(arena, &arena->globals->pool_lock, held);
    if (outcome == LOCK_REFUSED) {
        arena->pool_lock_refused = *held;
        counter_add(arena, COUNTER_LOCKS_REFUSED, 1);
        return false;
    }
    if (outcome == LOCK_TAKEN_OVER) {
        locked_repair(arena);
    }
    return true;
}

static void pool_unlock(struct arena *arena, uint64_t held)
{
    CHECK(lock_word_owner(held) == arena->owner);
    lock_release(&arena->globals->pool_lock, held);
}

/* ---- fix: grant free slots to the longest waiting ---- */

static bool waiter_is_eligible(const struct arena *arena, const struct waiter_entry *waiter, uint64_t word)
{
    CHECK(waiter >= arena->waiters && waiter < arena->waiters + arena->geometry.waiter_count);
    uint32_t need = waiter_word_need(word);
    if (need <= 1) {
        return true;
    }
    uint64_t missing = need > waiter->granted_count ? need - waiter->granted_count : 0;
    uint64_t charged = load_relaxed_u64(&arena->globals->oversized_bytes);
    uint64_t limit = arena->geometry.oversized_bytes_max;
    return charged <= limit && missing * arena->geometry.batch_size <= limit - charged;
}

/* Returns the waiter with the lowest ticket that may be served now, other than `except`. Among oversized needs, only
 * the lowest ticket is considered. */
static struct waiter_entry *locked_next_waiter_except(struct arena *arena, const struct waiter_entry *except)
{
    struct waiter_entry *normal = NULL;
    struct waiter_entry *oversized = NULL;
    uint64_t normal_ticket = UINT64_MAX;
    uint64_t oversized_ticket = UINT64_MAX;
    for (uint32_t i = 0; i < waiter_count_used(arena); i++) {
        struct waiter_entry *waiter = &arena->waiters[i];
        uint64_t word = load_relaxed_u64(&waiter->word);
        if (waiter_word_state(word) != WAITER_WAIT || waiter == except) {
            continue;
        }
        uint64_t ticket = waiter_word_ticket(word);
        if (waiter_word_need(word) <= 1 && ticket < normal_ticket) {
            normal = waiter;
            normal_ticket = ticket;
        } else if (waiter_word_need(word) > 1 && ticket < oversized_ticket) {
            oversized = waiter;
            oversized_ticket = ticket;
        }
    }
    bool is_served = oversized != NULL && waiter_is_eligible(arena, oversized, load_relaxed_u64(&oversized->word));
    return is_served && oversized_ticket < normal_ticket ? oversized : normal;
}

static struct waiter_entry *locked_next_waiter(struct arena *arena)
{
    return locked_next_waiter_except(arena, NULL);
}

/* Charges `slot_count` more slots to oversized records, or fewer if it is negative. */
static void locked_charge_oversized(struct arena *arena, int64_t slot_count)
{
    CHECK(slot_count <= (int64_t)arena->geometry.slot_count);
    add_u64(&arena->globals->oversized_bytes, (uint64_t)(slot_count * (int64_t)arena->geometry.batch_size)); /* V1 */
}

static void waiter_renew_grants(const struct arena *arena, struct waiter_entry *waiter)
{
    store_relaxed_u64(&waiter->granted_ns, arena_now_ns(arena));
}

static void locked_grant(struct arena *arena, struct waiter_entry *waiter, uint32_t slot_index, struct wake_set *wakes)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint64_t word = load_relaxed_u64(&waiter->word);
    uint32_t need = waiter_word_need(word);
    arena->slots[slot_index].chain_next = waiter->granted_first;
    waiter->granted_first = slot_index + 1;
    waiter->granted_count++;
    waiter_renew_grants(arena, waiter);
    if (need > 1) {
        locked_charge_oversized(arena, 1);
    }
    if (waiter->granted_count >= need) {
        store_release_u64(&waiter->word, waiter_word(WAITER_GOT, need, waiter_word_ticket(word))); /* G1 */
        wake_add(wakes, (uint32_t)(waiter - arena->waiters));
    }
}

static void locked_count_waiting(struct arena *arena)
{
    uint32_t waiting = 0;
    uint32_t parked = 0;
    for (uint32_t i = 0; i < waiter_count_used(arena); i++) {
        enum waiter_state state = waiter_word_state(load_relaxed_u64(&arena->waiters[i].word));
        waiting += state == WAITER_WAIT;
        parked += state == WAITER_PARKED;
    }
    store_relaxed_u32(&arena->globals->parked_count, parked);
    store_seq_cst_u32(&arena->globals->waiting_count, waiting); /* W1 */
}

static void locked_fix(struct arena *arena, struct wake_set *wakes)
{
    struct waiter_entry *waiter;
    while ((waiter = locked_next_waiter(arena)) != NULL) {
        uint32_t slot_index;
        uint64_t ticket = waiter_word_ticket(load_relaxed_u64(&waiter->word));
        uint64_t grant = slot_payload_grant((uint32_t)(waiter - arena->waiters), ticket);
        if (!slot_take_free(arena, SLOT_GRANT, grant, &slot_index)) {
            break;
        }
        POINT(slot_granted);
        locked_grant(arena, waiter, slot_index, wakes);
    }
    locked_count_waiting(arena);
}

/* ---- repair: undo what dead processes left ---- */

static bool grant_is_valid(const struct arena *arena, uint64_t word)
{
    uint32_t waiter_index = slot_word_waiter(word);
    if (waiter_index >= arena->geometry.waiter_count) {
        return false;
    }
    uint64_t waiting = load_relaxed_u64(&arena->waiters[waiter_index].word);
    enum waiter_state state = waiter_word_state(waiting);
    return (state == WAITER_WAIT || state == WAITER_GOT) &&
           ((waiter_word_ticket(waiting) ^ word) & LOW_BITS(GRANT_TICKET_BITS)) == 0;
}

static bool cont_is_valid(const struct arena *arena, uint64_t word)
{
    uint32_t head_index = slot_word_head_index(word);
    if (head_index >= arena->geometry.slot_count) {
        return false;
    }
    uint64_t head = load_acquire_u64(&arena->slots[head_index].word); /* G4 */
    enum slot_state state = slot_word_state(head);
    return slot_word_generation(head) == slot_word_head_generation(word) &&
           (state == SLOT_OWNED || state == SLOT_READY || state == SLOT_DONE || state == SLOT_BAD);
}

/* Returns true only for words that no living process may change: that of a dead owner, an invalid grant, or a piece
 * without its head. */
static bool slot_is_abandoned(const struct arena *arena, uint64_t word)
{
    switch (slot_word_state(word)) {
    case SLOT_GRANT:
        return !grant_is_valid(arena, word);
    case SLOT_OWNED:
        return !process_is_alive(arena, slot_word_owner(word));
    case SLOT_CONT:
        return !cont_is_valid(arena, word);
    default:
        return false;
    }
}

static void locked_free_abandoned(struct arena *arena, enum slot_state state)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word); /* G4 */
        if (slot_word_state(word) == state && slot_is_abandoned(arena, word)) {
            slot_become_free(arena, i, word);
            counter_add(arena, COUNTER_SLOTS_REPAIRED, 1);
        }
    }
}

static void locked_idle_dead_waiters(struct arena *arena)
{
    for (uint32_t i = 0; i < waiter_count_used(arena); i++) {
        struct waiter_entry *waiter = &arena->waiters[i];
        bool is_idle = waiter_word_state(load_relaxed_u64(&waiter->word)) == WAITER_IDLE;
        if (!is_idle && !process_is_alive(arena, load_relaxed_u32(&waiter->owner))) {
            store_release_u64(&waiter->word, 0); /* G3 */
        }
        waiter->granted_count = 0;
        waiter->granted_first = 0;
    }
}

static bool slot_is_oversized(const struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    switch (slot_word_state(word)) {
    case SLOT_GRANT:
        return waiter_word_need(load_relaxed_u64(&arena->waiters[slot_word_waiter(word)].word)) > 1;
    case SLOT_OWNED:
        return slot_word_is_chain(word);
    case SLOT_CONT:
        return true;
    case SLOT_OPEN:
    case SLOT_READY:
    case SLOT_DONE:
    case SLOT_BAD:
        return arena->slots[slot_index].chain_next != 0;
    default:
        return false;
    }
}

/* Rebuilds every cache of the pool from the words. */
static void locked_recount(struct arena *arena)
{
    uint64_t oversized_count = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word); /* G4 */
        oversized_count += slot_is_oversized(arena, i, word);
        if (slot_word_state(word) == SLOT_FREE) {
            free_hint_set(arena, i);
        } else if (slot_word_state(word) == SLOT_GRANT) {
            struct waiter_entry *waiter = &arena->waiters[slot_word_waiter(word)];
            arena->slots[i].chain_next = waiter->granted_first;
            waiter->granted_first = i + 1;
            waiter->granted_count++;
        }
    }
    store_relaxed_u64(&arena->globals->oversized_bytes, oversized_count * arena->geometry.batch_size);
}

/* Stores GOT for a waiter that was granted all its slots by a process that then died. */
static void locked_finish_grants(struct arena *arena)
{
    for (uint32_t i = 0; i < waiter_count_used(arena); i++) {
        struct waiter_entry *waiter = &arena->waiters[i];
        uint64_t word = load_relaxed_u64(&waiter->word);
        if (waiter_word_state(word) == WAITER_WAIT && waiter->granted_count >= waiter_word_need(word)) {
            uint64_t got = waiter_word(WAITER_GOT, waiter_word_need(word), waiter_word_ticket(word));
            store_release_u64(&waiter->word, got); /* G1 */
        }
    }
}

static void locked_repair(struct arena *arena)
{
    locked_idle_dead_waiters(arena);
    locked_free_abandoned(arena, SLOT_GRANT);
    locked_free_abandoned(arena, SLOT_OWNED);
    locked_free_abandoned(arena, SLOT_CONT); /* pieces are freed after their heads */
    locked_recount(arena);
    locked_finish_grants(arena);
}

/* Requires that the waiter's word is neither WAIT nor GOT. */
static void locked_free_grants(struct arena *arena, uint32_t waiter_index, uint32_t need, uint64_t ticket)
{
    CHECK(waiter_index < arena->geometry.waiter_count);
    struct waiter_entry *waiter = &arena->waiters[waiter_index];
    uint64_t grant = slot_payload_grant(waiter_index, ticket);
    uint32_t next = waiter->granted_first;
    while (next != 0 && next - 1 < arena->geometry.slot_count) {
        struct slot_header *slot = &arena->slots[next - 1];
        uint64_t word = load_acquire_u64(&slot->word); /* G4 */
        if (slot_word_state(word) != SLOT_GRANT || (word & LOW_BITS(43)) != grant) {
            break;
        }
        uint32_t slot_index = next - 1;
        next = slot->chain_next;
        if (need > 1) {
            locked_charge_oversized(arena, -1);
        }
        slot_become_free(arena, slot_index, word);
    }
    waiter->granted_count = 0;
    waiter->granted_first = 0;
}

/* ---- revoke: the grants of stopped processes ---- */

static bool grants_are_stale(const struct waiter_entry *waiter, uint64_t word, uint64_t now_ns)
{
    enum waiter_state state = waiter_word_state(word);
    uint64_t limit_ns = waiter_word_need(word) > 1 ? GRANT_CHAIN_NS_MAX : GRANT_NS_MAX;
    uint64_t granted_ns = load_relaxed_u64(&waiter->granted_ns);
    return (state == WAITER_WAIT || state == WAITER_GOT) && waiter->granted_count > 0 && granted_ns < now_ns &&
           now_ns - granted_ns > limit_ns;
}

/* The word is stored first: if this process dies in between, repair frees the grants, because the waiter is parked. */
static void locked_revoke(struct arena *arena, struct waiter_entry *waiter, uint64_t word)
{
    struct globals *globals = arena->globals;
    uint32_t need = waiter_word_need(word);
    uint64_t ticket = waiter_word_ticket(word);
    store_relaxed_u32(&globals->parked_count, load_relaxed_u32(&globals->parked_count) + 1);
    store_release_u64(&waiter->word, waiter_word(WAITER_PARKED, need, ticket)); /* G3 */
    POINT(grant_revoked);
    locked_free_grants(arena, (uint32_t)(waiter - arena->waiters), need, ticket);
    counter_add(arena, COUNTER_GRANTS_REVOKED, 1);
}

/* Runs after a fix, so an eligible waiter remains only if no slot is free. The next waiter may also be stale, with only
 * some of its slots. */
static void locked_revoke_stale(struct arena *arena, struct wake_set *wakes)
{
    bool is_exhausted = locked_next_waiter(arena) != NULL;
    uint64_t now_ns = arena_now_ns(arena);
    for (uint32_t i = 0; is_exhausted && i < waiter_count_used(arena); i++) {
        struct waiter_entry *waiter = &arena->waiters[i];
        uint64_t word = load_relaxed_u64(&waiter->word);
        if (grants_are_stale(waiter, word, now_ns) && locked_next_waiter_except(arena, waiter) != NULL) {
            locked_revoke(arena, waiter, word);
            locked_fix(arena, wakes);
            is_exhausted = locked_next_waiter(arena) != NULL;
        }
    }
}

/* ---- the public steps ---- */

enum status buffer_pool_try_allocate(struct arena *arena, uint32_t *slot_index)
{
    CHECK(arena->owner != 0);
    if (load_acquire_u32(&arena->globals->waiting_count) != 0) { /* V2 */
        return STATUS_EXHAUSTED; /* waiters are served first */
    }
    if (!arena_takes_records(arena)) {
        return STATUS_EXHAUSTED; /* the caller then calls buffer_pool_enqueue, which returns the reason */
    }
    uint64_t payload = slot_payload_owned(arena->owner, false);
    if (!process_share_allows_one(arena) || !slot_take_free(arena, SLOT_OWNED, payload, slot_index)) {
        return STATUS_EXHAUSTED;
    }
    store_relaxed_u32(&arena->slots[*slot_index].opener, arena->owner); /* P3 */
    process_share_add(arena, 1);
    return STATUS_OK;
}

static bool locked_find_idle_waiter(const struct arena *arena, uint32_t *waiter_index)
{
    CHECK(arena->geometry.waiter_count <= WAITER_COUNT_MAX);
    for (uint32_t i = 0; i < arena->geometry.waiter_count; i++) {
        if (waiter_word_state(load_relaxed_u64(&arena->waiters[i].word)) == WAITER_IDLE) {
            *waiter_index = i;
            return true;
        }
    }
    return false;
}

/* Repairs the pool if all waiter entries are in use: those of dead processes become IDLE. */
static bool locked_claim_waiter(struct arena *arena, uint32_t *waiter_index)
{
    if (locked_find_idle_waiter(arena, waiter_index)) {
        return true;
    }
    locked_repair(arena);
    return locked_find_idle_waiter(arena, waiter_index);
}

/* W3: parked_count is raised before PARKED is stored, so that after a death in between it is too high, not too low. */
static void locked_park(struct arena *arena, uint32_t partition_index, struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    CHECK(wait->need >= 1);
    struct globals *globals = arena->globals;
    struct waiter_entry *waiter = &arena->waiters[wait->waiter_index];
    store_relaxed_u32(&globals->parked_count, load_relaxed_u32(&globals->parked_count) + 1);
    POINT(parked_count_raised);
    wait->ticket = load_relaxed_u64(&globals->next_ticket);
    store_relaxed_u64(&globals->next_ticket, wait->ticket + 1);
    if (load_relaxed_u32(&globals->waiter_count_used) <= wait->waiter_index) {
        store_relaxed_u32(&globals->waiter_count_used, wait->waiter_index + 1);
    }
    store_relaxed_u32(&waiter->owner, arena->owner);
    store_relaxed_u32(&waiter->partition, partition_index == NO_PARTITION ? 0 : partition_index + 1);
    store_relaxed_u64(&waiter->granted_ns, 0);
    store_relaxed_u64(&waiter->waiting_ns, arena_now_ns(arena));
    waiter->granted_count = 0;
    waiter->granted_first = 0;
    store_release_u64(&waiter->word, waiter_word(WAITER_PARKED, wait->need, wait->ticket)); /* G3 */
    POINT(waiter_parked);
    barrier_store_load(); /* W3 */
}

static bool waiter_fits(const struct arena *arena, const struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    return topic_share_admits(arena, waiter_partition_index(&arena->waiters[wait->waiter_index]), wait->need);
}

void buffer_pool_end_linger(const struct arena *arena, const struct waiter_entry *waiter)
{
    CHECK(waiter >= arena->waiters && waiter < arena->waiters + arena->geometry.waiter_count);
    struct topic_entry *topic = topic_of_partition(arena, waiter_partition_index(waiter));
    if (topic != NULL && load_relaxed_u32(&topic->is_parked_for) == 0) {
        store_relaxed_u32(&topic->is_parked_for, 1);
    }
}

/* PARKED -> WAIT, by the owner alone, if the limits allow it. W1: waiting_count is raised before WAIT is stored. If the
 * process dies in between, the count is too high, never too low. */
static void locked_admit(struct arena *arena, const struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    struct globals *globals = arena->globals;
    struct waiter_entry *waiter = &arena->waiters[wait->waiter_index];
    if (!waiter_fits(arena, wait)) {
        buffer_pool_end_linger(arena, waiter);
        return;
    }
    store_seq_cst_u32(&globals->waiting_count, load_relaxed_u32(&globals->waiting_count) + 1); /* W1 */
    POINT(waiting_count_raised);
    store_release_u64(&waiter->word, waiter_word(WAITER_WAIT, wait->need, wait->ticket)); /* G3 */
    barrier_store_load(); /* W1 */
}

enum status buffer_pool_enqueue(struct arena *arena, uint32_t partition_index, uint32_t need, struct buffer_wait *wait,
                                struct wake_set *wakes)
{
    if (need == 0 || (partition_index != NO_PARTITION && partition_index >= arena->geometry.partition_count)) {
        return STATUS_INVALID;
    }
    if (!arena_takes_records(arena)) {
        return STATUS_REMOVED;
    }
    if (need > process_share_max(arena) || (need > 1 && need > oversized_slot_count_max(arena))) {
        return STATUS_RECORD_TOO_LARGE;
    }
    RETURN_IF_FAILED(process_share_await(arena, need));
    uint64_t held;
    if (!pool_lock(arena, &held)) {
        process_share_return(arena, need);
        return STATUS_BUSY;
    }
    wait->need = need;
    wait->turn_ns = 0;
    store_relaxed_u32(&wait->is_interrupted, 0);
    if (!locked_claim_waiter(arena, &wait->waiter_index)) {
        pool_unlock(arena, held);
        process_share_return(arena, need);
        return STATUS_NO_WAITER;
    }
    locked_park(arena, partition_index, wait);
    locked_admit(arena, wait);
    locked_fix(arena, wakes);
    pool_unlock(arena, held);
    counter_add(arena, COUNTER_WAITS, 1);
    return STATUS_OK;
}

static bool wait_is_current(const struct arena *arena, const struct buffer_wait *wait, uint64_t word)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    CHECK(wait->need >= 1 && wait->need <= arena->geometry.slot_count);
    return load_relaxed_u32(&arena->waiters[wait->waiter_index].owner) == arena->owner &&
           waiter_word_state(word) != WAITER_IDLE && waiter_word_ticket(word) == (wait->ticket & LOW_BITS(40));
}

enum status buffer_pool_poll(const struct arena *arena, const struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    uint64_t word = load_acquire_u64(&arena->waiters[wait->waiter_index].word); /* G2 */
    if (!wait_is_current(arena, wait, word)) {
        return STATUS_STALE;
    }
    return waiter_word_state(word) == WAITER_GOT ? STATUS_OK : STATUS_EXHAUSTED;
}

bool buffer_pool_is_parked(const struct arena *arena, const struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    uint64_t word = load_acquire_u64(&arena->waiters[wait->waiter_index].word); /* G2 */
    return wait_is_current(arena, wait, word) && waiter_word_state(word) == WAITER_PARKED;
}

static void locked_help(struct arena *arena, struct wake_set *wakes)
{
    locked_repair(arena);
    locked_fix(arena, wakes);
    locked_revoke_stale(arena, wakes);
}

bool buffer_pool_help(struct arena *arena, struct wake_set *wakes)
{
    uint64_t held;
    if (!pool_lock(arena, &held)) {
        return false;
    }
    locked_help(arena, wakes);
    pool_unlock(arena, held);
    return true;
}

/* Renews the grants of a living waiter, so that they are not revoked. */
static void locked_wait_on(struct arena *arena, const struct buffer_wait *wait, struct wake_set *wakes)
{
    struct waiter_entry *waiter = &arena->waiters[wait->waiter_index];
    if (buffer_pool_is_parked(arena, wait)) {
        locked_admit(arena, wait);
        locked_fix(arena, wakes);
        return;
    }
    if (buffer_pool_poll(arena, wait) == STATUS_EXHAUSTED && waiter->granted_count > 0) {
        waiter_renew_grants(arena, waiter);
    }
    locked_help(arena, wakes);
}

bool buffer_pool_stays_parked(const struct arena *arena, const struct buffer_wait *wait)
{
    CHECK(arena->owner != 0);
    if (!buffer_pool_is_parked(arena, wait) || waiter_fits(arena, wait)) {
        return false;
    }
    buffer_pool_end_linger(arena, &arena->waiters[wait->waiter_index]);
    return true;
}

void buffer_pool_wait_on(struct arena *arena, const struct buffer_wait *wait, struct wake_set *wakes)
{
    if (buffer_pool_stays_parked(arena, wait)) {
        return;
    }
    uint64_t held;
    if (pool_lock(arena, &held)) {
        locked_wait_on(arena, wait, wakes);
        pool_unlock(arena, held);
    }
}

static enum status locked_take(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots)
{
    struct waiter_entry *waiter = &arena->waiters[wait->waiter_index];
    uint64_t grant = slot_payload_grant(wait->waiter_index, wait->ticket);
    uint32_t next = waiter->granted_first;
    for (uint32_t i = 0; i < wait->need; i++) {
        uint32_t slot_index = next - 1;
        if (slot_index >= arena->geometry.slot_count) {
            return STATUS_CORRUPT;
        }
        struct slot_header *slot = &arena->slots[slot_index];
        uint64_t word = load_acquire_u64(&slot->word); /* G4 */
        if (slot_word_state(word) != SLOT_GRANT || (word & LOW_BITS(43)) != grant) {
            return STATUS_CORRUPT;
        }
        next = slot->chain_next;
        slot->chain_next = 0;
        slots[i] = slot_index;
        store_relaxed_u32(&slot->opener, arena->owner); /* P3 */
        store_release_u64(&slot->word, slot_word(SLOT_OWNED, slot_word_generation(word), /* G4 */
                                                 slot_payload_owned(arena->owner, wait->need > 1)));
        POINT(grant_taken);
    }
    return STATUS_OK;
}

/* Returns STATUS_EXHAUSTED if nothing was granted, or if the grant was revoked after the owner polled. */
static enum status locked_take_granted(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots)
{
    RETURN_IF_FAILED(buffer_pool_poll(arena, wait));
    enum status status = locked_take(arena, wait, slots);
    process_share_end_wait(arena, wait->need);
    store_release_u64(&arena->waiters[wait->waiter_index].word, 0); /* G3 */
    return status;
}

static enum status take_checked(struct arena *arena, enum status status)
{
    if (status == STATUS_CORRUPT) {
        arena_poison(arena, status, "a granted buffer is missing from its waiter's list");
    }
    return status;
}

enum status buffer_pool_take(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots)
{
    uint64_t held;
    if (!pool_lock(arena, &held)) {
        return STATUS_EXHAUSTED;
    }
    enum status status = locked_take_granted(arena, wait, slots);
    pool_unlock(arena, held);
    return take_checked(arena, status);
}

enum status buffer_pool_leave(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots,
                              struct wake_set *wakes)
{
    uint64_t held;
    if (!pool_lock(arena, &held)) {
        return STATUS_BUSY;
    }
    enum status status = locked_take_granted(arena, wait, slots);
    if (status == STATUS_EXHAUSTED) {
        store_release_u64(&arena->waiters[wait->waiter_index].word, 0); /* G3 */
        process_share_return(arena, wait->need);
        POINT(wait_cancelled);
        locked_free_grants(arena, wait->waiter_index, wait->need, wait->ticket);
        locked_fix(arena, wakes);
    }
    pool_unlock(arena, held);
    return take_checked(arena, status);
}

/* ---- return ---- */

/* Without the lock, the slots stay free until the next fix: every waiter runs one in its next slice. */
static void maybe_fix(struct arena *arena, struct wake_set *wakes)
{
    uint64_t held;
    if (load_acquire_u32(&arena->globals->waiting_count) != 0 && pool_lock(arena, &held)) { /* W2 */
        locked_fix(arena, wakes);
        pool_unlock(arena, held);
    }
}

/* Starts at the tail, so that after a death the remaining slots are still linked to their head. */
static void slots_become_free(struct arena *arena, const uint32_t *slots, uint32_t count)
{
    CHECK(count <= arena->geometry.slot_count);
    for (uint32_t i = count; i-- > 0;) {
        slot_become_free(arena, slots[i], load_acquire_u64(&arena->slots[slots[i]].word)); /* P2 */
    }
}

/* Oversized slots are charged and credited under the pool lock, so a recount never sees a partial change. */
static void locked_chain_become_free(struct arena *arena, const uint32_t *slots, uint32_t count)
{
    CHECK(count >= 1);
    CHECK(count <= arena->chain_slot_count_max);
    slots_become_free(arena, slots, count);
    locked_charge_oversized(arena, -(int64_t)count);
}

bool buffer_pool_return(struct arena *arena, const uint32_t *slots, uint32_t count, struct wake_set *wakes)
{
    if (count == 0) {
        return true;
    }
    if (slot_word_is_chain(load_relaxed_u64(&arena->slots[slots[0]].word))) {
        uint64_t held;
        if (!pool_lock(arena, &held)) {
            return false;
        }
        locked_chain_become_free(arena, slots, count);
        pool_unlock(arena, held);
    } else {
        slots_become_free(arena, slots, count);
    }
    process_share_subtract(arena, count);
    maybe_fix(arena, wakes);
    return true;
}

uint32_t slot_chain_walk(const struct arena *arena, uint32_t head_index, uint32_t *slots, uint32_t slots_max)
{
    CHECK(head_index < arena->geometry.slot_count);
    CHECK(slots_max >= 1);
    uint64_t head = load_acquire_u64(&arena->slots[head_index].word); /* P2 */
    uint64_t cont = slot_payload_cont(head_index, slot_word_generation(head));
    uint32_t count = 0;
    uint32_t next = head_index + 1;
    while (count < slots_max) {
        slots[count++] = next - 1;
        next = arena->slots[next - 1].chain_next;
        if (next == 0 || next - 1 >= arena->geometry.slot_count) {
            break;
        }
        uint64_t word = load_acquire_u64(&arena->slots[next - 1].word); /* P2 */
        if (slot_word_state(word) != SLOT_CONT || (word & LOW_BITS(43)) != cont) {
            break;
        }
    }
    return count;
}

bool buffer_pool_free(struct arena *arena, uint32_t slot_index, struct wake_set *wakes)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t partition_index = load_relaxed_u32(&arena->slots[slot_index].partition_index);
    if (arena->slots[slot_index].chain_next == 0) {
        topic_share_count_released(arena, partition_index, 1);
        POINT(slot_released);
        slots_become_free(arena, &slot_index, 1);
    } else {
        uint64_t held;
        if (!pool_lock(arena, &held)) {
            return false;
        }
        uint32_t count = slot_chain_walk(arena, slot_index, arena->chain_scratch, arena->chain_slot_count_max);
        topic_share_count_released(arena, partition_index, count);
        POINT(slot_released);
        locked_chain_become_free(arena, arena->chain_scratch, count);
        pool_unlock(arena, held);
    }
    maybe_fix(arena, wakes);
    return true;
}

bool buffer_pool_repair(struct arena *arena)
{
    uint64_t held;
    if (!pool_lock(arena, &held)) {
        return false;
    }
    locked_repair(arena);
    locked_fix(arena, NULL);
    pool_unlock(arena, held);
    return true;
}
