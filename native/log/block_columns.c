/* SPDX-License-Identifier: Apache-2.0 */
#include "log/block_columns.h"

/* ---- sizes ---- */

/* Bounds the space for these records. */
static enum status room_bound(const struct log_records *records, struct record_columns_room *room)
{
    int64_t size = records->end - records->start;
    if (records->record_count > size / RECORD_SIZE_MIN) {
        return STATUS_CORRUPT;
    }
    room->row_count += records->record_count;
    room->key.cell_count = room->value.cell_count = room->row_count;
    room->key.data_size = room->value.data_size += size;
    return room->value.data_size > INT32_MAX ? STATUS_RECORD_TOO_LARGE : STATUS_OK;
}

static bool room_extend(const struct block_walk *walk, const struct log_records *records,
                        struct record_columns_room *room)
{
    struct record_columns_room extended = *room;
    enum status status = walk->has_headers ? record_columns_measure(records, &walk->range, &extended)
                                           : room_bound(records, &extended);
    if (status == STATUS_OK) {
        *room = extended;
    }
    return status == STATUS_OK;
}

int64_t block_columns_measure(const struct block_walk *walk, struct record_columns_room *room)
{
    struct plain_block block = walk->block;
    struct record_batch_header header;
    block.is_crc_checked = false;
    while (room->row_count < BLOCK_ROW_COUNT_MAX && plain_batch_find(&block, &header) &&
           header.base_offset < walk->range.end) {
        const struct log_records records = plain_batch_records(&block, &header);
        if (!room_extend(walk, &records, room)) {
            break;
        }
        plain_batch_pass(&block, &header);
    }
    return block.position;
}

/* ---- the records ---- */

void block_columns_append(struct block_walk *walk, int64_t end, struct record_columns *columns)
{
    struct record_batch_header header;
    while (walk->block.position < end && plain_batch_find(&walk->block, &header)) {
        const struct record_columns former = *columns;
        const struct log_records records = plain_batch_records(&walk->block, &header);
        if (record_columns_append(&records, &walk->range, columns) != STATUS_OK) {
            *columns = former;
            return;
        }
        plain_batch_pass(&walk->block, &header);
    }
}
