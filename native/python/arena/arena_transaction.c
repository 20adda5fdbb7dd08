/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: reads the transaction word, and has the calls of a coordinator (arena/transaction.h).
 */
#include "arena/counters.h"
#include "arena/transaction.h"
#include "python/arena/arena_methods.h"
#include "python/common/errors.h"

PyObject *py_arena_transaction(struct arena_object *self)
{
    uint64_t word = transaction_read(self->core);
    return Py_BuildValue("(Kss)", (unsigned long long)transaction_word_number(word), transaction_state_name(word),
                         transaction_why_sentence(word));
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
