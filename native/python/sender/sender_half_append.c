/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf.append_to_log: the ordinary round of a sender whose sink is a segment log, in one call (log_pass.h).
 *
 *   drain → runs of one partition → batches that fit, added to the producers' tables
 *         → WITHOUT THE GIL: checksums, pwritev, index entries
 *         → complete, correct the tables → again, while more is sealed → numbers, and Batches of the remaining ones
 *
 * A pass drains at most in_flight_max batches of a partition. If it has appended all of them, another pass follows for
 * batches that are sealed in the queues, within size_max and PASSES_NS. This is because the Python part of a round
 * takes as long as about twelve full batches.
 *
 * With `spills`, the log is an overflow: batches get rows in spill files instead of results (log_run_spill).
 *
 *   spills   {partition index: (file, row count, end seq, arena)}; batches of other partitions are not appended
 *
 * After a write, no step can fail until the log's numbers, the tables and the results agree. Batches are completed with
 * the GIL, because producers of the process may use the same arena handle.
 */
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/log/log_end_type.h"
#include "python/sender/batch_type.h"
#include "python/sender/part.h"
#include "sender/log_pass.h"

enum { PASSES_NS = 4000000 }; /* after this time no further pass begins, because the sender has other work */

struct append_call {
    struct sender_half_object *half;
    PyObject *log_ends;
    PyObject *spills;
    struct log_pass pass;
    struct log_end_object **logs; /* the LogEnd of each run, or NULL if the partition has none */
};

static bool call_allocate(struct append_call *call, uint32_t count)
{
    call->logs = PyMem_Calloc((size_t)count + 1, sizeof *call->logs);
    if (!log_pass_make(&call->pass, count) || call->logs == NULL) {
        PyErr_NoMemory();
        return false;
    }
    return true;
}

static void logs_forget(struct append_call *call)
{
    for (uint32_t i = 0; call->logs != NULL && i < call->pass.run_count; i++) {
        Py_CLEAR(call->logs[i]);
    }
}

static void call_free(struct append_call *call)
{
    logs_forget(call);
    PyMem_Free(call->logs);
    log_pass_free(&call->pass);
}

/* ---- planning ---- */

/* Returns a new reference to a value of a dict, or NULL without an exception if it is missing, or without memory. */
static PyObject *partition_find(PyObject *dict, uint32_t partition_index)
{
    PyObject *key = PyLong_FromUnsignedLong(partition_index);
    PyObject *found = key == NULL ? NULL : dict_item(dict, key);
    Py_XDECREF(key);
    PyErr_Clear(); /* then the batches are not appended here, and Python appends them */
    return found;
}

/* Returns a new reference, or NULL if the partition has none. */
static struct log_end_object *log_end_find(const struct append_call *call, uint32_t partition_index)
{
    PyObject *log = partition_find(call->log_ends, partition_index);
    if (log != NULL && !Py_IS_TYPE(log, call->half->state->log_end_type)) {
        Py_CLEAR(log);
    }
    return (struct log_end_object *)log;
}

/* Returns how many batches of a run may be moved to the overflow according to the spill file, or all if the log is the
 * sink. */
static uint32_t run_spill_fit(const struct append_call *call, const struct log_run *run,
                              struct log_run_spill_file *spill)
{
    if (call->spills == NULL) {
        return run->count;
    }
    PyObject *given = partition_find(call->spills, run->drained->partition_index);
    unsigned long long row_count;
    unsigned long long end_seq;
    unsigned long long arena;
    if (given == NULL || !PyTuple_CheckExact(given) ||
        !PyArg_ParseTuple(given, "iKKK", &spill->file, &row_count, &end_seq, &arena)) {
        Py_XDECREF(given);
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(given);
    spill->row_count = row_count;
    spill->end_seq = end_seq;
    spill->arena = arena;
    return log_run_fit_spill(run, spill);
}

/* A log takes only one run per pass, because a second run would need the position after the first. */
static uint32_t run_fit(const struct append_call *call, struct log_run *run, struct log_end_object *log,
                        uint32_t count)
{
    struct log_batch *batches = log_pass_batches(&call->pass, run);
    if (log == NULL || !log_end_begin_call(log)) {
        return 0;
    }
    run->log = &log->core;
    uint32_t fit_count = log_end_fit(log, batches, log_run_describe(call->half->core, run->drained, count, batches));
    if (!log_end_add_rows(log, batches, fit_count)) {
        PyErr_Clear(); /* if there is no memory, Python appends the batches */
        fit_count = 0;
    }
    return fit_count;
}

static void runs_plan(struct append_call *call)
{
    for (uint32_t i = 0; i < call->pass.run_count; i++) {
        struct log_run *run = &call->pass.runs[i].run;
        call->logs[i] = log_end_find(call, run->drained->partition_index);
        uint32_t spill_count = run_spill_fit(call, run, &call->pass.runs[i].spill);
        run->fit_count = run_fit(call, run, call->logs[i], spill_count);
    }
}

/* ---- completing ---- */

static void runs_complete(struct append_call *call)
{
    for (uint32_t i = 0; i < call->pass.run_count; i++) {
        const struct log_pass_run *one = &call->pass.runs[i];
        if (one->fit_count > 0) {
            log_end_keep_written(call->logs[i], one->run.batches, one->fit_count, one->run.append.batch_count);
            log_pass_end(&call->pass, i, &call->half->wakes);
        }
        if (one->run.log != NULL) {
            log_end_end_call(call->logs[i]);
        }
    }
}

/* ---- the answer ---- */

static PyObject *run_row(const struct log_run *run)
{
    uint64_t record_count = 0;
    uint64_t size = 0;
    for (uint32_t i = 0; i < run->ended_count; i++) {
        record_count += run->drained[i].record_count;
        size += run->drained[i].size;
    }
    return delivered_row(run->drained->partition_index, run->ended_count, record_count, size, run->append.index_error);
}

/* Adds the rows of a pass. Returns false with an exception set if there was no memory. */
static bool rows_add(const struct append_call *call, PyObject *rows)
{
    for (uint32_t i = 0; i < call->pass.run_count; i++) {
        const struct log_run *run = &call->pass.runs[i].run;
        if (run->ended_count > 0 && !list_put(rows, run_row(run))) {
            return false;
        }
    }
    return true;
}

/* ---- the call ---- */

/* Drains, appends and completes once. */
static void call_pass(struct append_call *call, const struct drain_options *options, uint32_t partition_count)
{
    logs_forget(call);
    log_pass_drain(&call->pass, options, partition_count);
    runs_plan(call);
    Py_BEGIN_ALLOW_THREADS
    log_pass_write(&call->pass);
    Py_END_ALLOW_THREADS
    runs_complete(call);
}

/* Returns true if every drained batch was appended, and in_flight_max ended the drain. An overflow has one pass,
 * because Python counts the rows of a spill file. */
static bool call_may_continue(const struct append_call *call, uint32_t partition_count, uint32_t ended_count)
{
    return ended_count > 0 && ended_count == call->pass.drained_count && call->pass.seen_count == partition_count &&
           !call->pass.spills;
}

/* Returns false with an exception set if there was no memory for the rows. */
static bool call_run(struct append_call *call, const struct py_half_append_to_log *given, uint32_t partition_count,
                     struct delivered *delivered, PyObject *rows)
{
    const struct arena *arena = call->half->arena->core;
    uint64_t begin_ns = arena_now_ns(arena);
    uint64_t size_max = (uint64_t)given->size_max;
    struct drain_options options = {.now_ns = half_now_or(call->half, given->now_ns),
                                    .in_flight_max = (uint32_t)given->in_flight_max};
    bool goes_on = true;
    while (goes_on && delivered->size < size_max) {
        options.size_max = (uint32_t)(size_max - delivered->size);
        call_pass(call, &options, partition_count);
        uint32_t ended_count = log_pass_tally(&call->pass, delivered, options.now_ns);
        if (!rows_add(call, rows)) {
            return false;
        }
        goes_on = call_may_continue(call, partition_count, ended_count) && arena_now_ns(arena) - begin_ns < PASSES_NS;
        options.continues_last = true;
    }
    uint64_t end_ns = arena_now_ns(arena);
    delivered->latency_max_ns = end_ns > options.now_ns ? end_ns - options.now_ns : 0;
    delivered->latency_sum_ns = delivered->latency_max_ns * delivered->batch_count;
    return true;
}

static PyObject *call_answer(struct append_call *call, const struct py_half_append_to_log *given,
                             uint32_t partition_count)
{
    struct delivered delivered = {.linger_min_ns = -1};
    PyObject *rows = PyList_New(0);
    PyObject *answer = NULL;
    if (rows != NULL && call_run(call, given, partition_count, &delivered, rows)) {
        PyObject *left = half_batches_to_list(call->half, call->pass.drained, log_pass_gather(&call->pass));
        answer = Py_BuildValue("(NIN)", left, call->pass.seen_count, delivered_report(&delivered, 0, Py_NewRef(rows)));
    }
    Py_XDECREF(rows);
    return answer;
}

static PyObject *append_tuple(struct sender_half_object *self, const struct py_half_append_to_log *given,
                              PyObject *tuple)
{
    struct append_call call = {.half = self,
                               .log_ends = given->log_ends,
                               .spills = given->spills == Py_None ? NULL : given->spills};
    call.pass = (struct log_pass){
        .half = self->core, .spills = call.spills != NULL, .largest_record = (uint32_t)given->largest_record};
    size_t count = (size_t)PyTuple_GET_SIZE(tuple);
    PyObject *result = NULL;
    if (count > UINT32_MAX) {
        PyErr_NoMemory();
    } else if (call_allocate(&call, (uint32_t)count) && half_partitions_parse(self, tuple, call.pass.partitions)) {
        result = call_answer(&call, given, (uint32_t)count);
    }
    call_free(&call);
    return result;
}

PyObject *py_half_append_to_log(struct sender_half_object *self, const struct py_half_append_to_log *given)
{
    if (!PyDict_Check(given->log_ends)) {
        return PyErr_Format(PyExc_TypeError, "log_ends must be a dict, not %.80s", Py_TYPE(given->log_ends)->tp_name);
    }
    if (given->spills != NULL && given->spills != Py_None && !PyDict_Check(given->spills)) {
        return PyErr_Format(PyExc_TypeError, "spills must be a dict, not %.80s", Py_TYPE(given->spills)->tp_name);
    }
    PyObject *partitions = PySequence_Tuple(given->partitions);
    PyObject *result = partitions == NULL ? NULL : append_tuple(self, given, partitions);
    Py_XDECREF(partitions);
    return result;
}
