/* SPDX-License-Identifier: Apache-2.0
 *
 * Batch: a drained batch in flight. Its buffers are bytes of the arena, so they must be released before the batch is
 * completed: each memoryview of them is counted (view_type.c), and completing a batch with a count above 0 raises
 * BatchInUseError. If a Batch object is freed before its completion, the batch is requeued (sender_half_type.c).
 */
#include "python/sender/batch_type.h"

#include "base/bytes.h"
#include "format/record.h"
#include "format/record_batch.h"
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/common/record_decode.h"
#include "python/common/view_type.h"

#include <stddef.h>
#include <structmember.h>

static struct batch_object *batch_of(PyObject *self)
{
    return (struct batch_object *)self;
}

static PyObject *arena_of_batch(PyObject *self)
{
    return (PyObject *)batch_of(self)->half->arena;
}

/* ---- birth and death ---- */

PyObject *batch_object_new(struct sender_half_object *half, const struct drained_batch *facts)
{
    const struct arena *arena = half->arena->core;
    uint32_t slot_count = (uint32_t)divide_rounded_up(facts->size, arena->geometry.batch_size);
    struct batch_object *self =
        PyObject_GC_NewVar(struct batch_object, half->state->batch_type, (Py_ssize_t)slot_count);
    if (self == NULL) {
        return NULL;
    }
    self->half = (struct sender_half_object *)Py_NewRef((PyObject *)half);
    self->facts = *facts;
    self->role_number = half->role_number;
    store_relaxed_u32(&self->export_count, 0);
    self->is_over = false;
    self->slot_count = slot_chain_walk(arena, facts->slot_index, self->slots, slot_count);
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static bool batch_role_is_current(const struct batch_object *self)
{
    return half_has_role(self->half) && self->role_number == self->half->role_number;
}

bool batch_object_is_current(const struct batch_object *self)
{
    const struct module_state *state = self->half->state;
    if (self->is_over) {
        raise_format(state, STATUS_STALE, "the batch was completed or requeued already: its memory may be reused");
        return false;
    }
    if (!batch_role_is_current(self)) {
        raise_format(state, STATUS_STALE, "the sender role that drained this batch has ended: drain it again");
        return false;
    }
    return true;
}

static void batch_abandon(const struct batch_object *self)
{
    struct sender_half_object *half = self->half;
    if (!self->is_over && batch_role_is_current(self) &&
        half->abandoned_count < half->arena->core->geometry.slot_count) {
        half->abandoned[half->abandoned_count++] =
            (struct abandoned_batch){.seq = self->facts.seq, .slot_index = self->facts.slot_index};
    }
}

/* Without tp_clear: a batch refers only to its sender half. The sender half clears each cycle that contains both. */
static int batch_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT((PyObject *)batch_of(object)->half);
    return 0;
}

static void batch_dealloc(PyObject *object)
{
    struct batch_object *self = batch_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    ALONE_BEGIN(arena_of_batch(object));
    batch_abandon(self);
    ALONE_END();
    Py_DECREF(self->half);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- bytes ---- */

/* Returns false if the chain in the arena is shorter than the batch. */
static bool batch_is_readable(const struct batch_object *self)
{
    if (!batch_object_is_current(self)) {
        return false;
    }
    const struct geometry *geometry = &self->half->arena->core->geometry;
    if ((uint64_t)self->slot_count * geometry->batch_size < self->facts.size) {
        raise_format(self->half->state, STATUS_CORRUPT,
                     "the batch has %u bytes, but its chain ends after %u buffers: quarantine it", self->facts.size,
                     self->slot_count);
        return false;
    }
    return true;
}

#define batch_readable_begin batch_is_readable
#define batch_readable_end any_end

#define METHODS_PART METHODS_DECLARED
#include "python/sender/batch_method_list.h"

static struct piece batch_piece(const struct batch_object *self, uint32_t index)
{
    const struct arena *arena = self->half->arena->core;
    uint32_t batch_size = arena->geometry.batch_size;
    uint32_t rest = self->facts.size - index * batch_size;
    return (struct piece){.start = arena_slot_data(arena, self->slots[index]),
                          .size = rest < batch_size ? rest : batch_size};
}

static PyObject *batch_memory(const void *batch, uint32_t index)
{
    struct batch_object *self = (struct batch_object *)(uintptr_t)batch;
    const struct view_counts counts = {.arena = &self->half->arena->export_count,
                                       .half = &self->half->export_count,
                                       .batch = &self->export_count};
    struct piece piece = batch_piece(self, index);
    return view_memory(self->half->state, (PyObject *)self, &counts, piece.start, piece.size);
}

PyObject *py_batch_buffers(struct batch_object *self)
{
    return tuple_of(self->slot_count, batch_memory, self);
}

PyObject *py_batch_tobytes(struct batch_object *self)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->facts.size);
    char *target = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    for (uint32_t i = 0; i < self->slot_count && bytes != NULL; i++) {
        struct piece piece = batch_piece(self, i);
        memcpy(target, piece.start, piece.size);
        target += piece.size;
    }
    return bytes;
}

PyObject *py_batch_decode(struct batch_object *self)
{
    PyObject *bytes = py_batch_tobytes(self);
    if (bytes == NULL) {
        return NULL;
    }
    PyObject *records = record_decode_bytes(self->half->state,
                                            (const uint8_t *)PyBytes_AS_STRING(bytes),
                                            (size_t)PyBytes_GET_SIZE(bytes));
    Py_DECREF(bytes);
    return records;
}

static PyObject *batch_part_of(const struct batch_object *self, PyObject *whole, struct record_range range)
{
    size_t size;
    PyObject *part = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(whole));
    if (part == NULL) {
        return NULL;
    }
    enum status status = record_batch_part((const uint8_t *)PyBytes_AS_STRING(whole), (size_t)PyBytes_GET_SIZE(whole),
                                           range, (uint8_t *)PyBytes_AS_STRING(part), &size);
    if (status != STATUS_OK) {
        Py_DECREF(part);
        return raise_status(self->half->state, status);
    }
    (void)_PyBytes_Resize(&part, (Py_ssize_t)size);
    return part;
}

PyObject *py_batch_part(struct batch_object *self, const struct py_batch_part *given)
{
    PyObject *whole = py_batch_tobytes(self);
    if (whole == NULL) {
        return NULL;
    }
    const struct record_range range = {(int32_t)given->first_record, (int32_t)given->record_count};
    PyObject *part = batch_part_of(self, whole, range);
    Py_DECREF(whole);
    return part;
}

/* ---- facts ---- */

static const struct partition_entry *batch_partition(const struct batch_object *self)
{
    const struct arena *arena = self->half->arena->core;
    if (arena == NULL) {
        arena_object_is_open(self->half->arena);
        return NULL;
    }
    return &arena->partitions[self->facts.partition_index];
}

PyObject *py_batch_topic(struct batch_object *self)
{
    const struct partition_entry *partition = batch_partition(self);
    const char *name;
    uint32_t size;
    if (partition == NULL) {
        return NULL;
    }
    if (registry_topic_name(self->half->arena->core, partition->topic_index, &name, &size) != STATUS_OK) {
        return raise_format(self->half->state, STATUS_CORRUPT, "partition %u names a topic that does not exist",
                            self->facts.partition_index);
    }
    return PyUnicode_DecodeUTF8(name, size, NULL);
}

PyObject *py_batch_partition(struct batch_object *self)
{
    const struct partition_entry *partition = batch_partition(self);
    return partition == NULL ? NULL : PyLong_FromLong(partition->partition);
}

/* A batch in several buffers has one record. */
PyObject *py_batch_record_size_max(struct batch_object *self)
{
    if (self->facts.record_count == 1 || self->slot_count != 1) {
        return PyLong_FromUnsignedLong(self->facts.size - RECORD_BATCH_HEADER_SIZE);
    }
    struct piece piece = batch_piece(self, 0);
    return PyLong_FromUnsignedLong(
        record_size_largest(piece.start + RECORD_BATCH_HEADER_SIZE, piece.start + piece.size));
}

/* Returns the sender's data of the batch, or NULL if it is not in flight. */
static const struct slot_note *batch_slot_note(const struct batch_object *self)
{
    return self->is_over || !batch_role_is_current(self)
               ? NULL
               : &self->half->core->notes[self->facts.slot_index];
}

PyObject *py_batch_is_ended(struct batch_object *self)
{
    const struct slot_note *note = batch_slot_note(self);
    return PyBool_FromLong(note != NULL && note->is_ended);
}

static PyObject *batch_repr(PyObject *object)
{
    const struct batch_object *self = batch_of(object);
    return PyUnicode_FromFormat("Batch(partition_index=%u, seq=%llu, record_count=%u, size=%u)",
                                self->facts.partition_index, (unsigned long long)self->facts.seq,
                                self->facts.record_count, self->facts.size);
}

#define FACT(name, type, doc)                                                                                    \
    {                                                                                                            \
        #name, type, offsetof(struct batch_object, facts) + offsetof(struct drained_batch, name), READONLY, doc  \
    }

static PyMemberDef batch_members[] = {
    FACT(acked_record_count, T_UINT, "The number of records of a split batch whose results are recorded."),
    FACT(attempt_count, T_UINT, "The number of transmissions, including this one."),
    FACT(base_sequence, T_INT, "Kafka's base sequence, or -1 without idempotence."),
    FACT(base_timestamp_ms, T_LONGLONG, "Timestamp of the first record."),
    FACT(crc, T_UINT, "CRC-32C as in the header."),
    FACT(created_ns, T_ULONGLONG, "The time at which the batch was opened, CLOCK_BOOTTIME."),
    FACT(linger_ns, T_LONGLONG, "The linger of the batch, or -1 if the sender's linger applies."),
    FACT(max_timestamp_ms, T_LONGLONG, "The largest timestamp."),
    FACT(partition_index, T_UINT, "Index in the arena's table of partitions."),
    FACT(producer_epoch, T_SHORT, "Kafka's producer epoch, or -1 without idempotence."),
    FACT(producer_id, T_LONGLONG, "Kafka's producer id, or -1 without idempotence."),
    FACT(record_count, T_UINT, "The number of records."),
    FACT(seq, T_ULONGLONG, "The number of the batch in its partition, never used twice."),
    FACT(size, T_UINT, "The size on the wire in bytes, including the header."),
    FACT(slot_index, T_UINT, "The slot of the batch, or of its head."),
    {NULL, 0, 0, 0, NULL},
};

#define METHODS_LIST "python/sender/batch_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot batch_slots[] = {
    {Py_tp_doc, "A drained batch in flight: its data, and its bytes in the arena."},
    {Py_tp_dealloc, batch_dealloc},
    {Py_tp_traverse, batch_traverse},
    {Py_tp_repr, batch_repr},
    {Py_tp_members, batch_members},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec batch_spec = {
    .name = "shmaccum._native.Batch",
    .basicsize = offsetof(struct batch_object, slots),
    .itemsize = sizeof(uint32_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = batch_slots,
};
