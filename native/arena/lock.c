/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/lock.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "arena/counters.h"
#include "arena/process.h"
#include "base/point.h"

/* The futex is the half with the owner and the waiters bit. On a little-endian machine it is the first half. */
static uint32_t *lock_futex(atomic_u64 *lock)
{
    return (uint32_t *)(void *)lock;
}

/* Not FUTEX_PRIVATE: the sleeper and the waker are different processes. */
static void futex_wait_slice(atomic_u64 *lock, uint32_t expected)
{
    CHECK((expected & LOCK_WAITERS) != 0);
    struct timespec slice = {.tv_sec = 0, .tv_nsec = (long)LOCK_SLICE_NS};
    syscall(SYS_futex, lock_futex(lock), FUTEX_WAIT, expected, &slice, NULL, 0);
}

static void futex_wake_one(atomic_u64 *lock)
{
    syscall(SYS_futex, lock_futex(lock), FUTEX_WAKE, 1, NULL, NULL, 0);
}

void lock_release(atomic_u64 *lock, uint64_t held)
{
    CHECK(lock_word_owner(held) != 0);
    CHECK((held & LOCK_WAITERS) == 0);
    const uint64_t unowned = lock_word(lock_word_acquisition(held), 0);
    uint64_t word = held;
    if (LIKELY(cas_u64(lock, &word, unowned))) { /* L2 */
        return;
    }
    word = held | LOCK_WAITERS;
    if (cas_u64(lock, &word, unowned)) { /* L2 */
        POINT(lock_released_before_wake);
        futex_wake_one(lock); /* if killed just before this, the sleeper's slice still ends */
    }
}

/* Acquires a lock without an owner, or with an owner that is dead. A process that has slept sets the waiters bit,
 * because other processes may still sleep and its release has to wake them. */
static bool lock_try_word(atomic_u64 *lock, uint64_t word, uint64_t mine, uint64_t *held)
{
    CHECK((mine & LOW_BITS(31)) != 0);
    *held = lock_word(lock_word_acquisition(word) + 1, (uint32_t)(mine & LOW_BITS(31)));
    return cas_u64(lock, &word, *held | (mine & LOCK_WAITERS)); /* L1 */
}

enum { LOCK_SPIN_COUNT = 50 };

static bool lock_spin(atomic_u64 *lock, uint64_t mine, uint64_t *held)
{
    CHECK(lock_word_owner(mine) != 0);
    for (int i = 0; i <= LOCK_SPIN_COUNT; i++) {
        uint64_t word = load_relaxed_u64(lock);
        if (lock_word_owner(word) == 0 && lock_try_word(lock, word, mine, held)) {
            return true;
        }
        spin_pause();
    }
    return false;
}

/* Sets the waiters bit before a sleep. Returns false if the word changed meanwhile: read it again. */
static bool lock_mark_waiting(atomic_u64 *lock, uint64_t *word)
{
    if ((*word & LOCK_WAITERS) != 0) {
        return true;
    }
    uint64_t marked = *word | LOCK_WAITERS;
    if (!cas_u64(lock, word, marked)) { /* U1 */
        return false;
    }
    *word = marked;
    return true;
}

bool lock_watch_is_over(struct lock_watch *watch, uint64_t word, uint64_t patience_ns)
{
    uint64_t now_ns = clock_now_ns(&(struct clock){.is_manual = false});
    if ((word | LOCK_WAITERS) != watch->word) {
        *watch = (struct lock_watch){.word = word | LOCK_WAITERS, .since_ns = now_ns};
        return false;
    }
    return now_ns - watch->since_ns >= patience_ns;
}

/* The hooks enclose only the sleep, so no lock is held while the host language may block in them. */
static void lock_sleep_slice(struct arena *arena, atomic_u64 *lock, uint64_t word)
{
    CHECK((word & LOCK_WAITERS) != 0);
    void *state = arena->blocking.begin != NULL ? arena->blocking.begin() : NULL;
    futex_wait_slice(lock, (uint32_t)word);
    if (arena->blocking.end != NULL) {
        arena->blocking.end(state);
    }
}

/* A word that names this process is corrupt, because one thread at a time uses a handle, and this one waits. */
static bool lock_owner_is_alive(const struct arena *arena, uint64_t word)
{
    uint32_t owner = lock_word_owner(word);
    return owner != arena->owner && process_is_alive(arena, owner);
}

enum lock_outcome lock_acquire(struct arena *arena, atomic_u64 *lock, uint64_t *held)
{
    CHECK(!arena->is_read_only);
    CHECK(arena->owner != 0);
    uint64_t mine = arena->owner;
    struct lock_watch watch = {0};
    for (;;) {
        if (lock_spin(lock, mine, held)) {
            return LOCK_ACQUIRED;
        }
        uint64_t word = load_acquire_u64(lock); /* U1 */
        if (lock_word_owner(word) == 0 || !lock_mark_waiting(lock, &word)) {
            continue;
        }
        mine = arena->owner | LOCK_WAITERS;
        if (!lock_watch_is_over(&watch, word, LOCK_SLICE_NS)) {
            lock_sleep_slice(arena, lock, word);
        } else if (!lock_owner_is_alive(arena, word)) {
            if (lock_try_word(lock, word, mine, held)) {
                counter_add(arena, COUNTER_LOCKS_STOLEN, 1);
                return LOCK_TAKEN_OVER;
            }
        } else if (lock_watch_is_over(&watch, word, LOCK_PATIENCE_NS)) {
            *held = watch.word;
            return LOCK_REFUSED;
        } else {
            lock_sleep_slice(arena, lock, word);
        }
    }
}

bool lock_is_kept(const struct arena *arena, const atomic_u64 *lock, uint64_t refused)
{
    uint64_t word = load_relaxed_u64(lock);
    return lock_word_owner(word) != 0 && (word | LOCK_WAITERS) == refused && lock_owner_is_alive(arena, word);
}
