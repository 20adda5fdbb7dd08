/* SPDX-License-Identifier: Apache-2.0
 *
 * ship_convoy(links, lanes, found, ...): the ordinary rounds of a shipper, without the GIL. convoy_parts.h has links,
 * lanes and found; the keeper tells (size of the positions file, has failed).
 */
#include "base/clock.h"
#include "python/common/arguments.h"
#include "python/sender/convoy_parts.h"
#include "sender/positions.h"

struct call {
    PyObject *links;
    PyObject *lanes;
    PyObject *found;
    int64_t positions;
    int64_t positions_size;
    int64_t positions_size_max;
    int64_t bell;
    int64_t time_ms;
    int64_t answer_time_ms;
};

static const struct argument_table table = {
    .signature = {.function = "ship_convoy",
                  .names = {"links", "lanes", "found", "positions", "positions_size", "positions_size_max", "bell",
                            "time_ms", "answer_time_ms"},
                  .required_count = 9,
                  .count = 9},
    .arguments = {OBJECT_ARGUMENT(struct call, links), OBJECT_ARGUMENT(struct call, lanes),
                  OBJECT_ARGUMENT(struct call, found), INTEGER_ARGUMENT(struct call, positions, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, positions_size_max, 0, INT64_MAX),
                  INTEGER_ARGUMENT(struct call, bell, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, time_ms, 0, INT32_MAX),
                  INTEGER_ARGUMENT(struct call, answer_time_ms, 1, INT32_MAX)},
};

static bool run(const struct call *call, struct ship_convoy *convoy, const struct ship_positions *positions)
{
    bool is_made;
    if (!convoy_make_parts(call->links, call->lanes, call->found, convoy)) {
        return false;
    }
    Py_BEGIN_ALLOW_THREADS
    is_made = convoy_run(convoy);
    Py_END_ALLOW_THREADS
    if (!is_made) {
        PyErr_NoMemory();
        return false;
    }
    return convoy_tell_parts(convoy, call->found) &&
           convoy_tell(call->found, Py_BuildValue("(LO)", (long long)positions->size,
                                                  positions->has_failed ? Py_True : Py_False));
}

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
    struct ship_convoy convoy = {
        .keeper = &positions.keeper,
        .bell = (int)call.bell,
        .time_ns = (uint64_t)call.time_ms * NS_PER_MS,
        .answer_time_ns = (uint64_t)call.answer_time_ms * NS_PER_MS,
    };
    bool has_run = run(&call, &convoy, &positions);
    convoy_free_parts(&convoy);
    positions_free(&positions);
    return has_run ? Py_NewRef(Py_None) : NULL;
}
