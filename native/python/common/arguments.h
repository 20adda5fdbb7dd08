/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts the arguments of a call to C types.
 *
 * A record points into Python objects while it is written, and an append may release the GIL while it waits for a lock.
 * Another thread could then change a list or resize a bytearray. Therefore, a record points only into an argument of
 * the running call, to which the caller has a reference, or into an object that the call holds by an exported buffer or
 * a reference. A record of plain `bytes` needs neither.
 */
#ifndef PYTHON_COMMON_ARGUMENTS_H
#define PYTHON_COMMON_ARGUMENTS_H

#include "base/wall_clock.h"
#include "format/record.h"
#include "python/common/module_state.h"

/* ---- positional and keyword arguments ---- */

enum {
    ARGUMENT_COUNT_MAX = 10,
    ARGUMENT_SIZE = 8, /* bytes of the field for a parsed argument */
};

enum argument_kind { ARGUMENT_OBJECT, ARGUMENT_INTEGER, ARGUMENT_WORD, ARGUMENT_FLAG };

struct argument {
    const char *name;
    enum argument_kind kind;
    bool is_required;
    int64_t otherwise; /* the value of an integer that is omitted or None, or of a flag that is omitted */
    int64_t min;       /* limits of an integer */
    int64_t max;
};

/* The arguments of a call, required ones first. */
struct signature {
    const char *function; /* for messages */
    const struct argument *arguments;
    int count;
};

/* Fills bound[0..signature->count) with borrowed references, or NULL. Returns false with TypeError set. */
bool arguments_bind(const struct signature *signature, PyObject *const *args, Py_ssize_t count, PyObject *names,
                    PyObject **bound);

/* Fills fields, which have ARGUMENT_SIZE bytes each, in the order of the arguments: PyObject *, int64_t,
 * uint64_t or bool. Returns false with an exception set. */
bool arguments_parse(const struct module_state *state, const struct signature *signature, PyObject *const *args,
                     Py_ssize_t count, PyObject *names, void *fields);

/* Compares names by identity, because those of a call and of a signature are interned. Returns false if a name is
 * unknown. */
static inline bool keywords_bind(const struct signature *signature, PyObject *const *interned, PyObject *const *values,
                                 PyObject *names, PyObject **bound)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        const PyObject *name = PyTuple_GET_ITEM(names, i);
        int position = 0;
        while (position < signature->count && interned[position] != name) {
            position++;
        }
        if (UNLIKELY(position == signature->count || bound[position] != NULL)) {
            return false;
        }
        bound[position] = values[i];
    }
    return true;
}

/* The same as arguments_bind for a call that is made once per record. Its first argument is required. */
static inline bool arguments_bind_interned(const struct signature *signature, PyObject *const *interned,
                                           PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject **bound)
{
    if (UNLIKELY(count > signature->count)) {
        return arguments_bind(signature, args, count, names, bound);
    }
    for (Py_ssize_t i = 0; i < signature->count; i++) {
        bound[i] = NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        bound[i] = args[i];
    }
    if (names != NULL && !keywords_bind(signature, interned, args + count, names, bound)) {
        return arguments_bind(signature, args, count, names, bound);
    }
    return LIKELY(bound[0] != NULL) || arguments_bind(signature, args, count, names, bound);
}

struct integer_range {
    const char *name; /* for messages */
    int64_t min;
    int64_t max;
};

/* Returns false with TypeError set if it is not an int, and with InvalidArgumentError if it is out of range. */
bool integer_parse(const struct module_state *state, PyObject *object, const struct integer_range *range,
                   int64_t *value);

/* The same for an optional argument. If it is omitted or None, *value does not change. */
bool integer_parse_optional(const struct module_state *state, PyObject *object, const struct integer_range *range,
                            int64_t *value);

/* ---- records ---- */

struct held_object;

struct held {
    struct held_object *first;
};

void held_release_slow(struct held *held);

static inline void held_release(struct held *held)
{
    if (UNLIKELY(held->first != NULL)) {
        held_release_slow(held);
    }
}

/* Holds a reference until held_release. Returns false with MemoryError set if there is no memory. */
bool held_keep(struct held *held, PyObject *object);

/* Parses bytes-like or None. `name` is "key" or "value". */
bool bytes_parse_slow(const struct module_state *state, PyObject *object, const char *name, const void **start,
                      int32_t *size, struct held *held);

static inline bool bytes_parse(const struct module_state *state, PyObject *object, const char *name,
                               const void **start, int32_t *size, struct held *held)
{
    if (LIKELY(PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) <= INT32_MAX)) {
        *start = PyBytes_AS_STRING(object);
        *size = (int32_t)PyBytes_GET_SIZE(object);
        return true;
    }
    if (object == Py_None) {
        *start = NULL;
        *size = -1;
        return true;
    }
    return bytes_parse_slow(state, object, name, start, size, held);
}

/* Parses a sequence of (str, bytes-like or None). */
bool headers_parse(const struct module_state *state, PyObject *headers, struct record *record, struct held *held);

/* Parses milliseconds since 1970, an int that is not negative. */
bool timestamp_parse(const struct module_state *state, PyObject *object, int64_t *timestamp_ms);

/* The parts of one record, as borrowed references. NULL or None means null, no headers, or the current time. */
struct record_objects {
    PyObject *key;
    PyObject *value;
    PyObject *headers;
    PyObject *timestamp_ms;
};

static inline bool record_time_parse(const struct module_state *state, struct wall_clock *clock, PyObject *object,
                                     int64_t *timestamp_ms)
{
    if (LIKELY(object == NULL || object == Py_None)) {
        *timestamp_ms = wall_clock_ms(clock);
        return true;
    }
    return timestamp_parse(state, object, timestamp_ms);
}

static inline bool record_parse(const struct module_state *state, struct wall_clock *clock,
                                const struct record_objects *objects, struct record *record, struct held *held)
{
    record->headers = NULL;
    record->header_count = 0;
    return record_time_parse(state, clock, objects->timestamp_ms, &record->timestamp_ms) &&
           bytes_parse(state, objects->key, "key", &record->key, &record->key_size, held) &&
           bytes_parse(state, objects->value, "value", &record->value, &record->value_size, held) &&
           (LIKELY(objects->headers == NULL || objects->headers == Py_None) ||
            headers_parse(state, objects->headers, record, held));
}

/* Parse a topic and a partition for the registry. */
bool topic_parse(PyObject *topic, const char **name, uint32_t *name_size);
bool partition_parse(const struct module_state *state, PyObject *object, int32_t *partition);

#endif
