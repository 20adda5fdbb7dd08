/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/delivered.h"

static uint64_t larger(uint64_t one, uint64_t other)
{
    return one > other ? one : other;
}

void delivered_add(struct delivered *delivered, const struct drained_batch *batch, uint64_t begun_ns)
{
    uint64_t age_ns = begun_ns > batch->created_ns ? begun_ns - batch->created_ns : 0;
    CHECK(batch->record_count > 0);
    delivered->batch_count++;
    delivered->record_count += batch->record_count;
    delivered->size += batch->size;
    delivered->size_largest = larger(delivered->size_largest, batch->size);
    delivered->age_sum_ns += age_ns;
    delivered->age_max_ns = larger(delivered->age_max_ns, age_ns);
    if (batch->linger_ns >= 0 && (delivered->linger_min_ns < 0 || batch->linger_ns < delivered->linger_min_ns)) {
        delivered->linger_min_ns = batch->linger_ns;
    }
}
