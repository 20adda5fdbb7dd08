/* SPDX-License-Identifier: Apache-2.0
 *
 * Token: identifies one appended record. It has only numbers, and is not garbage collected, because one is made per
 * record.
 */
#include "python/common/token_type.h"

#include <stddef.h>
#include <structmember.h>

PyObject *completion_to_tuple(const struct completion *completion)
{
    return Py_BuildValue("(iiLLII)", (int)completion->result, completion->error_code,
                         (long long)completion->base_offset, (long long)completion->log_append_time_ms,
                         completion->first_record, completion->record_count);
}

static void token_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static bool token_is_equal(const struct token_object *left, const struct token_object *right)
{
    return left->seq == right->seq && left->partition_index == right->partition_index &&
           left->record_index == right->record_index && left->slot_index == right->slot_index;
}

static PyObject *token_compare(PyObject *self, PyObject *other, int operation)
{
    if (Py_TYPE(self) != Py_TYPE(other) || (operation != Py_EQ && operation != Py_NE)) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    bool is_equal = token_is_equal((struct token_object *)self, (struct token_object *)other);
    return PyBool_FromLong(is_equal == (operation == Py_EQ));
}

static Py_hash_t token_hash(PyObject *object)
{
    const struct token_object *self = (const struct token_object *)object;
    uint64_t mixed = self->seq * UINT64_C(0x9e3779b97f4a7c15) ^
                     ((uint64_t)self->partition_index << 32 | self->record_index) * UINT64_C(0xc2b2ae3d27d4eb4f);
    Py_hash_t hash = (Py_hash_t)(mixed ^ mixed >> 32);
    return hash == -1 ? -2 : hash;
}

static PyObject *token_repr(PyObject *object)
{
    const struct token_object *self = (const struct token_object *)object;
    return PyUnicode_FromFormat("Token(partition_index=%u, seq=%llu, record_index=%u)", self->partition_index,
                                (unsigned long long)self->seq, self->record_index);
}

static PyMemberDef token_members[] = {
    {"partition_index", T_UINT, offsetof(struct token_object, partition_index), READONLY,
     "The topic-partition: an index into the arena's table of partitions."},
    {"slot_index", T_UINT, offsetof(struct token_object, slot_index), READONLY, "The slot of the batch."},
    {"seq", T_ULONGLONG, offsetof(struct token_object, seq), READONLY,
     "The number of the batch in its partition, never used twice."},
    {"record_index", T_UINT, offsetof(struct token_object, record_index), READONLY, "Its place in the batch, from 0."},
    {"timestamp_ms", T_LONGLONG, offsetof(struct token_object, timestamp_ms), READONLY,
     "The record's timestamp, in milliseconds since 1970."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot token_slots[] = {
    {Py_tp_doc, "Identifies one appended record permanently; Arena.find() returns its result."},
    {Py_tp_dealloc, token_dealloc},
    {Py_tp_richcompare, token_compare},
    {Py_tp_hash, token_hash},
    {Py_tp_repr, token_repr},
    {Py_tp_members, token_members},
    {0, NULL},
};

PyType_Spec token_spec = NATIVE_TYPE("Token", struct token_object, token_slots,
                                     Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION);
