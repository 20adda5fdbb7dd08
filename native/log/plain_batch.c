/* SPDX-License-Identifier: Apache-2.0 */
#include "log/plain_batch.h"

#include "format/crc32c.h"

static bool has_right_crc(const uint8_t *batch, size_t size, uint32_t crc)
{
    return crc32c_extend(0, batch + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES) == crc;
}

bool plain_batch_find(const struct plain_block *block, struct record_batch_header *header)
{
    if (block->position >= block->size) {
        return false;
    }
    const uint8_t *batch = block->start + block->position;
    const int64_t room = block->size - block->position;
    if (record_batch_header_read(batch, (size_t)room, header) != STATUS_OK) {
        return false;
    }
    const int16_t not_plain = RECORD_BATCH_COMPRESSION_MASK | RECORD_BATCH_TRANSACTIONAL | RECORD_BATCH_CONTROL;
    bool is_whole = plain_batch_size(header) >= RECORD_BATCH_HEADER_SIZE && plain_batch_size(header) <= room;
    bool is_expected = header->base_offset >= block->expected_first && header->base_offset <= block->expected_last &&
                       header->last_offset_delta >= 0 && header->record_count >= 0;
    bool is_readable = header->magic == RECORD_BATCH_MAGIC_VALUE && (header->attributes & not_plain) == 0;
    return is_whole && is_expected && is_readable && header->base_offset < INT64_MAX - header->last_offset_delta &&
           (!block->is_crc_checked || has_right_crc(batch, (size_t)plain_batch_size(header), header->crc));
}

void plain_batch_pass(struct plain_block *block, const struct record_batch_header *header)
{
    int64_t next_offset = header->base_offset + header->last_offset_delta + 1;
    bool is_exact = block->expected_first == block->expected_last;
    block->position += plain_batch_size(header);
    block->expected_first = next_offset;
    block->expected_last = is_exact || block->expected_last < next_offset ? next_offset : block->expected_last;
}

struct log_records plain_batch_records(const struct plain_block *block, const struct record_batch_header *header)
{
    const uint8_t *batch = block->start + block->position;
    bool has_log_time = (header->attributes & RECORD_BATCH_LOG_APPEND_TIME) != 0;
    return (struct log_records){.start = batch + RECORD_BATCH_HEADER_SIZE,
                                .end = batch + plain_batch_size(header),
                                .base_offset = header->base_offset,
                                .base_timestamp_ms = header->base_timestamp,
                                .log_append_time_ms = has_log_time ? header->max_timestamp : NO_TIMESTAMP,
                                .record_count = header->record_count};
}
