/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/errors.h"

#include <stdarg.h>

/* STATUS_OS has no entry: it raises the subclass of OSError for errno. PENDING and TRY_AGAIN are never raised. DETACHED
 * is raised only for an arena that was opened read-only, because any other one attaches when it is used. */
static const char *const class_names[STATUS_COUNT] = {
    [STATUS_INVALID] = "InvalidArgumentError",
    [STATUS_NOT_AN_ARENA] = "NotAnArenaError",
    [STATUS_UNFINISHED] = "UnfinishedArenaError",
    [STATUS_OTHER_LAYOUT] = "LayoutMismatchError",
    [STATUS_TRUNCATED] = "CorruptArenaError",
    [STATUS_FORBIDDEN] = "ArenaForbiddenError",
    [STATUS_NO_ENTRY] = "TableFullError",
    [STATUS_NO_WAITER] = "TableFullError",
    [STATUS_NO_PARTITION] = "TableFullError",
    [STATUS_RECORD_TOO_LARGE] = "RecordTooLargeError",
    [STATUS_EXHAUSTED] = "BufferExhaustedError",
    [STATUS_CLOSED] = "ProducerClosedError",
    [STATUS_DETACHED] = "ArenaClosedError",
    [STATUS_POISONED] = "ArenaPoisonedError",
    [STATUS_CORRUPT] = "CorruptArenaError",
    [STATUS_BUSY] = "ArenaBusyError",
    [STATUS_STALE] = "NotSenderError",
    [STATUS_RESULT_EXPIRED] = "ResultExpiredError",
    [STATUS_REMOVED] = "ArenaRemovedError",
    [STATUS_SHARE_USED] = "ProcessShareUsedError",
    [STATUS_NO_TRANSACTION] = "NoTransactionError",
    [STATUS_TRANSACTION_ENDED] = "TransactionEndedError",
    [STATUS_FENCED] = "ProducerFencedError",
};

static bool class_load(PyObject *module, const char *name, PyObject **target)
{
    *target = PyObject_GetAttrString(module, name);
    return *target != NULL;
}

static bool table_load(PyObject *module, struct module_state *state)
{
    for (int i = 0; i < STATUS_COUNT; i++) {
        if (class_names[i] != NULL && !class_load(module, class_names[i], &state->exceptions[i])) {
            return false;
        }
    }
    return true;
}

bool errors_load(struct module_state *state)
{
    PyObject *module = PyImport_ImportModule("shmaccum.exceptions");
    if (module == NULL) {
        return false;
    }
    bool is_loaded = table_load(module, state) && class_load(module, "ArenaClosedError", &state->arena_closed) &&
                     class_load(module, "ArenaInUseError", &state->arena_in_use) &&
                     class_load(module, "BatchInUseError", &state->batch_in_use) &&
                     class_load(module, "NotSenderError", &state->not_sender) &&
                     class_load(module, "ProducerClosedError", &state->producer_closed) &&
                     class_load(module, "UnknownPartitionError", &state->unknown_partition);
    Py_DECREF(module);
    return is_loaded;
}

static PyObject *class_of(const struct module_state *state, enum status status)
{
    PyObject *found = (unsigned)status < STATUS_COUNT ? state->exceptions[status] : NULL;
    return found != NULL ? found : PyExc_SystemError;
}

/* OSError(errno, text) chooses its subclass by errno. */
static PyObject *raise_os(const struct error *error)
{
    PyObject *exception = error->os_error != 0
                              ? PyObject_CallFunction(PyExc_OSError, "is", error->os_error, error->message)
                              : PyObject_CallFunction(PyExc_MemoryError, "s", error->message);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

PyObject *raise_error(const struct module_state *state, const struct error *error)
{
    if (error->status == STATUS_OS) {
        return raise_os(error);
    }
    PyErr_SetString(class_of(state, error->status), error->message);
    return NULL;
}

PyObject *raise_status(const struct module_state *state, enum status status)
{
    if (status == STATUS_OS) {
        return PyErr_NoMemory(); /* only these functions return OS without an errno, and only if malloc failed */
    }
    PyErr_SetString(class_of(state, status), status_sentence(status));
    return NULL;
}

PyObject *none_or_raise(const struct module_state *state, enum status status)
{
    return status == STATUS_OK ? Py_NewRef(Py_None) : raise_status(state, status);
}

PyObject *raise_format(const struct module_state *state, enum status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    PyErr_FormatV(class_of(state, status), format, arguments);
    va_end(arguments);
    return NULL;
}

/* ---- exceptions in hand: PyErr_Fetch until 3.11, one object since 3.12 ---- */

PyObject *exception_take(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type;
    PyObject *exception;
    PyObject *traceback;
    PyErr_Fetch(&type, &exception, &traceback);
    PyErr_NormalizeException(&type, &exception, &traceback);
    if (traceback != NULL) {
        (void)PyException_SetTraceback(exception, traceback);
    }
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return exception;
#endif
}

void exception_put(PyObject *exception)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exception);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exception)), exception, PyException_GetTraceback(exception));
#endif
}
