/* SPDX-License-Identifier: Apache-2.0 */
#include "python/producer/confluent_watch.h"

#include "python/common/completion_tuple.h"
#include "python/producer/future_type.h"

static struct future_object *future_of(PyObject *record)
{
    return (struct future_object *)PyTuple_GET_ITEM(record, RECORD_FUTURE);
}

static PyObject *batch_key(uint32_t partition_index, uint64_t seq)
{
    return Py_BuildValue("(IK)", (unsigned int)partition_index, (unsigned long long)seq);
}

bool watch_begin(struct confluent_watch *watch)
{
    watch->batches = PyDict_New();
    return watch->batches != NULL;
}

/* ---- add ---- */

/* Threads that append at the same time may come here out of order. */
static bool record_insert(PyObject *records, PyObject *record)
{
    Py_ssize_t i = PyList_GET_SIZE(records);
    uint32_t index = future_of(record)->token.record_index;
    while (i > 0 && future_of(PyList_GET_ITEM(records, i - 1))->token.record_index > index) {
        i--;
    }
    return PyList_Insert(records, i, record) == 0;
}

/* Borrowed; a new list where nobody watches the batch yet. NULL with an exception set. */
static PyObject *batch_records(struct confluent_watch *watch, PyObject *key)
{
    PyObject *records = PyDict_GetItemWithError(watch->batches, key);
    if (LIKELY(records != NULL) || PyErr_Occurred()) {
        return records;
    }
    PyObject *fresh = PyList_New(0);
    records = fresh == NULL ? NULL : PyDict_SetDefault(watch->batches, key, fresh);
    Py_XDECREF(fresh);
    return records;
}

static bool recent_set(struct confluent_watch *watch, const struct token_object *token)
{
    PyObject *key = batch_key(token->partition_index, token->seq);
    PyObject *records = key == NULL ? NULL : batch_records(watch, key);
    Py_XDECREF(key);
    Py_XSETREF(watch->recent, Py_XNewRef(records));
    watch->recent_partition = token->partition_index;
    watch->recent_seq = token->seq;
    return records != NULL;
}

/* Most records join the batch of the record before. */
static inline bool is_recent(const struct confluent_watch *watch, const struct token_object *token)
{
    return watch->recent != NULL && watch->recent_seq == token->seq &&
           watch->recent_partition == token->partition_index;
}

static bool batch_add(struct confluent_watch *watch, PyObject *record)
{
    const struct token_object *token = &future_of(record)->token;
    return (LIKELY(is_recent(watch, token)) || recent_set(watch, token)) && record_insert(watch->recent, record);
}

static COLD void chain_add(struct confluent_watch *watch, PyObject *record)
{
    PyErr_Clear();
    PyObject *next = watch->chain == NULL ? Py_NewRef(Py_None) : watch->chain;
    Py_SETREF(((PyTupleObject *)record)->ob_item[RECORD_NEXT], next);
    watch->chain = Py_NewRef(record);
}

void watch_add(struct confluent_watch *watch, PyObject *record, uint64_t tail)
{
    if (watch->count == 0) {
        watch->tail = tail;
    }
    if (UNLIKELY(!batch_add(watch, record))) {
        chain_add(watch, record);
    }
    watch->count++;
}

/* ---- take ---- */

static bool record_take(PyObject *record, PyObject *completion, PyObject *found)
{
    Py_XSETREF(future_of(record)->completion, Py_NewRef(completion));
    return PyList_Append(found, record) == 0;
}

/* The place in the list of the first record whose index in the batch is not below. */
static Py_ssize_t record_find(PyObject *records, uint64_t index)
{
    Py_ssize_t i = 0;
    while (i < PyList_GET_SIZE(records) && future_of(PyList_GET_ITEM(records, i))->token.record_index < index) {
        i++;
    }
    return i;
}

static bool records_take(struct confluent_watch *watch, PyObject *records, const struct completion *completion,
                         PyObject *result, PyObject *found)
{
    Py_ssize_t first = record_find(records, completion->first_record);
    Py_ssize_t end = record_find(records, (uint64_t)completion->first_record + completion->record_count);
    Py_ssize_t i = first;
    while (i < end && record_take(PyList_GET_ITEM(records, i), result, found)) {
        i++;
    }
    watch->count -= i - first;
    return PyList_SetSlice(records, first, i, NULL) == 0 && i == end;
}

static bool batch_end(struct confluent_watch *watch, PyObject *key, const PyObject *records)
{
    if (watch->recent == records) {
        Py_CLEAR(watch->recent);
    }
    return PyDict_DelItem(watch->batches, key) == 0;
}

/* Everything is made before the dict is read: making an object may run the garbage collector, and so a program's code
 * that produces. */
static bool batch_take(struct confluent_watch *watch, const struct completion *completion, PyObject *found)
{
    PyObject *key = batch_key(completion->partition_index, completion->seq);
    PyObject *result = key == NULL ? NULL : completion_to_tuple(completion);
    bool is_taken = result != NULL;
    PyObject *records = is_taken ? PyDict_GetItemWithError(watch->batches, key) : NULL;
    if (records != NULL) {
        is_taken = records_take(watch, records, completion, result, found) &&
                   (PyList_GET_SIZE(records) > 0 || batch_end(watch, key, records));
    }
    Py_XDECREF(result);
    Py_XDECREF(key);
    return is_taken && PyErr_Occurred() == NULL;
}

bool watch_take_results(struct confluent_watch *watch, const struct arena *arena, PyObject *found, bool *is_whole)
{
    uint64_t last = load_acquire_u64(&arena->globals->completion_tail);
    bool is_taken = true;
    *is_whole = watch->count == 0 || (watch->chain == NULL && !watch->is_late &&
                                      last - watch->tail <= arena->geometry.completion_count);
    while (is_taken && *is_whole && watch->count > 0 && watch->tail < last) {
        struct completion completion;
        *is_whole = completion_at(arena, watch->tail, &completion) == STATUS_OK;
        watch->tail++;
        is_taken = !*is_whole || batch_take(watch, &completion, found);
        watch->is_late |= !is_taken; /* no memory: that result is behind us */
    }
    return is_taken;
}

/* ---- all ---- */

static bool batches_list(PyObject *batches, PyObject *all)
{
    PyObject *records;
    Py_ssize_t place = 0;
    bool is_listed = true;
    while (is_listed && PyDict_Next(batches, &place, NULL, &records)) {
        Py_ssize_t end = PyList_GET_SIZE(all);
        is_listed = PyList_SetSlice(all, end, end, records) == 0;
    }
    return is_listed;
}

static bool chain_list(PyObject *record, PyObject *all)
{
    bool is_listed = true;
    while (is_listed && record != NULL && record != Py_None) {
        is_listed = PyList_Append(all, record) == 0;
        record = PyTuple_GET_ITEM(record, RECORD_NEXT);
    }
    return is_listed;
}

static void chain_end(struct confluent_watch *watch)
{
    PyObject *record = watch->chain == NULL ? Py_NewRef(Py_None) : watch->chain;
    while (record != Py_None) {
        PyObject *next = PyTuple_GET_ITEM(record, RECORD_NEXT);
        PyTuple_SET_ITEM(record, RECORD_NEXT, Py_NewRef(Py_None));
        Py_SETREF(record, next);
    }
    Py_DECREF(record);
}

PyObject *watch_take_all(struct confluent_watch *watch)
{
    PyObject *all = PyList_New(0);
    if (all != NULL && (!batches_list(watch->batches, all) || !chain_list(watch->chain, all))) {
        Py_CLEAR(all);
    }
    if (all != NULL) {
        PyDict_Clear(watch->batches);
        Py_CLEAR(watch->recent);
        chain_end(watch);
        *watch = (struct confluent_watch){.batches = watch->batches};
    }
    return all;
}
