/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger of chaos.c, which all of its processes share and which outlives each of them.
 *
 *   record    producer 8 | sequence 8 | fill ...      the fill is the producer's number
 *
 *   acknowledged    its append returned; only its producer writes it
 *   delivered       it arrived: at the sender, or at the broker of a sender that pumps; one process at a time writes it
 *
 * Sequences of a producer begin with 1 and have no gaps, so the last number implies all of them.
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
    BROKER, /* runs only if the sender has a pump */
    ROLE_COUNT,
    PARTITION_COUNT = 2,
    BATCH_SIZE = 4096,
    CHAIN_MAX = 4, /* buffers of a batch */
    CHAIN_SIZE_MAX = CHAIN_MAX * BATCH_SIZE,
};

struct ledger {
    atomic_ullong acknowledged[PRODUCER_COUNT];
    atomic_ullong delivered[PRODUCER_COUNT];
    atomic_ullong blocked_ns_max; /* longest append that did not wait for memory, without its time in the run queue */
    atomic_ullong turn_ns_max;    /* longest observed wait of a process for a processor */
    atomic_ullong record_count;
    atomic_ullong repeat_count;  /* records that were delivered again */
    atomic_ullong pumped_count;  /* batches that the pump completed */
    atomic_ullong alone_count;   /* batches that the pump left to its caller */
    atomic_ullong again_count;   /* batches that the broker received again */
    atomic_ullong hostile_count; /* requests to which the broker sent an invalid answer */
    atomic_bool is_carrying;     /* the pump has a request in flight */
    atomic_int is_finished; /* 1: producers exit; 2: the sender drains what is left and exits; 3: the broker exits */
    atomic_int is_failed;
};

extern struct ledger *ledger;
extern pid_t director; /* calls exit, which ends the others */

#define FAIL(...)                                      \
    do {                                               \
        fprintf(stderr, "chaos: " __VA_ARGS__);        \
        fprintf(stderr, "\n");                         \
        ledger->is_failed = 1;                         \
        getpid() == director ? exit(1) : _exit(1);     \
    } while (0)

/* Copy the bytes of a batch to `bytes`, which has CHAIN_SIZE_MAX bytes. */
void batch_copy(const struct arena *arena, const struct drained_batch *batch, uint8_t *bytes);

/* Checks a batch and each of its records, and records their delivery. */
void ledger_deliver(const uint8_t *bytes, uint32_t size);

#endif
