/* SPDX-License-Identifier: Apache-2.0
 *
 * DeliveryFuture: the result of send(), made once per record. Looking up the result, waiting and callbacks are rare,
 * and done in Python: a method calls the function of its name in shmaccum/producer/future.py, with the future as its
 * first argument. DeliveryFuture is not a Python class, because the objects of every Python class take part in garbage
 * collection, which would take as much time as the append.
 */
#include "python/producer/future_type.h"

#include "python/common/alone.h"

#include <stddef.h>
#include <structmember.h>

static struct future_object *future_of(PyObject *self)
{
    return (struct future_object *)self;
}

/* The fields are in the order of the arguments. */
struct future_numbers {
    unsigned int partition_index;
    unsigned int slot_index;
    unsigned long long seq;
    unsigned int record_index;
    long long timestamp_ms;
    int sizes[3];
};

static void future_fill(struct future_object *self, const struct future_numbers *numbers)
{
    const struct batch_place place = {.slot_index = numbers->slot_index,
                                      .record_index = numbers->record_index,
                                      .seq = numbers->seq,
                                      .timestamp_ms = numbers->timestamp_ms};
    future_object_fill(self, numbers->partition_index, &place);
    self->key_size = numbers->sizes[0];
    self->value_size = numbers->sizes[1];
    self->headers_size = numbers->sizes[2];
}

/* Used by pickle and by send_many. The numbers are untrusted: with a wrong one, no result is found. */
static PyObject *future_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"tracker",  "partition_index", "slot_index",   "seq", "record_index", "timestamp_ms",
                            "key_size", "value_size",      "headers_size", NULL};
    struct future_numbers numbers = {.sizes = {-1, -1, -1}};
    PyObject *tracker;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OIIKIL|iii:DeliveryFuture", names, &tracker,
                                     &numbers.partition_index, &numbers.slot_index, &numbers.seq,
                                     &numbers.record_index, &numbers.timestamp_ms, &numbers.sizes[0],
                                     &numbers.sizes[1], &numbers.sizes[2])) {
        return NULL;
    }
    struct future_object *self = future_object_new(PyType_GetModuleState(type), tracker);
    if (self != NULL) {
        future_fill(self, &numbers);
    }
    return (PyObject *)self;
}

static void future_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_DECREF(future_of(object)->tracker);
    Py_XDECREF(future_of(object)->completion);
    spare_future_store(PyType_GetModuleState(type), object);
    Py_DECREF(type);
}

static PyObject *future_get_completion(PyObject *object, void *unused)
{
    (void)unused;
    PyObject *completion;
    ALONE_BEGIN(object);
    completion = future_of(object)->completion;
    completion = Py_NewRef(completion == NULL ? Py_None : completion);
    ALONE_END();
    return completion;
}

/* Accepts only a tuple. Another object might refer back to the future, which takes no part in garbage collection. */
static int future_set_completion(PyObject *object, PyObject *completion, void *unused)
{
    (void)unused;
    if (completion == NULL || !PyTuple_CheckExact(completion)) {
        PyErr_SetString(PyExc_TypeError, "a completion must be a tuple that Arena.find() returned");
        return -1;
    }
    PyObject *former;
    ALONE_BEGIN(object);
    former = future_of(object)->completion;
    future_of(object)->completion = Py_NewRef(completion);
    ALONE_END();
    Py_XDECREF(former);
    return 0;
}

/* ---- methods in Python ---- */

/* Imports the module at the first call, because that module imports this one. Returns NULL with an exception set. */
static PyObject *functions_of(PyObject *self)
{
    struct module_state *state = PyType_GetModuleState(Py_TYPE(self));
    PyObject *functions = load_acquire_pointer(&state->future_functions); /* V6 */
    if (LIKELY(functions != NULL)) {
        return functions;
    }
    functions = PyImport_ImportModule("shmaccum.producer.future");
    if (functions != NULL && !set_pointer_once(&state->future_functions, functions)) { /* V6 */
        Py_DECREF(functions); /* another thread has set the same module */
    }
    return functions;
}

enum { DELEGATE_ARGUMENT_COUNT_MAX = 16 };

/* Calls NAME(future, ...) with the arguments of a call. */
static PyObject *future_call(PyObject *self, const char *name, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t total = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    PyObject *passed[1 + DELEGATE_ARGUMENT_COUNT_MAX] = {self};
    if (total > DELEGATE_ARGUMENT_COUNT_MAX) {
        return PyErr_Format(PyExc_TypeError, "at most %d arguments are allowed: bind more with functools.partial",
                            DELEGATE_ARGUMENT_COUNT_MAX);
    }
    memcpy(passed + 1, args, (size_t)total * sizeof *args);
    PyObject *functions = functions_of(self);
    PyObject *function = functions == NULL ? NULL : PyObject_GetAttrString(functions, name);
    PyObject *answer = function == NULL ? NULL : PyObject_Vectorcall(function, passed, (size_t)count + 1, names);
    Py_XDECREF(function);
    return answer;
}

#define DELEGATED(name)                                                                                          \
    static PyObject *future_##name(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)     \
    {                                                                                                            \
        return future_call(self, #name, args, count, names);                                                     \
    }

DELEGATED(add_both)
DELEGATED(add_callback)
DELEGATED(add_errback)
DELEGATED(done)
DELEGATED(failed)
DELEGATED(get)
DELEGATED(reduce)
DELEGATED(succeeded)

static PyObject *future_property(PyObject *self, void *name)
{
    return future_call(self, name, NULL, 0, NULL);
}

static PyObject *future_repr(PyObject *self)
{
    return future_call(self, "describe", NULL, 0, NULL);
}

static PyObject *future_await(PyObject *self)
{
    return future_call(self, "wait", NULL, 0, NULL);
}

/* ---- the type ---- */

static PyMethodDef future_methods[] = {
    {"add_both", FAST(future_add_both), METH_FASTCALL | METH_KEYWORDS,
     "add_both($self, function, /, *args, **kwargs)\n--\n\nCalls add_callback and add_errback."},
    {"add_callback", FAST(future_add_callback), METH_FASTCALL | METH_KEYWORDS,
     "add_callback($self, function, /, *args, **kwargs)\n--\n\n"
     "Calls ``function(*args, metadata, **kwargs)`` when the record is delivered, or now if it already is.\n\n"
     "A thread of this process calls it, in the order of a partition's records. Its exceptions are logged."},
    {"add_errback", FAST(future_add_errback), METH_FASTCALL | METH_KEYWORDS,
     "add_errback($self, function, /, *args, **kwargs)\n--\n\n"
     "Calls ``function(*args, exception, **kwargs)`` if the record was not delivered."},
    {"done", FAST(future_done), METH_FASTCALL | METH_KEYWORDS, "done($self)\n--\n\nTrue if the result is known."},
    {"failed", FAST(future_failed), METH_FASTCALL | METH_KEYWORDS,
     "failed($self)\n--\n\nTrue if it is known that the record was not delivered, or that its result is lost."},
    {"get", FAST(future_get), METH_FASTCALL | METH_KEYWORDS,
     "get($self, timeout=None)\n--\n\n"
     "Waits for the RecordMetadata at most timeout seconds. If timeout is None, waits without a limit.\n\n"
     "The wait does not end the linger of the record. Producer.flush does.\n\n"
     "Raises:\n"
     "    ResultPendingError: a TimeoutError. The result is not known yet; call again.\n"
     "    DeliveryTimeoutError, DeliveryFailedError, DeliveryAbortedError: it was not delivered.\n"
     "    ResultExpiredError: the result was overwritten before it was read."},
    {"succeeded", FAST(future_succeeded), METH_FASTCALL | METH_KEYWORDS,
     "succeeded($self)\n--\n\nTrue if the record was delivered."},
    {"__reduce__", FAST(future_reduce), METH_FASTCALL | METH_KEYWORDS,
     "Pickles the future for any process of the host."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef future_members[] = {
    {"tracker", T_OBJECT_EX, offsetof(struct future_object, tracker), READONLY, "The object that looks up its result."},
    {"key_size", T_INT, offsetof(struct future_object, key_size), READONLY, "Bytes of the key, or -1 if it is null."},
    {"value_size", T_INT, offsetof(struct future_object, value_size), READONLY,
     "Bytes of the value, or -1 if it is null."},
    {"headers_size", T_INT, offsetof(struct future_object, headers_size), READONLY,
     "Bytes of the headers' keys and values, or -1 without headers."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef future_properties[] = {
    {"completion", future_get_completion, future_set_completion, "The result after it was looked up, else None.", NULL},
    {"exception", future_property, NULL, "The error of a record that was not delivered, else None.", "exception"},
    {"is_done", future_property, NULL, "True if the result is known.", "done"},
    {"value", future_property, NULL, "The RecordMetadata of a record that was delivered, else None.", "value"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot future_slots[] = {
    {Py_tp_doc, "The result of one record that was sent. A future can be awaited, compared, hashed, pickled, and used "
                "in the child of a fork; it holds its arena open in this process. The shape is kafka-python's."},
    {Py_tp_new, future_new},
    {Py_tp_dealloc, future_dealloc},
    {Py_tp_repr, future_repr},
    {Py_am_await, future_await},
    {Py_tp_methods, future_methods},
    {Py_tp_members, future_members},
    {Py_tp_getset, future_properties},
    {0, NULL},
};

PyType_Spec future_spec = NATIVE_TYPE("DeliveryFuture", struct future_object, future_slots, 0);
