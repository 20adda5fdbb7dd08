/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena, what became of records: find one, list many, wait for more.
 */
#include <time.h>

#include "arena/completion.h"
#include "python/arena/arena_methods.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/monotonic.h"
#include "python/common/token_type.h"

static struct arena_object *arena_of(PyObject *self)
{
    return (struct arena_object *)self;
}

/* ---- find ---- */

/* Result, error code, base offset, log append time, first record, record count. */
static PyObject *completion_to_tuple(const struct completion *completion)
{
    return Py_BuildValue("(iiLLII)", (int)completion->result, completion->error_code,
                         (long long)completion->base_offset, (long long)completion->log_append_time_ms,
                         completion->first_record, completion->record_count);
}

/* False with an exception set. */
static bool token_take(const struct arena_object *self, PyObject *token, const char *function,
                       struct record_token *key)
{
    if (!PyObject_TypeCheck(token, self->state->token_type)) {
        PyErr_Format(PyExc_TypeError, "%s() takes a Token, not %.80s", function, Py_TYPE(token)->tp_name);
        return false;
    }
    const struct token_object *named = (const struct token_object *)token;
    *key = (struct record_token){.seq = named->seq,
                                 .partition_index = named->partition_index,
                                 .slot_index = named->slot_index,
                                 .record_index = named->record_index};
    return arena_object_is_open(self);
}

PyObject *arena_completion_find(PyObject *object, PyObject *token)
{
    struct arena_object *self = arena_of(object);
    struct completion completion;
    struct record_token key;
    if (!token_take(self, token, "find", &key)) {
        return NULL;
    }
    enum status status = completion_find(self->core, &key, &completion);
    if (!arena_object_is_kept(self)) {
        return NULL;
    }
    switch (status) {
    case STATUS_OK:
        return completion_to_tuple(&completion);
    case STATUS_PENDING:
        Py_RETURN_NONE;
    case STATUS_INVALID:
        return raise_format(self->state, STATUS_INVALID, "the token is of another arena");
    case STATUS_RESULT_EXPIRED:
        return raise_format(self->state, STATUS_RESULT_EXPIRED,
                            "the result was overwritten before it was read: ask sooner, or create the arena with a "
                            "completion_count above %u", self->core->geometry.completion_count);
    default:
        return raise_status(self->state, STATUS_CORRUPT);
    }
}

PyObject *arena_completion_is_under_way(PyObject *object, PyObject *token)
{
    struct arena_object *self = arena_of(object);
    struct record_token key;
    return token_take(self, token, "is_under_way", &key) ? PyBool_FromLong(completion_is_under_way(self->core, &key))
                                                         : NULL;
}

/* ---- list ---- */

static PyObject *completion_to_row(uint64_t number, const struct completion *completion)
{
    return Py_BuildValue("(KIKiiLLII)", (unsigned long long)number, completion->partition_index,
                         (unsigned long long)completion->seq, (int)completion->result, completion->error_code,
                         (long long)completion->base_offset, (long long)completion->log_append_time_ms,
                         completion->first_record, completion->record_count);
}

/* Overwritten ones are behind the ring: nobody has to look at them one by one. */
static uint64_t first_kept(const struct arena *core, uint64_t first, uint64_t last)
{
    uint64_t count = core->geometry.completion_count;
    return last - first > count ? last - count : first;
}

static bool row_add(const struct arena *core, uint64_t number, PyObject *rows)
{
    struct completion completion;
    if (completion_at(core, number, &completion) != STATUS_OK) {
        return true;
    }
    PyObject *row = completion_to_row(number, &completion);
    bool is_added = row != NULL && PyList_Append(rows, row) == 0;
    Py_XDECREF(row);
    return is_added;
}

static PyObject *rows_list(const struct arena_object *self, uint64_t first, uint64_t last)
{
    const struct arena *core = self->core;
    PyObject *rows = PyList_New(0);
    for (uint64_t number = first_kept(core, first, last); rows != NULL && number < last; number++) {
        if (!row_add(core, number, rows)) {
            Py_CLEAR(rows);
        }
    }
    if (rows != NULL && !arena_object_is_kept(self)) {
        Py_CLEAR(rows);
    }
    return rows;
}

PyObject *arena_completion_list(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "completions", .names = {"first", "last"}, .required_count = 2, .count = 2};
    static const struct integer_range first_range = {"first", 0, INT64_MAX};
    static const struct integer_range last_range = {"last", 0, INT64_MAX};
    struct arena_object *self = arena_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t first;
    int64_t last;
    if (!arguments_bind(&signature, args, count, names, bound) || !arena_object_is_open(self) ||
        !integer_parse(self->state, bound[0], &first_range, &first) ||
        !integer_parse(self->state, bound[1], &last_range, &last)) {
        return NULL;
    }
    uint64_t tail = load_acquire_u64(&self->core->globals->completion_tail); /* C7 */
    uint64_t end = (uint64_t)last < tail ? (uint64_t)last : tail;
    return rows_list(self, (uint64_t)first < end ? (uint64_t)first : end, end);
}

/* ---- wait ---- */

/* The GIL is let go of in each slice; between two of them signals are looked for. */
static bool change_wait(struct arena *core, const atomic_u64 *cell, uint64_t seen, uint64_t timeout_ns)
{
    int64_t begin_ns = monotonic_ns();
    uint64_t waited_ns = 0;
    while (load_acquire_u64(cell) == seen && waited_ns < timeout_ns) { /* C7 */
        completion_wait_slice(core, cell, seen, timeout_ns - waited_ns);
        if (PyErr_CheckSignals() < 0) {
            return false;
        }
        waited_ns = (uint64_t)(monotonic_ns() - begin_ns);
    }
    return true;
}

/* A counted call: the arena cannot be closed under it. */
PyObject *arena_completion_wait(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "wait_completion", .names = {"tail", "timeout_ns"}, .required_count = 2, .count = 2};
    static const struct integer_range tail_range = {"tail", 0, INT64_MAX};
    static const struct integer_range timeout_range = {"timeout_ns", 0, INT64_MAX};
    struct arena_object *self = arena_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t tail;
    int64_t timeout_ns;
    if (!arguments_bind(&signature, args, count, names, bound) || !arena_object_attach(self) ||
        !integer_parse(self->state, bound[0], &tail_range, &tail) ||
        !integer_parse(self->state, bound[1], &timeout_range, &timeout_ns)) {
        return NULL;
    }
    const atomic_u64 *cell = &self->core->globals->completion_tail;
    self->call_count++;
    bool is_waited = change_wait(self->core, cell, (uint64_t)tail, (uint64_t)timeout_ns);
    self->call_count--;
    uint64_t found = load_acquire_u64(cell); /* C7 */
    return is_waited && arena_object_is_kept(self) ? PyLong_FromUnsignedLongLong(found) : NULL;
}

PyObject *arena_transaction_wait(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "wait_transaction", .names = {"word", "timeout_ns"}, .required_count = 2, .count = 2};
    static const struct integer_range timeout_range = {"timeout_ns", 0, INT64_MAX};
    struct arena_object *self = (struct arena_object *)object;
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t timeout_ns;
    if (!arguments_bind(&signature, args, count, names, bound) || !arena_object_attach(self) ||
        !integer_parse(self->state, bound[1], &timeout_range, &timeout_ns)) {
        return NULL;
    }
    unsigned long long word = PyLong_AsUnsignedLongLong(bound[0]);
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    const atomic_u64 *cell = &self->core->globals->transaction;
    self->call_count++;
    bool is_waited = change_wait(self->core, cell, word, (uint64_t)timeout_ns);
    self->call_count--;
    uint64_t found = load_acquire_u64(cell); /* C7 */
    return is_waited && arena_object_is_kept(self) ? PyLong_FromUnsignedLongLong(found) : NULL;
}

/* An event loop says so before it waits elsewhere. */
PyObject *arena_completion_expect(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena_object *self = arena_of(object);
    if (!arena_object_attach(self)) {
        return NULL;
    }
    completion_listen(self->core);
    return PyLong_FromUnsignedLongLong(load_acquire_u64(&self->core->globals->completion_tail)); /* C7 */
}
