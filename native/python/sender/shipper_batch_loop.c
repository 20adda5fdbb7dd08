/* SPDX-License-Identifier: Apache-2.0
 *
 * run_batch_loop(links, streams, found, ...): runs ordinary rounds of a shipper without the GIL. batch_loop_parts.h
 * describes links, streams and found. The recorder reports the size of the file of positions.
 */
#include "python/sender/batch_loop_parts.h"

#include "python/common/module_methods.h"
#include "sender/positions.h"

PyObject *py_module_run_batch_loop(PyObject *module, const struct py_module_run_batch_loop *given)
{
    const struct batch_loop_arguments loop = {.links = given->links,
                                              .streams = given->streams,
                                              .found = given->found,
                                              .wake_fd = given->wake_fd,
                                              .time_ms = given->time_ms,
                                              .answer_time_ms = given->answer_time_ms};
    struct ship_positions positions = {
        .recorder = {.record = positions_record, .is_over = given->positions_size >= given->positions_size_max},
        .file = (int)given->positions,
        .size = (off_t)given->positions_size,
        .size_max = (off_t)given->positions_size_max,
    };
    PyThreadState *thread;
    (void)module;
    bool has_run = batch_loop_run_unlocked(&loop, &positions.recorder, &thread) &&
                   batch_loop_report_kept(&loop, PyLong_FromLongLong(positions.size), positions.has_failed);
    positions_free(&positions);
    return has_run ? Py_NewRef(Py_None) : NULL;
}
