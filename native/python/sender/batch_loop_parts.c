/* SPDX-License-Identifier: Apache-2.0 */
#include "python/sender/batch_loop_parts.h"

#include "base/clock.h"
#include "python/common/items.h"
#include "python/sender/part.h"

enum { STREAM_FIELDS = 14 };

/* ---- the parts ---- */

static bool text_take(PyObject *tuple, Py_ssize_t index, struct ship_text *text)
{
    PyObject *bytes = PyTuple_GET_ITEM(tuple, index);
    if (!PyBytes_Check(bytes)) {
        PyErr_SetString(PyExc_TypeError, "the texts of a stream must be bytes");
        return false;
    }
    *text = (struct ship_text){.bytes = PyBytes_AS_STRING(bytes), .size = (size_t)PyBytes_GET_SIZE(bytes)};
    return true;
}

static bool stream_fill(PyObject *tuple, struct partition_stream *stream)
{
    int64_t partition;
    int64_t position;
    int64_t synced;
    int64_t epoch;
    int64_t leader_epoch;
    if (!part_is_tuple(tuple, STREAM_FIELDS) || !part_take_topic(tuple, &stream->topic) ||
        !part_take_number(tuple, 2, 0, INT32_MAX, &partition) ||
        (stream->file = PyObject_AsFileDescriptor(PyTuple_GET_ITEM(tuple, 3))) < 0 ||
        !part_take_number(tuple, 4, 0, INT64_MAX, &position) ||
        !part_take_number(tuple, 5, 0, INT64_MAX, &stream->recorded.offset) ||
        !part_take_number(tuple, 6, 0, INT64_MAX, &stream->limit_offset) ||
        !part_take_number(tuple, 7, -1, INT64_MAX, &synced) ||
        !part_take_number(tuple, 8, 0, INT64_MAX, &stream->producer.id) ||
        !part_take_number(tuple, 9, 0, INT16_MAX, &epoch) ||
        !part_take_number(tuple, 10, -1, INT64_MAX, &stream->origin) ||
        !part_take_number(tuple, 11, INT32_MIN, INT32_MAX, &leader_epoch) || !text_take(tuple, 12, &stream->name) ||
        !text_take(tuple, 13, &stream->topic_id)) {
        return false;
    }
    stream->partition = (int32_t)partition;
    stream->syncs = synced >= 0;
    stream->synced = (off_t)synced;
    stream->producer.epoch = (int16_t)epoch;
    stream->keeps_producer = stream->origin < 0;
    stream->recorded.position = (off_t)position;
    stream->recorded.leader_epoch = (int32_t)leader_epoch;
    stream->next = stream->recorded;
    return true;
}

static bool link_fill(PyObject *tuple, struct batch_loop *loop, struct ship_link *link)
{
    uint32_t before = link == loop->links ? 0 : (uint32_t)(link[-1].streams - loop->streams) + link[-1].stream_count;
    struct broker_link *broker = &link->broker;
    int64_t number[6];
    if (!part_is_tuple(tuple, 7) || !part_take_number(tuple, 0, 0, INT32_MAX, &number[0]) ||
        !part_take_number(tuple, 1, PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX, &number[1]) ||
        !part_take_name(tuple, 2, &broker->form.client, &broker->form.client_size) ||
        !part_take_number(tuple, 3, -1, 1, &number[2]) ||
        !part_take_number(tuple, 4, 1, BROKER_REQUESTS_MAX, &number[3]) ||
        !part_take_number(tuple, 5, 0, INT32_MAX, &number[4]) ||
        !part_take_number(tuple, 6, 1, (int64_t)loop->stream_count - before, &number[5])) {
        return false;
    }
    broker->socket = (int)number[0];
    broker->form.version = (int16_t)number[1];
    broker->form.acks = (int16_t)number[2];
    broker->form.timeout_ms = (int32_t)(loop->answer_time_ns / NS_PER_MS);
    broker->requests_max = (uint32_t)number[3];
    link->request_size_max = (uint32_t)number[4];
    link->streams = loop->streams + before;
    link->stream_count = (uint32_t)number[5];
    return true;
}

static bool batch_loop_fill(PyObject *links, PyObject *streams, struct batch_loop *loop)
{
    for (uint32_t i = 0; i < loop->stream_count; i++) {
        if (!stream_fill(PyTuple_GET_ITEM(streams, i), &loop->streams[i])) {
            return false;
        }
    }
    for (uint32_t i = 0; i < loop->link_count; i++) {
        if (!link_fill(PyTuple_GET_ITEM(links, i), loop, &loop->links[i])) {
            return false;
        }
    }
    return true;
}

/* ---- what was found ---- */

static PyObject *stream_report(const void *streams, uint32_t index)
{
    const struct partition_stream *stream = (const struct partition_stream *)streams + index;
    return Py_BuildValue("(iLLiLLLL)", (int)stream->state, (long long)stream->recorded.offset,
                         (long long)stream->recorded.position, (int)stream->recorded.leader_epoch,
                         (long long)stream->synced, (long long)stream->batch_count,
                         (long long)stream->record_count, (long long)stream->byte_count);
}

static PyObject *link_report(const void *links, uint32_t index)
{
    const struct broker_link *link = &((const struct ship_link *)links + index)->broker;
    return Py_BuildValue("(OiILL)", link->is_broken ? Py_True : Py_False, (int)link->throttle_ms, link->request_count,
                         (long long)link->sent_size, (long long)link->received_total);
}

bool batch_loop_report_kept(const struct batch_loop_arguments *given, PyObject *kept, bool has_failed)
{
    return kept != NULL && list_put(given->found, Py_BuildValue("(NO)", kept, has_failed ? Py_True : Py_False));
}

/* ---- all parts ---- */

static bool parts_make(const struct batch_loop_arguments *given, struct batch_loop *loop)
{
    if (!PyTuple_CheckExact(given->links) || !PyTuple_CheckExact(given->streams) || !PyList_CheckExact(given->found)) {
        PyErr_Format(PyExc_TypeError, "links and streams must be tuples, and found must be a list");
        return false;
    }
    loop->link_count = (uint32_t)PyTuple_GET_SIZE(given->links);
    loop->stream_count = (uint32_t)PyTuple_GET_SIZE(given->streams);
    loop->links = PyMem_Calloc((size_t)loop->link_count + 1, sizeof *loop->links);
    loop->streams = PyMem_Calloc((size_t)loop->stream_count + 1, sizeof *loop->streams);
    if (loop->links == NULL || loop->streams == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return batch_loop_fill(given->links, given->streams, loop);
}

static bool parts_run(const struct batch_loop_arguments *given, struct batch_loop *loop, PyThreadState **thread)
{
    *thread = PyEval_SaveThread();
    bool is_made = batch_loop_run(loop);
    PyEval_RestoreThread(*thread);
    if (!is_made) {
        PyErr_NoMemory();
        return false;
    }
    return list_put(given->found, tuple_of(loop->stream_count, stream_report, loop->streams)) &&
           list_put(given->found, tuple_of(loop->link_count, link_report, loop->links));
}

bool batch_loop_run_unlocked(const struct batch_loop_arguments *given, struct ship_recorder *recorder,
                             PyThreadState **thread)
{
    struct batch_loop loop = {
        .recorder = recorder,
        .wake_fd = (int)given->wake_fd,
        .time_ns = (uint64_t)given->time_ms * NS_PER_MS,
        .answer_time_ns = (uint64_t)given->answer_time_ms * NS_PER_MS,
    };
    bool has_run = parts_make(given, &loop) && parts_run(given, &loop, thread);
    PyMem_Free(loop.links);
    PyMem_Free(loop.streams);
    return has_run;
}
