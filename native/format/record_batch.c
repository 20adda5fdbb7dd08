/* SPDX-License-Identifier: Apache-2.0 */
#include "format/record_batch.h"

#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/record.h"
#include "format/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

STATIC_CHECK((int64_t)RECORD_SIZE_MAX + RECORD_BATCH_HEADER_SIZE == INT32_MAX);

void record_batch_header_write(uint8_t target[RECORD_BATCH_HEADER_SIZE], const struct record_batch_header *header)
{
    store_be64(target + RECORD_BATCH_BASE_OFFSET, (uint64_t)header->base_offset);
    store_be32(target + RECORD_BATCH_LENGTH, (uint32_t)header->batch_length);
    store_be32(target + RECORD_BATCH_LEADER_EPOCH, (uint32_t)header->partition_leader_epoch);
    target[RECORD_BATCH_MAGIC] = (uint8_t)header->magic;
    store_be32(target + RECORD_BATCH_CRC, header->crc);
    store_be16(target + RECORD_BATCH_ATTRIBUTES, (uint16_t)header->attributes);
    store_be32(target + RECORD_BATCH_LAST_OFFSET_DELTA, (uint32_t)header->last_offset_delta);
    store_be64(target + RECORD_BATCH_BASE_TIMESTAMP, (uint64_t)header->base_timestamp);
    store_be64(target + RECORD_BATCH_MAX_TIMESTAMP, (uint64_t)header->max_timestamp);
    store_be64(target + RECORD_BATCH_PRODUCER_ID, (uint64_t)header->producer_id);
    store_be16(target + RECORD_BATCH_PRODUCER_EPOCH, (uint16_t)header->producer_epoch);
    store_be32(target + RECORD_BATCH_BASE_SEQUENCE, (uint32_t)header->base_sequence);
    store_be32(target + RECORD_BATCH_RECORD_COUNT, (uint32_t)header->record_count);
}

enum status record_batch_header_read(const uint8_t *bytes, size_t size, struct record_batch_header *header)
{
    if (size < RECORD_BATCH_HEADER_SIZE) {
        return STATUS_CORRUPT;
    }
    *header = (struct record_batch_header){
        .base_offset = (int64_t)load_be64(bytes + RECORD_BATCH_BASE_OFFSET),
        .batch_length = (int32_t)load_be32(bytes + RECORD_BATCH_LENGTH),
        .partition_leader_epoch = (int32_t)load_be32(bytes + RECORD_BATCH_LEADER_EPOCH),
        .magic = (int8_t)bytes[RECORD_BATCH_MAGIC],
        .crc = load_be32(bytes + RECORD_BATCH_CRC),
        .attributes = (int16_t)load_be16(bytes + RECORD_BATCH_ATTRIBUTES),
        .last_offset_delta = (int32_t)load_be32(bytes + RECORD_BATCH_LAST_OFFSET_DELTA),
        .base_timestamp = (int64_t)load_be64(bytes + RECORD_BATCH_BASE_TIMESTAMP),
        .max_timestamp = (int64_t)load_be64(bytes + RECORD_BATCH_MAX_TIMESTAMP),
        .producer_id = (int64_t)load_be64(bytes + RECORD_BATCH_PRODUCER_ID),
        .producer_epoch = (int16_t)load_be16(bytes + RECORD_BATCH_PRODUCER_EPOCH),
        .base_sequence = (int32_t)load_be32(bytes + RECORD_BATCH_BASE_SEQUENCE),
        .record_count = (int32_t)load_be32(bytes + RECORD_BATCH_RECORD_COUNT),
    };
    return STATUS_OK;
}

static uint32_t header_crc(const uint8_t header[RECORD_BATCH_HEADER_SIZE])
{
    return crc32c_extend(0, header + RECORD_BATCH_ATTRIBUTES, RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_ATTRIBUTES);
}

uint32_t record_batch_crc(const uint8_t header[RECORD_BATCH_HEADER_SIZE], uint32_t records_crc, uint64_t records_size)
{
    return crc32c_combine(header_crc(header), records_crc, records_size);
}

void record_batch_set_crc(uint8_t header[RECORD_BATCH_HEADER_SIZE], uint32_t crc)
{
    store_be32(header + RECORD_BATCH_CRC, crc);
}

void record_batch_change_producer(uint8_t header[RECORD_BATCH_HEADER_SIZE],
                                  const struct record_batch_producer *producer)
{
    uint64_t size = (uint64_t)load_be32(header + RECORD_BATCH_LENGTH) + RECORD_BATCH_UNCOUNTED_SIZE;
    CHECK(size >= RECORD_BATCH_HEADER_SIZE);
    uint32_t former = header_crc(header);
    store_be64(header + RECORD_BATCH_BASE_OFFSET, 0);
    store_be32(header + RECORD_BATCH_LEADER_EPOCH, (uint32_t)-1);
    store_be16(header + RECORD_BATCH_ATTRIBUTES,
               (uint16_t)(load_be16(header + RECORD_BATCH_ATTRIBUTES) & ~RECORD_BATCH_LOG_APPEND_TIME));
    store_be64(header + RECORD_BATCH_PRODUCER_ID, (uint64_t)producer->id);
    store_be16(header + RECORD_BATCH_PRODUCER_EPOCH, (uint16_t)producer->epoch);
    store_be32(header + RECORD_BATCH_BASE_SEQUENCE, (uint32_t)producer->base_sequence);
    uint32_t difference = former ^ header_crc(header);
    uint32_t crc = load_be32(header + RECORD_BATCH_CRC);
    record_batch_set_crc(header, crc32c_combine(difference, crc, size - RECORD_BATCH_HEADER_SIZE));
}

/* ---- a part of a batch ---- */

static enum status records_skip(const uint8_t **cursor, const uint8_t *end, int32_t count)
{
    struct record_view record;
    for (int32_t i = 0; i < count; i++) {
        RETURN_IF_FAILED(record_read(cursor, end, &record));
    }
    return STATUS_OK;
}

/* Writes the next `count` records, and finds the largest of their timestamp deltas. */
static enum status records_renumber(const uint8_t **cursor, const uint8_t *end, int32_t count, uint8_t **target,
                                    int64_t *timestamp_delta_max)
{
    *timestamp_delta_max = INT64_MIN;
    for (int32_t i = 0; i < count; i++) {
        struct record_view record;
        const uint8_t *start = *cursor;
        RETURN_IF_FAILED(record_read(&start, end, &record));
        RETURN_IF_FAILED(record_renumber(cursor, end, i, target));
        if (record.timestamp_delta > *timestamp_delta_max) {
            *timestamp_delta_max = record.timestamp_delta;
        }
    }
    return STATUS_OK;
}

static void part_finish(uint8_t *target, size_t size, struct record_batch_header *header)
{
    header->batch_length = (int32_t)size - RECORD_BATCH_UNCOUNTED_SIZE;
    record_batch_header_write(target, header);
    record_batch_set_crc(target, crc32c_extend(0, target + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES));
}

enum status record_batch_part(const uint8_t *bytes, size_t size, struct record_range range, uint8_t *target,
                              size_t *target_size)
{
    struct record_batch_header header;
    RETURN_IF_FAILED(record_batch_validate(bytes, size, NULL));
    RETURN_IF_FAILED(record_batch_header_read(bytes, size, &header));
    if (range.first < 0 || range.count < 1 || range.count > header.record_count - range.first) {
        return STATUS_INVALID;
    }
    const uint8_t *cursor = bytes + RECORD_BATCH_HEADER_SIZE;
    uint8_t *next = target + RECORD_BATCH_HEADER_SIZE;
    int64_t timestamp_delta_max;
    RETURN_IF_FAILED(records_skip(&cursor, bytes + size, range.first));
    RETURN_IF_FAILED(records_renumber(&cursor, bytes + size, range.count, &next, &timestamp_delta_max));
    header.max_timestamp = header.base_timestamp + timestamp_delta_max;
    header.last_offset_delta = range.count - 1;
    header.record_count = range.count;
    if (header.base_sequence >= 0) {
        header.base_sequence = sequence_increment(header.base_sequence, range.first);
    }
    *target_size = (size_t)(next - target);
    part_finish(target, *target_size, &header);
    return STATUS_OK;
}

/* ---- validation, in the order of a broker: whole bytes first, then the header, then each record ---- */

static enum status validate_frame(const uint8_t *bytes, size_t size, const struct record_batch_header *header,
                                  struct error *error)
{
    if (header->magic != RECORD_BATCH_MAGIC_VALUE) {
        return error_set(error, STATUS_CORRUPT, "magic is %d, not 2", header->magic);
    }
    if ((int64_t)header->batch_length + RECORD_BATCH_UNCOUNTED_SIZE != (int64_t)size) {
        return error_set(error, STATUS_CORRUPT, "batch length %" PRId32 " does not fit its %zu bytes",
                         header->batch_length, size);
    }
    uint32_t crc = crc32c_extend(0, bytes + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES);
    if (header->crc != crc) {
        return error_set(error, STATUS_CORRUPT, "crc is %08" PRIx32 ", its bytes give %08" PRIx32, header->crc, crc);
    }
    return STATUS_OK;
}

static enum status validate_header(const struct record_batch_header *header, struct error *error)
{
    if (header->base_offset != 0) {
        return error_set(error, STATUS_CORRUPT, "base offset of a producer's batch is %" PRId64 ", not 0",
                         header->base_offset);
    }
    if ((header->attributes & ~RECORD_BATCH_TRANSACTIONAL) != 0) {
        return error_set(error, STATUS_CORRUPT, "attributes %#06x are not those of a producer's uncompressed batch",
                         (unsigned)(uint16_t)header->attributes);
    }
    if (header->record_count < 1 || header->last_offset_delta != header->record_count - 1) {
        return error_set(error, STATUS_CORRUPT, "%" PRId32 " records with a last offset delta of %" PRId32,
                         header->record_count, header->last_offset_delta);
    }
    if (header->producer_id >= 0 && (header->producer_epoch < 0 || header->base_sequence < 0)) {
        return error_set(error, STATUS_CORRUPT, "producer id %" PRId64 " with epoch %d and base sequence %" PRId32,
                         header->producer_id, header->producer_epoch, header->base_sequence);
    }
    return STATUS_OK;
}

/* Reads a record, which must have the offset delta `index`. */
static enum status read_next(const uint8_t **cursor, const uint8_t *end, int32_t index, int64_t base_timestamp,
                             struct record_view *record, int64_t *timestamp)
{
    RETURN_IF_FAILED(record_read(cursor, end, record));
    bool is_right = record->offset_delta == index &&
                    !__builtin_add_overflow(base_timestamp, record->timestamp_delta, timestamp);
    return is_right ? STATUS_OK : STATUS_CORRUPT;
}

enum status records_summarize(const uint8_t *start, const uint8_t *end, int32_t count, int64_t base_timestamp,
                              struct records_summary *summary, struct error *error)
{
    const uint8_t *cursor = start;
    *summary = (struct records_summary){INT64_MAX, INT64_MIN, false};
    for (int32_t i = 0; i < count; i++) {
        size_t position = (size_t)(cursor - start);
        struct record_view record;
        int64_t timestamp;
        if (read_next(&cursor, end, i, base_timestamp, &record, &timestamp) != STATUS_OK) {
            return error_set(error, STATUS_CORRUPT, "record %" PRId32 " at byte %zu is corrupt", i,
                             RECORD_BATCH_HEADER_SIZE + position);
        }
        summary->timestamp_max = timestamp > summary->timestamp_max ? timestamp : summary->timestamp_max;
        summary->timestamp_min = timestamp < summary->timestamp_min ? timestamp : summary->timestamp_min;
        summary->has_null_key |= record.key_size < 0;
    }
    if (cursor != end) {
        return error_set(error, STATUS_CORRUPT, "%td bytes follow the last record", end - cursor);
    }
    return STATUS_OK;
}

bool records_are_timed(const uint8_t *start, const uint8_t *end, uint32_t count, int64_t base_timestamp,
                       int64_t max_timestamp)
{
    struct records_summary summary;
    return count <= INT32_MAX &&
           records_summarize(start, end, (int32_t)count, base_timestamp, &summary, NULL) == STATUS_OK &&
           (count == 0 || summary.timestamp_max == max_timestamp);
}

static enum status validate_records(const uint8_t *bytes, size_t size, const struct record_batch_header *header,
                                    struct error *error)
{
    struct records_summary summary;
    RETURN_IF_FAILED(records_summarize(bytes + RECORD_BATCH_HEADER_SIZE, bytes + size, header->record_count,
                                       header->base_timestamp, &summary, error));
    if (summary.timestamp_min < NO_TIMESTAMP) {
        return error_set(error, STATUS_CORRUPT, "a record has the timestamp %" PRId64, summary.timestamp_min);
    }
    if (summary.timestamp_max != header->max_timestamp) {
        return error_set(error, STATUS_CORRUPT, "max timestamp is %" PRId64 ", its records give %" PRId64,
                         header->max_timestamp, summary.timestamp_max);
    }
    return STATUS_OK;
}

enum status record_batch_validate(const uint8_t *bytes, size_t size, struct error *error)
{
    struct record_batch_header header;
    if (record_batch_header_read(bytes, size, &header) != STATUS_OK) {
        return error_set(error, STATUS_CORRUPT, "%zu bytes are less than a batch header", size);
    }
    RETURN_IF_FAILED(validate_frame(bytes, size, &header, error));
    RETURN_IF_FAILED(validate_header(&header, error));
    return validate_records(bytes, size, &header, error);
}

enum status record_batch_validate_pieces(const struct piece *pieces, size_t piece_count, struct error *error)
{
    if (piece_count == 1) {
        return record_batch_validate(pieces[0].start, pieces[0].size, error);
    }
    size_t size = pieces_size(pieces, piece_count);
    uint8_t *copy = malloc(size + 1); /* not malloc(0), which may return NULL */
    if (copy == NULL) {
        return error_set_os(error, "cannot copy a batch to validate it");
    }
    pieces_copy(copy, pieces, piece_count);
    enum status status = record_batch_validate(copy, size, error);
    free(copy);
    return status;
}
