/* SPDX-License-Identifier: Apache-2.0 */
#include "arrived.h"

#include "format/record_batch.h"
#include "ledger.h"

#include <string.h>

void arrived_add(struct arrived *arrived, const uint8_t *bytes, uint32_t size)
{
    struct record_batch_header header;
    REQUIRE(arrived->count < ARRIVED_MAX && size <= ARRIVED_SIZE_MAX);
    REQUIRE(record_batch_header_read(bytes, size, &header) == STATUS_OK);
    struct arrived_batch *batch = &arrived->batches[arrived->count++];
    batch->size = size;
    batch->base_sequence = header.base_sequence;
    memcpy(batch->bytes, bytes, size);
}

const struct arrived_batch *arrived_find(const struct arrived *arrived, int32_t base_sequence)
{
    for (uint32_t i = 0; i < arrived->count; i++) {
        if (arrived->batches[i].base_sequence == base_sequence) {
            return &arrived->batches[i];
        }
    }
    return NULL;
}
