/* SPDX-License-Identifier: Apache-2.0
 */
#include "python/log/log_end_type.h"

#include "format/sequence.h"
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/items.h"
#include "python/common/module_methods.h"

#include <stddef.h>
#include <structmember.h>

/* ---- the numbers ---- */

struct segment_end_object {
    PyObject ob_base;
    struct segment_end end;
};

struct index_position_object {
    PyObject ob_base;
    struct index_position position;
};

struct index_file_end_object {
    PyObject ob_base;
    struct index_file_end end;
};

static void number_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    type->tp_free(object);
    Py_DECREF(type);
}

#define SEGMENT_NUMBER(name, type, doc) {#name, type, offsetof(struct segment_end_object, end.name), 0, doc}
#define POSITION_NUMBER(name, doc) {#name, T_LONGLONG, offsetof(struct index_position_object, position.name), 0, doc}
#define INDEX_NUMBER(name, type, doc) {#name, type, offsetof(struct index_file_end_object, end.name), 0, doc}

static PyMemberDef segment_end_members[] = {
    SEGMENT_NUMBER(descriptor, T_INT, "The open file, or -1 if it is closed."),
    SEGMENT_NUMBER(device, T_ULONGLONG, "The device of the open file."),
    SEGMENT_NUMBER(first_timestamp_ms, T_LONGLONG, "The largest timestamp of the first batch, if there is one."),
    SEGMENT_NUMBER(inode, T_ULONGLONG, "The inode of the open file."),
    SEGMENT_NUMBER(is_lost, T_BOOL, "True if its path does not lead to the open file, or bytes are missing."),
    SEGMENT_NUMBER(is_torn, T_BOOL, "True if bytes follow the last whole batch."),
    SEGMENT_NUMBER(next_offset, T_LONGLONG, "The offset of the next batch."),
    SEGMENT_NUMBER(size, T_LONGLONG, "Bytes of whole batches."),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef index_position_members[] = {
    POSITION_NUMBER(base_offset, "The base offset of the segment."),
    POSITION_NUMBER(entry_position, "The position of the batch of the last entry."),
    POSITION_NUMBER(indexed_timestamp_ms, "The timestamp of the last entry in the time index."),
    POSITION_NUMBER(interval, "The smallest distance of two entries in bytes of the log."),
    POSITION_NUMBER(max_timestamp_ms, "The largest timestamp so far."),
    POSITION_NUMBER(max_timestamp_offset, "The last offset of the batch with the largest timestamp."),
    {NULL, 0, 0, 0, NULL},
};

static PyMemberDef index_file_end_members[] = {
    INDEX_NUMBER(descriptor, T_INT, "The open file, or -1 if it is closed."),
    INDEX_NUMBER(size, T_LONGLONG, "Bytes of whole entries."),
    {NULL, 0, 0, 0, NULL},
};

#define NUMBERS_SLOTS(variable, members, doc) \
    static PyType_Slot variable[] = {         \
        {Py_tp_doc, doc},                     \
        {Py_tp_new, PyType_GenericNew},       \
        {Py_tp_dealloc, number_dealloc},      \
        {Py_tp_members, members},             \
        {0, NULL},                            \
    }

NUMBERS_SLOTS(segment_end_slots, segment_end_members, "The numbers of an open segment that an append advances.");
NUMBERS_SLOTS(index_position_slots, index_position_members, "The numbers on which the next index entry depends.");
NUMBERS_SLOTS(index_file_end_slots, index_file_end_members, "The numbers of an open index that an append advances.");

#define NUMBERS_SPEC(type, object, type_slots)                    \
    {                                                             \
        .name = "shmaccum._native." type, .basicsize = sizeof(object), \
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, .slots = (type_slots) \
    }

PyType_Spec segment_end_spec = NUMBERS_SPEC("SegmentEnd", struct segment_end_object, segment_end_slots);
PyType_Spec index_position_spec = NUMBERS_SPEC("IndexPosition", struct index_position_object, index_position_slots);
PyType_Spec index_file_end_spec = NUMBERS_SPEC("IndexFileEnd", struct index_file_end_object, index_file_end_slots);

/* ---- the end of a log ---- */

static struct log_end_object *log_end_of(PyObject *self)
{
    return (struct log_end_object *)self;
}

static struct index_file_end *index_of(PyObject *part)
{
    return &((struct index_file_end_object *)part)->end;
}

static void log_end_connect(struct log_end_object *self)
{
    self->core.segment = &((struct segment_end_object *)self->parts[0])->end;
    self->core.position = &((struct index_position_object *)self->parts[1])->position;
    self->core.offset_index = index_of(self->parts[2]);
    self->core.time_index = index_of(self->parts[3]);
    self->is_open = true;
}

struct log_end_arguments {
    PyObject *parts[4];
    PyObject *known;
    PyObject *row_type;
    PyObject *path;
    long long leader_epoch;
    long long segment_bytes;
    long long segment_ms;
    int verifies_written;
};

static bool log_end_parse(const struct module_state *state, PyObject *args, PyObject *keywords,
                       struct log_end_arguments *given)
{
    static char *names[] = {"segment", "position", "offset_index", "time_index", "known",
                            "row_type", "path", "leader_epoch", "segment_bytes", "segment_ms", "verifies_written",
                            NULL};
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!O!O!O!OOLLL|p:LogEnd", names, state->segment_end_type,
                                     &given->parts[0], state->index_position_type, &given->parts[1],
                                     state->index_file_end_type, &given->parts[2], state->index_file_end_type,
                                     &given->parts[3], &PyDict_Type, &given->known, &given->row_type,
                                     &given->path, &given->leader_epoch, &given->segment_bytes, &given->segment_ms,
                                     &given->verifies_written)) {
        return false;
    }
    if (!is_tuple_type(given->row_type)) {
        PyErr_SetString(PyExc_TypeError, "row_type must be a subclass of tuple without instance attributes");
        return false;
    }
    if (given->path != Py_None && !PyBytes_Check(given->path)) {
        PyErr_SetString(PyExc_TypeError, "path must be bytes or None");
        return false;
    }
    return true;
}

static PyObject *log_end_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    struct log_end_arguments given = {.verifies_written = 0};
    if (!log_end_parse(PyType_GetModuleState(type), args, keywords, &given)) {
        return NULL;
    }
    struct log_end_object *self = log_end_of(type->tp_alloc(type, 0));
    if (self == NULL) {
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        self->parts[i] = Py_NewRef(given.parts[i]);
    }
    self->known = Py_NewRef(given.known);
    self->row_type = (PyTypeObject *)Py_NewRef(given.row_type);
    self->path = Py_NewRef(given.path);
    self->core.path = self->path == Py_None ? NULL : PyBytes_AS_STRING(self->path);
    self->core.leader_epoch = (int32_t)given.leader_epoch;
    self->core.segment_bytes = given.segment_bytes;
    self->core.segment_ms = given.segment_ms;
    self->core.verifies_written = given.verifies_written != 0;
    log_end_connect(self);
    return (PyObject *)self;
}

/* Without tp_clear: no object to which it refers can refer back. The table of the producers contains only numbers. */
static int log_end_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (int i = 0; i < 4; i++) {
        Py_VISIT(log_end_of(object)->parts[i]);
    }
    Py_VISIT(log_end_of(object)->known);
    Py_VISIT((PyObject *)log_end_of(object)->row_type);
    return 0;
}

static void log_end_dealloc(PyObject *object)
{
    struct log_end_object *self = log_end_of(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(self->parts[i]);
    }
    Py_XDECREF(self->known);
    Py_XDECREF((PyObject *)self->row_type);
    Py_XDECREF(self->path);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMemberDef log_end_members[] = {
    {"is_open", T_BOOL, offsetof(struct log_end_object, is_open), 0, "If False, C appends nothing."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot log_end_slots[] = {
    {Py_tp_doc, "LogEnd(segment, position, offset_index, time_index, known, row_type, path, leader_epoch, "
                "segment_bytes, segment_ms): an append to the end of a partition's log."},
    {Py_tp_new, log_end_new},
    {Py_tp_dealloc, log_end_dealloc},
    {Py_tp_traverse, log_end_traverse},
    {Py_tp_members, log_end_members},
    {0, NULL},
};

PyType_Spec log_end_spec = NATIVE_TYPE("LogEnd", struct log_end_object, log_end_slots, Py_TPFLAGS_HAVE_GC);

/* ---- calls ---- */

bool log_end_begin_call(struct log_end_object *log)
{
    bool is_free;
    ALONE_BEGIN((PyObject *)log);
    is_free = !log->is_in_call;
    log->is_in_call = true;
    ALONE_END();
    return is_free;
}

void log_end_end_call(struct log_end_object *log)
{
    ALONE_BEGIN((PyObject *)log);
    log->is_in_call = false;
    ALONE_END();
}

/* ---- the producers' table ---- */

enum row_field { ROW_EPOCH, ROW_FIRST_SEQUENCE, ROW_LAST_SEQUENCE, ROW_BASE_OFFSET, ROW_LAST_OFFSET, ROW_TIMESTAMP,
                 ROW_FIELD_COUNT };

/* Returns a new reference to the rows of a producer, or NULL if the producer is unknown. */
static PyObject *rows_of(const struct log_end_object *log, int64_t producer_id)
{
    PyObject *key = PyLong_FromLongLong(producer_id);
    PyObject *rows = key == NULL ? NULL : dict_item(log->known, key);
    Py_XDECREF(key);
    PyErr_Clear();
    if (rows != NULL && !PyList_CheckExact(rows)) {
        Py_CLEAR(rows);
    }
    return rows;
}

/* Returns a new reference to the newest row of a producer, or NULL. */
static PyObject *newest_row(const struct log_end_object *log, int64_t producer_id)
{
    PyObject *rows = rows_of(log, producer_id);
    Py_ssize_t count = rows == NULL ? 0 : PyList_GET_SIZE(rows);
    PyObject *row = count == 0 ? NULL : list_item(rows, count - 1);
    Py_XDECREF(rows);
    PyErr_Clear();
    if (row != NULL && (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) != ROW_FIELD_COUNT)) {
        Py_CLEAR(row);
    }
    return row;
}

/* Returns -1 if the field is not a number. */
static long long row_number(PyObject *row, enum row_field field)
{
    long long number = PyLong_AsLongLong(PyTuple_GET_ITEM(row, field));
    PyErr_Clear();
    return number;
}

/* Returns the sequence after the newest known batch of the producer, or -1 if the producer or its epoch is unknown. */
static int32_t next_sequence(const struct log_end_object *log, const struct log_batch *batch)
{
    PyObject *row = newest_row(log, batch->producer_id);
    long long epoch = row == NULL ? -1 : row_number(row, ROW_EPOCH);
    long long last = row == NULL ? -1 : row_number(row, ROW_LAST_SEQUENCE);
    Py_XDECREF(row);
    return epoch != batch->producer_epoch || last < 0 || last > INT32_MAX ? -1 : sequence_increment((int32_t)last, 1);
}

uint32_t log_end_fit(const struct log_end_object *log, const struct log_batch *batches, uint32_t count)
{
    const struct segment_end *segment = log->core.segment;
    if (count == 0 || !log->is_open || segment->descriptor < 0 || segment->is_lost) {
        return 0;
    }
    uint32_t fitting = segment_fit(&log->core, batches, count);
    if (fitting == 0) {
        return 0;
    }
    return log_batches_in_sequence(batches, fitting, batches->producer_id < 0 ? -1 : next_sequence(log, batches));
}

static PyObject *row_make(PyTypeObject *type, const struct log_batch *batch, int64_t base_offset)
{
    int32_t last_sequence = sequence_increment(batch->base_sequence, (int32_t)batch->record_count - 1);
    PyObject *row = type->tp_alloc(type, ROW_FIELD_COUNT);
    if (row == NULL) {
        return NULL;
    }
    PyTuple_SET_ITEM(row, ROW_EPOCH, PyLong_FromLong(batch->producer_epoch));
    PyTuple_SET_ITEM(row, ROW_FIRST_SEQUENCE, PyLong_FromLong(batch->base_sequence));
    PyTuple_SET_ITEM(row, ROW_LAST_SEQUENCE, PyLong_FromLong(last_sequence));
    PyTuple_SET_ITEM(row, ROW_BASE_OFFSET, PyLong_FromLongLong(base_offset));
    PyTuple_SET_ITEM(row, ROW_LAST_OFFSET, PyLong_FromLongLong(base_offset + batch->record_count - 1));
    PyTuple_SET_ITEM(row, ROW_TIMESTAMP, PyLong_FromLongLong(batch->max_timestamp_ms));
    if (PyErr_Occurred() != NULL) {
        Py_CLEAR(row);
    }
    return row;
}

/* Deletes the rows [first, end). Needs no memory. */
static void rows_delete(PyObject *rows, Py_ssize_t first, Py_ssize_t end)
{
    if (first < end && PyList_SetSlice(rows, first, end, NULL) < 0) {
        PyErr_Clear();
    }
}

bool log_end_add_rows(struct log_end_object *log, const struct log_batch *batches, uint32_t count)
{
    PyObject *rows = count == 0 || batches[0].producer_id < 0 ? NULL : rows_of(log, batches[0].producer_id);
    int64_t offset = log->core.segment->next_offset;
    Py_ssize_t known_count = rows == NULL ? 0 : PyList_GET_SIZE(rows);
    for (uint32_t i = 0; i < count && rows != NULL; i++) {
        if (!list_put(rows, row_make(log->row_type, &batches[i], offset))) {
            rows_delete(rows, known_count, PyList_GET_SIZE(rows));
            Py_DECREF(rows);
            return false;
        }
        offset += batches[i].record_count;
    }
    Py_XDECREF(rows);
    return true;
}

void log_end_keep_written(struct log_end_object *log, const struct log_batch *batches, uint32_t count,
                     uint32_t written_count)
{
    PyObject *rows = count == 0 || batches[0].producer_id < 0 ? NULL : rows_of(log, batches[0].producer_id);
    if (rows == NULL) {
        return;
    }
    Py_ssize_t row_count = PyList_GET_SIZE(rows);
    rows_delete(rows, row_count - (Py_ssize_t)(count - written_count), row_count);
    rows_delete(rows, 0, PyList_GET_SIZE(rows) - PRODUCER_ROWS_KEPT);
    Py_DECREF(rows);
}
