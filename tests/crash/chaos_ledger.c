/* SPDX-License-Identifier: Apache-2.0 */
#include "chaos.h"

#include <string.h>

#include "format/record.h"
#include "format/record_batch.h"

void batch_copy(const struct arena *arena, const struct drained_batch *batch, uint8_t *bytes)
{
    uint32_t slots[CHAIN_MAX];
    uint32_t count = slot_chain_walk(arena, batch->slot_index, slots, CHAIN_MAX);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(bytes + i * BATCH_SIZE, arena_slot_data(arena, slots[i]), BATCH_SIZE);
    }
}

static void record_deliver(const struct record_view *view)
{
    uint64_t producer;
    uint64_t sequence;
    if (view->value_size < 16) {
        FAIL("a record is too short");
    }
    memcpy(&producer, view->value, 8);
    memcpy(&sequence, view->value + 8, 8);
    if (producer >= PRODUCER_COUNT) {
        FAIL("a record has an unknown producer");
    }
    for (int32_t i = 16; i < view->value_size; i++) {
        if (view->value[i] != producer) {
            FAIL("a record of producer %llu has wrong bytes", (unsigned long long)producer);
        }
    }
    uint64_t delivered = ledger->delivered[producer];
    if (sequence > delivered + 1) {
        FAIL("producer %llu: sequence %llu arrived after %llu", (unsigned long long)producer,
             (unsigned long long)sequence, (unsigned long long)delivered);
    }
    ledger->repeat_count += sequence <= delivered;
    ledger->record_count++;
    if (sequence > delivered) {
        ledger->delivered[producer] = sequence;
    }
}

void ledger_deliver(const uint8_t *bytes, uint32_t size)
{
    struct error error;
    if (record_batch_validate(bytes, size, &error) != STATUS_OK) {
        FAIL("a drained batch is invalid: %s", error.message);
    }
    const uint8_t *cursor = bytes + RECORDS_START;
    while (cursor < bytes + size) {
        struct record_view view;
        if (record_read(&cursor, bytes + size, &view) != STATUS_OK) {
            FAIL("a record cannot be read");
        }
        record_deliver(&view);
    }
}
