/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena.census: the counts of arena/census.h for Python. Rows without a count are omitted.
 */
#include "arena/census.h"

#include "arena/buffer_pool.h"
#include "arena/registry.h"
#include "arena/topic_share.h"
#include "python/arena/arena_methods.h"

static PyObject *state_count(const void *all, uint32_t state)
{
    const struct census *census = all;
    return PyLong_FromUnsignedLong(census->states[state]);
}

/* (partition index, batches, records, bytes, created_ns of the oldest) of each queue. */
static PyObject *queue_row(const void *all, uint32_t index)
{
    const struct queue_census *queue = &((const struct census *)all)->queues[index];
    return queue->batch_count == 0
               ? NULL
               : Py_BuildValue("(IIKKK)", index, queue->batch_count, (unsigned long long)queue->record_count,
                               (unsigned long long)queue->size, (unsigned long long)queue->created_ns);
}

/* (partition index, records) of each partition with quarantined batches. */
static PyObject *damage_row(const void *all, uint32_t index)
{
    const struct queue_census *queue = &((const struct census *)all)->queues[index];
    return queue->damaged_batch_count == 0
               ? NULL
               : Py_BuildValue("(IK)", index, (unsigned long long)queue->damaged_record_count);
}

/* (partition index, slots) of each partition whose batches hold slots. */
static PyObject *held_row(const void *all, uint32_t index)
{
    const struct queue_census *queue = &((const struct census *)all)->queues[index];
    return queue->held == 0 ? NULL : Py_BuildValue("(II)", index, queue->held);
}

/* (entry index, OWNED slots, all slots held) of each process that holds slots. */
static PyObject *holding_row(const void *all, uint32_t index)
{
    const struct holding_census *holding = &((const struct census *)all)->holdings[index];
    return holding->held == 0 ? NULL : Py_BuildValue("(III)", index, holding->owned, holding->held);
}

/* (slot index, word, partition index, created_ns, delivery_stamp_ms) of the batch that waits longest, or None. */
static PyObject *oldest_batch_row(const struct arena *core, const struct census *census)
{
    if (census->oldest_slot == NO_SLOT) {
        Py_RETURN_NONE;
    }
    const struct slot_header *slot = &core->slots[census->oldest_slot];
    return Py_BuildValue("(IKIKI)", census->oldest_slot, (unsigned long long)census->oldest_word,
                         load_relaxed_u32(&slot->partition_index), (unsigned long long)census->oldest_created_ns,
                         slot->delivery_stamp_ms);
}

/* The entry index of the process of each wait for buffers that is not parked. The index is untrusted. */
static PyObject *waiting_entry(const void *all, uint32_t index)
{
    const struct waiter_entry *waiter = &((const struct arena *)all)->waiters[index];
    return waiter_word_state(load_relaxed_u64(&waiter->word)) != WAITER_WAIT
               ? NULL
               : PyLong_FromUnsignedLong(owner_index(load_relaxed_u32(&waiter->owner)));
}

/* (entry index of the process, partition index or -1, waiting_ns, free slots that it needs, whether the part for
 * oversized records has space for it) of each parked wait. All of it is untrusted. */
static PyObject *parked_row(const void *all, uint32_t index)
{
    const struct arena *core = all;
    const struct waiter_entry *waiter = &core->waiters[index];
    uint64_t word = load_relaxed_u64(&waiter->word);
    if (waiter_word_state(word) != WAITER_PARKED) {
        return NULL;
    }
    uint32_t partition_index = waiter_partition_index(waiter);
    uint32_t need = waiter_word_need(word) == 0 ? 1 : waiter_word_need(word);
    bool has_part = need == 1 || topic_share_admits_oversized(core, partition_index, need, 0);
    return Py_BuildValue("(IiKIN)", owner_index(load_relaxed_u32(&waiter->owner)), (int)partition_index,
                         (unsigned long long)load_relaxed_u64(&waiter->waiting_ns),
                         topic_share_free_needed(core, partition_index, need, 0), PyBool_FromLong(has_part));
}

static PyObject *census_to_dict(const struct arena *core, const struct census *census)
{
    uint32_t queues = census->queue_count;
    uint32_t waiters = core->geometry.waiter_count;
    return Py_BuildValue("{s:N,s:N,s:N,s:N,s:N,s:N,s:N,s:N}", "states", list_of(SLOT_BAD + 1, state_count, census),
                         "queues", list_of(queues, queue_row, census), "damage", list_of(queues, damage_row, census),
                         "held", list_of(queues, held_row, census), "holdings",
                         list_of(census->holding_count, holding_row, census), "oldest", oldest_batch_row(core, census),
                         "waiting", list_of(waiters, waiting_entry, core), "parked",
                         list_of(waiters, parked_row, core));
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
