/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts batches of a log to ConsumerRecords. No Python code runs per record.
 *
 *   consume_batch   one decompressed batch. The caller has read its header and checked its CRC
 *   consume_block   all plain batches from a position of a block on: headers, CRCs and records in one call
 *
 * consume_block stops at a batch that is not plain (plain_batch.h), and returns no record of it. The caller handles it.
 *
 * The bytes are untrusted: no byte outside of the block is read, and a batch has at most one record per seven bytes.
 */
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"
#include "python/log/consumer_record.h"
#include "log/plain_batch.h"

enum {
    PLACE_FIELD_COUNT = 2,     /* topic, partition */
    BLOCK_RECORD_COUNT_MAX = 4096, /* a call ends after the batch that reaches this number, so that it stays short */
};

struct order {
    const struct module_state *state;
    Py_buffer bytes;
    struct record_source source;
    PyObject *place;      /* (topic, partition, leader epoch) of the records of this batch */
    int64_t first_offset; /* records with lower offsets are omitted */
    PyObject *list;
};

/* ---- one batch ---- */

/* Appends the records to the list. Returns false with an exception set, perhaps after it has appended some. */
static bool records_append(struct order *order, const struct log_records *records)
{
    struct record_walk walk = record_walk_begin(records);
    enum status status;
    while ((status = record_walk_next(&walk)) == STATUS_OK) {
        if (walk.offset >= order->first_offset &&
            !list_put(order->list, consumer_record_new(order->state, &walk, order->place, &order->source))) {
            return false;
        }
    }
    return status == STATUS_PENDING || raise_walk(order->state, &walk) != NULL;
}

/* ---- the order ---- */

static void order_end(struct order *order)
{
    Py_XDECREF(order->list);
    Py_XDECREF(order->place);
    Py_XDECREF(order->source.view);
    PyBuffer_Release(&order->bytes);
}

/* Returns false with an exception set. Call order_end afterwards if the bytes are held. */
static bool order_begin(struct order *order, PyObject *bytes)
{
    struct record_source *source = &order->source;
    if (PyObject_GetBuffer(bytes, &order->bytes, PyBUF_SIMPLE) < 0) {
        return false;
    }
    source->start = order->bytes.buf;
    if (source->has_key_views || source->has_value_views) {
        source->view = PyMemoryView_FromObject(bytes);
    }
    order->list = PyList_New(0);
    bool has_view = source->view != NULL || !(source->has_key_views || source->has_value_views);
    if (order->list == NULL || !has_view) {
        order_end(order);
        return false;
    }
    return true;
}

/* Returns the result of a finished order. */
static PyObject *order_answer(struct order *order, bool is_done)
{
    PyObject *list = is_done ? Py_NewRef(order->list) : NULL;
    order_end(order);
    return list;
}

/* Returns false with an exception set. */
static bool place_check(PyObject *place)
{
    if (!PyTuple_Check(place) || PyTuple_GET_SIZE(place) != PLACE_FIELD_COUNT) {
        PyErr_SetString(PyExc_TypeError, "place must be a tuple of topic and partition");
        return false;
    }
    return true;
}

/* Sets the place of the records of a batch. Returns false with an exception set. */
static bool place_set(struct order *order, PyObject *place, int32_t leader_epoch)
{
    PyObject *former = order->place;
    if (former != NULL && PyLong_AsLong(PyTuple_GET_ITEM(former, PLACE_FIELD_COUNT)) == leader_epoch) {
        return true;
    }
    order->place = Py_BuildValue("(OOi)", PyTuple_GET_ITEM(place, 0), PyTuple_GET_ITEM(place, 1), (int)leader_epoch);
    Py_XDECREF(former);
    return order->place != NULL;
}

PyObject *py_module_consume_batch(PyObject *module, const struct py_module_consume_batch *given)
{
    struct order order = {
        .state = PyModule_GetState(module),
        .first_offset = given->first_offset,
        .source = {.has_key_views = given->has_key_views, .has_value_views = given->has_value_views}};
    if (!place_check(given->place) || !order_begin(&order, given->records)) {
        return NULL;
    }
    const struct log_records records = {.start = order.source.start,
                                        .end = order.source.start + order.bytes.len,
                                        .base_offset = given->base_offset,
                                        .base_timestamp_ms = given->base_timestamp_ms,
                                        .record_count = given->record_count,
                                        .log_append_time_ms = given->log_append_time_ms};
    bool is_done = place_set(&order, given->place, (int32_t)given->leader_epoch) && records_append(&order, &records);
    return order_answer(&order, is_done);
}

/* ---- the batches of a block ---- */

/* Removes the records of a damaged batch. The caller reads the batch again, and reports its error. Returns false after
 * any other error. */
static bool batch_take_back(struct order *order, Py_ssize_t count)
{
    if (!PyErr_ExceptionMatches(order->state->exceptions[STATUS_CORRUPT])) {
        return false;
    }
    PyErr_Clear();
    return PyList_SetSlice(order->list, count, PyList_GET_SIZE(order->list), NULL) == 0;
}

/* Returns false with an exception set. */
static bool block_walk(struct order *order, struct plain_block *block, PyObject *place)
{
    struct record_batch_header header;
    while (PyList_GET_SIZE(order->list) < BLOCK_RECORD_COUNT_MAX && plain_batch_find(block, &header)) {
        Py_ssize_t count = PyList_GET_SIZE(order->list);
        if (!place_set(order, place, header.partition_leader_epoch)) {
            return false;
        }
        const struct log_records records = plain_batch_records(block, &header);
        if (!records_append(order, &records)) {
            return batch_take_back(order, count);
        }
        plain_batch_pass(block, &header);
    }
    return true;
}

PyObject *py_module_consume_block(PyObject *module, const struct py_module_consume_block *given)
{
    struct order order = {
        .state = PyModule_GetState(module),
        .first_offset = given->first_offset,
        .source = {.has_key_views = given->has_key_views, .has_value_views = given->has_value_views}};
    struct plain_block block = {.position = given->position,
                                .expected_first = given->expected_first,
                                .expected_last = given->expected_last,
                                .is_crc_checked = given->is_crc_checked};
    if (!place_check(given->place) || !order_begin(&order, given->block)) {
        return NULL;
    }
    block.start = order.bytes.buf;
    block.size = order.bytes.len;
    PyObject *records = order_answer(&order, block_walk(&order, &block, given->place));
    return records == NULL ? NULL
                           : Py_BuildValue("(NLL)", records, (long long)block.position,
                                           (long long)block.expected_first);
}
