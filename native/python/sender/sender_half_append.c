/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf.append_to_log: the ordinary round of a sender whose sink is a segment log (sender/log_run.h), in one call.
 *
 *   drain → runs of one partition → what fits, entered into the producers' tables
 *         → WITHOUT THE GIL: checksums, pwritev, index entries
 *         → completed, tables settled → again, while more is sealed → numbers, and Batches of what is left
 *
 * A partition has at most in_flight_max batches in flight, so one pass takes no more of it. A pass that left nothing is
 * followed by another one for what is sealed in the queues, within size_max and PASSES_NS: the rest of a round, in
 * Python, costs as much as a dozen full batches.
 *
 * With `spills` the log is an overflow: batches get rows in spill files in place of results (log_run_spill).
 *
 *   spills   {partition index: (file, row count, end seq, arena)}; batches of other partitions are left
 *
 * Memory is allocated first: after a byte is written, nothing can fail before the log's numbers, the tables and the
 * results agree. Batches are completed with the GIL, because producers of the process may use the same handle of the
 * arena.
 */
#include <string.h>

#include "python/common/alone.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/log/log_end_type.h"
#include "python/sender/batch_type.h"
#include "python/sender/part.h"
#include "sender/log_run.h"

enum { PASSES_NS = 4000000 }; /* after this time no further pass begins, so that the sender scans for other work */

struct append_call {
    struct sender_half_object *half;
    PyObject *log_ends;
    PyObject *spills;
    uint32_t *partitions;
    uint32_t *remembered_counts; /* of the runs: batches that were entered into the producers' table */
    struct drained_batch *drained;
    struct log_batch *batches;
    struct batch_completion *completions;
    struct log_run *runs;
    struct log_run_spill_file *spill_files; /* of the runs */
    PyObject **log_end_objects; /* of the runs; NULL if the partition has none */
    uint32_t drained_count;
    uint32_t run_count;
    uint32_t seen_count;
    uint32_t largest_record; /* known before the call */
};

static bool call_allocate(struct append_call *call, size_t count)
{
    call->partitions = PyMem_Calloc(count + 1, sizeof *call->partitions);
    call->remembered_counts = PyMem_Calloc(count + 1, sizeof *call->remembered_counts);
    call->drained = PyMem_Calloc(count + 1, sizeof *call->drained);
    call->batches = PyMem_Calloc(count + 1, sizeof *call->batches);
    call->completions = PyMem_Calloc(count + 1, sizeof *call->completions);
    call->runs = PyMem_Calloc(count + 1, sizeof *call->runs);
    call->spill_files = PyMem_Calloc(count + 1, sizeof *call->spill_files);
    call->log_end_objects = PyMem_Calloc(count + 1, sizeof *call->log_end_objects);
    bool is_allocated = call->partitions != NULL && call->remembered_counts != NULL && call->drained != NULL &&
                        call->batches != NULL && call->completions != NULL && call->runs != NULL &&
                        call->spill_files != NULL && call->log_end_objects != NULL;
    if (!is_allocated) {
        PyErr_NoMemory();
    }
    return is_allocated;
}

static struct log_end_object *log_end_at(const struct append_call *call, uint32_t run)
{
    return (struct log_end_object *)call->log_end_objects[run];
}

static void runs_forget(struct append_call *call)
{
    for (uint32_t i = 0; i < call->run_count; i++) {
        Py_XDECREF(call->log_end_objects[i]);
    }
    call->run_count = 0;
}

static void call_free(struct append_call *call)
{
    runs_forget(call);
    PyMem_Free(call->partitions);
    PyMem_Free(call->remembered_counts);
    PyMem_Free(call->drained);
    PyMem_Free(call->batches);
    PyMem_Free(call->completions);
    PyMem_Free(call->runs);
    PyMem_Free(call->spill_files);
    PyMem_Free(call->log_end_objects);
}

/* ---- planning ---- */

/* Returns a new reference to a value of a dict, or NULL without an exception if it is missing, or without memory. */
static PyObject *partition_find(PyObject *dict, uint32_t partition_index)
{
    PyObject *key = PyLong_FromUnsignedLong(partition_index);
    PyObject *found = key == NULL ? NULL : dict_item(dict, key);
    Py_XDECREF(key);
    PyErr_Clear(); /* then the batches are left, and nothing is lost */
    return found;
}

/* Returns a new reference, or NULL if the partition has none. */
static PyObject *log_end_find(const struct append_call *call, uint32_t partition_index)
{
    PyObject *log = partition_find(call->log_ends, partition_index);
    if (log != NULL && !Py_IS_TYPE(log, call->half->state->log_end_type)) {
        Py_CLEAR(log);
    }
    return log;
}

/* Returns how many batches of a run the spill file allows in the overflow; all if the log is the sink. */
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

/* A log takes one run of a call, because the next one would begin where this one ends. */
static uint32_t run_fit(const struct append_call *call, struct log_run *run, struct log_end_object *log,
                        uint32_t count)
{
    struct log_batch *batches = &call->batches[run->drained - call->drained];
    if (log == NULL || !log_end_take(log)) {
        return 0;
    }
    run->log = &log->core;
    uint32_t fit_count =
        log_end_fit(log, batches, log_run_describe(call->half->core, run->drained, count, batches));
    if (!log_end_remember(log, batches, fit_count)) {
        PyErr_Clear(); /* without memory, it is left, as above */
        fit_count = 0;
    }
    return fit_count;
}

static void run_plan(struct append_call *call, uint32_t first, uint32_t count)
{
    struct log_run *run = &call->runs[call->run_count];
    *run = (struct log_run){.drained = &call->drained[first], .batches = &call->batches[first], .count = count};
    call->log_end_objects[call->run_count] = log_end_find(call, run->drained->partition_index);
    uint32_t spill_count = run_spill_fit(call, run, &call->spill_files[call->run_count]);
    run->fit_count = run_fit(call, run, log_end_at(call, call->run_count), spill_count);
    call->run_count++;
}

/* A run has the drained batches of one partition. */
static void runs_plan(struct append_call *call)
{
    uint32_t first = 0;
    for (uint32_t end = 1; end <= call->drained_count; end++) {
        if (end == call->drained_count ||
            call->drained[end].partition_index != call->drained[first].partition_index) {
            run_plan(call, first, end - first);
            first = end;
        }
    }
}

/* ---- writing and completing ---- */

static void runs_write(struct append_call *call)
{
    uint32_t largest_record = call->largest_record;
    for (uint32_t i = 0; i < call->run_count; i++) {
        call->remembered_counts[i] = call->runs[i].fit_count; /* a damaged batch makes it less */
    }
    Py_BEGIN_ALLOW_THREADS
    for (uint32_t i = 0; i < call->run_count; i++) {
        struct log_run *run = &call->runs[i];
        if (run->fit_count > 0) {
            sender_renew_heartbeat(call->half->core);
            log_run_write(run, largest_record);
            largest_record = run->largest_record;
        }
    }
    Py_END_ALLOW_THREADS
}

static void run_end(struct append_call *call, uint32_t index)
{
    struct log_run *run = &call->runs[index];
    if (call->spills == NULL) {
        log_run_complete(call->half->core, run, call->completions, &call->half->wakes);
    } else {
        log_run_spill(call->half->core, run, &call->spill_files[index], &call->half->wakes);
    }
}

static void runs_complete(struct append_call *call)
{
    for (uint32_t i = 0; i < call->run_count; i++) {
        const struct log_run *run = &call->runs[i];
        struct log_end_object *log = log_end_at(call, i);
        if (call->remembered_counts[i] > 0) {
            log_end_settle(log, run->batches, call->remembered_counts[i], run->append.batch_count);
            run_end(call, i);
        }
        if (run->log != NULL) {
            log_end_leave(log);
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

/* Adds the rows and numbers of a pass. False, with an exception: there was no memory. */
static bool runs_tally(const struct append_call *call, struct delivered *delivered, PyObject *rows, uint64_t now_ns)
{
    for (uint32_t i = 0; i < call->run_count; i++) {
        const struct log_run *run = &call->runs[i];
        for (uint32_t j = 0; j < run->ended_count; j++) {
            delivered_add(delivered, &run->drained[j], now_ns);
        }
        if (run->largest_record > call->largest_record && run->largest_record > delivered->largest_record) {
            delivered->largest_record = run->largest_record;
        }
        if (run->ended_count > 0 && !list_put(rows, run_row(run))) {
            return false;
        }
    }
    return true;
}

/* Moves the batches that did not end to the front of `drained`, and returns how many they are. */
static uint32_t left_gather(struct append_call *call)
{
    uint32_t left_count = 0;
    for (uint32_t i = 0; i < call->run_count; i++) {
        const struct log_run *run = &call->runs[i];
        uint32_t count = run->count - run->ended_count;
        memmove(&call->drained[left_count], &run->drained[run->ended_count], count * sizeof *call->drained);
        left_count += count;
    }
    return left_count;
}

/* ---- the call ---- */

/* Drains, appends and completes once, and returns how many batches left the arena. */
static uint32_t call_pass(struct append_call *call, const struct drain_options *options, uint32_t partition_count)
{
    uint32_t ended_count = 0;
    runs_forget(call);
    call->drained_count = sender_drain(call->half->core, options, call->partitions, partition_count, call->drained,
                                       &call->seen_count);
    runs_plan(call);
    runs_write(call);
    runs_complete(call);
    for (uint32_t i = 0; i < call->run_count; i++) {
        ended_count += call->runs[i].ended_count;
    }
    return ended_count;
}

/* True if every drained batch has left the arena, and only in_flight_max ended the drain. Python counts the rows of a
 * spill file, so an overflow has one pass. */
static bool call_may_go_on(const struct append_call *call, uint32_t partition_count, uint32_t ended_count)
{
    return ended_count > 0 && ended_count == call->drained_count && call->seen_count == partition_count &&
           call->spills == NULL;
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
        uint32_t ended_count = call_pass(call, &options, partition_count);
        if (!runs_tally(call, delivered, rows, options.now_ns)) {
            return false;
        }
        goes_on = call_may_go_on(call, partition_count, ended_count) && arena_now_ns(arena) - begin_ns < PASSES_NS;
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
        PyObject *left = half_batches_to_list(call->half, call->drained, left_gather(call));
        answer = Py_BuildValue("(NIN)", left, call->seen_count, delivered_report(&delivered, 0, Py_NewRef(rows)));
    }
    Py_XDECREF(rows);
    return answer;
}

static PyObject *append_tuple(struct sender_half_object *self, const struct py_half_append_to_log *given,
                              PyObject *tuple)
{
    struct append_call call = {
        .half = self,
        .log_ends = given->log_ends,
        .spills = given->spills == Py_None ? NULL : given->spills,
        .largest_record = (uint32_t)given->largest_record};
    size_t count = (size_t)PyTuple_GET_SIZE(tuple);
    PyObject *result = NULL;
    if (count > UINT32_MAX) {
        PyErr_NoMemory();
    } else if (call_allocate(&call, count) && half_partitions_parse(self, tuple, call.partitions)) {
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
