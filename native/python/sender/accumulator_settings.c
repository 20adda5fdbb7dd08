/* SPDX-License-Identifier: Apache-2.0
 *
 * Accumulator, the sender's half: what it is told about partitions (mute, available, backoff) and the producer id.
 */
#include "arena/producer_id.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"

#include <string.h>

static struct accumulator_object *accumulator_of(PyObject *self)
{
    return (struct accumulator_object *)self;
}

/* ---- partitions ---- */

static bool partition_index_parse(const struct accumulator_object *self, PyObject *object, uint32_t *partition_index)
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
typedef void partition_teller(struct accumulator *core, uint32_t partition_index, bool flag);

static PyObject *partition_tell(PyObject *object, const struct signature *signature, partition_teller *tell,
                                PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    uint32_t partition_index;
    bool flag = false;
    if (!arguments_bind(signature, args, count, names, bound) ||
        !partition_index_parse(self, bound[0], &partition_index) || !flag_parse_optional(bound[1], &flag) ||
        !accumulator_sender_begin(self)) {
        return NULL;
    }
    tell(self->core, partition_index, flag);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

PyObject *accumulator_sender_mute(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "mute", .names = {"partition_index", "is_muted"}, .required_count = 2, .count = 2};
    return partition_tell(object, &signature, accumulator_mute, args, count, names);
}

PyObject *accumulator_sender_set_available(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {.function = "set_available",
                                               .names = {"partition_index", "is_available"},
                                               .required_count = 2,
                                               .count = 2};
    return partition_tell(object, &signature, accumulator_set_available, args, count, names);
}

PyObject *accumulator_sender_end_backoff(PyObject *object, PyObject *given)
{
    struct accumulator_object *self = accumulator_of(object);
    uint32_t partition_index;
    if (!partition_index_parse(self, given, &partition_index) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_end_backoff(self->core, partition_index);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

PyObject *accumulator_sender_publish_queues(PyObject *object, PyObject *unused)
{
    struct accumulator_object *self = accumulator_of(object);
    (void)unused;
    if (!accumulator_sender_begin(self)) {
        return NULL;
    }
    accumulator_publish_queues(self->core);
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}

/* ---- the producer id ---- */

/* Left out: that of the sink which gave the last one. */
static bool sink_identity_parse(const struct accumulator_object *self, PyObject *object,
                                struct producer_identity *identity)
{
    if (object == NULL || object == Py_None) {
        producer_identity_read(self->core->arena, identity);
        return true;
    }
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != (Py_ssize_t)sizeof identity->sink) {
        raise_format(self->state, STATUS_INVALID, "the identity of a sink is %zu bytes", sizeof identity->sink);
        return false;
    }
    memcpy(identity->sink, PyBytes_AS_STRING(object), sizeof identity->sink);
    return true;
}

PyObject *accumulator_sender_set_producer_id(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                             PyObject *names)
{
    static const struct signature signature = {.function = "set_producer_id",
                                               .names = {"producer_id", "producer_epoch", "sink_identity"},
                                               .required_count = 2,
                                               .count = 3};
    static const struct integer_range id_range = {"producer_id", -1, INT64_MAX};
    static const struct integer_range epoch_range = {"producer_epoch", -1, INT16_MAX};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct producer_identity identity;
    int64_t producer_epoch;
    if (!arguments_bind(&signature, args, count, names, bound) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    bool is_parsed = sink_identity_parse(self, bound[2], &identity) &&
                     integer_parse(self->state, bound[0], &id_range, &identity.producer_id) &&
                     integer_parse(self->state, bound[1], &epoch_range, &producer_epoch);
    if (is_parsed) {
        identity.producer_epoch = (int16_t)producer_epoch;
        producer_identity_set(self->core->arena, &identity);
    }
    return accumulator_sender_end(self, is_parsed ? Py_NewRef(Py_None) : NULL);
}

PyObject *accumulator_sender_resequence(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "resequence", .names = {"partition_index"}, .required_count = 0, .count = 1};
    struct accumulator_object *self = accumulator_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    uint32_t partition_index = 0;
    if (!arguments_bind(&signature, args, count, names, bound)) {
        return NULL;
    }
    bool is_all = bound[0] == NULL || bound[0] == Py_None;
    if ((!is_all && !partition_index_parse(self, bound[0], &partition_index)) || !accumulator_sender_begin(self)) {
        return NULL;
    }
    if (is_all) {
        accumulator_resequence_all(self->core);
    } else {
        accumulator_resequence(self->core, partition_index);
    }
    return accumulator_sender_end(self, Py_NewRef(Py_None));
}
