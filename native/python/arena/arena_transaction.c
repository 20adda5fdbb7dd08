/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: the meaning of its transaction word, and the calls of a coordinator (arena/transaction.h).
 */
#include "arena/counters.h"
#include "arena/transaction.h"
#include "python/arena/arena_methods.h"
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
    [TRANSACTION_WHY_FENCED] = "another producer has the transactional_id, or the brokers aborted it after a timeout",
    [TRANSACTION_WHY_REFUSED] = "the sink rejected it",
    [TRANSACTION_WHY_UNKNOWN] = "the sink does not report its outcome",
};

PyObject *py_arena_transaction(struct arena_object *self)
{
    uint64_t word = transaction_read(self->core);
    uint32_t state = transaction_word_state(word);
    uint32_t why = transaction_word_why(word);
    return Py_BuildValue("(Kss)", (unsigned long long)transaction_word_number(word),
                         state <= TRANSACTION_ABORT_ONLY ? state_names[state] : "damaged",
                         why < TRANSACTION_WHY_COUNT ? why_names[why] : "its word was damaged");
}

PyObject *py_arena_begin_transaction(struct arena_object *self)
{
    uint64_t number;
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

/* The steps whose times a producer reports, in the order of its table (shmaccum/producer/producer.py). */
static const enum counter step_counters[TRANSACTION_STEP_COUNT] = {
    COUNTER_TRANSACTION_INIT_NS,   COUNTER_TRANSACTION_BEGIN_NS, COUNTER_TRANSACTION_SEND_OFFSETS_NS,
    COUNTER_TRANSACTION_COMMIT_NS, COUNTER_TRANSACTION_ABORT_NS,
};

PyObject *py_arena_count_transaction_time(struct arena_object *self,
                                          const struct py_arena_count_transaction_time *given)
{
    counter_add(self->core, step_counters[given->step], (uint64_t)given->time_ns);
    Py_RETURN_NONE;
}
