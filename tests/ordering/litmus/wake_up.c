/* SPDX-License-Identifier: Apache-2.0
 *
 * completion.h (C3, C4): a waiter sets a flag in the word of a futex, passes a barrier, reads the tail, and sleeps
 * while the word is unchanged. The sender raises the tail, passes a barrier, clears the flag, and adds one to the
 * number of wake-ups. The same holds for `sync_done`, whose low half is the futex of a leader's followers (S2).
 *
 * Prints how often a waiter slept for a whole slice, and how often it slept.
 *
 * ARM model, by hand. The barriers are those of store_load.c: either the waiter finds the tail raised, or the sender
 * finds the flag. In the second case, the sender's cas changes the word before futex_wake. The kernel compares the word
 * under the lock of the bucket (futex_lock.c). So the waiter is in the bucket when the waker reads it, or the waiter
 * finds another word and does not sleep. The model in tests/ordering/src/results.rs has the kernel's comparison as one
 * step.
 */
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"

enum { ROUNDS = 30000, SLICE_S = 60 };
enum { IS_AWAITED = 1, WAKE_UP = 4 };

static _Alignas(128) atomic_u32 wait_word;
static _Alignas(128) atomic_u64 tail;
static _Alignas(128) atomic_u64 seen;
static uint64_t sleeps, oversleeps;

static void sleep_slice(uint32_t raised)
{
    struct timespec slice = {.tv_sec = SLICE_S};
    struct timespec begin;
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    syscall(SYS_futex, &wait_word, FUTEX_WAIT, raised, &slice, NULL, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    sleeps++;
    oversleeps += end.tv_sec - begin.tv_sec >= SLICE_S;
}

static void *waiter(void *argument)
{
    for (uint64_t round = 0; round < ROUNDS; round++) {
        while (load_acquire_u64(&tail) == round) {
            uint32_t raised = or_bits_u32(&wait_word, IS_AWAITED) | IS_AWAITED;
            barrier_store_load();
            if (load_acquire_u64(&tail) == round) {
                sleep_slice(raised);
            }
        }
        store_release_u64(&seen, round + 1);
    }
    return argument;
}

static void wake(void)
{
    barrier_store_load();
    uint32_t word = load_relaxed_u32(&wait_word);
    while ((word & IS_AWAITED) != 0) {
        if (cas_u32(&wait_word, &word, word - IS_AWAITED + WAKE_UP)) {
            syscall(SYS_futex, &wait_word, FUTEX_WAKE, 1, NULL, NULL, 0);
            return;
        }
    }
}

int main(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, waiter, NULL) != 0) {
        return 2;
    }
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (uint64_t pause = 0; pause < round % 97; pause++) {
            spin_pause();
        }
        store_release_u64(&tail, round + 1);
        wake();
        while (load_acquire_u64(&seen) != round + 1) {
            spin_pause();
        }
    }
    pthread_join(thread, NULL);
    printf("%ju %ju\n", (uintmax_t)oversleeps, (uintmax_t)sleeps);
    return 0;
}
