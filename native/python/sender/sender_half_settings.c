/* SPDX-License-Identifier: Apache-2.0
 *
 * The settings of SenderHalf: partitions (mute, available, backoff), the delivery clock, transactions, the producer id.
 */
#include "arena/delivery_clock.h"
#include "arena/producer_id.h"
#include "arena/transaction.h"
#include "python/common/errors.h"
#include "python/sender/sender_half_type.h"

#include <string.h>

/* ---- transactions and outages ---- */

PyObject *py_half_next_transaction_task(struct sender_half_object *self,
                                        const struct py_half_next_transaction_task *given)
{
    uint64_t number = 0;
    switch (sender_next_transaction_task(self->core, (uint64_t)given->timeout_ns, &number, &self->wakes)) {
    case TRANSACTION_TASK_COMMIT:
        return Py_BuildValue("(OK)", Py_True, (unsigned long long)number);
    case TRANSACTION_TASK_ABORT:
        return Py_BuildValue("(OK)", Py_False, (unsigned long long)number);
    default:
        Py_RETURN_NONE;
    }
}

PyObject *py_half_publish_outage(struct sender_half_object *self, const struct py_half_publish_outage *given)
{
    char *text;
    if (PyBytes_AsStringAndSize(given->text, &text, NULL) < 0) {
        return NULL;
    }
    delivery_clock_publish_outage(self->arena->core, (uint64_t)given->since_ns, text);
    Py_RETURN_NONE;
}

/* ---- the producer id ---- */

static bool sink_identity_parse(const struct sender_half_object *self, PyObject *object,
                                struct producer_identity *identity)
{
    if (object == NULL || object == Py_None) {
        return true;
    }
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != (Py_ssize_t)sizeof identity->sink) {
        raise_format(self->state, STATUS_INVALID, "the identity of a sink must be %zu bytes", sizeof identity->sink);
        return false;
    }
    memcpy(identity->sink, PyBytes_AS_STRING(object), sizeof identity->sink);
    return true;
}

PyObject *py_half_set_producer_id(struct sender_half_object *self, const struct py_half_set_producer_id *given)
{
    struct producer_identity identity;
    producer_identity_read(self->arena->core, &identity);
    if (!sink_identity_parse(self, given->sink_identity, &identity)) {
        return NULL;
    }
    identity.producer_id = given->producer_id;
    identity.producer_epoch = (int16_t)given->producer_epoch;
    producer_identity_set(self->arena->core, &identity);
    Py_RETURN_NONE;
}

PyObject *py_half_resequence(struct sender_half_object *self, const struct py_half_resequence *given)
{
    if (given->partition_index == EVERY_PARTITION) {
        sender_resequence_all(self->core);
    } else {
        sender_resequence(self->core, (uint32_t)given->partition_index);
    }
    Py_RETURN_NONE;
}

/* ---- before the role is taken ---- */

bool half_setting_begin(struct sender_half_object *self)
{
    if (self->is_closed) {
        PyErr_SetString(self->state->not_sender, "the sender is closed: create another one");
        return false;
    }
    if (half_has_role(self)) {
        PyErr_SetString(self->state->arena_in_use,
                        "this process is the sender already: call this before become_sender()");
        return false;
    }
    return true;
}

PyObject *py_half_set_sink_name(struct sender_half_object *self, const struct py_half_set_sink_name *given)
{
    char *text;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(given->name, &text, &size) < 0) {
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
