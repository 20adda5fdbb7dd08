/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena.census: the counts of arena/census.h for Python. Rows without a count are omitted.
 */
#include "arena/census.h"

#include "arena/buffer_pool.h"
#include "arena/registry.h"
#include "arena/topic_share.h"
#include "python/arena/arena_methods.h"

static PyObject *state_counts(const struct census *census)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; i <= SLOT_BAD && list != NULL; i++) {
        list = list_add(list, PyLong_FromUnsignedLong(census->states[i]));
    }
    return list;
}

/* (partition index, batches, records, bytes, created_ns of the oldest) of each queue. */
static PyObject *queues(const struct census *census)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < census->queue_count && list != NULL; i++) {
        const struct queue_census *queue = &census->queues[i];
        if (queue->batch_count != 0) {
            list = list_add(list, Py_BuildValue("(IIKKK)", i, queue->batch_count,
                                                 (unsigned long long)queue->record_count,
                                                 (unsigned long long)queue->size,
                                                 (unsigned long long)queue->created_ns));
        }
    }
    return list;
}

/* (partition index, records) of each partition with quarantined batches. */
static PyObject *damage(const struct census *census)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < census->queue_count && list != NULL; i++) {
        const struct queue_census *queue = &census->queues[i];
        if (queue->damaged_batch_count != 0) {
            list = list_add(list, Py_BuildValue("(IK)", i, (unsigned long long)queue->damaged_record_count));
        }
    }
    return list;
}

/* (partition index, slots) of each partition whose batches hold any. */
static PyObject *held(const struct census *census)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < census->queue_count && list != NULL; i++) {
        if (census->queues[i].held != 0) {
            list = list_add(list, Py_BuildValue("(II)", i, census->queues[i].held));
        }
    }
    return list;
}

/* (entry index, slots owned privately, slots held) of each process that holds any. */
static PyObject *holdings(const struct census *census)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < census->holding_count && list != NULL; i++) {
        const struct holding_census *holding = &census->holdings[i];
        if (holding->held != 0) {
            list = list_add(list, Py_BuildValue("(III)", i, holding->owned, holding->held));
        }
    }
    return list;
}

/* (slot index, word, partition index, created_ns, delivery_stamp_ms) of the batch that waits longest, or None. */
static PyObject *oldest(const struct arena *core, const struct census *census)
{
    if (census->oldest_slot == NO_SLOT) {
        Py_RETURN_NONE;
    }
    const struct slot_header *slot = &core->slots[census->oldest_slot];
    return Py_BuildValue("(IKIKI)", census->oldest_slot, (unsigned long long)census->oldest_word,
                         load_relaxed_u32(&slot->partition_index), (unsigned long long)census->oldest_created_ns,
                         slot->delivery_stamp_ms);
}

/* The entry index of each process that waits for buffers and is not parked, once for each of its waits. An index is
 * input. */
static PyObject *waiting(const struct arena *core)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < core->geometry.waiter_count && list != NULL; i++) {
        const struct waiter_entry *waiter = &core->waiters[i];
        if (waiter_word_state(load_relaxed_u64(&waiter->word)) == WAITER_WAIT) {
            list = list_add(list, PyLong_FromUnsignedLong(owner_index(load_relaxed_u32(&waiter->owner))));
        }
    }
    return list;
}

/* (entry index of the process, partition index or -1, waiting_ns, free slots that it needs, whether the part of records
 * larger than a slot has room for it) of each parked wait. All of it is input. */
static PyObject *parked(const struct arena *core)
{
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < core->geometry.waiter_count && list != NULL; i++) {
        const struct waiter_entry *waiter = &core->waiters[i];
        uint64_t word = load_relaxed_u64(&waiter->word);
        if (waiter_word_state(word) == WAITER_PARKED) {
            uint32_t partition_index = waiter_partition_index(waiter);
            uint32_t need = waiter_word_need(word) == 0 ? 1 : waiter_word_need(word);
            bool has_part = need == 1 || topic_share_admits_oversized(core, partition_index, need, 0);
            list = list_add(list, Py_BuildValue("(IiKIN)", owner_index(load_relaxed_u32(&waiter->owner)),
                                                (int)partition_index,
                                                (unsigned long long)load_relaxed_u64(&waiter->waiting_ns),
                                                topic_share_free_needed(core, partition_index, need, 0),
                                                PyBool_FromLong(has_part)));
        }
    }
    return list;
}

static PyObject *census_to_dict(const struct arena *core, const struct census *census)
{
    return Py_BuildValue("{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N}", "states", state_counts(census), "queues", queues(census),
                         "damage", damage(census), "held", held(census), "holdings", holdings(census), "oldest",
                         oldest(core, census), "waiting", waiting(core), "parked", parked(core));
}

PyObject *py_arena_census(struct arena_object *self)
{
    const struct arena *core = self->core;
    struct census census = {
        .queue_count = registry_partition_count(core) + 1,
        .holding_count = core->geometry.process_count + 1,
    };
    census.queues = PyMem_Calloc(census.queue_count, sizeof *census.queues);
    census.holdings = PyMem_Calloc(census.holding_count, sizeof *census.holdings);
    PyObject *dict = NULL;
    if (census.queues == NULL || census.holdings == NULL) {
        PyErr_NoMemory();
    } else {
        census_take(core, &census);
        dict = census_to_dict(core, &census);
    }
    PyMem_Free(census.queues);
    PyMem_Free(census.holdings);
    return dict;
}
