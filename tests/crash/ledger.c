/* SPDX-License-Identifier: Apache-2.0 */
#include "ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/record_batch.h"

enum { VALUE_HEAD_SIZE = 8 };

static const int64_t FIRST_TIMESTAMP_MS = 1700000000000;

void require_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: the harness is wrong: %s\n", file, line, condition);
    abort();
}

static void value_fill(uint8_t *value, uint32_t size, uint32_t producer, uint32_t sequence)
{
    memcpy(value, &producer, sizeof producer);
    memcpy(value + sizeof producer, &sequence, sizeof sequence);
    for (uint32_t i = VALUE_HEAD_SIZE; i < size; i++) {
        value[i] = (uint8_t)(1 + (producer * 89 + sequence * 37 + i * 7) % 255); /* never 0, unlike a free slot */
    }
}

void ledger_begin(struct ledger *ledger, enum producer_name producer, uint32_t value_size,
                  struct ledger_record *record)
{
    REQUIRE(value_size >= VALUE_HEAD_SIZE && value_size <= VALUE_SIZE_MAX);
    uint32_t sequence = ledger->producers[producer].begun_count++;
    REQUIRE(sequence < SEQUENCE_COUNT);
    value_fill(record->value, value_size, producer, sequence);
    record->measured.record = (struct record){.key_size = -1,
                                              .value = record->value,
                                              .value_size = (int32_t)value_size,
                                              .timestamp_ms = FIRST_TIMESTAMP_MS + (int64_t)(sequence * 31 % 17)};
}

void ledger_withdraw(struct ledger *ledger, enum producer_name producer)
{
    ledger->producers[producer].begun_count--;
}

void ledger_return(struct ledger *ledger, enum producer_name producer, const struct record_token *first,
                   uint32_t count)
{
    struct ledger_producer *entry = &ledger->producers[producer];
    REQUIRE(entry->returned_count + count <= entry->begun_count);
    for (uint32_t i = 0; i < count; i++) {
        struct record_token *token = &entry->tokens[entry->returned_count + i];
        *token = *first;
        token->record_index += i;
    }
    entry->returned_count += count;
}

void ledger_abort(struct ledger *ledger)
{
    for (uint32_t producer = 0; producer < PRODUCER_COUNT; producer++) {
        ledger->producers[producer].aborted_count = ledger->producers[producer].begun_count;
    }
}

static bool record_deliver(struct ledger *ledger, uint32_t partition_index, const struct record_view *view,
                           char *problem)
{
    uint8_t expected[VALUE_SIZE_MAX];
    uint32_t producer, sequence;
    if (view->value_size < VALUE_HEAD_SIZE || view->value_size > VALUE_SIZE_MAX) {
        snprintf(problem, PROBLEM_SIZE, "a record of %d bytes was delivered, but never appended", view->value_size);
        return false;
    }
    memcpy(&producer, view->value, sizeof producer);
    memcpy(&sequence, view->value + sizeof producer, sizeof sequence);
    if (producer >= PRODUCER_COUNT || sequence >= ledger->producers[producer].begun_count) {
        snprintf(problem, PROBLEM_SIZE, "record %u of producer %u was delivered, but never appended", sequence,
                 producer);
        return false;
    }
    value_fill(expected, (uint32_t)view->value_size, producer, sequence);
    struct ledger_producer *entry = &ledger->producers[producer];
    if (sequence < entry->aborted_count) {
        snprintf(problem, PROBLEM_SIZE, "record %u of producer %u was delivered after the abort of its transaction",
                 sequence, producer);
        return false;
    }
    uint32_t *delivered_next = &entry->delivered_next[partition_index];
    if (memcmp(expected, view->value, (size_t)view->value_size) != 0 || sequence < *delivered_next) {
        snprintf(problem, PROBLEM_SIZE, "record %u of producer %u was delivered %s", sequence, producer,
                 sequence < *delivered_next ? "twice or out of order" : "with different bytes");
        return false;
    }
    entry->delivered_counts[sequence]++;
    *delivered_next = sequence + 1;
    return true;
}

static bool seq_deliver(struct ledger *ledger, uint32_t partition_index, uint64_t seq, char *problem)
{
    REQUIRE(seq < 64);
    uint64_t bit = UINT64_C(1) << seq;
    bool is_first = (ledger->delivered_seqs[partition_index] & bit) == 0;
    ledger->delivered_seqs[partition_index] |= bit;
    if (!is_first) {
        snprintf(problem, PROBLEM_SIZE, "two delivered batches have the number %llu", (unsigned long long)seq);
    }
    return is_first;
}

bool ledger_deliver(struct ledger *ledger, uint32_t partition_index, uint64_t seq, const uint8_t *bytes, uint32_t size,
                    char problem[PROBLEM_SIZE])
{
    struct error error;
    struct record_batch_header header;
    if (!seq_deliver(ledger, partition_index, seq, problem)) {
        return false;
    }
    if (record_batch_validate(bytes, size, &error) != STATUS_OK ||
        record_batch_header_read(bytes, size, &header) != STATUS_OK) {
        snprintf(problem, PROBLEM_SIZE, "a delivered batch is invalid: %.150s", error.message);
        return false;
    }
    const uint8_t *cursor = bytes + RECORD_BATCH_HEADER_SIZE;
    for (int32_t i = 0; i < header.record_count; i++) {
        struct record_view view;
        if (record_read(&cursor, bytes + size, &view) != STATUS_OK) {
            snprintf(problem, PROBLEM_SIZE, "record %d of a delivered batch cannot be read", i);
            return false;
        }
        if (!record_deliver(ledger, partition_index, &view, problem)) {
            return false;
        }
    }
    return true;
}

bool ledger_check(const struct ledger *ledger, bool may_be_completed, char problem[PROBLEM_SIZE])
{
    for (uint32_t producer = 0; producer < PRODUCER_COUNT; producer++) {
        const struct ledger_producer *entry = &ledger->producers[producer];
        for (uint32_t sequence = 0; sequence < entry->begun_count; sequence++) {
            uint32_t count = entry->delivered_counts[sequence];
            bool is_followed = sequence + 1 < entry->begun_count && entry->delivered_counts[sequence + 1] > 0;
            bool is_lost = sequence >= entry->returned_count && !is_followed;
            bool may_be_absent = is_lost || may_be_completed || sequence < entry->aborted_count;
            if (count > 1 || (count == 0 && !may_be_absent)) {
                snprintf(problem, PROBLEM_SIZE, "record %u of producer %u (%s) was delivered %u times", sequence,
                         producer, sequence < entry->returned_count ? "returned" : "not returned", count);
                return false;
            }
        }
    }
    return true;
}
