/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over the deliveries of ordinary rounds, for the sender's metrics (shmaccum.sender.sinks.sink.Delivered).
 */
#ifndef SENDER_DELIVERED_H
#define SENDER_DELIVERED_H

#include "base/check.h"
#include "sender/sender.h"

struct delivered {
    uint64_t batch_count;
    uint64_t record_count;
    uint64_t size;
    uint64_t size_largest; /* bytes of the largest batch */
    uint64_t age_sum_ns;   /* from the opening of a batch to its request, or to the append */
    uint64_t age_max_ns;
    uint64_t latency_sum_ns; /* from its request or append to its result */
    uint64_t latency_max_ns;
    uint64_t largest_record; /* 0 if no record was larger than the known ones */
    int64_t linger_min_ns;   /* -1 if no batch has its own linger */
};

/* Adds a batch whose request or append began at `begun_ns`. The caller adds its latency. */
static inline void delivered_add(struct delivered *delivered, const struct drained_batch *batch, uint64_t begun_ns)
{
    uint64_t age_ns = begun_ns > batch->created_ns ? begun_ns - batch->created_ns : 0;
    CHECK(batch->record_count > 0);
    delivered->batch_count++;
    delivered->record_count += batch->record_count;
    delivered->size += batch->size;
    delivered->size_largest = batch->size > delivered->size_largest ? batch->size : delivered->size_largest;
    delivered->age_sum_ns += age_ns;
    delivered->age_max_ns = age_ns > delivered->age_max_ns ? age_ns : delivered->age_max_ns;
    if (batch->linger_ns >= 0 && (delivered->linger_min_ns < 0 || batch->linger_ns < delivered->linger_min_ns)) {
        delivered->linger_min_ns = batch->linger_ns;
    }
}

#endif
