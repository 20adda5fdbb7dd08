/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena, its transaction: the meaning of the word, and the calls of a coordinator (arena/transaction.h).
 */
#include "arena/counters.h"
#include "arena/transaction.h"
#include "python/arena/arena_methods.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"

static const char *const state_names[] = {
    [TRANSACTION_NONE] = "none",         [TRANSACTION_OPEN] = "open",         [TRANSACTION_COMMITTING] = "committing",
    [TRANSACTION_DECIDED] = "decided",   [TRANSACTION_ABORTING] = "aborting", [TRANSACTION_ABORT_ONLY] = "abort only",
};

static const char *const why_names[TRANSACTION_WHY_COUNT] = {
    [TRANSACTION_WHY_NOT] = "",
    [TRANSACTION_WHY_ASKED] = "its coordinator aborted it",
    [TRANSACTION_WHY_DEATH] = "its coordinator died",
    [TRANSACTION_WHY_TIMEOUT] = "it was open for longer than transaction_timeout_ms",
    [TRANSACTION_WHY_FAILED_BATCH] = "records of it could not be delivered",
    [TRANSACTION_WHY_HOST_CRASH] = "the host crashed",
    [TRANSACTION_WHY_FENCED] = "another producer has the transactional_id, or the brokers aborted it for its time",
    [TRANSACTION_WHY_REFUSED] = "the sink refused it",
    [TRANSACTION_WHY_UNKNOWN] = "the sink does not tell how it ended",
};

static struct arena_object *arena_of(PyObject *self)
{
    return (struct arena_object *)self;
}

PyObject *arena_get_transaction(PyObject *object, void *unused)
{
    (void)unused;
    if (!arena_object_is_open(arena_of(object))) {
        return NULL;
    }
    uint64_t word = transaction_read(arena_of(object)->core);
    uint32_t state = transaction_word_state(word);
    uint32_t why = transaction_word_why(word);
    return Py_BuildValue("(Kss)", (unsigned long long)transaction_word_number(word),
                         state <= TRANSACTION_ABORT_ONLY ? state_names[state] : "damaged",
                         why < TRANSACTION_WHY_COUNT ? why_names[why] : "its word was damaged");
}

PyObject *arena_get_transaction_word(PyObject *object, void *unused)
{
    (void)unused;
    if (!arena_object_is_open(arena_of(object))) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(transaction_read(arena_of(object)->core));
}

PyObject *arena_get_transaction_begun_ns(PyObject *object, void *unused)
{
    (void)unused;
    if (!arena_object_is_open(arena_of(object))) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(load_relaxed_u64(&arena_of(object)->core->globals->transaction_begun_ns));
}

PyObject *arena_get_transaction_why(PyObject *object, void *unused)
{
    (void)unused;
    if (!arena_object_is_open(arena_of(object))) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(transaction_word_why(transaction_read(arena_of(object)->core)));
}

PyObject *arena_get_transaction_standing(PyObject *object, void *unused)
{
    (void)unused;
    if (!arena_object_is_open(arena_of(object))) {
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(load_relaxed_u64(&arena_of(object)->core->globals->transaction_standing));
}

PyObject *arena_begin_transaction(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena_object *self = arena_of(object);
    uint64_t number;
    if (!arena_object_attach(self)) {
        return NULL;
    }
    switch (transaction_begin(self->core, &number)) {
    case STATUS_OK:
        return PyLong_FromUnsignedLongLong(number);
    case STATUS_PENDING:
        return Py_NewRef(Py_None);
    case STATUS_BUSY:
        return raise_format(self->state, STATUS_BUSY, "another transaction of this arena is open, or its process has "
                            "not read the outcome yet: wait until it ends");
    default:
        return raise_format(self->state, STATUS_INVALID, "the arena has no transactional_id, and so no transactions: "
                            "create an arena with one");
    }
}

/* The number of a transaction that the caller gives. */
static bool number_parse(const struct arena_object *self, PyObject *given, uint64_t *number)
{
    static const struct integer_range range = {"number", 1, (int64_t)TRANSACTION_NUMBER_MAX};
    int64_t value = 0;
    bool is_right = integer_parse(self->state, given, &range, &value);
    *number = (uint64_t)value;
    return is_right;
}

static PyObject *answer(const struct arena_object *self, enum status status)
{
    return status == STATUS_OK ? Py_NewRef(Py_None) : raise_status(self->state, status);
}

PyObject *arena_commit_transaction(PyObject *object, PyObject *given)
{
    struct arena_object *self = arena_of(object);
    uint64_t number;
    if (!number_parse(self, given, &number) || !arena_object_attach(self)) {
        return NULL;
    }
    return answer(self, transaction_commit(self->core, number));
}

PyObject *arena_abort_transaction(PyObject *object, PyObject *given)
{
    struct arena_object *self = arena_of(object);
    uint64_t number;
    if (!number_parse(self, given, &number) || !arena_object_attach(self)) {
        return NULL;
    }
    return answer(self, transaction_abort(self->core, number, TRANSACTION_WHY_ASKED));
}

PyObject *arena_leave_transaction(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena_object *self = arena_of(object);
    if (!arena_object_attach(self)) {
        return NULL;
    }
    transaction_leave(self->core);
    Py_RETURN_NONE;
}

/* The steps whose times a producer tells, in the order of its own table (shmaccum/producer/producer.py). */
static const enum counter step_counters[] = {COUNTER_TRANSACTION_INIT_NS, COUNTER_TRANSACTION_BEGIN_NS,
                                             COUNTER_TRANSACTION_SEND_OFFSETS_NS, COUNTER_TRANSACTION_COMMIT_NS,
                                             COUNTER_TRANSACTION_ABORT_NS};

PyObject *arena_count_transaction_time(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "count_transaction_time", .names = {"step", "time_ns"}, .required_count = 2, .count = 2};
    static const struct integer_range steps = {"step", 0, sizeof step_counters / sizeof step_counters[0] - 1};
    static const struct integer_range times = {"time_ns", 0, INT64_MAX};
    struct arena_object *self = arena_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t step, time_ns;
    if (!arguments_bind(&signature, args, count, names, bound) || !arena_object_attach(self) ||
        !integer_parse(self->state, bound[0], &steps, &step) ||
        !integer_parse(self->state, bound[1], &times, &time_ns)) {
        return NULL;
    }
    counter_add(self->core, step_counters[step], (uint64_t)time_ns);
    Py_RETURN_NONE;
}

PyObject *arena_unfence_transactions(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena_object *self = arena_of(object);
    if (!arena_object_attach(self)) {
        return NULL;
    }
    return PyBool_FromLong(transaction_unfence(self->core) == STATUS_OK);
}
