/* SPDX-License-Identifier: Apache-2.0 */
#include "python/log/consumer_record.h"

#include "python/common/items.h"

#include <stddef.h>
#include <string.h>

enum field {
    FIELD_TOPIC,
    FIELD_PARTITION,
    FIELD_LEADER_EPOCH,
    FIELD_OFFSET,
    FIELD_TIMESTAMP,
    FIELD_TIMESTAMP_TYPE,
    FIELD_KEY,
    FIELD_VALUE,
    FIELD_HEADERS,
    FIELD_CHECKSUM,
    FIELD_KEY_SIZE,
    FIELD_VALUE_SIZE,
    FIELD_HEADER_SIZE,
    FIELD_COUNT,
};

enum timestamp_type { CREATE_TIME, LOG_APPEND_TIME };

static char *field_names[FIELD_COUNT + 1] = {
    "topic", "partition", "leader_epoch", "offset",   "timestamp",           "timestamp_type",        "key",
    "value", "headers",   "checksum",     "serialized_key_size", "serialized_value_size", "serialized_header_size",
    NULL};

struct consumer_record {
    PyObject_VAR_HEAD /* ob_size is the size of `bytes` */
    PyObject *given; /* all fields of a record that a program made; if NULL, the following fields are used */
    PyObject *place;
    PyObject *key;   /* NULL if the key is null or in `bytes` */
    PyObject *value; /* the same for the value */
    int64_t offset;
    int64_t timestamp_ms;
    int32_t key_size; /* -1 if null */
    int32_t value_size;
    int32_t header_count;
    int32_t timestamp_type;
    uint8_t bytes[];
};

static struct consumer_record *record_of(PyObject *object)
{
    return (struct consumer_record *)object;
}

/* ---- the bytes ---- */

static Py_ssize_t packed_size(const PyObject *part, int32_t size)
{
    return part != NULL || size < 0 ? 0 : size;
}

static const uint8_t *packed_value(const struct consumer_record *self)
{
    return self->bytes + packed_size(self->key, self->key_size);
}

static const uint8_t *packed_headers(const struct consumer_record *self)
{
    return packed_value(self) + packed_size(self->value, self->value_size);
}

static const uint8_t *packed_end(const struct consumer_record *self)
{
    return self->bytes + Py_SIZE(self);
}

/* ---- making ---- */

/* Allocates a record. The caller sets its other fields. */
static struct consumer_record *record_alloc(PyTypeObject *type, Py_ssize_t size)
{
    return PyObject_GC_NewVar(struct consumer_record, type, size);
}

/* Returns true if a part of this size becomes a bytes object when the record is made. */
static bool is_large(int32_t size)
{
    return size > PACKED_PART_SIZE_MAX;
}

static PyObject *slice_new(const struct record_source *source, const uint8_t *start, int32_t size)
{
    Py_ssize_t position = start - source->start;
    return PySequence_GetSlice(source->view, position, position + size);
}

/* Makes the object of a part that is not stored in the record. Returns false with an exception set. */
static bool part_make(const struct record_source *source, bool is_view, const uint8_t *start, int32_t size,
                      PyObject **part)
{
    *part = NULL;
    if (size < 0 || (!is_view && !is_large(size))) {
        return true;
    }
    *part = is_view ? slice_new(source, start, size) : bytes_or_none(start, size);
    return *part != NULL;
}

static void pack(struct consumer_record *self, const struct record_view *view)
{
    size_t key_size = (size_t)packed_size(self->key, view->key_size);
    size_t value_size = (size_t)packed_size(self->value, view->value_size);
    uint8_t *target = self->bytes;
    if (key_size > 0) {
        memcpy(target, view->key, key_size);
    }
    if (value_size > 0) {
        memcpy(target + key_size, view->value, value_size);
    }
    memcpy(target + key_size + value_size, view->headers, (size_t)(view->headers_end - view->headers));
}

static struct consumer_record *record_pack(PyTypeObject *type, const struct record_view *view, PyObject *key,
                                           PyObject *value)
{
    Py_ssize_t size = packed_size(key, view->key_size) + packed_size(value, view->value_size) +
                      (view->headers_end - view->headers);
    struct consumer_record *self = record_alloc(type, size);
    if (self != NULL) {
        self->given = self->place = NULL;
        self->key = key;
        self->value = value;
        self->key_size = view->key_size;
        self->value_size = view->value_size;
        self->header_count = view->header_count;
        pack(self, view);
    }
    return self;
}

PyObject *consumer_record_new(const struct module_state *state, const struct record_walk *walk, PyObject *place,
                              const struct record_source *source)
{
    const struct record_view *view = &walk->view;
    PyObject *key = NULL;
    PyObject *value = NULL;
    struct consumer_record *self = NULL;
    if (part_make(source, source->has_key_views, view->key, view->key_size, &key) &&
        part_make(source, source->has_value_views, view->value, view->value_size, &value)) {
        self = record_pack(state->consumer_record_type, view, key, value);
    }
    if (self == NULL) {
        Py_XDECREF(key);
        Py_XDECREF(value);
        return NULL;
    }
    self->place = Py_NewRef(place);
    self->offset = walk->offset;
    self->timestamp_ms = record_walk_timestamp_ms(walk);
    self->timestamp_type = walk->records->log_append_time_ms == NO_TIMESTAMP ? CREATE_TIME : LOG_APPEND_TIME;
    return (PyObject *)self;
}

/* Makes a record with the objects of the tuple `fields`, and takes over the tuple. It may be NULL with an exception
 * set. */
static PyObject *record_of_fields(PyTypeObject *type, PyObject *fields)
{
    struct consumer_record *self = fields == NULL ? NULL : record_alloc(type, 0);
    if (self == NULL) {
        Py_XDECREF(fields);
        return NULL;
    }
    self->given = fields;
    self->place = self->key = self->value = NULL;
    PyObject_GC_Track(self);
    return (PyObject *)self;
}

static PyObject *record_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    PyObject *fields[FIELD_COUNT];
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOOOOOO:ConsumerRecord", field_names, &fields[0],
                                     &fields[1], &fields[2], &fields[3], &fields[4], &fields[5], &fields[6],
                                     &fields[7], &fields[8], &fields[9], &fields[10], &fields[11], &fields[12])) {
        return NULL;
    }
    PyObject *tuple = PyTuple_New(FIELD_COUNT);
    for (int i = 0; i < FIELD_COUNT && tuple != NULL; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(fields[i]));
    }
    return record_of_fields(type, tuple);
}

static int record_traverse(PyObject *object, visitproc visit, void *arg)
{
    struct consumer_record *self = record_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->given);
    Py_VISIT(self->place);
    Py_VISIT(self->key);
    Py_VISIT(self->value);
    return 0;
}

static void record_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    struct consumer_record *self = record_of(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->given);
    Py_XDECREF(self->place);
    Py_XDECREF(self->key);
    Py_XDECREF(self->value);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- fields ---- */

static PyObject *part_object(PyObject *part, const uint8_t *start, int32_t size)
{
    return part != NULL ? Py_NewRef(part) : bytes_or_none(start, size);
}

/* Returns the size of all names and values of the headers in bytes, or -1 without headers. */
static PyObject *headers_size(const struct consumer_record *self)
{
    long long size = self->header_count == 0 ? -1 : 0;
    const uint8_t *cursor = packed_headers(self);
    struct record_header_view header;
    for (int32_t i = 0; i < self->header_count; i++) {
        if (record_header_read(&cursor, packed_end(self), &header) != STATUS_OK) {
            return PyErr_Format(PyExc_SystemError, "a header was valid at the first read, and is invalid now");
        }
        size += header.key_size + (header.value_size > 0 ? header.value_size : 0);
    }
    return PyLong_FromLongLong(size);
}

static PyObject *field_make(const struct consumer_record *self, uint32_t field)
{
    switch (field) {
    case FIELD_OFFSET:
        return PyLong_FromLongLong(self->offset);
    case FIELD_TIMESTAMP:
        return PyLong_FromLongLong(self->timestamp_ms);
    case FIELD_TIMESTAMP_TYPE:
        return PyLong_FromLong(self->timestamp_type);
    case FIELD_KEY:
        return part_object(self->key, self->bytes, self->key_size);
    case FIELD_VALUE:
        return part_object(self->value, packed_value(self), self->value_size);
    case FIELD_HEADERS:
        return headers_decode(tuple_of, packed_headers(self), packed_end(self), self->header_count);
    case FIELD_CHECKSUM: /* since magic 2, a record has no checksum */
        return Py_NewRef(Py_None);
    case FIELD_KEY_SIZE:
        return PyLong_FromLong(self->key_size);
    case FIELD_VALUE_SIZE:
        return PyLong_FromLong(self->value_size);
    case FIELD_HEADER_SIZE:
        return headers_size(self);
    default:
        return Py_NewRef(PyTuple_GET_ITEM(self->place, field));
    }
}

static PyObject *record_field(const void *object, uint32_t field)
{
    const struct consumer_record *self = object;
    return self->given != NULL ? Py_NewRef(PyTuple_GET_ITEM(self->given, field)) : field_make(self, field);
}

static PyObject *record_get(PyObject *object, void *field)
{
    return record_field(object, (uint32_t)(uintptr_t)field);
}

/* ---- the methods of a tuple ---- */

static PyObject *record_tuple(PyObject *object)
{
    return tuple_of(FIELD_COUNT, record_field, object);
}

static Py_ssize_t record_length(PyObject *object)
{
    (void)object;
    return FIELD_COUNT;
}

static PyObject *record_item(PyObject *object, Py_ssize_t index)
{
    if (index < 0 || index >= FIELD_COUNT) {
        return PyErr_Format(PyExc_IndexError, "a ConsumerRecord has %d fields, there is no field %zd", FIELD_COUNT,
                            index);
    }
    return record_field(object, (uint32_t)index);
}

static PyObject *record_subscript(PyObject *object, PyObject *key)
{
    if (PyIndex_Check(key)) {
        Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
        if (index == -1 && PyErr_Occurred()) {
            return NULL;
        }
        return record_item(object, index < 0 ? index + FIELD_COUNT : index);
    }
    PyObject *fields = record_tuple(object);
    PyObject *found = fields == NULL ? NULL : PyObject_GetItem(fields, key);
    Py_XDECREF(fields);
    return found;
}

/* Returns the fields of a record, or a tuple unchanged. Returns NULL without an exception for any other object. */
static PyObject *fields_of(PyTypeObject *type, PyObject *object)
{
    if (Py_TYPE(object) == type) {
        return record_tuple(object);
    }
    return PyTuple_Check(object) ? Py_NewRef(object) : NULL;
}

static PyObject *record_compare(PyObject *self, PyObject *other, int operation)
{
    PyObject *right = fields_of(Py_TYPE(self), other);
    if (right == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_NotImplemented);
    }
    PyObject *left = record_tuple(self);
    PyObject *answer = left == NULL ? NULL : PyObject_RichCompare(left, right, operation);
    Py_XDECREF(left);
    Py_DECREF(right);
    return answer;
}

static Py_hash_t record_hash(PyObject *object)
{
    PyObject *fields = record_tuple(object);
    Py_hash_t hash = fields == NULL ? -1 : PyObject_Hash(fields);
    Py_XDECREF(fields);
    return hash;
}

static PyObject *record_asdict(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    PyObject *dict = PyDict_New();
    for (uint32_t i = 0; i < FIELD_COUNT && dict != NULL; i++) {
        PyObject *field = record_field(object, i);
        if (field == NULL || PyDict_SetItemString(dict, field_names[i], field) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(field);
    }
    return dict;
}

static PyObject *record_repr(PyObject *object)
{
    PyObject *fields = record_tuple(object);
    PyObject *format = PyUnicode_FromString(
        "ConsumerRecord(topic=%r, partition=%r, leader_epoch=%r, offset=%r, timestamp=%r, timestamp_type=%r, key=%r, "
        "value=%r, headers=%r, checksum=%r, serialized_key_size=%r, serialized_value_size=%r, "
        "serialized_header_size=%r)");
    PyObject *text = fields == NULL || format == NULL ? NULL : PyUnicode_Format(format, fields);
    Py_XDECREF(fields);
    Py_XDECREF(format);
    return text;
}

static PyObject *record_reduce(PyObject *object, PyObject *nothing)
{
    (void)nothing;
    PyObject *fields = record_tuple(object);
    return fields == NULL ? NULL : Py_BuildValue("(ON)", Py_TYPE(object), fields);
}

static PyObject *record_make(PyObject *type, PyObject *iterable)
{
    PyObject *fields = PySequence_Tuple(iterable);
    if (fields != NULL && PyTuple_GET_SIZE(fields) != FIELD_COUNT) {
        PyErr_Format(PyExc_TypeError, "a ConsumerRecord has %d fields, got %zd", FIELD_COUNT, PyTuple_GET_SIZE(fields));
        Py_CLEAR(fields);
    }
    return record_of_fields((PyTypeObject *)type, fields);
}

/* Returns false with the ValueError of a named tuple set. */
static bool names_check(PyObject *fields, PyObject *changes)
{
    if (PyDict_GET_SIZE(fields) > FIELD_COUNT) {
        PyErr_Format(PyExc_ValueError, "%R has a name that is not a field: see ConsumerRecord._fields", changes);
    }
    return PyErr_Occurred() == NULL;
}

static PyObject *record_replace(PyObject *object, PyObject *args, PyObject *changes)
{
    PyObject *none = PyTuple_New(0);
    PyObject *fields = none != NULL && PyArg_ParseTuple(args, ":_replace") ? record_asdict(object, NULL) : NULL;
    PyObject *changed = NULL;
    if (fields != NULL &&
        (changes == NULL || (PyDict_Update(fields, changes) == 0 && names_check(fields, changes)))) {
        changed = record_new(Py_TYPE(object), none, fields);
    }
    Py_XDECREF(fields);
    Py_XDECREF(none);
    return changed;
}

/* ---- with other parts ---- */

static PyObject *given_with_parts(PyTypeObject *type, PyObject *given, PyObject *key, PyObject *value)
{
    PyObject *fields = PySequence_List(given);
    if (fields == NULL || PyList_SetItem(fields, FIELD_KEY, Py_NewRef(key)) < 0 ||
        PyList_SetItem(fields, FIELD_VALUE, Py_NewRef(value)) < 0) {
        Py_XDECREF(fields);
        return NULL;
    }
    PyObject *tuple = PyList_AsTuple(fields);
    Py_DECREF(fields);
    return record_of_fields(type, tuple);
}

static PyObject *record_with_parts(PyObject *object, PyObject *args)
{
    const struct consumer_record *self = record_of(object);
    PyObject *key;
    PyObject *value;
    if (!PyArg_ParseTuple(args, "OO:with_parts", &key, &value)) {
        return NULL;
    }
    if (self->given != NULL) {
        return given_with_parts(Py_TYPE(object), self->given, key, value);
    }
    const struct record_view view = {.key_size = self->key_size,
                                     .value_size = self->value_size,
                                     .header_count = self->header_count,
                                     .headers = packed_headers(self),
                                     .headers_end = packed_end(self)};
    struct consumer_record *changed = record_pack(Py_TYPE(object), &view, key, value);
    if (changed != NULL) {
        Py_INCREF(key);
        Py_INCREF(value);
        changed->place = Py_NewRef(self->place);
        changed->offset = self->offset;
        changed->timestamp_ms = self->timestamp_ms;
        changed->timestamp_type = self->timestamp_type;
        PyObject_GC_Track(changed);
    }
    return (PyObject *)changed;
}

/* ---- the type ---- */

#define FIELD(name, index, doc) {name, record_get, NULL, doc, (void *)(intptr_t)(index)}

static PyGetSetDef record_fields[FIELD_COUNT + 1] = {
    FIELD("topic", FIELD_TOPIC, "The name of the topic."),
    FIELD("partition", FIELD_PARTITION, "The number of the partition."),
    FIELD("leader_epoch", FIELD_LEADER_EPOCH, "The leader epoch of the batch."),
    FIELD("offset", FIELD_OFFSET, "The offset in the partition."),
    FIELD("timestamp", FIELD_TIMESTAMP, "Milliseconds since 1970, or -1 without a timestamp."),
    FIELD("timestamp_type", FIELD_TIMESTAMP_TYPE, "0: the producer's time. 1: the time of the append."),
    FIELD("key", FIELD_KEY, "The key, deserialized; None if the key is null."),
    FIELD("value", FIELD_VALUE, "The value, deserialized; None if the value is null."),
    FIELD("headers", FIELD_HEADERS, "A tuple of pairs: a name, and bytes or None."),
    FIELD("checksum", FIELD_CHECKSUM, "None: record batches have a checksum since magic 2, and records have none."),
    FIELD("serialized_key_size", FIELD_KEY_SIZE, "The bytes of the key, or -1 if it is null."),
    FIELD("serialized_value_size", FIELD_VALUE_SIZE, "The bytes of the value, or -1 if it is null."),
    FIELD("serialized_header_size", FIELD_HEADER_SIZE, "The bytes of all names and values of headers, or -1."),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef record_methods[] = {
    {"_asdict", record_asdict, METH_NOARGS, "The fields by their names."},
    {"_make", record_make, METH_O | METH_CLASS, "A record with these fields, given in order."},
    {"_replace", (PyCFunction)(void (*)(void))record_replace, METH_VARARGS | METH_KEYWORDS,
     "A copy of the record with the named fields replaced."},
    {"__reduce__", record_reduce, METH_NOARGS, "For pickle and copy."},
    {"with_parts", record_with_parts, METH_VARARGS,
     "A copy of the record with another key and value. Their sizes stay those in the log."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot record_slots[] = {
    {Py_tp_doc, "One record of a partition, with the fields of kafka-python's ConsumerRecord in the same order.\n\n"
                "It compares, unpacks, hashes and pickles as that named tuple, and has its ``_fields``, ``_asdict``,\n"
                "``_replace`` and ``_make``. It is not a tuple, and makes a field when a program reads it."},
    {Py_tp_new, record_new},
    {Py_tp_dealloc, record_dealloc},
    {Py_tp_traverse, record_traverse},
    {Py_tp_getset, record_fields},
    {Py_tp_methods, record_methods},
    {Py_tp_richcompare, record_compare},
    {Py_tp_hash, record_hash},
    {Py_tp_repr, record_repr},
    {Py_sq_length, record_length},
    {Py_sq_item, record_item},
    {Py_mp_length, record_length},
    {Py_mp_subscript, record_subscript},
    {0, NULL},
};

PyType_Spec consumer_record_spec = {
    .name = "shmaccum.log.consumer.record.ConsumerRecord",
    .basicsize = sizeof(struct consumer_record),
    .itemsize = 1,
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_SEQUENCE,
    .slots = record_slots,
};

static PyObject *field_name(const void *names, uint32_t index)
{
    return PyUnicode_InternFromString(((char *const *)names)[index]);
}

bool consumer_record_finish(PyTypeObject *type)
{
    PyObject *names = tuple_of(FIELD_COUNT, field_name, field_names);
    bool is_done = names != NULL && PyObject_SetAttrString((PyObject *)type, "_fields", names) == 0 &&
                   PyObject_SetAttrString((PyObject *)type, "__match_args__", names) == 0;
    Py_XDECREF(names);
    return is_done;
}
