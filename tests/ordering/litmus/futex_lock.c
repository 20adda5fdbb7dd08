/* SPDX-License-Identifier: Apache-2.0
 *
 * lock.h (U1, L1, L2): a lock is a word of 64 bits. It is changed by a cas of the whole word, and its low half is a
 * futex. A release that finds the waiters' bit wakes one waiter. No process sleeps past a release, and no two processes
 * hold the lock.
 *
 * Prints how often a process slept for a whole slice although the lock was released meanwhile, how often two processes
 * held the lock, and how often one slept.
 *
 * ARM model, by hand. The kernel reads the low half under the lock of the futex's bucket, which futex_wake takes, too.
 * If the waker takes the bucket lock first, the sleeper reads the word later, and finds what the cas of the release
 * stored: the cas is before futex_wake in program order, and the kernel has a full barrier before it reads the bucket
 * (kernel/futex/waitwake.c). If the sleeper takes the bucket lock first, it is in the bucket, and the waker finds it
 * there. A read of
 * half a word sees the newest store to either half: accesses of unlike sizes to one aligned word are single-copy atomic
 * for each byte, and coherence holds for each byte.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"

enum { THREADS = 3, ROUNDS = 20000, SLICE_S = 60 };
#define WAITERS (UINT64_C(1) << 31)
#define OWNER(word) ((uint32_t)((word) & (WAITERS - 1)))
#define AFTER(word, owner) ((((word) >> 32) + 1) << 32 | (owner))

static _Alignas(128) atomic_u64 lock;
static _Alignas(128) uint64_t inside;
static atomic_u64 collisions, oversleeps, sleeps;

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* A slice that ends by its timeout counts as an oversleep, because no critical section lasts so long. */
static void sleep_slice(uint64_t word)
{
    struct timespec slice = {.tv_sec = SLICE_S};
    uint64_t begin_ns = now_ns();
    add_u64(&sleeps, 1);
    syscall(SYS_futex, &lock, FUTEX_WAIT, (uint32_t)word, &slice, NULL, 0);
    add_u64(&oversleeps, now_ns() - begin_ns >= (uint64_t)SLICE_S * 1000000000);
}

static uint64_t acquire(uint32_t me)
{
    uint64_t mine = me;
    for (;;) {
        uint64_t word = load_acquire_u64(&lock);
        if (OWNER(word) == 0) {
            uint64_t held = AFTER(word, mine);
            if (cas_u64(&lock, &word, held)) {
                return AFTER(word, me);
            }
        } else if ((word & WAITERS) != 0 || cas_u64(&lock, &word, word | WAITERS)) {
            mine = me | WAITERS;
            sleep_slice(word | WAITERS);
        }
    }
}

static void release(uint64_t held)
{
    uint64_t word = held;
    uint64_t nobody = held >> 32 << 32;
    if (!cas_u64(&lock, &word, nobody)) {
        word = held | WAITERS;
        if (cas_u64(&lock, &word, nobody)) {
            syscall(SYS_futex, &lock, FUTEX_WAKE, 1, NULL, NULL, 0);
        }
    }
}

static void *run(void *argument)
{
    uint32_t me = (uint32_t)(uintptr_t)argument;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t held = acquire(me);
        uint64_t before = inside++;
        for (int pause = 0; pause < 200; pause++) {
            spin_pause();
        }
        add_u64(&collisions, inside != before + 1);
        release(held);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)(i + 1)) != 0) {
            return 2;
        }
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%ju %ju %ju\n", (uintmax_t)load_relaxed_u64(&oversleeps),
           (uintmax_t)(load_relaxed_u64(&collisions) + (inside != (uint64_t)THREADS * ROUNDS)),
           (uintmax_t)load_relaxed_u64(&sleeps));
    return 0;
}
