/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_block: the plain batches of a block that was read from a log -> the buffers of Arrow columns. Headers, CRCs
 * and records are read in one call, and no Python code runs per batch.
 *
 * The first pass reads only the headers of batches, which bound the number of rows. A column of bytes is never larger
 * than the records, so the second pass reads each record once, and unused bytes are released. If headers of records are
 * requested, the first pass counts all records, because only the bytes bound the number of their headers.
 *
 * A batch that is not plain, or whose records contradict its header, ends the walk. The result has no record of it: the
 * caller decides what it is.
 */
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/log/column_objects.h"
#include "python/log/log.h"
#include "log/plain_batch.h"
#include "python/log/record_parts.h"

/* A call ends with the batch that reaches it. Spark's own record batches have so many rows. */
enum { BLOCK_ROW_COUNT_MAX = 10000 };

struct order {
    struct plain_block block;
    struct log_range range;
    bool has_headers;
};

static struct log_records batch_records(const struct plain_block *block, const struct record_batch_header *header)
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

/* ---- sizes ---- */

/* The most that so many records of so many bytes need. */
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

static bool room_extend(const struct order *order, const struct log_records *records, struct record_columns_room *room)
{
    struct record_columns_room extended = *room;
    enum status status = order->has_headers ? record_columns_measure(records, &order->range, &extended)
                                            : room_bound(records, &extended);
    if (status == STATUS_OK) {
        *room = extended;
    }
    return status == STATUS_OK;
}

/* Measures all batches up to the position that it returns. */
static int64_t block_measure(const struct order *order, struct record_columns_room *room)
{
    struct plain_block block = order->block;
    struct record_batch_header header;
    block.is_crc_checked = false;
    while (room->row_count < BLOCK_ROW_COUNT_MAX && plain_batch_find(&block, &header) &&
           header.base_offset < order->range.end) {
        const struct log_records records = batch_records(&block, &header);
        if (!room_extend(order, &records, room)) {
            break;
        }
        plain_batch_pass(&block, &header);
    }
    return block.position;
}

/* ---- the records ---- */

static void block_append(struct order *order, int64_t end, struct record_columns *columns)
{
    struct record_batch_header header;
    while (order->block.position < end && plain_batch_find(&order->block, &header)) {
        const struct record_columns former = *columns;
        const struct log_records records = batch_records(&order->block, &header);
        if (record_columns_append(&records, &order->range, columns) != STATUS_OK) {
            *columns = former;
            return;
        }
        plain_batch_pass(&order->block, &header);
    }
}

static PyObject *block_decode(struct order *order)
{
    struct record_columns_room room = {0};
    struct column_objects objects = {0};
    struct record_columns columns = {.has_headers = order->has_headers};
    PyObject *answer = NULL;
    int64_t end = block_measure(order, &room);
    if (column_objects_new(&room, &objects, &columns)) {
        block_append(order, end, &columns);
        answer = column_objects_cut(&columns, &objects) ? column_objects_tuple(&columns, &objects) : NULL;
    }
    column_objects_release(&objects);
    return answer == NULL ? NULL
                          : Py_BuildValue("(NLL)", answer, (long long)order->block.position,
                                          (long long)order->block.expected_first);
}

PyObject *py_module_decode_block(PyObject *module, const Py_buffer *bytes, const struct py_module_decode_block *given)
{
    struct order order = {.has_headers = given->has_headers,
                          .range = {.first = given->first_offset, .end = given->end_offset},
                          .block = {.start = bytes->buf,
                                    .size = bytes->len,
                                    .position = given->position,
                                    .expected_first = given->expected_first,
                                    .expected_last = given->expected_last,
                                    .is_crc_checked = given->is_crc_checked}};
    (void)module;
    return block_decode(&order);
}
