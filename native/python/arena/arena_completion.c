/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: finds the result of a record, lists results, and waits for new ones.
 */
#include <time.h>

#include "arena/completion.h"
#include "python/arena/arena_methods.h"
#include "python/common/errors.h"
#include "python/common/monotonic.h"
#include "python/common/token_type.h"

/* ---- find ---- */

/* Returns false with an exception set. */
static bool token_take(const struct arena_object *self, PyObject *token, const char *function,
                       struct record_token *key)
{
    if (!PyObject_TypeCheck(token, self->state->token_type)) {
        PyErr_Format(PyExc_TypeError, "%s() takes a Token, not %.80s", function, Py_TYPE(token)->tp_name);
        return false;
    }
    *key = token_of((const struct token_object *)token);
    return true;
}

PyObject *py_arena_find(struct arena_object *self, const struct py_arena_find *given)
{
    struct completion completion;
    struct record_token key;
    if (!token_take(self, given->token, "find", &key)) {
        return NULL;
    }
    switch (completion_find(self->core, &key, &completion)) {
    case STATUS_OK:
        return completion_to_tuple(&completion);
    case STATUS_PENDING:
        Py_RETURN_NONE;
    case STATUS_INVALID:
        return raise_format(self->state, STATUS_INVALID, "the token belongs to another arena");
    case STATUS_RESULT_EXPIRED:
        return raise_format(self->state, STATUS_RESULT_EXPIRED,
                            "the result was overwritten before it was read: read it sooner, or create the arena with a "
                            "completion_count above %u", self->core->geometry.completion_count);
    default:
        return raise_status(self->state, STATUS_CORRUPT);
    }
}

PyObject *py_arena_is_under_way(struct arena_object *self, const struct py_arena_is_under_way *given)
{
    struct record_token key;
    if (!token_take(self, given->token, "is_under_way", &key)) {
        return NULL;
    }
    return PyBool_FromLong(completion_is_under_way(self->core, &key));
}

/* ---- list ---- */

struct completions {
    const struct arena *arena;
    uint64_t first;
};

/* An overwritten result is omitted. */
static PyObject *completion_row(const void *all, uint32_t index)
{
    const struct completions *completions = all;
    struct completion completion;
    uint64_t number = completions->first + index;
    if (completion_at(completions->arena, number, &completion) != STATUS_OK) {
        return NULL;
    }
    return Py_BuildValue("(KIKiiLLII)", (unsigned long long)number, completion.partition_index,
                         (unsigned long long)completion.seq, (int)completion.result, completion.error_code,
                         (long long)completion.base_offset, (long long)completion.log_append_time_ms,
                         completion.first_record, completion.record_count);
}

PyObject *py_arena_completions(struct arena_object *self, const struct py_arena_completions *given)
{
    uint64_t tail = load_acquire_u64(&self->core->globals->completion_tail); /* C7 */
    uint64_t end = (uint64_t)given->last < tail ? (uint64_t)given->last : tail;
    uint64_t first = (uint64_t)given->first < end ? (uint64_t)given->first : end;
    uint32_t kept = self->core->geometry.completion_count; /* the ring has no older results */
    const struct completions completions = {.arena = self->core, .first = end - first > kept ? end - kept : first};
    return list_of((uint32_t)(end - completions.first), completion_row, &completions);
}

/* ---- wait ---- */

/* Releases the GIL in each slice, and checks signals between slices. */
static PyObject *change_wait(struct arena_object *self, const atomic_u64 *cell, uint64_t seen, uint64_t timeout_ns)
{
    int64_t begin_ns = monotonic_ns();
    uint64_t waited_ns = 0;
    bool is_interrupted = false;
    self->call_count++;
    while (!is_interrupted && load_acquire_u64(cell) == seen && waited_ns < timeout_ns) { /* C7 */
        Py_BEGIN_ALLOW_THREADS
        completion_wait_slice(self->core, cell, seen, timeout_ns - waited_ns);
        Py_END_ALLOW_THREADS
        is_interrupted = PyErr_CheckSignals() < 0;
        waited_ns = (uint64_t)(monotonic_ns() - begin_ns);
    }
    self->call_count--;
    return is_interrupted ? NULL : PyLong_FromUnsignedLongLong(load_acquire_u64(cell)); /* C7 */
}

/* The call is counted, so the arena cannot be closed during it. */
PyObject *py_arena_wait_completion(struct arena_object *self, const struct py_arena_wait_completion *given)
{
    return change_wait(self, &self->core->globals->completion_tail, (uint64_t)given->tail,
                       (uint64_t)given->timeout_ns);
}

PyObject *py_arena_wait_transaction(struct arena_object *self, const struct py_arena_wait_transaction *given)
{
    return change_wait(self, &self->core->globals->transaction, given->word, (uint64_t)given->timeout_ns);
}

/* An event loop calls this before it waits in its selector. */
PyObject *py_arena_expect_completion(struct arena_object *self)
{
    completion_listen(self->core);
    return PyLong_FromUnsignedLongLong(load_acquire_u64(&self->core->globals->completion_tail)); /* C7 */
}
