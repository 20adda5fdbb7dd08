/* SPDX-License-Identifier: Apache-2.0
 *
 * Each side of a Dekker pair stores, passes a barrier, and loads the cell of the other side. In no round do both sides
 * miss the other's store: C3/C4, D1/D2, H1/H2, M1/M2, W1/W2, W3/W2, X1/X2.
 *
 *   store_load fence      both sides have barrier_store_load
 *   store_load cas        one side has a cas and barrier_after_cas, as an appender does (H1)
 *   store_load nothing    without a barrier: shows that this machine reorders the two, and that the program detects it
 *
 * Prints in how many rounds both sides missed the other's store.
 *
 * ARM model, by hand. `fence`: each side is W; dmb ish; R. The barrier orders W before R (dob of aarch64.cat). An R
 * that misses the other W is before it (fr). If both sides missed, the four would form a cycle. `cas`: W; cas; dmb ish;
 * R. The barrier orders W before R, however the cas is compiled. A pair of ldaxr and stlxr alone would not order them,
 * because a later load may be done before the store of the pair. litmus/hazard.litmus describes both cases to herd7.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"

enum { ROUNDS = 400000 };

struct side {
    _Alignas(128) atomic_u32 cell;
    _Alignas(128) atomic_u64 lock;
    _Alignas(128) atomic_u32 round;
    uint32_t found;
};

static struct side sides[2];
static enum { FENCE, CAS, NOTHING } kind;

static void pass_barrier(int me)
{
    uint64_t last = load_relaxed_u64(&sides[me].lock);
    if (kind == FENCE || (kind == CAS && me == 1)) {
        barrier_store_load();
    } else if (kind == CAS) {
        if (!cas_u64(&sides[me].lock, &last, last + 1)) {
            abort();
        }
        barrier_after_cas();
    }
}

/* Waits until both sides are in this round, so that they begin it at nearly the same time. */
static void meet(int me, uint32_t round)
{
    store_release_u32(&sides[me].round, round);
    while (load_acquire_u32(&sides[1 - me].round) < round) {
        spin_pause();
    }
}

static uint32_t both_found_nothing;

static void *run(void *argument)
{
    int me = argument == &sides[1];
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        meet(me, 2 * round);
        store_relaxed_u32(&sides[me].cell, round);
        pass_barrier(me);
        sides[me].found = load_relaxed_u32(&sides[1 - me].cell);
        meet(me, 2 * round + 1);
        if (me == 0 && sides[0].found < round && sides[1].found < round) {
            both_found_nothing++;
        }
    }
    return NULL;
}

int main(int count, char **arguments)
{
    const char *name = count == 2 ? arguments[1] : "";
    kind = strcmp(name, "fence") == 0 ? FENCE : strcmp(name, "cas") == 0 ? CAS : NOTHING;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&threads[i], NULL, run, &sides[i]) != 0) {
            return 2;
        }
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%u\n", both_found_nothing);
    return 0;
}
