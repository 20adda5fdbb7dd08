/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/lane.h"

#include "base/check.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ORDINARY_ATTRIBUTES = RECORD_BATCH_COMPRESSION_MASK | RECORD_BATCH_LOG_APPEND_TIME,
    SYNC_BATCHES_MAX = 256, /* that one sync is for */
};

static struct ship_batch *batch_of(struct ship_lane *lane, uint64_t number)
{
    return &lane->window[number % SHIP_WINDOW];
}

static bool is_sound(const struct record_batch_header *fields)
{
    return fields->magic == RECORD_BATCH_MAGIC_VALUE &&
           fields->batch_length >= RECORD_BATCH_HEADER_SIZE - RECORD_BATCH_UNCOUNTED_SIZE &&
           fields->batch_length <= SHIP_BATCH_SIZE_MAX - RECORD_BATCH_UNCOUNTED_SIZE &&
           fields->last_offset_delta >= 0 && fields->record_count >= 0;
}

/* True for the only producer whose sequences follow each other here. */
static bool is_of_producer(const struct ship_lane *lane)
{
    return lane->fields.producer_id == lane->producer.id && lane->fields.producer_epoch == lane->producer.epoch;
}

/* True for a header that may stand at the lane's next place. */
static bool is_ordinary(const struct ship_lane *lane)
{
    const struct record_batch_header *fields = &lane->fields;
    return is_sound(fields) && (fields->attributes & ~ORDINARY_ATTRIBUTES) == 0 &&
           fields->base_offset == lane->next.offset && fields->base_offset < lane->limit_offset &&
           fields->base_offset <= INT64_MAX - fields->last_offset_delta - 1 &&
           (!lane->keeps_producer || is_of_producer(lane));
}

/* True when the file has all bytes of the batch ahead. */
static bool is_whole(struct ship_lane *lane)
{
    struct stat facts;
    off_t size = (off_t)lane_batch_size(lane);
    if (lane->next.position <= lane->file_size - size) {
        return true;
    }
    if (fstat(lane->file, &facts) != 0) {
        return false;
    }
    lane->file_size = facts.st_size;
    return lane->next.position <= lane->file_size - size;
}

static bool header_read(struct ship_lane *lane)
{
    ssize_t size = pread(lane->file, lane->header, sizeof lane->header, lane->next.position);
    return size == (ssize_t)sizeof lane->header &&
           record_batch_header_read(lane->header, sizeof lane->header, &lane->fields) == STATUS_OK &&
           is_ordinary(lane) && is_whole(lane);
}

/* Goes behind the batch ahead. */
static void lane_step(struct ship_lane *lane)
{
    lane->next.offset += (int64_t)lane->fields.last_offset_delta + 1;
    lane->next.position += (off_t)lane_batch_size(lane);
    lane->next.leader_epoch = lane->fields.partition_leader_epoch;
}

/* Forces the batch ahead to disk, and those behind it that are whole by now. False when that failed. */
static bool batches_sync(struct ship_lane *lane)
{
    struct ship_lane scout = *lane;
    if (!lane->syncs || lane->next.position + (off_t)lane_batch_size(lane) <= lane->synced) {
        return true;
    }
    lane_step(&scout);
    for (int i = 1; i < SYNC_BATCHES_MAX && header_read(&scout); i++) {
        lane_step(&scout);
    }
    if (fdatasync(lane->file) != 0) {
        return false;
    }
    lane->synced = scout.next.position;
    return true;
}

bool lane_looks_ahead(struct ship_lane *lane)
{
    if (lane->state != SHIP_LANE_GOES || lane->end - lane->first == SHIP_WINDOW) {
        return false;
    }
    if (!lane->has_header) {
        lane->has_header = header_read(lane) && batches_sync(lane);
        lane->state = lane->has_header ? SHIP_LANE_GOES : SHIP_LANE_ENDS;
    }
    return lane->has_header;
}

uint32_t lane_batch_size(const struct ship_lane *lane)
{
    return (uint32_t)lane->fields.batch_length + RECORD_BATCH_UNCOUNTED_SIZE;
}

uint64_t lane_take(struct ship_lane *lane, uint8_t header[RECORD_BATCH_HEADER_SIZE])
{
    CHECK(lane->has_header && lane->end - lane->first < SHIP_WINDOW);
    const struct record_batch_header *fields = &lane->fields;
    int64_t begin = lane->next.offset;
    struct record_batch_producer producer = lane->producer;
    producer.base_sequence = lane->keeps_producer
                                 ? fields->base_sequence
                                 : (int32_t)((uint64_t)(begin - lane->origin) & INT32_MAX);
    memcpy(header, lane->header, RECORD_BATCH_HEADER_SIZE);
    record_batch_change_producer(header, &producer);
    lane_step(lane);
    lane->has_header = false;
    *batch_of(lane, lane->end) = (struct ship_batch){
        .end = lane->next, .record_count = lane->next.offset - begin, .size = lane_batch_size(lane)};
    return lane->end++;
}

void lane_ack(struct ship_lane *lane, uint64_t number, const struct produce_result *result)
{
    CHECK(number - lane->first < lane->end - lane->first);
    batch_of(lane, number)->is_acked = true;
    batch_of(lane, number)->result = *result;
}

bool lane_due(const struct ship_lane *lane, struct ship_place *place)
{
    uint64_t number = lane->first;
    while (number < lane->end && lane->window[number % SHIP_WINDOW].is_acked) {
        *place = lane->window[number++ % SHIP_WINDOW].end;
    }
    return number > lane->first;
}

void lane_keep(struct ship_lane *lane)
{
    while (lane->first < lane->end && batch_of(lane, lane->first)->is_acked) {
        const struct ship_batch *batch = batch_of(lane, lane->first++);
        lane->kept = batch->end;
        lane->batch_count++;
        lane->record_count += batch->record_count;
        lane->byte_count += batch->size;
    }
}
