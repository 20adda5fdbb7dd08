/* SPDX-License-Identifier: Apache-2.0
 *
 * The arguments and results of an append: the record and its size, the lock of its partition, and the record's place.
 */
#ifndef PRODUCER_PARTITION_HOLD_H
#define PRODUCER_PARTITION_HOLD_H

#include "arena/arena.h"
#include "format/record.h"

struct measured_record {
    struct record record;
    struct record_size size;
};

/* An acquisition of a partition's producer lock by this process. */
struct partition_hold {
    struct partition_entry *partition;
    uint32_t partition_index;
    uint64_t lock; /* the word that names this process */
    uint32_t hazard; /* the slot index + 1 that was stored in me.writing before a full barrier; 0 none */
    bool has_sealed_full; /* producer_batch_append has sealed the open batch, because it was full */
    uint64_t linger; /* for producer_batch_open, as in slot_header */
    uint64_t joined; /* number of the transaction that the appender joined, or 0 */
};

struct batch_place {
    uint32_t slot_index;
    uint32_t generation;
    uint32_t record_index;
    uint32_t end; /* the end of the call's records in that slot; 0 if an oversized record has its own slots */
    uint64_t seq;
    int64_t timestamp_ms;
};

#endif
