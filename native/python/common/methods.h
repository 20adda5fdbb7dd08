/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines the methods and properties of a type from one list, such as python/arena/arena_method_list.h.
 *
 * ::
 *
 *     a list               ┌─ METHODS_DECLARED ─> the prototype of py_TYPE_NAME, and the struct of its arguments
 *     (rows, and macros    ├─ METHODS_WRAPPED ──> a function that CPython calls, which calls py_TYPE_NAME
 *      of the type)        ├─ METHOD_ROWS ──────> rows of a PyMethodDef array, with the text signature
 *                          └─ PROPERTY_ROWS ────> rows of a PyGetSetDef array
 *
 * A row names a guard G, which is a pair of functions. G_begin(self) returns false with an exception set if the call is
 * not allowed. G_end(self, result) takes over the result, which may be NULL, and returns it. The wrapper parses the
 * arguments and calls py_TYPE_NAME between the two.
 *
 * A list begins with macros: TYPE, the prefix of its functions; SELF, the struct of its objects; STATE(self), the state
 * of the module; ENTER(object) and LEAVE(), the critical section of a call (python/common/alone.h). Then it includes
 * this file, and at its end python/common/methods_end.h.
 *
 *     PROPERTY(guard, name, doc)                  PyObject *py_TYPE_name(SELF *self)
 *     NO_ARGUMENTS(guard, name, doc)              PyObject *py_TYPE_name(SELF *self)
 *     METHOD(guard, name, arguments, doc)         PyObject *py_TYPE_name(SELF *self, const struct py_TYPE_name *given)
 *
 * The first argument of this kind is bytes-like, and is held during the call:
 *
 *     METHOD_OF_BYTES(guard, name, first, arguments, doc)
 *         PyObject *py_TYPE_name(SELF *self, const Py_buffer *bytes, const struct py_TYPE_name *given)
 *
 * Short methods are expressions of `self`, and with arguments, of `given`:
 *
 *     VALUE(guard, name, expression, doc)                     a property
 *     RESULT(guard, name, expression, doc)                    a method without arguments
 *     RESULT_OF(guard, name, arguments, expression, doc)      a method with arguments
 *
 * NONE_AFTER(call) is the expression that makes a call and is None.
 *
 * The arguments of a method are listed without commas, optional ones last:
 *
 *     OBJECT(name)                                PyObject *name, borrowed
 *     OBJECT_OR_NONE(name)                        the same; NULL if it is left out
 *     INTEGER(name, least, most)                  int64_t name
 *     INTEGER_OR(name, default, least, most)      the same; the default if it is left out or None
 *     WORD(name)                                  uint64_t name, any of 64 bits
 *     FLAG(name)                                  bool name
 *     FLAG_OR_FALSE(name), FLAG_OR_TRUE(name)     the same; false, or true, if it is left out
 *
 * Usage: define METHODS_PART, and include the list.
 */
#ifndef PYTHON_COMMON_METHODS_H
#define PYTHON_COMMON_METHODS_H

#include "python/common/alone.h"
#include "python/common/arguments.h"

#define METHODS_DECLARED 1
#define METHODS_WRAPPED 2
#define METHOD_ROWS 3
#define PROPERTY_ROWS 4

#define JOIN_NAMES(prefix, type, name) prefix##_##type##_##name
#define JOIN(prefix, type, name) JOIN_NAMES(prefix, type, name)
#define ENTRY(name) JOIN(py, TYPE, name)
#define WRAPPER(name) JOIN(call, TYPE, name)
#define BYTES_HELD(name) JOIN(held, TYPE, name)

#define NONE_AFTER(call) ((call), Py_NewRef(Py_None))

/* The guard of methods that may always be called. */
static inline bool any_begin(const void *self)
{
    (void)self;
    return true;
}

static inline PyObject *any_end(const void *self, PyObject *result)
{
    (void)self;
    return result;
}

#endif

#undef PROPERTY
#undef NO_ARGUMENTS
#undef METHOD
#undef METHOD_OF_BYTES
#undef VALUE
#undef RESULT
#undef RESULT_OF
#undef WITHOUT_ARGUMENTS
#undef WITH_ARGUMENTS
#undef OBJECT
#undef OBJECT_OR_NONE
#undef INTEGER
#undef INTEGER_OR
#undef WORD
#undef FLAG
#undef FLAG_OR_FALSE
#undef FLAG_OR_TRUE

#if METHODS_PART == METHODS_DECLARED
/* Each field takes 8 bytes, so that its position follows from its number (arguments_parse). */
#define OBJECT(name) PyObject *name;
#define OBJECT_OR_NONE(name) PyObject *name;
#define INTEGER(name, least, most) int64_t name;
#define INTEGER_OR(name, otherwise, least, most) int64_t name;
#define WORD(name) uint64_t name;
#define FLAG(name) _Alignas(ARGUMENT_SIZE) bool name;
#define FLAG_OR_FALSE(name) FLAG(name)
#define FLAG_OR_TRUE(name) FLAG(name)
#define PROPERTY(guard, name, doc) PyObject *ENTRY(name)(SELF *self);
#define NO_ARGUMENTS(guard, name, doc) PyObject *ENTRY(name)(SELF *self);
#define VALUE(guard, name, expression, doc)
#define RESULT(guard, name, expression, doc)
#define RESULT_OF(guard, name, arguments, expression, doc) \
    struct ENTRY(name) {                                   \
        arguments                                          \
    };
#define METHOD(guard, name, arguments, doc)  \
    RESULT_OF(guard, name, arguments, , doc) \
    PyObject *ENTRY(name)(SELF *self, const struct ENTRY(name) *given);
#define METHOD_OF_BYTES(guard, name, first, arguments, doc) \
    RESULT_OF(guard, name, OBJECT(first) arguments, , doc)  \
    PyObject *ENTRY(name)(SELF *self, const Py_buffer *bytes, const struct ENTRY(name) *given);

#elif METHODS_PART == METHODS_WRAPPED
#define OBJECT(name_) {.name = #name_, .kind = ARGUMENT_OBJECT, .is_required = true},
#define OBJECT_OR_NONE(name_) {.name = #name_, .kind = ARGUMENT_OBJECT},
#define INTEGER(name_, least, most) \
    {.name = #name_, .kind = ARGUMENT_INTEGER, .is_required = true, .min = (least), .max = (most)},
#define INTEGER_OR(name_, otherwise_, least, most) \
    {.name = #name_, .kind = ARGUMENT_INTEGER, .otherwise = (otherwise_), .min = (least), .max = (most)},
#define WORD(name_) {.name = #name_, .kind = ARGUMENT_WORD, .is_required = true},
#define FLAG(name_) {.name = #name_, .kind = ARGUMENT_FLAG, .is_required = true},
#define FLAG_OR_FALSE(name_) {.name = #name_, .kind = ARGUMENT_FLAG},
#define FLAG_OR_TRUE(name_) {.name = #name_, .kind = ARGUMENT_FLAG, .otherwise = true},
#define WITHOUT_ARGUMENTS(guard, name, unused_type, expression)           \
    static PyObject *WRAPPER(name)(PyObject *object, unused_type *unused) \
    {                                                                     \
        SELF *self = (SELF *)object;                                      \
        PyObject *result = NULL;                                          \
        (void)unused;                                                     \
        ENTER(object);                                                    \
        if (guard##_begin(self)) {                                        \
            result = guard##_end(self, expression);                       \
        }                                                                 \
        LEAVE();                                                          \
        return result;                                                    \
    }
#define VALUE(guard, name, expression, doc) WITHOUT_ARGUMENTS(guard, name, void, expression)
#define RESULT(guard, name, expression, doc) WITHOUT_ARGUMENTS(guard, name, PyObject, expression)
#define PROPERTY(guard, name, doc) VALUE(guard, name, ENTRY(name)(self), doc)
#define NO_ARGUMENTS(guard, name, doc) RESULT(guard, name, ENTRY(name)(self), doc)
#define WITH_ARGUMENTS(guard, name_, expression, ...)                                                             \
    static PyObject *WRAPPER(name_)(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)   \
    {                                                                                                             \
        static const struct argument arguments[] = {__VA_ARGS__};                                                 \
        static const struct signature signature = {                                                               \
            .function = #name_, .arguments = arguments, .count = sizeof arguments / sizeof arguments[0]};         \
        SELF *self = (SELF *)object;                                                                              \
        struct ENTRY(name_) fields;                                                                               \
        const struct ENTRY(name_) *given = &fields;                                                               \
        PyObject *result = NULL;                                                                                  \
        _Static_assert(sizeof fields == ARGUMENT_SIZE * (sizeof arguments / sizeof arguments[0]), "8 bytes each"); \
        ENTER(object);                                                                                            \
        if (arguments_parse(STATE(self), &signature, args, count, names, &fields) && guard##_begin(self)) {       \
            result = guard##_end(self, expression);                                                               \
        }                                                                                                         \
        LEAVE();                                                                                                  \
        return result;                                                                                            \
    }
#define RESULT_OF(guard, name, arguments, expression, doc) WITH_ARGUMENTS(guard, name, expression, arguments)
#define METHOD(guard, name, arguments, doc) WITH_ARGUMENTS(guard, name, ENTRY(name)(self, given), arguments)
#define METHOD_OF_BYTES(guard, name, first, arguments, doc)                                   \
    static PyObject *BYTES_HELD(name)(SELF *self, const struct ENTRY(name) *given)            \
    {                                                                                         \
        Py_buffer bytes;                                                                      \
        if (PyObject_GetBuffer(given->first, &bytes, PyBUF_SIMPLE) < 0) {                     \
            return NULL;                                                                      \
        }                                                                                     \
        PyObject *result = ENTRY(name)(self, &bytes, given);                                  \
        PyBuffer_Release(&bytes);                                                             \
        return result;                                                                        \
    }                                                                                         \
    WITH_ARGUMENTS(guard, name, BYTES_HELD(name)(self, given), OBJECT(first) arguments)

#elif METHODS_PART == METHOD_ROWS
#define OBJECT(name) ", " #name
#define OBJECT_OR_NONE(name) ", " #name "=None"
#define INTEGER(name, least, most) ", " #name
#define INTEGER_OR(name, otherwise, least, most) ", " #name "=None"
#define WORD(name) ", " #name
#define FLAG(name) ", " #name
#define FLAG_OR_FALSE(name) ", " #name "=False"
#define FLAG_OR_TRUE(name) ", " #name "=True"
#define PROPERTY(guard, name, doc)
#define NO_ARGUMENTS(guard, name, doc) {#name, WRAPPER(name), METH_NOARGS, #name "($self)\n--\n\n" doc},
#define METHOD(guard, name, arguments, doc) \
    {#name, FAST(WRAPPER(name)), METH_FASTCALL | METH_KEYWORDS, #name "($self" arguments ")\n--\n\n" doc},
#define METHOD_OF_BYTES(guard, name, first, arguments, doc) METHOD(guard, name, OBJECT(first) arguments, doc)
#define VALUE(guard, name, expression, doc)
#define RESULT(guard, name, expression, doc) NO_ARGUMENTS(guard, name, doc)
#define RESULT_OF(guard, name, arguments, expression, doc) METHOD(guard, name, arguments, doc)

#elif METHODS_PART == PROPERTY_ROWS
#define PROPERTY(guard, name, doc) {#name, WRAPPER(name), NULL, doc, NULL},
#define NO_ARGUMENTS(guard, name, doc)
#define METHOD(guard, name, arguments, doc)
#define METHOD_OF_BYTES(guard, name, first, arguments, doc)
#define VALUE(guard, name, expression, doc) PROPERTY(guard, name, doc)
#define RESULT(guard, name, expression, doc)
#define RESULT_OF(guard, name, arguments, expression, doc)
#endif
