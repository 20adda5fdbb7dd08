/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/parked_waiters.h"

#include "arena/waiter_semaphores.h"

/* 2^32 divided by the golden ratio. */
#define GOLDEN UINT32_C(2654435769)

/* ---- turns ---- */

static bool word_is_parked(uint64_t word)
{
    return waiter_word_state(word) == WAITER_PARKED;
}

uint64_t parked_turn_after(uint32_t rank, uint32_t count, uint64_t now_ns)
{
    CHECK(rank < count);
    uint64_t period_ns = (uint64_t)count * (PARKED_SLICE_NS / PARKED_TURNS);
    if (period_ns < PARKED_SLICE_NS) {
        period_ns = PARKED_SLICE_NS;
    } else if (period_ns > PARKED_PERIOD_NS_MAX) {
        period_ns = PARKED_PERIOD_NS_MAX;
    }
    uint64_t place_ns = (uint64_t)(uint32_t)(rank * GOLDEN) * period_ns >> 32;
    return now_ns + period_ns - (now_ns + period_ns - place_ns) % period_ns;
}

static uint64_t turn_next(const struct arena *arena, const struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    uint32_t rank = 0;
    uint32_t count = 1; /* this waiter, even if it is no longer parked */
    for (uint32_t i = 0; i < waiter_count_used(arena); i++) {
        bool is_parked = word_is_parked(load_acquire_u64(&arena->waiters[i].word)); /* G5 */
        count += is_parked && i != wait->waiter_index;
        rank += is_parked && i < wait->waiter_index;
    }
    return parked_turn_after(rank, count, arena_now_ns(arena));
}

static bool turn_has_come(const struct arena *arena, const struct buffer_wait *wait)
{
    return wait->turn_ns != 0 && wait->turn_ns <= arena_now_ns(arena);
}

uint64_t parked_waiter_sleep_ns(const struct arena *arena, struct buffer_wait *wait)
{
    CHECK(wait->waiter_index < arena->geometry.waiter_count);
    if (wait->turn_ns == 0) {
        wait->turn_ns = turn_next(arena, wait);
    }
    uint64_t now_ns = arena_now_ns(arena);
    return wait->turn_ns > now_ns ? wait->turn_ns - now_ns : 0;
}

/* ---- all waiters ---- */

/* The values that are the same for all waiters of one check. */
struct parked_check {
    bool marks_count;  /* stuck words are valid; one system call for all waiters */
    uint32_t spare;    /* slots that must stay free in addition */
    uint32_t promised; /* slots that the waiters posted so far will take */
};

static bool entry_fits(const struct arena *arena, const struct parked_check *check, const struct waiter_entry *waiter,
                       uint32_t need)
{
    CHECK(need >= 1);
    uint32_t partition_index = waiter_partition_index(waiter);
    bool is_stuck = check->marks_count && partition_is_marked(arena, partition_index);
    uint32_t needed = topic_share_free_needed_if(arena, partition_index, is_stuck, need, check->promised);
    return needed != FREE_COUNT_NEVER &&
           free_count_reaches(arena, (uint64_t)(needed == 0 ? need : needed) + check->spare + check->promised) &&
           (need == 1 || topic_share_admits_oversized(arena, partition_index, need, check->promised));
}

/* Returns true if the waiter needs no post: it is not parked, or the limits do not allow its slots. */
static bool entry_stays(const struct arena *arena, const struct parked_check *check, uint32_t index)
{
    CHECK(index < arena->geometry.waiter_count);
    const struct waiter_entry *waiter = &arena->waiters[index];
    uint64_t word = load_acquire_u64(&waiter->word); /* G5 */
    if (!word_is_parked(word)) {
        return true;
    }
    if (entry_fits(arena, check, waiter, waiter_word_need(word))) {
        return false;
    }
    buffer_pool_end_linger(arena, waiter);
    return true;
}

static bool others_stay_parked(const struct arena *arena, uint32_t own_index)
{
    const struct parked_check check = {.marks_count = stuck_marks_count(arena)};
    bool all_stay = true;
    for (uint32_t i = 0; i < waiter_count_used(arena) && all_stay; i++) {
        all_stay = i == own_index || entry_stays(arena, &check, i);
    }
    return all_stay;
}

/* Posts as many waiters as fit together, from the entry `first` on. Returns the entry after the last one, or `first` if
 * none fits. Skips a semaphore that still has a post: its process is stopped, dead, or about to wake. */
static uint32_t others_post(struct arena *arena, struct parked_check *check, uint32_t first, struct wake_set *wakes)
{
    uint32_t used = waiter_count_used(arena);
    uint32_t next = first;
    for (uint32_t i = 0; i < used; i++) {
        uint32_t index = (uint32_t)(((uint64_t)first + i) % used);
        if (!entry_stays(arena, check, index) && !waiter_semaphore_has_post(arena, index)) {
            wake_add(wakes, index);
            check->promised += waiter_word_need(load_relaxed_u64(&arena->waiters[index].word));
            next = index + 1;
        }
    }
    return next;
}

bool parked_waiter_may_sleep(const struct arena *arena, struct buffer_wait *wait)
{
    if (!buffer_pool_stays_parked(arena, wait)) {
        return false;
    }
    if (turn_has_come(arena, wait)) {
        if (!others_stay_parked(arena, wait->waiter_index)) {
            return false;
        }
        wait->turn_ns = turn_next(arena, wait);
    }
    return true;
}

void parked_waiter_take_turn(struct arena *arena, struct buffer_wait *wait, struct wake_set *wakes)
{
    if (!buffer_pool_is_parked(arena, wait) || parked_waiter_sleep_ns(arena, wait) != 0) {
        return;
    }
    struct parked_check check = {.marks_count = stuck_marks_count(arena),
                               .promised = buffer_pool_stays_parked(arena, wait) ? 0 : wait->need};
    (void)others_post(arena, &check, wait->waiter_index + 1, wakes);
    wait->turn_ns = turn_next(arena, wait);
}

void parked_waiters_post(struct arena *arena, uint32_t *posted_end, struct wake_set *wakes)
{
    CHECK(arena->is_sender);
    struct parked_check check = {.marks_count = stuck_marks_count(arena),
                               .spare = arena->geometry.slot_count / FREE_MARGIN_SHARE};
    *posted_end = others_post(arena, &check, *posted_end, wakes);
}

void parked_waiters_post_all(struct arena *arena)
{
    struct wake_set wakes = {0};
    for (uint32_t i = 0; i < waiter_count_used(arena); i++) {
        bool is_parked = word_is_parked(load_acquire_u64(&arena->waiters[i].word)); /* G5 */
        if (is_parked && !waiter_semaphore_has_post(arena, i)) {
            wake_add(&wakes, i);
        }
    }
    waiters_wake(arena, &wakes);
}
