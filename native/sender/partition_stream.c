/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/partition_stream.h"

#include "base/check.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ORDINARY_ATTRIBUTES = RECORD_BATCH_COMPRESSION_MASK | RECORD_BATCH_LOG_APPEND_TIME,
    SYNC_BATCHES_MAX = 256, /* the most batches that share one sync */
};

static struct ship_batch *batch_of(struct partition_stream *stream, uint64_t number)
{
    return &stream->window[number % SHIP_WINDOW_ROOM];
}

static bool is_sound(const struct record_batch_header *fields)
{
    return fields->magic == RECORD_BATCH_MAGIC_VALUE &&
           fields->batch_length >= RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_UNCOUNTED_SIZE &&
           fields->batch_length <= SHIP_BATCH_SIZE_MAX - RECORD_BATCH_UNCOUNTED_SIZE &&
           fields->last_offset_delta >= 0 && fields->record_count >= 0;
}

/* Returns true if the batch has the producer id and epoch of the stream. */
static bool is_of_producer(const struct partition_stream *stream)
{
    return stream->fields.producer_id == stream->producer.id && stream->fields.producer_epoch == stream->producer.epoch;
}

/* Returns true if the header is valid at the stream's position. */
static bool is_ordinary(const struct partition_stream *stream)
{
    const struct record_batch_header *fields = &stream->fields;
    return is_sound(fields) && (fields->attributes & ~ORDINARY_ATTRIBUTES) == 0 &&
           fields->base_offset == stream->next.offset && fields->base_offset < stream->limit_offset &&
           fields->base_offset <= INT64_MAX - fields->last_offset_delta - 1 &&
           (!stream->keeps_producer || is_of_producer(stream));
}

/* Returns true if the file has all bytes of the next batch. */
static bool is_whole(struct partition_stream *stream)
{
    struct stat facts;
    off_t size = (off_t)stream_batch_size(stream);
    if (stream->next.position <= stream->file_size - size) {
        return true;
    }
    if (fstat(stream->file, &facts) != 0) {
        return false;
    }
    stream->file_size = facts.st_size;
    return stream->next.position <= stream->file_size - size;
}

static bool header_read(struct partition_stream *stream)
{
    ssize_t size = pread(stream->file, stream->header, sizeof stream->header, stream->next.position);
    return size == (ssize_t)sizeof stream->header &&
           record_batch_header_read(stream->header, sizeof stream->header, &stream->fields) == STATUS_OK &&
           is_ordinary(stream) && is_whole(stream);
}

/* Advances past the next batch. */
static void stream_step(struct partition_stream *stream)
{
    stream->next.offset += (int64_t)stream->fields.last_offset_delta + 1;
    stream->next.position += (off_t)stream_batch_size(stream);
    stream->next.leader_epoch = stream->fields.partition_leader_epoch;
}

/* Forces the next batch to disk, and all later complete ones. Returns false if that failed. */
static bool batches_sync(struct partition_stream *stream)
{
    if (stream->next.position + (off_t)stream_batch_size(stream) <= stream->synced) {
        return true;
    }
    struct partition_stream scout = *stream;
    stream_step(&scout);
    for (int i = 1; i < SYNC_BATCHES_MAX && header_read(&scout); i++) {
        stream_step(&scout);
    }
    if (fdatasync(stream->file) != 0) {
        return false;
    }
    stream->synced = scout.next.position;
    return true;
}

bool stream_read_ahead(struct partition_stream *stream)
{
    if (stream->state != STREAM_GOES || stream->end - stream->first == SHIP_WINDOW) {
        return false;
    }
    if (!stream->has_header) {
        stream->has_header = header_read(stream) && (!stream->syncs || batches_sync(stream));
        stream->state = stream->has_header ? STREAM_GOES : STREAM_ENDS;
    }
    return stream->has_header;
}

uint64_t stream_take(struct partition_stream *stream, uint8_t header[RECORD_BATCH_HEADER_SIZE])
{
    CHECK(stream->has_header && stream->end - stream->first < SHIP_WINDOW);
    const struct record_batch_header *fields = &stream->fields;
    int64_t begin = stream->next.offset;
    struct record_batch_producer producer = stream->producer;
    producer.base_sequence = stream->keeps_producer
                                 ? fields->base_sequence
                                 : (int32_t)((uint64_t)(begin - stream->origin) & INT32_MAX);
    memcpy(header, stream->header, RECORD_BATCH_HEADER_SIZE);
    record_batch_change_producer(header, &producer);
    stream_step(stream);
    stream->has_header = false;
    *batch_of(stream, stream->end) = (struct ship_batch){
        .end = stream->next, .record_count = stream->next.offset - begin, .size = stream_batch_size(stream)};
    return stream->end++;
}

void stream_ack(struct partition_stream *stream, uint64_t number, const struct produce_result *result)
{
    CHECK(number - stream->first < stream->end - stream->first);
    batch_of(stream, number)->is_acked = true;
    batch_of(stream, number)->result = *result;
}

bool stream_due(const struct partition_stream *stream, struct ship_place *place)
{
    uint64_t number = stream->first;
    while (number < stream->end && stream->window[number % SHIP_WINDOW_ROOM].is_acked) {
        *place = stream->window[number++ % SHIP_WINDOW_ROOM].end;
    }
    return number > stream->first;
}

void stream_record(struct partition_stream *stream)
{
    while (stream->first < stream->end && batch_of(stream, stream->first)->is_acked) {
        const struct ship_batch *batch = batch_of(stream, stream->first++);
        stream->recorded = batch->end;
        stream->batch_count++;
        stream->record_count += batch->record_count;
        stream->byte_count += batch->size;
    }
}
