/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf.run_batch_loop: sends an overflow to brokers in ordinary rounds, in one call without the GIL.
 *
 * python/sender/batch_loop_parts.h describes links, streams and found. The recorder reports (row index, number) of each
 * spill file.
 *
 *   spill  (partition index, file, row index, number, position)      one for each stream, in their order
 *
 * The recorder acquires the GIL, because producers of the process may use the same arena handle.
 */
#include <string.h>

#include "python/common/items.h"
#include "python/sender/batch_loop_parts.h"
#include "python/sender/sender_half_type.h"
#include "sender/spill_recorder.h"

enum { SPILL_FIELDS = 5 };

/* A recorder that acquires the GIL for its work. */
struct recorder_with_gil {
    struct spill_recorder spills; /* first, because the batch loop has a pointer to it */
    PyThreadState *thread;
};

static bool record_with_gil(struct ship_recorder *recorder, struct partition_stream *streams, uint32_t stream_count)
{
    struct recorder_with_gil *self = (struct recorder_with_gil *)recorder;
    PyEval_RestoreThread(self->thread);
    bool is_kept = spill_record(recorder, streams, stream_count);
    self->thread = PyEval_SaveThread();
    return is_kept;
}

/* ---- the spill files ---- */

static bool spill_fill(const struct sender_half_object *half, PyObject *tuple, struct spill_stream *spill)
{
    unsigned int partition_index;
    unsigned long long row_index;
    unsigned long long number;
    PyObject *position;
    if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != SPILL_FIELDS) {
        PyErr_Format(PyExc_TypeError, "a spill file must be a tuple of %d items", SPILL_FIELDS);
        return false;
    }
    if (!PyArg_ParseTuple(tuple, "IiKKS", &partition_index, &spill->file, &row_index, &number, &position)) {
        return false;
    }
    if (PyBytes_GET_SIZE(position) != SPILL_POSITION_SIZE ||
        partition_index >= half->core->arena->geometry.partition_count) {
        PyErr_Format(PyExc_ValueError, "partition %u with a position of %zd bytes has no spill file", partition_index,
                     PyBytes_GET_SIZE(position));
        return false;
    }
    spill->partition_index = partition_index;
    spill->row_index = row_index;
    spill->number = number;
    memcpy(spill->position, PyBytes_AS_STRING(position), SPILL_POSITION_SIZE);
    return true;
}

/* Returns NULL with an exception set. */
static struct spill_stream *spills_make(const struct sender_half_object *half, PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    struct spill_stream *spills = PyMem_Calloc((size_t)count + 1, sizeof *spills);
    if (spills == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; spills != NULL && i < count; i++) {
        if (!spill_fill(half, PyTuple_GET_ITEM(tuple, i), &spills[i])) {
            PyMem_Free(spills);
            spills = NULL;
        }
    }
    return spills;
}

static PyObject *spill_report(const void *spills, uint32_t index)
{
    const struct spill_stream *spill = (const struct spill_stream *)spills + index;
    return Py_BuildValue("(KK)", (unsigned long long)spill->row_index, (unsigned long long)spill->number);
}

/* ---- the call ---- */

PyObject *py_half_run_batch_loop(struct sender_half_object *self, const struct py_half_run_batch_loop *given)
{
    const struct batch_loop_arguments loop = {.links = given->links,
                                              .streams = given->streams,
                                              .found = given->found,
                                              .wake_fd = given->wake_fd,
                                              .time_ms = given->time_ms,
                                              .answer_time_ms = given->answer_time_ms};
    if (!PyTuple_CheckExact(loop.streams) || !PyTuple_CheckExact(given->spills) ||
        PyTuple_GET_SIZE(loop.streams) != PyTuple_GET_SIZE(given->spills)) {
        return PyErr_Format(PyExc_TypeError, "streams and spills must be tuples of one length");
    }
    struct recorder_with_gil recorder = {.spills = {.recorder = {.record = record_with_gil},
                                                .half = self->core,
                                                .streams = spills_make(self, given->spills),
                                                .arena = given->arena,
                                                .is_synced = given->is_synced != 0}};
    uint32_t count = (uint32_t)PyTuple_GET_SIZE(given->spills);
    bool has_run = recorder.spills.streams != NULL &&
                   batch_loop_run_unlocked(&loop, &recorder.spills.recorder, &recorder.thread) &&
                   batch_loop_report_kept(&loop, tuple_of(count, spill_report, recorder.spills.streams),
                                    recorder.spills.recorder.is_over);
    PyMem_Free(recorder.spills.streams);
    return has_run ? Py_NewRef(Py_None) : NULL;
}
