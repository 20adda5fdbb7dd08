/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of an append: the record and its size, the held lock of its partition, and the record's place.
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
    uint32_t hazard; /* slot index + 1 in me.writing, followed by a full barrier; 0 none */
    bool has_sealed_full; /* producer_batch_append found the open batch full, and sealed it */
    uint64_t linger; /* for producer_batch_open, as in slot_header */
    uint64_t joined; /* number of the transaction that the appender joined, or 0 */
};

struct batch_place {
    uint32_t slot_index;
    uint32_t generation;
    uint32_t record_index;
    uint32_t end; /* where the records of the call end in that slot, after an append; 0 if they fill their own slots */
    uint64_t seq;
    int64_t timestamp_ms;
};

#endif
