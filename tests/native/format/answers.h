/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the response of a broker to a Produce request without errors, field by field as in ProduceResponse.json.
 */
#ifndef ANSWERS_H
#define ANSWERS_H

#include <string.h>

#include "base/bytes.h"
#include "format/produce.h"
#include "format/varint.h"

static inline uint8_t *answer_put(uint8_t *target, uint64_t value, unsigned size)
{
    uint8_t bytes[8];
    store_be64(bytes, value);
    memcpy(target, bytes + 8 - size, size);
    return target + size;
}

static inline uint8_t *answer_put_count(const struct produce_request *request, uint8_t *target, uint32_t count)
{
    return request->version >= PRODUCE_FLEXIBLE ? varint_write_groups(target, (uint64_t)count + 1)
                                                : answer_put(target, count, 4);
}

static inline uint8_t *answer_put_end(const struct produce_request *request, uint8_t *target)
{
    return request->version >= PRODUCE_FLEXIBLE ? answer_put(target, 0, 1) : target;
}

static inline uint8_t *answer_put_topic(const struct produce_request *request, uint8_t *target,
                                        const struct produce_topic *topic)
{
    if (request->version >= PRODUCE_TOPIC_IDS) {
        memcpy(target, topic->id, TOPIC_ID_SIZE);
        return target + TOPIC_ID_SIZE;
    }
    target = request->version >= PRODUCE_FLEXIBLE ? varint_write_groups(target, (uint64_t)topic->name_size + 1)
                                                  : answer_put(target, topic->name_size, 2);
    memcpy(target, topic->name, topic->name_size);
    return target + topic->name_size;
}

/* Writes the response for a partition, with the base offset 1000 + partition and the log append time -1. */
static inline uint8_t *answer_put_partition(const struct produce_request *request, uint8_t *target, int32_t partition)
{
    target = answer_put(target, (uint32_t)partition, 4);
    target = answer_put(target, 0, 2);
    target = answer_put(target, 1000 + (uint64_t)partition, 8);
    target = answer_put(target, UINT64_MAX, 8);
    if (request->version >= 5) {
        target = answer_put(target, 0, 8);
    }
    if (request->version >= PRODUCE_FLEXIBLE) {
        return answer_put(target, 0x010000, 3);
    }
    return request->version >= 8 ? answer_put(target, 0xffff, 6) : target;
}

/* Write the batches of a topic from the last to the first, and return the size. */
static inline size_t answer_write(const struct produce_request *request, uint32_t correlation, uint8_t *answer)
{
    uint32_t first = 0;
    uint8_t *target = answer_put_end(request, answer_put(answer, correlation, 4));
    target = answer_put_count(request, target, request->topic_count);
    for (uint32_t i = 0; i < request->topic_count; i++) {
        target = answer_put_topic(request, target, &request->topics[i]);
        target = answer_put_count(request, target, request->topics[i].batch_count);
        for (uint32_t j = request->topics[i].batch_count; j-- > 0;) {
            target = answer_put_partition(request, target, request->batches[first + j].partition);
        }
        first += request->topics[i].batch_count;
        target = answer_put_end(request, target);
    }
    return (size_t)(answer_put_end(request, answer_put(target, 7, 4)) - answer);
}

#endif
