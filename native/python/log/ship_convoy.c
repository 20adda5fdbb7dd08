/* SPDX-License-Identifier: Apache-2.0
 *
 * ship_convoy(links, lanes, ...): the ordinary rounds of a shipper (shipping/convoy.h), without the GIL.
 *
 *   link   (socket, version, client, acks, requests_max, request_size_max, lane count)
 *   lane   (topic, topic id or None, partition, file, position, offset, limit offset, epoch, origin, leader epoch,
 *           name, topic id as text)                                                  those of a link in a row
 *   found  a list that gets (lane ...), (link ...) and (size, has failed) before the call returns. A signal handler
 *          that raises would lose an answer of the call, and with it how far the positions file is.
 */
#include "base/clock.h"
#include "python/common/arguments.h"
#include "python/log/log.h"
#include "shipping/convoy.h"

struct call {
    PyObject *links;
    PyObject *lanes;
    PyObject *found;
    int64_t producer_id;
    int64_t positions;
    int64_t positions_size;
    int64_t positions_size_max;
    int64_t bell;
    int64_t time_ms;
    int64_t answer_time_ms;
};

static const struct argument_table table = {
    .signature = {.function = "ship_convoy",
                  .names = {"links", "lanes", "found", "producer_id", "positions", "positions_size",
                            "positions_size_max", "bell", "time_ms", "answer_time_ms"},
                  .required_count = 10,
                  .count = 10},
    .arguments = {OBJECT_ARGUMENT(struct call, links), OBJECT_ARGUMENT(struct call, lanes),
                  OBJECT_ARGUMENT(struct call, found), INTEGER_ARGUMENT(struct call, producer_id, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, positions, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size_max, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, bell, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, time_ms, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, answer_time_ms, 1, INT32_MAX)},
};

/* ---- the parts ---- */

static bool number_take(PyObject *tuple, Py_ssize_t index, int64_t min, int64_t max, int64_t *value)
{
    *value = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, index));
    if (*value == -1 && PyErr_Occurred() != NULL) {
        return false;
    }
    if (*value < min || *value > max) {
        PyErr_Format(PyExc_ValueError, "field %zd of a convoy is %lld", index, (long long)*value);
        return false;
    }
    return true;
}

static bool is_tuple_of(PyObject *object, Py_ssize_t size)
{
    bool is_right = PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == size;
    if (!is_right) {
        PyErr_Format(PyExc_TypeError, "a part of a convoy is a tuple of %zd", size);
    }
    return is_right;
}

static bool text_take(PyObject *tuple, Py_ssize_t index, struct ship_text *text)
{
    PyObject *bytes = PyTuple_GET_ITEM(tuple, index);
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "the texts of a lane are bytes");
        return false;
    }
    *text = (struct ship_text){.bytes = PyBytes_AS_STRING(bytes), .size = (size_t)PyBytes_GET_SIZE(bytes)};
    return true;
}

/* A name stays as long as its tuple. */
static bool name_take(PyObject *tuple, Py_ssize_t index, const char **name, uint16_t *size)
{
    Py_ssize_t length;
    *name = PyUnicode_AsUTF8AndSize(PyTuple_GET_ITEM(tuple, index), &length);
    if (*name != NULL && length > PRODUCE_NAME_SIZE_MAX) {
        PyErr_Format(PyExc_ValueError, "a name of %zd bytes is too long for a request", length);
        return false;
    }
    *size = (uint16_t)length;
    return *name != NULL;
}

static bool topic_take(PyObject *tuple, struct produce_topic *topic)
{
    PyObject *id = PyTuple_GET_ITEM(tuple, 1);
    if (!name_take(tuple, 0, &topic->name, &topic->name_size)) {
        return false;
    }
    if (id == Py_None) {
        return true;
    }
    if (!PyBytes_Check(id) || PyBytes_GET_SIZE(id) != TOPIC_ID_SIZE) {
        PyErr_SetString(PyExc_TypeError, "the id of a topic is 16 bytes");
        return false;
    }
    memcpy(topic->id, PyBytes_AS_STRING(id), TOPIC_ID_SIZE);
    return true;
}

static bool lane_fill(PyObject *tuple, int64_t producer_id, struct ship_lane *lane)
{
    int64_t partition;
    int64_t position;
    int64_t epoch;
    int64_t leader_epoch;
    if (!is_tuple_of(tuple, 12) || !topic_take(tuple, &lane->topic) ||
        !number_take(tuple, 2, 0, INT32_MAX, &partition) ||
        (lane->file = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(tuple, 3))) < 0 ||
        !number_take(tuple, 4, 0, INT64_MAX, &position) ||
        !number_take(tuple, 5, 0, INT64_MAX, &lane->kept.offset) ||
        !number_take(tuple, 6, 0, INT64_MAX, &lane->limit_offset) || !number_take(tuple, 7, 0, INT16_MAX, &epoch) ||
        !number_take(tuple, 8, 0, INT64_MAX, &lane->origin) ||
        !number_take(tuple, 9, INT32_MIN, INT32_MAX, &leader_epoch) || !text_take(tuple, 10, &lane->name) ||
        !text_take(tuple, 11, &lane->topic_id)) {
        return false;
    }
    lane->partition = (int32_t)partition;
    lane->producer = (struct record_batch_producer){.id = producer_id, .epoch = (int16_t)epoch};
    lane->kept.position = (off_t)position;
    lane->kept.leader_epoch = (int32_t)leader_epoch;
    lane->next = lane->kept;
    return true;
}

static bool link_fill(PyObject *tuple, struct ship_convoy *convoy, struct ship_link *link)
{
    uint32_t before = link == convoy->links ? 0 : (uint32_t)(link[-1].lanes - convoy->lanes) + link[-1].lane_count;
    int64_t number[6];
    if (!is_tuple_of(tuple, 7) || !number_take(tuple, 0, 0, INT32_MAX, &number[0]) ||
        !number_take(tuple, 1, PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX, &number[1]) ||
        !name_take(tuple, 2, &link->form.client, &link->form.client_size) ||
        !number_take(tuple, 3, -1, 1, &number[2]) || !number_take(tuple, 4, 1, SHIP_REQUESTS_MAX, &number[3]) ||
        !number_take(tuple, 5, 0, INT32_MAX, &number[4]) ||
        !number_take(tuple, 6, 1, (int64_t)convoy->lane_count - before, &number[5])) {
        return false;
    }
    link->socket = (int)number[0];
    link->form.version = (int16_t)number[1];
    link->form.acks = (int16_t)number[2];
    link->form.timeout_ms = (int32_t)(convoy->answer_time_ns / NS_PER_MS);
    link->requests_max = (uint32_t)number[3];
    link->request_size_max = (uint32_t)number[4];
    link->lanes = convoy->lanes + before;
    link->lane_count = (uint32_t)number[5];
    return true;
}

static bool convoy_fill(const struct call *call, struct ship_convoy *convoy)
{
    for (uint32_t i = 0; i < convoy->lane_count; i++) {
        if (!lane_fill(PyTuple_GET_ITEM(call->lanes, i), call->producer_id, &convoy->lanes[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        if (!link_fill(PyTuple_GET_ITEM(call->links, i), convoy, &convoy->links[i])) {
            return false;
        }
    }
    return true;
}

/* ---- what was found ---- */

static PyObject *lane_report(const struct ship_lane *lane)
{
    return Py_BuildValue("(iLLiLL)", (int)lane->state, (long long)lane->kept.offset, (long long)lane->kept.position,
                         (int)lane->kept.leader_epoch, (long long)lane->record_count, (long long)lane->byte_count);
}

static PyObject *link_report(const struct ship_link *link)
{
    return Py_BuildValue("(OiILL)", link->is_broken ? Py_True : Py_False, (int)link->throttle_ms, link->request_count,
                         (long long)link->sent_size, (long long)link->received_total);
}

static bool found_add(PyObject *found, PyObject *tuple)
{
    bool is_added = tuple != NULL && PyList_Append(found, tuple) == 0;
    Py_XDECREF(tuple);
    return is_added;
}

static bool lanes_tell(const struct ship_convoy *convoy, PyObject *found)
{
    PyObject *lanes = PyTuple_New(convoy->lane_count);
    for (uint32_t i = 0; lanes != NULL && i < convoy->lane_count; i++) {
        PyObject *lane = lane_report(&convoy->lanes[i]);
        if (lane == NULL) {
            Py_CLEAR(lanes);
            break;
        }
        PyTuple_SET_ITEM(lanes, i, lane);
    }
    return found_add(found, lanes);
}

static bool links_tell(const struct ship_convoy *convoy, PyObject *found)
{
    PyObject *links = PyTuple_New(convoy->link_count);
    for (uint32_t i = 0; links != NULL && i < convoy->link_count; i++) {
        PyObject *link = link_report(&convoy->links[i]);
        if (link == NULL) {
            Py_CLEAR(links);
            break;
        }
        PyTuple_SET_ITEM(links, i, link);
    }
    return found_add(found, links);
}

/* ---- the call ---- */

static bool run(const struct call *call, struct ship_convoy *convoy)
{
    bool is_made;
    if (!convoy_fill(call, convoy)) {
        return false;
    }
    Py_BEGIN_ALLOW_THREADS
    is_made = convoy_run(convoy);
    Py_END_ALLOW_THREADS
    if (!is_made) {
        PyErr_NoMemory();
        return false;
    }
    const struct ship_positions *positions = &convoy->positions;
    return lanes_tell(convoy, call->found) && links_tell(convoy, call->found) &&
           found_add(call->found, Py_BuildValue("(LO)", (long long)positions->size,
                                                positions->has_failed ? Py_True : Py_False));
}

PyObject *log_ship_convoy(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct call call;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &call)) {
        return NULL;
    }
    if (!PyTuple_CheckExact(call.links) || !PyTuple_CheckExact(call.lanes) || !PyList_CheckExact(call.found)) {
        return PyErr_Format(PyExc_TypeError, "links and lanes are tuples, and found is a list");
    }
    struct ship_convoy convoy = {
        .link_count = (uint32_t)PyTuple_GET_SIZE(call.links),
        .lane_count = (uint32_t)PyTuple_GET_SIZE(call.lanes),
        .positions = {.file = (int)call.positions, .size = (off_t)call.positions_size},
        .positions_size_max = (off_t)call.positions_size_max,
        .bell = (int)call.bell,
        .time_ns = (uint64_t)call.time_ms * NS_PER_MS,
        .answer_time_ns = (uint64_t)call.answer_time_ms * NS_PER_MS,
    };
    convoy.links = PyMem_Calloc((size_t)convoy.link_count + 1, sizeof *convoy.links);
    convoy.lanes = PyMem_Calloc((size_t)convoy.lane_count + 1, sizeof *convoy.lanes);
    if (convoy.links == NULL || convoy.lanes == NULL) {
        PyErr_NoMemory();
    }
    bool has_run = convoy.links != NULL && convoy.lanes != NULL && run(&call, &convoy);
    PyMem_Free(convoy.links);
    PyMem_Free(convoy.lanes);
    return has_run ? Py_NewRef(Py_None) : NULL;
}
