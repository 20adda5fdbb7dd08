/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger of chaos.c. All of its processes share it, and it outlives each of them.
 *
 *   record    producer 8 | sequence 8 | fill ...      each byte of the fill is the producer's number
 *
 *   acknowledged    the append of this sequence returned. Only its producer stores it
 *   delivered       this sequence arrived at the sender, or with a pump at the broker. One process at a time stores it
 *
 * The sequences of a producer begin with 1 and have no gaps. So the last sequence implies all earlier ones.
 */
#ifndef CRASH_CHAOS_H
#define CRASH_CHAOS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/accumulator.h"

enum {
    PRODUCER_COUNT = 4,
    SENDER = PRODUCER_COUNT, /* the roles after the producers */
    METER,
    BROKER, /* runs only if the sender uses the pump */
    ROLE_COUNT,
    PARTITION_COUNT = 2,
    BATCH_SIZE = 4096,
    CHAIN_MAX = 4, /* the most buffers of a batch */
    CHAIN_SIZE_MAX = CHAIN_MAX * BATCH_SIZE,
};

struct ledger {
    atomic_ullong acknowledged[PRODUCER_COUNT];
    atomic_ullong delivered[PRODUCER_COUNT];
    atomic_ullong blocked_ns_max; /* longest append that did not wait for memory; excludes the run queue */
    atomic_ullong turn_ns_max;    /* longest wait of a process in the run queue */
    atomic_ullong record_count;
    atomic_ullong repeat_count;  /* deliveries of records that were delivered before */
    atomic_ullong pumped_count;  /* batches that the pump completed */
    atomic_ullong alone_count;   /* batches that the pump returned to its caller */
    atomic_ullong again_count;   /* batches that the broker received a second time */
    atomic_ullong fault_count;   /* requests that the broker answered with an injected fault */
    atomic_bool has_in_flight;   /* the pump has a request in flight */
    atomic_int is_finished; /* 1: producers exit; 2: the sender drains all batches and exits; 3: the broker exits */
    atomic_int is_failed;
};

extern struct ledger *ledger;
extern pid_t parent; /* if it calls exit, all other processes end */

#define FAIL(...)                                      \
    do {                                               \
        fprintf(stderr, "chaos: " __VA_ARGS__);        \
        fprintf(stderr, "\n");                         \
        ledger->is_failed = 1;                         \
        getpid() == parent ? exit(1) : _exit(1);     \
    } while (0)

/* Copies the bytes of a batch to `bytes`, which has space for CHAIN_SIZE_MAX bytes. */
void batch_copy(const struct arena *arena, const struct drained_batch *batch, uint8_t *bytes);

/* Checks a batch and each of its records, and marks the records as delivered. */
void ledger_deliver(const uint8_t *bytes, uint32_t size);

#endif
