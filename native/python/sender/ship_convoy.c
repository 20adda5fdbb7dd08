/* SPDX-License-Identifier: Apache-2.0
 *
 * ship_convoy(links, lanes, found, ...): the ordinary rounds of a shipper, without the GIL. convoy_parts.h has links,
 * lanes and found; the keeper tells the size of the file of positions.
 */
#include "python/log/log.h"
#include "python/sender/convoy_parts.h"
#include "sender/positions.h"

struct call {
    struct convoy_arguments convoy;
    int64_t positions;
    int64_t positions_size;
    int64_t positions_size_max;
};

static const struct argument_table table = {
    .signature = {.function = "ship_convoy",
                  .names = {"links", "lanes", "found", "positions", "positions_size", "positions_size_max", "bell",
                            "time_ms", "answer_time_ms"},
                  .required_count = 9,
                  .count = 9},
    .arguments = {OBJECT_ARGUMENT(struct call, convoy.links), OBJECT_ARGUMENT(struct call, convoy.lanes),
                  OBJECT_ARGUMENT(struct call, convoy.found), INTEGER_ARGUMENT(struct call, positions, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size_max, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, convoy.bell, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, convoy.time_ms, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, convoy.answer_time_ms, 1, INT32_MAX)},
};

PyObject *log_ship_convoy(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct call call;
    if (!arguments_parse(PyModule_GetState(module), &table, args, count, names, &call)) {
        return NULL;
    }
    struct ship_positions positions = {
        .keeper = {.keep = positions_keep, .is_over = call.positions_size >= call.positions_size_max},
        .file = (int)call.positions,
        .size = (off_t)call.positions_size,
        .size_max = (off_t)call.positions_size_max,
    };
    PyThreadState *thread;
    bool has_run = convoy_ship(&call.convoy, &positions.keeper, &thread) &&
                   convoy_tell_kept(&call.convoy, PyLong_FromLongLong(positions.size), positions.has_failed);
    positions_free(&positions);
    return has_run ? Py_NewRef(Py_None) : NULL;
}
