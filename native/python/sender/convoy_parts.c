/* SPDX-License-Identifier: Apache-2.0 */
#include "python/sender/convoy_parts.h"

#include "base/clock.h"
#include "python/sender/part.h"

enum { LANE_FIELDS = 14 };

/* ---- the parts ---- */

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

static bool lane_fill(PyObject *tuple, struct ship_lane *lane)
{
    int64_t partition;
    int64_t position;
    int64_t synced;
    int64_t epoch;
    int64_t leader_epoch;
    if (!part_is_tuple(tuple, LANE_FIELDS) || !part_take_topic(tuple, &lane->topic) ||
        !part_take_number(tuple, 2, 0, INT32_MAX, &partition) ||
        (lane->file = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(tuple, 3))) < 0 ||
        !part_take_number(tuple, 4, 0, INT64_MAX, &position) ||
        !part_take_number(tuple, 5, 0, INT64_MAX, &lane->kept.offset) ||
        !part_take_number(tuple, 6, 0, INT64_MAX, &lane->limit_offset) ||
        !part_take_number(tuple, 7, -1, INT64_MAX, &synced) ||
        !part_take_number(tuple, 8, 0, INT64_MAX, &lane->producer.id) ||
        !part_take_number(tuple, 9, 0, INT16_MAX, &epoch) ||
        !part_take_number(tuple, 10, -1, INT64_MAX, &lane->origin) ||
        !part_take_number(tuple, 11, INT32_MIN, INT32_MAX, &leader_epoch) || !text_take(tuple, 12, &lane->name) ||
        !text_take(tuple, 13, &lane->topic_id)) {
        return false;
    }
    lane->partition = (int32_t)partition;
    lane->syncs = synced >= 0;
    lane->synced = (off_t)synced;
    lane->producer.epoch = (int16_t)epoch;
    lane->keeps_producer = lane->origin < 0;
    lane->kept.position = (off_t)position;
    lane->kept.leader_epoch = (int32_t)leader_epoch;
    lane->next = lane->kept;
    return true;
}

static bool link_fill(PyObject *tuple, struct ship_convoy *convoy, struct ship_link *link)
{
    uint32_t before = link == convoy->links ? 0 : (uint32_t)(link[-1].lanes - convoy->lanes) + link[-1].lane_count;
    struct broker_link *broker = &link->broker;
    int64_t number[6];
    if (!part_is_tuple(tuple, 7) || !part_take_number(tuple, 0, 0, INT32_MAX, &number[0]) ||
        !part_take_number(tuple, 1, PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX, &number[1]) ||
        !part_take_name(tuple, 2, &broker->form.client, &broker->form.client_size) ||
        !part_take_number(tuple, 3, -1, 1, &number[2]) ||
        !part_take_number(tuple, 4, 1, BROKER_REQUESTS_MAX, &number[3]) ||
        !part_take_number(tuple, 5, 0, INT32_MAX, &number[4]) ||
        !part_take_number(tuple, 6, 1, (int64_t)convoy->lane_count - before, &number[5])) {
        return false;
    }
    broker->socket = (int)number[0];
    broker->form.version = (int16_t)number[1];
    broker->form.acks = (int16_t)number[2];
    broker->form.timeout_ms = (int32_t)(convoy->answer_time_ns / NS_PER_MS);
    broker->requests_max = (uint32_t)number[3];
    link->request_size_max = (uint32_t)number[4];
    link->lanes = convoy->lanes + before;
    link->lane_count = (uint32_t)number[5];
    return true;
}

static bool convoy_fill(PyObject *links, PyObject *lanes, struct ship_convoy *convoy)
{
    for (uint32_t i = 0; i < convoy->lane_count; i++) {
        if (!lane_fill(PyTuple_GET_ITEM(lanes, i), &convoy->lanes[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        if (!link_fill(PyTuple_GET_ITEM(links, i), convoy, &convoy->links[i])) {
            return false;
        }
    }
    return true;
}

/* ---- what was found ---- */

PyObject *convoy_tuple(uint32_t count, PyObject *(*make)(const void *all, uint32_t index), const void *all)
{
    PyObject *tuple = PyTuple_New(count);
    for (uint32_t i = 0; tuple != NULL && i < count; i++) {
        PyObject *item = make(all, i);
        if (item == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

static PyObject *lane_report(const void *lanes, uint32_t index)
{
    const struct ship_lane *lane = (const struct ship_lane *)lanes + index;
    return Py_BuildValue("(iLLiLLLL)", (int)lane->state, (long long)lane->kept.offset, (long long)lane->kept.position,
                         (int)lane->kept.leader_epoch, (long long)lane->synced, (long long)lane->batch_count,
                         (long long)lane->record_count, (long long)lane->byte_count);
}

static PyObject *link_report(const void *links, uint32_t index)
{
    const struct broker_link *link = &((const struct ship_link *)links + index)->broker;
    return Py_BuildValue("(OiILL)", link->is_broken ? Py_True : Py_False, (int)link->throttle_ms, link->request_count,
                         (long long)link->sent_size, (long long)link->received_total);
}

/* Takes the tuple over, which may be NULL. */
static bool tell(const struct convoy_arguments *given, PyObject *tuple)
{
    bool is_added = tuple != NULL && PyList_Append(given->found, tuple) == 0;
    Py_XDECREF(tuple);
    return is_added;
}

bool convoy_tell_kept(const struct convoy_arguments *given, PyObject *kept, bool has_failed)
{
    return kept != NULL && tell(given, Py_BuildValue("(NO)", kept, has_failed ? Py_True : Py_False));
}

/* ---- the whole ---- */

static bool parts_make(const struct convoy_arguments *given, struct ship_convoy *convoy)
{
    if (!PyTuple_CheckExact(given->links) || !PyTuple_CheckExact(given->lanes) || !PyList_CheckExact(given->found)) {
        PyErr_Format(PyExc_TypeError, "links and lanes are tuples, and found is a list");
        return false;
    }
    convoy->link_count = (uint32_t)PyTuple_GET_SIZE(given->links);
    convoy->lane_count = (uint32_t)PyTuple_GET_SIZE(given->lanes);
    convoy->links = PyMem_Calloc((size_t)convoy->link_count + 1, sizeof *convoy->links);
    convoy->lanes = PyMem_Calloc((size_t)convoy->lane_count + 1, sizeof *convoy->lanes);
    if (convoy->links == NULL || convoy->lanes == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return convoy_fill(given->links, given->lanes, convoy);
}

static bool parts_run(const struct convoy_arguments *given, struct ship_convoy *convoy, PyThreadState **thread)
{
    *thread = PyEval_SaveThread();
    bool is_made = convoy_run(convoy);
    PyEval_RestoreThread(*thread);
    if (!is_made) {
        PyErr_NoMemory();
        return false;
    }
    return tell(given, convoy_tuple(convoy->lane_count, lane_report, convoy->lanes)) &&
           tell(given, convoy_tuple(convoy->link_count, link_report, convoy->links));
}

bool convoy_ship(const struct convoy_arguments *given, struct ship_keeper *keeper, PyThreadState **thread)
{
    struct ship_convoy convoy = {
        .keeper = keeper,
        .bell = (int)given->bell,
        .time_ns = (uint64_t)given->time_ms * NS_PER_MS,
        .answer_time_ns = (uint64_t)given->answer_time_ms * NS_PER_MS,
    };
    bool has_run = parts_make(given, &convoy) && parts_run(given, &convoy, thread);
    PyMem_Free(convoy.links);
    PyMem_Free(convoy.lanes);
    return has_run;
}
