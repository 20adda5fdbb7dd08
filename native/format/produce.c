/* SPDX-License-Identifier: Apache-2.0 */
#include "format/produce.h"

#include <string.h>

#include "base/bytes.h"
#include "format/varint.h"

enum {
    FRAME_SIZE = 4,
    LENGTH_SIZE_MAX = VARINT_SIZE_MAX,
    HEADER_SIZE_MAX = 64, /* everything of fixed size before the first topic, and the tail */
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

/* How many follow: elements, or bytes of records. */
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

static uint8_t *put_name(const struct produce_request *request, uint8_t *target, const struct produce_topic *topic)
{
    if (request->version >= PRODUCE_TOPIC_IDS) {
        return put_bytes(target, topic->id, TOPIC_ID_SIZE);
    }
    target = is_flexible(request) ? varint_write_groups(target, (uint64_t)topic->name_size + 1)
                                  : put_16(target, topic->name_size);
    return put_bytes(target, topic->name, topic->name_size);
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
    target = is_flexible(request) ? put_bytes(target, "\0", 1) : put_16(target, UINT16_MAX); /* no transaction */
    target = put_16(target, (uint16_t)request->acks);
    target = put_32(target, (uint32_t)request->timeout_ms);
    return put_count(request, target, request->topic_count);
}

size_t produce_own_size_max(const struct produce_request *request)
{
    size_t size = HEADER_SIZE_MAX + request->client_size + (size_t)request->batch_count * PARTITION_SIZE_MAX;
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

/* ---- the answer ---- */

struct reader {
    const uint8_t *next;
    const uint8_t *end;
    bool is_flexible;
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

/* How many follow; a null array is none that we could have asked for. */
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

/* The expected bytes are next: zeros of a field that is empty or null, the ends of structures. */
static bool take_expected(struct reader *reader, const char *expected, size_t size)
{
    const uint8_t *bytes;
    return take(reader, size, &bytes) && memcmp(bytes, expected, size) == 0;
}

static bool take_end(struct reader *reader)
{
    return !reader->is_flexible || take_expected(reader, "\0", 1);
}

static bool take_name(struct reader *reader, const struct produce_request *request, const uint8_t **name, size_t *size)
{
    uint16_t short_size;
    uint32_t count;
    if (request->version >= PRODUCE_TOPIC_IDS) {
        *size = TOPIC_ID_SIZE;
    } else if (reader->is_flexible) {
        if (!take_count(reader, &count)) {
            return false;
        }
        *size = count;
    } else {
        if (!take_16(reader, &short_size)) {
            return false;
        }
        *size = short_size;
    }
    return take(reader, *size, name);
}

static bool topic_is_named(const struct produce_request *request, const struct produce_topic *topic,
                           const uint8_t *name, size_t size)
{
    if (request->version >= PRODUCE_TOPIC_IDS) {
        return memcmp(topic->id, name, TOPIC_ID_SIZE) == 0;
    }
    return topic->name_size == size && memcmp(topic->name, name, size) == 0;
}

/* The batches of a topic, as places in the request. */
struct run {
    uint32_t first;
    uint32_t count;
};

static bool topic_find(const struct produce_request *request, const uint8_t *name, size_t size, struct run *run)
{
    *run = (struct run){0};
    for (uint32_t i = 0; i < request->topic_count; i++) {
        run->count = request->topics[i].batch_count;
        if (topic_is_named(request, &request->topics[i], name, size)) {
            return true;
        }
        run->first += run->count;
    }
    return false;
}

/* The result of a partition that has none yet; NULL when there is none. Brokers mostly answer in the request's order,
 * so the search begins behind the last one found. */
static struct produce_result *result_find(const struct produce_request *request, const struct run *run,
                                          uint32_t partition, uint32_t *hint, struct produce_result *results)
{
    for (uint32_t i = 0; i < run->count; i++, *hint = *hint + 1 < run->count ? *hint + 1 : 0) {
        uint32_t place = run->first + *hint;
        if ((uint32_t)request->batches[place].partition == partition && !results[place].is_answered) {
            return &results[place];
        }
    }
    return NULL;
}

static bool partition_read(struct reader *reader, const struct produce_request *request, const struct run *run,
                           uint32_t *hint, struct produce_result *results)
{
    uint32_t partition;
    uint16_t error_code;
    int64_t log_start_offset;
    if (!take_32(reader, &partition) || !take_16(reader, &error_code) || error_code != 0) {
        return false;
    }
    struct produce_result *result = result_find(request, run, partition, hint, results);
    if (result == NULL || !take_64(reader, &result->base_offset) || !take_64(reader, &result->log_append_time_ms) ||
        result->base_offset < -1 || result->log_append_time_ms < -1) {
        return false;
    }
    result->is_answered = true;
    if (request->version >= 5 && !take_64(reader, &log_start_offset)) {
        return false;
    }
    if (reader->is_flexible) {
        return take_expected(reader, "\1\0\0", 3); /* no records, no message, no tagged fields */
    }
    return request->version < 8 || take_expected(reader, "\0\0\0\0\xff\xff", 6);
}

static bool topic_read(struct reader *reader, const struct produce_request *request, struct produce_result *results)
{
    const uint8_t *name;
    size_t name_size;
    uint32_t count;
    struct run run;
    uint32_t hint = 0;
    if (!take_name(reader, request, &name, &name_size) || !topic_find(request, name, name_size, &run) ||
        !take_count(reader, &count) || count != run.count) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!partition_read(reader, request, &run, &hint, results)) {
            return false;
        }
    }
    return take_end(reader);
}

static bool head_read(struct reader *reader, const struct produce_request *request, uint32_t correlation)
{
    uint32_t answered;
    uint32_t count;
    return take_32(reader, &answered) && answered == correlation && take_end(reader) && take_count(reader, &count) &&
           count == request->topic_count;
}

bool produce_answer_read(const struct produce_request *request, uint32_t correlation, const uint8_t *answer,
                         size_t size, struct produce_result *results, int32_t *throttle_ms)
{
    struct reader reader = {.next = answer, .end = answer + size, .is_flexible = is_flexible(request)};
    uint32_t throttle;
    if (!head_read(&reader, request, correlation)) {
        return false;
    }
    for (uint32_t i = 0; i < request->batch_count; i++) {
        results[i] = (struct produce_result){0};
    }
    for (uint32_t i = 0; i < request->topic_count; i++) {
        if (!topic_read(&reader, request, results)) {
            return false;
        }
    }
    if (!take_32(&reader, &throttle) || !take_end(&reader)) {
        return false;
    }
    *throttle_ms = (int32_t)throttle;
    return reader.next == reader.end;
}
