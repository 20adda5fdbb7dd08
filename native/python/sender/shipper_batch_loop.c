/* SPDX-License-Identifier: Apache-2.0
 *
 * run_batch_loop(links, streams, found, ...): the ordinary rounds of a shipper, without the GIL. batch_loop_parts.h has
 * links, streams and found; the recorder tells the size of the file of positions.
 */
#include "python/sender/batch_loop_parts.h"

#include "python/common/module_state.h"
#include "sender/positions.h"

struct call {
    struct batch_loop_arguments loop;
    int64_t positions;
    int64_t positions_size;
    int64_t positions_size_max;
};

static const struct argument_table table = {
    .signature = {.function = "run_batch_loop",
                  .names = {"links", "streams", "found", "positions", "positions_size", "positions_size_max", "bell",
                            "time_ms", "answer_time_ms"},
                  .required_count = 9,
                  .count = 9},
    .arguments = {OBJECT_ARGUMENT(struct call, loop.links), OBJECT_ARGUMENT(struct call, loop.streams),
                  OBJECT_ARGUMENT(struct call, loop.found), INTEGER_ARGUMENT(struct call, positions, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size_max, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, loop.bell, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, loop.time_ms, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, loop.answer_time_ms, 1, INT32_MAX)},
};

PyObject *shipper_run_batch_loop(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct call call;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &call)) {
        return NULL;
    }
    struct ship_positions positions = {
        .recorder = {.record = positions_record, .is_over = call.positions_size >= call.positions_size_max},
        .file = (int)call.positions,
        .size = (off_t)call.positions_size,
        .size_max = (off_t)call.positions_size_max,
    };
    PyThreadState *thread;
    bool has_run = batch_loop_run_unlocked(&call.loop, &positions.recorder, &thread) &&
                   batch_loop_tell_kept(&call.loop, PyLong_FromLongLong(positions.size), positions.has_failed);
    positions_free(&positions);
    return has_run ? Py_NewRef(Py_None) : NULL;
}
