/* SPDX-License-Identifier: Apache-2.0 */
#include "python/producer/confluent_tell.h"

#include "python/common/alone.h"
#include "python/common/completion_tuple.h"
#include "python/producer/confluent_watch.h"
#include "python/producer/future_type.h"

#include <time.h>

/* As confluent-kafka's Message takes them by place. */
enum { TOPIC, PARTITION, OFFSET, KEY, VALUE, HEADERS, ERROR, TIMESTAMP, LATENCY, MESSAGE_ARGUMENT_COUNT };

enum { CREATE_TIME = 1 };

/* The partition of the record before, which most records share. */
struct partition_memory {
    uint32_t index;
    PyObject *number; /* NULL: none yet */
};

/* ---- message ---- */

/* Milliseconds since 1970 to seconds from then until now, not below 0. */
static double seconds_since(int64_t timestamp_ms)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)timestamp_ms / 1e3;
    return seconds > 0 ? seconds : 0;
}

static COLD bool partition_ask(const struct confluent_teller *teller, uint32_t index, struct partition_memory *memory)
{
    PyObject *place = PyObject_CallMethod(teller->deliveries, "topic_partition", "I", (unsigned int)index);
    PyObject *number = place == NULL ? NULL : PyObject_GetAttrString(place, "partition");
    Py_XDECREF(place);
    Py_XSETREF(memory->number, number);
    memory->index = index;
    return number != NULL;
}

/* Borrowed; NULL with an exception set. */
static inline PyObject *partition_of(const struct confluent_teller *teller, uint32_t index,
                                     struct partition_memory *memory)
{
    if (UNLIKELY(memory->number == NULL || memory->index != index) && !partition_ask(teller, index, memory)) {
        return NULL;
    }
    return memory->number;
}

/* -1 where the sink has none, or did not tell. */
static inline int64_t offset_of(const struct future_object *future, const struct completion *completion)
{
    return completion->base_offset < 0
               ? -1
               : completion->base_offset + future->token.record_index - completion->first_record;
}

/* A reference; NULL with an exception set. */
static PyObject *message_new(const struct confluent_teller *teller, PyObject *record,
                             const struct completion *completion, struct partition_memory *memory)
{
    const struct future_object *future = (struct future_object *)PyTuple_GET_ITEM(record, RECORD_FUTURE);
    int64_t timestamp_ms = future->token.timestamp_ms;
    PyObject *offset = PyLong_FromLongLong(offset_of(future, completion));
    PyObject *timestamp = Py_BuildValue("(iL)", CREATE_TIME, (long long)timestamp_ms);
    PyObject *latency = PyFloat_FromDouble(seconds_since(timestamp_ms));
    PyObject *partition = partition_of(teller, future->token.partition_index, memory);
    PyObject *message = NULL;
    if (LIKELY(offset != NULL && timestamp != NULL && latency != NULL && partition != NULL)) {
        PyObject *parts[MESSAGE_ARGUMENT_COUNT] = {
            [TOPIC] = PyTuple_GET_ITEM(record, RECORD_TOPIC),
            [PARTITION] = partition,
            [OFFSET] = offset,
            [KEY] = PyTuple_GET_ITEM(record, RECORD_KEY),
            [VALUE] = PyTuple_GET_ITEM(record, RECORD_VALUE),
            [HEADERS] = PyTuple_GET_ITEM(record, RECORD_HEADERS),
            [ERROR] = Py_None,
            [TIMESTAMP] = timestamp,
            [LATENCY] = latency,
        };
        message = PyObject_Vectorcall(teller->message_type, parts, MESSAGE_ARGUMENT_COUNT, NULL);
    }
    Py_XDECREF(offset);
    Py_XDECREF(timestamp);
    Py_XDECREF(latency);
    return message;
}

/* ---- tell ---- */

/* True when there was one. */
static inline bool answer_drop(PyObject *answer)
{
    Py_XDECREF(answer);
    return answer != NULL;
}

static bool tell_delivered(const struct confluent_teller *teller, PyObject *record,
                           const struct completion *completion, struct partition_memory *memory)
{
    PyObject *message = message_new(teller, record, completion, memory);
    if (message == NULL) {
        return false;
    }
    PyObject *told[] = {Py_None, message};
    bool is_told = answer_drop(PyObject_Vectorcall(PyTuple_GET_ITEM(record, RECORD_CALLBACK), told, 2, NULL));
    Py_DECREF(message);
    return is_told;
}

/* The result as the future has it: a tuple of numbers (completion_tuple.h). */
static inline bool is_delivered(const struct confluent_teller *teller, PyObject *record,
                                struct completion *completion)
{
    PyObject *first = PyTuple_GET_ITEM(record, RECORD_FUTURE);
    if (!Py_IS_TYPE(first, teller->state->future_type)) {
        return false;
    }
    PyObject *known;
    ALONE_BEGIN(first);
    known = Py_XNewRef(((struct future_object *)first)->completion);
    ALONE_END();
    bool is_succeeded = known != NULL && completion_from_tuple(known, completion) &&
                        completion->result == RESULT_SUCCEEDED;
    Py_XDECREF(known);
    return is_succeeded;
}

static bool tell(const struct confluent_teller *teller, PyObject *record, struct partition_memory *memory)
{
    struct completion completion;
    if (LIKELY(is_delivered(teller, record, &completion))) {
        return tell_delivered(teller, record, &completion, memory);
    }
    PyObject *arguments[] = {teller->producer, record};
    return !PyErr_Occurred() && answer_drop(PyObject_VectorcallMethod(teller->state->tell, arguments, 2, NULL));
}

/* A reference; NULL: there is none, or an exception is set. Another thread may take the last one first. */
static PyObject *report_take(const struct confluent_teller *teller)
{
    if (PyObject_Size(teller->reports) <= 0) {
        return NULL;
    }
    PyObject *record = PyObject_CallMethodNoArgs(teller->reports, teller->state->popleft);
    if (record == NULL && PyErr_ExceptionMatches(PyExc_IndexError)) {
        PyErr_Clear();
    }
    return record;
}

Py_ssize_t tell_reports(const struct confluent_teller *teller)
{
    struct partition_memory memory = {.number = NULL};
    Py_ssize_t count = 0;
    bool is_told = true;
    PyObject *record;
    while (is_told && (record = report_take(teller)) != NULL) {
        is_told = tell(teller, record, &memory);
        count += is_told;
        Py_DECREF(record);
    }
    Py_XDECREF(memory.number);
    return PyErr_Occurred() ? -1 : count;
}
