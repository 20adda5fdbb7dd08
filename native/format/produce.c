/* SPDX-License-Identifier: Apache-2.0 */
#include "format/produce.h"

#include <string.h>

#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/varint.h"

enum {
    FRAME_SIZE = 4,
    LENGTH_SIZE_MAX = VARINT_SIZE_MAX,
    HEADER_SIZE_MAX = 64, /* bytes of fixed size before the first topic, and of the tail */
    PARTITION_SIZE_MAX = 4 + LENGTH_SIZE_MAX + 1,
};

static bool is_flexible(const struct produce_request *request)
{
    return request->version >= PRODUCE_FLEXIBLE;
}

/* ---- the request ---- */

static uint8_t *put_16(uint8_t *target, uint16_t value)
{
    store_be16(target, value);
    return target + sizeof value;
}

static uint8_t *put_32(uint8_t *target, uint32_t value)
{
    store_be32(target, value);
    return target + sizeof value;
}

static uint8_t *put_bytes(uint8_t *target, const void *bytes, size_t size)
{
    memcpy(target, bytes, size);
    return target + size;
}

/* Writes a count of elements, or the size of the records. */
static uint8_t *put_count(const struct produce_request *request, uint8_t *target, uint32_t count)
{
    return is_flexible(request) ? varint_write_groups(target, (uint64_t)count + 1) : put_32(target, count);
}

static uint8_t *put_end(const struct produce_request *request, uint8_t *target)
{
    if (is_flexible(request)) {
        *target++ = 0; /* no tagged fields */
    }
    return target;
}

static uint8_t *put_string(const struct produce_request *request, uint8_t *target, const char *text, uint16_t size)
{
    target = is_flexible(request) ? varint_write_groups(target, (uint64_t)size + 1) : put_16(target, size);
    return put_bytes(target, text, size);
}

static uint8_t *put_name(const struct produce_request *request, uint8_t *target, const struct produce_topic *topic)
{
    return request->version >= PRODUCE_TOPIC_IDS ? put_bytes(target, topic->id, TOPIC_ID_SIZE)
                                                 : put_string(request, target, topic->name, topic->name_size);
}

static uint8_t *put_transactional_id(const struct produce_request *request, uint8_t *target)
{
    if (request->transactional_id != NULL) {
        return put_string(request, target, request->transactional_id, request->transactional_id_size);
    }
    return is_flexible(request) ? put_bytes(target, "\0", 1) : put_16(target, UINT16_MAX); /* null */
}

static uint8_t *put_head(const struct produce_request *request, uint8_t *target)
{
    target = put_32(target, 0); /* the frame's size */
    target = put_16(target, 0); /* Produce */
    target = put_16(target, (uint16_t)request->version);
    target = put_32(target, 0); /* the correlation id */
    target = put_16(target, request->client_size);
    target = put_bytes(target, request->client, request->client_size);
    target = put_end(request, target);
    target = put_transactional_id(request, target);
    target = put_16(target, (uint16_t)request->acks);
    target = put_32(target, (uint32_t)request->timeout_ms);
    return put_count(request, target, request->topic_count);
}

size_t produce_own_size_max(const struct produce_request *request)
{
    size_t size = (size_t)HEADER_SIZE_MAX + request->client_size + request->transactional_id_size +
                  (size_t)request->batch_count * PARTITION_SIZE_MAX;
    for (uint32_t i = 0; i < request->topic_count; i++) {
        size += request->topics[i].name_size + (size_t)TOPIC_ID_SIZE + 2 * LENGTH_SIZE_MAX + 1;
    }
    return size;
}

size_t produce_encode(const struct produce_request *request, uint8_t *own, size_t *cuts)
{
    const struct produce_batch *batch = request->batches;
    uint64_t records_size = 0;
    uint8_t *target = put_head(request, own);
    for (uint32_t i = 0; i < request->topic_count; i++) {
        const struct produce_topic *topic = &request->topics[i];
        target = put_name(request, target, topic);
        target = put_count(request, target, topic->batch_count);
        for (uint32_t j = 0; j < topic->batch_count; j++, batch++) {
            target = put_32(target, (uint32_t)batch->partition);
            target = put_count(request, target, batch->size);
            *cuts++ = (size_t)(target - own);
            target = put_end(request, target);
            records_size += batch->size;
        }
        target = put_end(request, target);
    }
    target = put_end(request, target);
    size_t size = (size_t)(target - own);
    store_be32(own, (uint32_t)(size + records_size - FRAME_SIZE));
    return size;
}

/* ---- places by hash, for a response in another order than its request ---- */

/* A hash table of indices, with linear probing; at most half of the slots are used. */
struct table {
    uint32_t *slots; /* index + 1; 0 if free */
    uint32_t shift;  /* 32 minus the bits of a slot number, or 0 before the first entry */
};

/* Returns the binary logarithm of the number of slots in a table for `count` indices. */
static uint32_t table_bits(uint32_t count)
{
    uint32_t bits = 1;
    while (bits < 31 && UINT32_C(1) << bits < 2 * count) {
        bits++;
    }
    return bits;
}

static uint32_t table_slot(const struct table *table, uint32_t hash)
{
    return (hash * UINT32_C(0x9e3779b1)) >> table->shift; /* Fibonacci hashing spreads consecutive numbers */
}

static uint32_t table_slot_after(const struct table *table, uint32_t slot)
{
    return (slot + 1) & (UINT32_MAX >> table->shift);
}

static void table_clear(struct table *table, uint32_t count)
{
    uint32_t bits = table_bits(count);
    table->shift = 32 - bits;
    memset(table->slots, 0, sizeof *table->slots << bits);
}

static void table_enter(const struct table *table, uint32_t hash, uint32_t place)
{
    uint32_t slot = table_slot(table, hash);
    while (table->slots[slot] != 0) {
        slot = table_slot_after(table, slot);
    }
    table->slots[slot] = place + 1;
}

static uint32_t batches_max(const struct produce_request *request)
{
    uint32_t max = 0;
    for (uint32_t i = 0; i < request->topic_count; i++) {
        max = request->topics[i].batch_count > max ? request->topics[i].batch_count : max;
    }
    return max;
}

size_t produce_tables_size(const struct produce_request *request)
{
    return request->topic_count + ((size_t)1 << table_bits(request->topic_count)) +
           ((size_t)1 << table_bits(batches_max(request)));
}

/* ---- the response ---- */

/* The batches of a topic, as indices in the request. */
struct run {
    uint32_t first;
    uint32_t count;
};

struct reader {
    const uint8_t *next;
    const uint8_t *end;
    bool is_flexible;
    const struct produce_request *request;
    struct produce_result *results;
    uint32_t answered_count;
    uint32_t topic_next; /* the topic that is expected next, and its first batch */
    uint32_t topic_next_first;
    uint32_t batch_next;
    uint32_t *firsts; /* the first batch of each topic, after topics were added to their table */
    struct table topics;
    struct table batches; /* the batches of one topic, by partition */
};

static bool take(struct reader *reader, size_t size, const uint8_t **bytes)
{
    if ((size_t)(reader->end - reader->next) < size) {
        return false;
    }
    *bytes = reader->next;
    reader->next += size;
    return true;
}

static bool take_16(struct reader *reader, uint16_t *value)
{
    const uint8_t *bytes;
    if (!take(reader, sizeof *value, &bytes)) {
        return false;
    }
    *value = load_be16(bytes);
    return true;
}

static bool take_32(struct reader *reader, uint32_t *value)
{
    const uint8_t *bytes;
    if (!take(reader, sizeof *value, &bytes)) {
        return false;
    }
    *value = load_be32(bytes);
    return true;
}

static bool take_64(struct reader *reader, int64_t *value)
{
    const uint8_t *bytes;
    if (!take(reader, sizeof *value, &bytes)) {
        return false;
    }
    *value = (int64_t)load_be64(bytes);
    return true;
}

/* Reads a count of elements. A null array is invalid. */
static bool take_count(struct reader *reader, uint32_t *count)
{
    uint64_t bits;
    if (!reader->is_flexible) {
        return take_32(reader, count);
    }
    if (varint_read_bits(&reader->next, reader->end, 32, &bits) != STATUS_OK || bits == 0) {
        return false;
    }
    *count = (uint32_t)bits - 1;
    return true;
}

/* Checks that these bytes follow, for example of a field that is empty or null, or of the end of a structure. */
static bool take_expected(struct reader *reader, const char *expected, size_t size)
{
    const uint8_t *bytes;
    return take(reader, size, &bytes) && memcmp(bytes, expected, size) == 0;
}

static bool take_end(struct reader *reader)
{
    return !reader->is_flexible || take_expected(reader, "\0", 1);
}

struct name {
    const uint8_t *bytes;
    size_t size;
};

static bool take_name(struct reader *reader, struct name *name)
{
    uint16_t short_size;
    uint32_t count;
    if (reader->request->version >= PRODUCE_TOPIC_IDS) {
        name->size = TOPIC_ID_SIZE;
    } else if (reader->is_flexible) {
        if (!take_count(reader, &count)) {
            return false;
        }
        name->size = count;
    } else {
        if (!take_16(reader, &short_size)) {
            return false;
        }
        name->size = short_size;
    }
    return take(reader, name->size, &name->bytes);
}

static struct name topic_name(const struct produce_request *request, uint32_t topic)
{
    const struct produce_topic *named = &request->topics[topic];
    return request->version >= PRODUCE_TOPIC_IDS ? (struct name){named->id, TOPIC_ID_SIZE}
                                                 : (struct name){(const uint8_t *)named->name, named->name_size};
}

static bool topic_is_named(const struct produce_request *request, uint32_t topic, const struct name *name)
{
    struct name own = topic_name(request, topic);
    return own.size == name->size && memcmp(own.bytes, name->bytes, name->size) == 0;
}

static void topics_enter(struct reader *reader)
{
    const struct produce_request *request = reader->request;
    uint32_t first = 0;
    table_clear(&reader->topics, request->topic_count);
    for (uint32_t i = 0; i < request->topic_count; i++) {
        struct name name = topic_name(request, i);
        table_enter(&reader->topics, crc32c_extend(0, name.bytes, name.size), i);
        reader->firsts[i] = first;
        first += request->topics[i].batch_count;
    }
}

static bool topic_search(struct reader *reader, const struct name *name)
{
    if (reader->topics.shift == 0) {
        topics_enter(reader);
    }
    uint32_t slot = table_slot(&reader->topics, crc32c_extend(0, name->bytes, name->size));
    while (reader->topics.slots[slot] != 0) {
        uint32_t topic = reader->topics.slots[slot] - 1;
        if (topic_is_named(reader->request, topic, name)) {
            reader->topic_next = topic;
            reader->topic_next_first = reader->firsts[topic];
            return true;
        }
        slot = table_slot_after(&reader->topics, slot);
    }
    return false;
}

static bool topic_find(struct reader *reader, const struct name *name, struct run *run)
{
    bool is_expected = reader->topic_next < reader->request->topic_count &&
                       topic_is_named(reader->request, reader->topic_next, name);
    if (!is_expected && !topic_search(reader, name)) {
        return false;
    }
    *run = (struct run){.first = reader->topic_next_first,
                        .count = reader->request->topics[reader->topic_next].batch_count};
    reader->topic_next++;
    reader->topic_next_first += run->count;
    return true;
}

static void batches_enter(struct reader *reader, const struct run *run)
{
    table_clear(&reader->batches, run->count);
    for (uint32_t place = run->first; place < run->first + run->count; place++) {
        table_enter(&reader->batches, (uint32_t)reader->request->batches[place].partition, place);
    }
}

/* Returns true if the batch is of the partition and has no result yet. */
static bool batch_fits(const struct reader *reader, uint32_t place, uint32_t partition)
{
    return (uint32_t)reader->request->batches[place].partition == partition && !reader->results[place].is_answered;
}

static bool batch_search(struct reader *reader, const struct run *run, uint32_t partition)
{
    if (reader->batches.shift == 0) {
        batches_enter(reader, run);
    }
    uint32_t slot = table_slot(&reader->batches, partition);
    while (reader->batches.slots[slot] != 0) {
        reader->batch_next = reader->batches.slots[slot] - 1;
        if (batch_fits(reader, reader->batch_next, partition)) {
            return true;
        }
        slot = table_slot_after(&reader->batches, slot);
    }
    return false;
}

/* Returns NULL if no batch without a result has the partition. */
static struct produce_result *result_find(struct reader *reader, const struct run *run, uint32_t partition)
{
    bool is_expected = reader->batch_next < run->first + run->count &&
                       batch_fits(reader, reader->batch_next, partition);
    return is_expected || batch_search(reader, run, partition) ? &reader->results[reader->batch_next++] : NULL;
}

static bool partition_read(struct reader *reader, const struct run *run)
{
    int16_t version = reader->request->version;
    uint32_t partition;
    uint16_t error_code;
    int64_t log_start_offset;
    if (!take_32(reader, &partition) || !take_16(reader, &error_code) || error_code != 0) {
        return false;
    }
    struct produce_result *result = result_find(reader, run, partition);
    if (result == NULL || !take_64(reader, &result->base_offset) || !take_64(reader, &result->log_append_time_ms) ||
        result->base_offset < -1 || result->log_append_time_ms < -1) {
        return false;
    }
    result->is_answered = true;
    if (version >= 5 && !take_64(reader, &log_start_offset)) {
        return false;
    }
    if (reader->is_flexible) {
        return take_expected(reader, "\1\0\0", 3); /* no records, no message, no tagged fields */
    }
    return version < 8 || take_expected(reader, "\0\0\0\0\xff\xff", 6);
}

static bool topic_read(struct reader *reader)
{
    struct name name;
    uint32_t count;
    struct run run;
    if (!take_name(reader, &name) || !topic_find(reader, &name, &run) || !take_count(reader, &count) ||
        count != run.count) {
        return false;
    }
    reader->batch_next = run.first;
    reader->batches.shift = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!partition_read(reader, &run)) {
            return false;
        }
    }
    reader->answered_count += count;
    return take_end(reader);
}

static bool head_read(struct reader *reader, uint32_t correlation)
{
    uint32_t answered;
    uint32_t count;
    return take_32(reader, &answered) && answered == correlation && take_end(reader) && take_count(reader, &count) &&
           count == reader->request->topic_count;
}

static bool topics_read(struct reader *reader)
{
    for (uint32_t i = 0; i < reader->request->topic_count; i++) {
        if (!topic_read(reader)) {
            return false;
        }
    }
    return reader->answered_count == reader->request->batch_count;
}

bool produce_answer_read(const struct produce_request *request, uint32_t correlation, const uint8_t *bytes, size_t size,
                         struct produce_answer *answer)
{
    struct reader reader = {.next = bytes, .end = bytes + size, .is_flexible = is_flexible(request), .request = request,
                            .results = answer->results, .firsts = answer->tables};
    uint32_t throttle;
    reader.topics.slots = reader.firsts + request->topic_count;
    reader.batches.slots = reader.topics.slots + ((size_t)1 << table_bits(request->topic_count));
    if (!head_read(&reader, correlation)) {
        return false;
    }
    for (uint32_t i = 0; i < request->batch_count; i++) {
        answer->results[i] = (struct produce_result){0};
    }
    if (!topics_read(&reader) || !take_32(&reader, &throttle) || !take_end(&reader)) {
        return false;
    }
    answer->throttle_ms = (int32_t)throttle;
    return reader.next == reader.end;
}
