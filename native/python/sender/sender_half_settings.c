/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf, what it is told: about partitions (mute, available, backoff) and the producer id.
 */
#include "arena/delivery_clock.h"
#include "arena/producer_id.h"
#include "arena/transaction.h"
#include "python/common/errors.h"
#include "python/sender/sender_half_type.h"

#include <string.h>

static struct sender_half_object *half_of(PyObject *self)
{
    return (struct sender_half_object *)self;
}

/* ---- partitions ---- */

static bool partition_index_parse(const struct sender_half_object *self, PyObject *object, uint32_t *partition_index)
{
    static const struct integer_range range = {"partition_index", 0, UINT32_MAX};
    int64_t value;
    if (!integer_parse(self->state, object, &range, &value)) {
        return false;
    }
    *partition_index = (uint32_t)value;
    return true;
}

/* The sender tells one flag of one partition. */
typedef void partition_teller(struct sender_half *core, uint32_t partition_index, bool flag);

struct tell_arguments {
    int64_t partition_index;
    bool flag;
};

#define TELL_ARGUMENTS                                                          \
    {                                                                           \
        INTEGER_ARGUMENT(struct tell_arguments, partition_index, 0, UINT32_MAX), \
            FLAG_ARGUMENT(struct tell_arguments, flag)                          \
    }

static PyObject *partition_tell(PyObject *object, const struct argument_table *table, partition_teller *tell,
                                PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct sender_half_object *self = half_of(object);
    struct tell_arguments given = {0};
    if (!half_begin_with(self, table, args, count, names, &given)) {
        return NULL;
    }
    tell(self->core, (uint32_t)given.partition_index, given.flag);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_mute(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {
            .function = "mute", .names = {"partition_index", "is_muted"}, .required_count = 2, .count = 2},
        .arguments = TELL_ARGUMENTS};
    return partition_tell(object, &table, sender_mute, args, count, names);
}

PyObject *half_set_available(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "set_available",
                      .names = {"partition_index", "is_available"},
                      .required_count = 2,
                      .count = 2},
        .arguments = TELL_ARGUMENTS};
    return partition_tell(object, &table, sender_set_available, args, count, names);
}

PyObject *half_set_refused(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct refusal_arguments {
        int64_t partition_index;
        int64_t error_code;
    };
    static const struct argument_table table = {
        .signature = {.function = "set_refused",
                      .names = {"partition_index", "error_code"},
                      .required_count = 2,
                      .count = 2},
        .arguments = {INTEGER_ARGUMENT(struct refusal_arguments, partition_index, 0, UINT32_MAX),
                      INTEGER_ARGUMENT(struct refusal_arguments, error_code, INT16_MIN, INT16_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct refusal_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    sender_set_refused(self->core, (uint32_t)given.partition_index, (int16_t)given.error_code);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_end_backoff(PyObject *object, PyObject *given)
{
    struct sender_half_object *self = half_of(object);
    uint32_t partition_index;
    if (!partition_index_parse(self, given, &partition_index) || !half_begin(self)) {
        return NULL;
    }
    sender_end_backoff(self->core, partition_index);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_publish_queues(PyObject *object, PyObject *unused)
{
    struct sender_half_object *self = half_of(object);
    (void)unused;
    if (!half_begin(self)) {
        return NULL;
    }
    sender_publish_queues(self->core);
    return half_end(self, Py_NewRef(Py_None));
}

/* ---- the delivery clock ---- */

struct timeout_arguments {
    int64_t delivery_timeout_ns;
    bool counts_always;
};

PyObject *half_publish_delivery_timeout(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "publish_delivery_timeout",
                      .names = {"delivery_timeout_ns", "counts_always"},
                      .required_count = 1,
                      .count = 2},
        .arguments = {INTEGER_ARGUMENT(struct timeout_arguments, delivery_timeout_ns, 0, INT64_MAX),
                      FLAG_ARGUMENT(struct timeout_arguments, counts_always)}};
    struct sender_half_object *self = half_of(object);
    struct timeout_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    sender_set_delivery_timeout(self->core, (uint64_t)given.delivery_timeout_ns, given.counts_always);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_run_delivery_clock(PyObject *object, PyObject *given)
{
    static const struct integer_range run_range = {"run_ns", 0, INT64_MAX};
    struct sender_half_object *self = half_of(object);
    int64_t run_ns;
    if (!integer_parse(self->state, given, &run_range, &run_ns) || !half_begin(self)) {
        return NULL;
    }
    sender_run_delivery_clock(self->core, (uint64_t)run_ns);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_next_transaction_task(PyObject *object, PyObject *given)
{
    static const struct integer_range timeout_range = {"timeout_ns", 0, INT64_MAX};
    struct sender_half_object *self = half_of(object);
    int64_t timeout_ns;
    uint64_t number = 0;
    if (!integer_parse(self->state, given, &timeout_range, &timeout_ns) || !half_begin(self)) {
        return NULL;
    }
    switch (sender_advance_transaction(self->core, (uint64_t)timeout_ns, &number, &self->wakes)) {
    case TRANSACTION_TASK_COMMIT:
        return half_end(self, Py_BuildValue("(OK)", Py_True, (unsigned long long)number));
    case TRANSACTION_TASK_ABORT:
        return half_end(self, Py_BuildValue("(OK)", Py_False, (unsigned long long)number));
    default:
        return half_end(self, Py_NewRef(Py_None));
    }
}

struct end_arguments {
    int64_t number;
    int64_t why;
};

PyObject *half_end_transaction(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "end_transaction", .names = {"number", "why"}, .required_count = 1, .count = 2},
        .arguments = {INTEGER_ARGUMENT(struct end_arguments, number, 1, INT64_MAX),
                      INTEGER_ARGUMENT(struct end_arguments, why, 0, TRANSACTION_WHY_COUNT - 1)}};
    struct sender_half_object *self = half_of(object);
    struct end_arguments given = {0};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    enum transaction_why why = (enum transaction_why)given.why;
    enum status status = sender_end_transaction(self->core, (uint64_t)given.number, why);
    return half_end(self, status == STATUS_OK ? Py_NewRef(Py_None) : raise_status(self->state, status));
}

PyObject *half_fail_transaction(PyObject *object, PyObject *given)
{
    static const struct integer_range why_range = {"why", TRANSACTION_WHY_NOT + 1, TRANSACTION_WHY_COUNT - 1};
    struct sender_half_object *self = half_of(object);
    int64_t why;
    if (!integer_parse(self->state, given, &why_range, &why) || !half_begin(self)) {
        return NULL;
    }
    transaction_fail(self->arena->core, (enum transaction_why)why);
    return half_end(self, Py_NewRef(Py_None));
}

PyObject *half_keep_transaction_standing(PyObject *object, PyObject *given)
{
    struct sender_half_object *self = half_of(object);
    unsigned long long standing = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() != NULL || !half_begin(self)) {
        return NULL;
    }
    transaction_standing_store(self->arena->core, standing);
    return half_end(self, Py_NewRef(Py_None));
}

struct outage_arguments {
    int64_t since_ns;
    PyObject *text;
};

PyObject *half_publish_outage(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {
            .function = "publish_outage", .names = {"since_ns", "text"}, .required_count = 2, .count = 2},
        .arguments = {INTEGER_ARGUMENT(struct outage_arguments, since_ns, 0, INT64_MAX),
                      OBJECT_ARGUMENT(struct outage_arguments, text)}};
    struct sender_half_object *self = half_of(object);
    struct outage_arguments given = {0};
    char *text;
    if (!arguments_parse(self->state, &table, args, count, names, &given) ||
        PyBytes_AsStringAndSize(given.text, &text, NULL) < 0 || !half_begin(self)) {
        return NULL;
    }
    delivery_clock_publish_outage(self->arena->core, (uint64_t)given.since_ns, text);
    return half_end(self, Py_NewRef(Py_None));
}

/* ---- the producer id ---- */

struct identity_arguments {
    int64_t producer_id;
    int64_t producer_epoch;
    PyObject *sink_identity; /* left out: the sink that gave the last one */
};

static bool sink_identity_parse(const struct sender_half_object *self, PyObject *object,
                                struct producer_identity *identity)
{
    if (object == NULL || object == Py_None) {
        return true;
    }
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != (Py_ssize_t)sizeof identity->sink) {
        raise_format(self->state, STATUS_INVALID, "the identity of a sink is %zu bytes", sizeof identity->sink);
        return false;
    }
    memcpy(identity->sink, PyBytes_AS_STRING(object), sizeof identity->sink);
    return true;
}

PyObject *half_set_producer_id(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "set_producer_id",
                      .names = {"producer_id", "producer_epoch", "sink_identity"},
                      .required_count = 2,
                      .count = 3},
        .arguments = {INTEGER_ARGUMENT(struct identity_arguments, producer_id, -1, INT64_MAX),
                      INTEGER_ARGUMENT(struct identity_arguments, producer_epoch, -1, INT16_MAX),
                      OBJECT_ARGUMENT(struct identity_arguments, sink_identity)}};
    struct sender_half_object *self = half_of(object);
    struct identity_arguments given = {0};
    struct producer_identity identity;
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    producer_identity_read(self->arena->core, &identity);
    if (!sink_identity_parse(self, given.sink_identity, &identity)) {
        return half_end(self, NULL);
    }
    identity.producer_id = given.producer_id;
    identity.producer_epoch = (int16_t)given.producer_epoch;
    producer_identity_set(self->arena->core, &identity);
    return half_end(self, Py_NewRef(Py_None));
}

struct resequence_arguments {
    int64_t partition_index;
};

enum { EVERY_PARTITION = -1 };

PyObject *half_resequence(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct argument_table table = {
        .signature = {.function = "resequence", .names = {"partition_index"}, .required_count = 0, .count = 1},
        .arguments = {INTEGER_ARGUMENT(struct resequence_arguments, partition_index, 0, UINT32_MAX)}};
    struct sender_half_object *self = half_of(object);
    struct resequence_arguments given = {.partition_index = EVERY_PARTITION};
    if (!half_begin_with(self, &table, args, count, names, &given)) {
        return NULL;
    }
    if (given.partition_index == EVERY_PARTITION) {
        sender_resequence_all(self->core);
    } else {
        sender_resequence(self->core, (uint32_t)given.partition_index);
    }
    return half_end(self, Py_NewRef(Py_None));
}

/* ---- before the role is taken ---- */

static bool half_may_be_told(const struct sender_half_object *self)
{
    if (self->is_closed) {
        PyErr_SetString(self->state->not_sender, "the sender is closed: make another one");
        return false;
    }
    if (half_has_role(self)) {
        PyErr_SetString(self->state->arena_in_use,
                        "this process is the sender already: call this before become_sender()");
        return false;
    }
    return true;
}

PyObject *half_want_dead_letters(PyObject *object, PyObject *is_wanted)
{
    struct sender_half_object *self = half_of(object);
    bool value = false;
    if (!flag_parse_optional(is_wanted, &value) || !half_may_be_told(self)) {
        return NULL;
    }
    self->wants_dead_letters = value;
    Py_RETURN_NONE;
}

PyObject *half_set_sink_name(PyObject *object, PyObject *name)
{
    struct sender_half_object *self = half_of(object);
    char *text;
    Py_ssize_t size;
    if (!half_may_be_told(self) || PyBytes_AsStringAndSize(name, &text, &size) < 0) {
        return NULL;
    }
    if (size >= SINK_NAME_SIZE || memchr(text, '\0', (size_t)size) != NULL) {
        return raise_format(self->state, STATUS_INVALID, "the name of a sink has at most %d bytes, and no NUL among "
                            "them", SINK_NAME_SIZE - 1);
    }
    memset(self->sink_name, 0, sizeof self->sink_name);
    memcpy(self->sink_name, text, (size_t)size);
    Py_RETURN_NONE;
}
