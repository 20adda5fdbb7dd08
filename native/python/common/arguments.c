/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/arguments.h"

#include "python/common/errors.h"

/* ---- positional and keyword arguments ---- */

static int name_find(const struct signature *signature, PyObject *name)
{
    for (int i = 0; i < signature->count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, signature->arguments[i].name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool keyword_bind(const struct signature *signature, PyObject *name, PyObject *value, PyObject **bound)
{
    int i = name_find(signature, name);
    if (i < 0) {
        PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument '%U'", signature->function, name);
        return false;
    }
    if (bound[i] != NULL) {
        PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument '%U'", signature->function, name);
        return false;
    }
    bound[i] = value;
    return true;
}

static bool required_check(const struct signature *signature, PyObject *const *bound)
{
    for (int i = 0; i < signature->count; i++) {
        if (bound[i] == NULL && signature->arguments[i].is_required) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", signature->function,
                         signature->arguments[i].name);
            return false;
        }
    }
    return true;
}

bool arguments_bind(const struct signature *signature, PyObject *const *args, Py_ssize_t count, PyObject *names,
                    PyObject **bound)
{
    if (count > signature->count) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments, %zd were given", signature->function,
                     signature->count, count);
        return false;
    }
    for (Py_ssize_t i = 0; i < signature->count; i++) {
        bound[i] = i < count ? args[i] : NULL;
    }
    Py_ssize_t keyword_count = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < keyword_count; i++) {
        if (!keyword_bind(signature, PyTuple_GET_ITEM(names, i), args[count + i], bound)) {
            return false;
        }
    }
    return required_check(signature, bound);
}

/* If the flag is omitted, *value does not change. */
static bool flag_parse_optional(PyObject *object, bool *value)
{
    int truth = object == NULL ? *value : PyObject_IsTrue(object);
    *value = truth > 0;
    return truth >= 0;
}

static bool argument_parse(const struct module_state *state, const struct argument *argument, PyObject *object,
                           void *field)
{
    const struct integer_range range = {argument->name, argument->min, argument->max};
    switch (argument->kind) {
    case ARGUMENT_INTEGER:
        *(int64_t *)field = argument->otherwise;
        return argument->is_required ? integer_parse(state, object, &range, field)
                                     : integer_parse_optional(state, object, &range, field);
    case ARGUMENT_WORD:
        *(uint64_t *)field = PyLong_AsUnsignedLongLong(object);
        return PyErr_Occurred() == NULL;
    case ARGUMENT_FLAG:
        *(bool *)field = argument->otherwise != 0;
        return flag_parse_optional(object, field);
    default:
        *(PyObject **)field = object;
        return true;
    }
}

bool arguments_parse(const struct module_state *state, const struct signature *signature, PyObject *const *args,
                     Py_ssize_t count, PyObject *names, void *fields)
{
    PyObject *bound[ARGUMENT_COUNT_MAX];
    if (!arguments_bind(signature, args, count, names, bound)) {
        return false;
    }
    for (int i = 0; i < signature->count; i++) {
        if (!argument_parse(state, &signature->arguments[i], bound[i], (char *)fields + ARGUMENT_SIZE * (size_t)i)) {
            return false;
        }
    }
    return true;
}

/* ---- numbers and flags ---- */

bool integer_parse(const struct module_state *state, PyObject *object, const struct integer_range *range,
                   int64_t *value)
{
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int, not %.80s", range->name, Py_TYPE(object)->tp_name);
        return false;
    }
    int overflow;
    long long parsed = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (parsed == -1 && PyErr_Occurred()) {
        return false;
    }
    if (overflow != 0 || parsed < range->min || parsed > range->max) {
        raise_format(state, STATUS_INVALID, "%s is %R, it must lie between %lld and %lld", range->name, object,
                     (long long)range->min, (long long)range->max);
        return false;
    }
    *value = parsed;
    return true;
}

bool integer_parse_optional(const struct module_state *state, PyObject *object, const struct integer_range *range,
                            int64_t *value)
{
    return object == NULL || object == Py_None || integer_parse(state, object, range, value);
}

/* ---- held objects ---- */

struct held_object {
    struct held_object *next;
    PyObject *object;     /* a reference, or NULL */
    Py_buffer buffer;     /* valid if buffer.obj is not NULL */
    struct record_header headers[];
};

static struct held_object *held_add(struct held *held, Py_ssize_t header_count)
{
    struct held_object *item = PyMem_Calloc(1, sizeof *item + (size_t)header_count * sizeof item->headers[0]);
    if (item == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    item->next = held->first;
    held->first = item;
    return item;
}

void held_release_slow(struct held *held)
{
    while (held->first != NULL) {
        struct held_object *item = held->first;
        held->first = item->next;
        Py_XDECREF(item->object);
        if (item->buffer.obj != NULL) {
            PyBuffer_Release(&item->buffer);
        }
        PyMem_Free(item);
    }
}

bool held_keep(struct held *held, PyObject *object)
{
    struct held_object *item = held_add(held, 0);
    if (item == NULL) {
        return false;
    }
    Py_INCREF(object);
    item->object = object;
    return true;
}

/* ---- bytes ---- */

/* Raises TypeError instead of BufferError, which in shmaccum means that the arena is full. */
static bool buffer_raise_type_error(const char *name)
{
    if (PyErr_ExceptionMatches(PyExc_BufferError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s must be contiguous bytes: copy it first", name);
    }
    return false;
}

bool bytes_parse_slow(const struct module_state *state, PyObject *object, const char *name, const void **start,
                      int32_t *size, struct held *held)
{
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be bytes-like or None, not %.80s: encode it first", name,
                     Py_TYPE(object)->tp_name);
        return false;
    }
    struct held_object *item = held_add(held, 0);
    if (item == NULL) {
        return false;
    }
    if (PyObject_GetBuffer(object, &item->buffer, PyBUF_SIMPLE) < 0) {
        return buffer_raise_type_error(name);
    }
    if (item->buffer.len > INT32_MAX) {
        raise_format(state, STATUS_RECORD_TOO_LARGE, "the %s has %zd bytes, a record takes at most %d", name,
                     item->buffer.len, INT32_MAX);
        return false;
    }
    *start = item->buffer.buf;
    *size = (int32_t)item->buffer.len;
    return true;
}

/* ---- headers ---- */

static bool header_key_parse(PyObject *key, struct record_header *header)
{
    if (!PyUnicode_Check(key)) {
        PyErr_Format(PyExc_TypeError, "a header's key must be a str, not %.80s", Py_TYPE(key)->tp_name);
        return false;
    }
    Py_ssize_t size;
    header->key = PyUnicode_AsUTF8AndSize(key, &size);
    if (header->key == NULL) {
        return false;
    }
    if (size > INT32_MAX) {
        PyErr_Format(PyExc_OverflowError, "a header's key has %zd bytes", size);
        return false;
    }
    header->key_size = (int32_t)size;
    return true;
}

/* `pair` may be a list that another thread changes during the append, so a tuple holds its two items. */
static bool header_parse(const struct module_state *state, PyObject *pair, struct record_header *header,
                         struct held *held)
{
    PyObject *items = PyTuple_Check(pair) || PyList_Check(pair) ? PySequence_Tuple(pair) : NULL;
    if (items == NULL || PyTuple_GET_SIZE(items) != 2) {
        Py_XDECREF(items);
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "headers must be a sequence of (str, bytes or None)");
        }
        return false;
    }
    bool is_parsed = held_keep(held, items) && header_key_parse(PyTuple_GET_ITEM(items, 0), header) &&
                     bytes_parse(state, PyTuple_GET_ITEM(items, 1), "a header's value", &header->value,
                                 &header->value_size, held);
    Py_DECREF(items);
    return is_parsed;
}

bool headers_parse(const struct module_state *state, PyObject *headers, struct record *record, struct held *held)
{
    if (!PyTuple_Check(headers) && !PyList_Check(headers)) {
        PyErr_Format(PyExc_TypeError, "headers must be a list or tuple of (str, bytes or None), not %.80s",
                     Py_TYPE(headers)->tp_name);
        return false;
    }
    PyObject *pairs = PySequence_Tuple(headers);
    if (pairs == NULL) {
        return false;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(pairs);
    struct held_object *item = count <= INT32_MAX ? held_add(held, count) : NULL;
    bool is_parsed = item != NULL;
    for (Py_ssize_t i = 0; i < count && is_parsed; i++) {
        is_parsed = header_parse(state, PyTuple_GET_ITEM(pairs, i), &item->headers[i], held);
    }
    Py_DECREF(pairs);
    record->headers = item == NULL ? NULL : item->headers;
    record->header_count = (int32_t)count;
    return is_parsed;
}

/* ---- the rest of a record ---- */

bool timestamp_parse(const struct module_state *state, PyObject *object, int64_t *timestamp_ms)
{
    static const struct integer_range range = {"timestamp_ms", 0, INT64_MAX / 1000};
    return integer_parse(state, object, &range, timestamp_ms);
}

bool topic_parse(PyObject *topic, const char **name, uint32_t *name_size)
{
    if (!PyUnicode_Check(topic)) {
        PyErr_Format(PyExc_TypeError, "topic must be a str, not %.80s", Py_TYPE(topic)->tp_name);
        return false;
    }
    Py_ssize_t size;
    *name = PyUnicode_AsUTF8AndSize(topic, &size);
    if (*name == NULL) {
        return false;
    }
    *name_size = size <= UINT32_MAX ? (uint32_t)size : UINT32_MAX;
    return true;
}

bool partition_parse(const struct module_state *state, PyObject *object, int32_t *partition)
{
    static const struct integer_range range = {"partition", 0, INT32_MAX};
    int64_t value;
    if (!integer_parse(state, object, &range, &value)) {
        return false;
    }
    *partition = (int32_t)value;
    return true;
}
