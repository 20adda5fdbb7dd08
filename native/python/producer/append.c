/* SPDX-License-Identifier: Apache-2.0
 *
 * The rare steps of an append, at most once per batch: finds a new partition, chooses again, waits for buffers, raises.
 */
#include "arena/process.h"
#include "arena/process_share.h"
#include "python/common/errors.h"
#include "python/common/monotonic.h"
#include "python/producer/append.h"
#include "python/producer/buffer_wait_type.h"

/* ---- topic and partition ---- */

COLD bool partition_find_slow(struct appender_object *self, const struct append_target *target, uint32_t topic_index,
                              uint32_t partition, uint32_t *partition_index)
{
    enum status status = arena_object_partition(self->arena, topic_index, partition, append_registry_limit(target),
                                                partition_index);
    if (status == STATUS_NO_PARTITION) {
        raise_format(self->state, status, "the arena has no entry for another partition: create it with a "
                     "partition_count above %u", self->arena->core->geometry.partition_count);
        return false;
    }
    if (status != STATUS_OK) {
        raise_registry(self->state, status);
        return false;
    }
    return true;
}

/* ---- records ---- */

COLD bool raise_measure(const struct appender_object *self, const struct measured_record *measured,
                        enum status status)
{
    const struct geometry *geometry = &self->arena->core->geometry;
    if (status == STATUS_RECORD_TOO_LARGE) {
        raise_format(self->state, status,
                     "the record, %lld bytes of key and value, does not fit: with its headers a record takes at most "
                     "%u bytes (max_request_size) and %u buffers of %u bytes (oversized_max_bytes, max_process_share); "
                     "send a smaller one or create the arena with larger limits",
                     (long long)measured->record.key_size + measured->record.value_size, geometry->record_size_max,
                     oversized_slot_count_max(self->arena->core), geometry->batch_size);
    } else {
        raise_status(self->state, status);
    }
    return false;
}

/* ---- append ---- */

int64_t append_deadline(struct append_target *target)
{
    if (target->deadline_ns == 0) {
        int64_t now_ns = monotonic_ns();
        int64_t block_ns = target->max_block_ms * 1000000;
        target->deadline_ns = block_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + block_ns;
    }
    return target->deadline_ns;
}

static int64_t slice_ns(struct append_target *target)
{
    int64_t left_ns = append_deadline(target) - monotonic_ns();
    return left_ns < WAITER_SLICE_NS ? left_ns : WAITER_SLICE_NS;
}

/* The usual wait: joins the queue, wakes the sender, and sleeps for the first slice. If it was granted, the BufferWait
 * is TAKEN. Otherwise, Python continues the wait. Returns NULL with an exception set. */
static struct buffer_wait_object *slots_wait_briefly(struct appender_object *self, struct append_target *target,
                                                     uint32_t need)
{
    struct buffer_wait_object *place = buffer_wait_begin(self->arena, target->partition_index, need);
    if (place == NULL || place->stage == WAIT_OVER || buffer_wait_take(place)) {
        return place;
    }
    if (!append_wake_sender(self)) { /* wakes the sender, because batches must not linger while a process waits */
        Py_DECREF(place);
        return NULL;
    }
    if (!buffer_wait_is_stuck(place)) { /* a wait for a stuck partition has another limit, which Python determines */
        (void)buffer_wait_sleep(place, slice_ns(target));
    }
    return place;
}

/* Calls wait(need, max_block_ms, deadline_ns, place, partition_index), which returns slots of this process or
 * raises. */
static struct buffer_wait_object *slots_wait_on(const struct appender_object *self, struct append_target *target,
                                                uint32_t need, struct buffer_wait_object *place)
{
    PyObject *queued = place != NULL && place->stage == WAIT_QUEUED ? (PyObject *)place : Py_None;
    PyObject *answer = PyObject_CallFunction(self->wait, "ILLOI", need, (long long)target->max_block_ms,
                                             (long long)append_deadline(target), queued, target->partition_index);
    if (answer != NULL && !Py_IS_TYPE(answer, self->state->buffer_wait_type)) {
        PyErr_SetString(PyExc_TypeError, "wait() must return a BufferWait");
        Py_CLEAR(answer);
    }
    return (struct buffer_wait_object *)answer;
}

/* Returns granted slots, or NULL with an exception set. */
static struct buffer_wait_object *slots_wait(struct appender_object *self, struct append_target *target, uint32_t need)
{
    struct buffer_wait_object *place = NULL;
    (void)append_deadline(target); /* the wait includes the time to join the queue */
    if (self->sleeps) {
        place = slots_wait_briefly(self, target, need);
        if (place == NULL || place->stage == WAIT_TAKEN) {
            return place;
        }
    }
    struct buffer_wait_object *answer = slots_wait_on(self, target, need, place);
    Py_XDECREF(place);
    return answer;
}

static void slots_end_wait(struct buffer_wait_object **wait)
{
    if (*wait != NULL) {
        buffer_wait_finish(*wait);
        Py_CLEAR(*wait);
    }
}

/* Prepares the next attempt: chooses again, or waits for slots. Raises any other status. Returns false with an
 * exception set. */
static bool append_prepare_again(struct appender_object *self, struct append_target *target, enum status status,
                                 uint32_t need, struct buffer_wait_object **wait)
{
    if (status == STATUS_TRY_AGAIN) {
        return target->choose_again(target);
    }
    slots_end_wait(wait);
    if (status == STATUS_EXHAUSTED) {
        *wait = slots_wait(self, target, need);
        return *wait != NULL;
    }
    if (arena_object_check_memory(self->arena)) {
        raise_status(self->state, status);
    }
    return false;
}

/* Waits for slots until the append succeeds. It may wait more than once: if another process passes it, its slots may be
 * lost. If the sticky partition changes, the slots are used for the new one. */
COLD bool append_run_slow(struct appender_object *self, struct append_target *target,
                          const struct measured_record *records, uint32_t count, enum status status,
                          struct append_result *result)
{
    struct buffer_wait_object *wait = NULL;
    bool is_filled = status == STATUS_TRY_AGAIN || status == STATUS_EXHAUSTED; /* otherwise, `result` is unchanged */
    bool is_sender_wanted = is_filled && result->is_sender_wanted;
    while (status != STATUS_OK && append_prepare_again(self, target, status, result->need, &wait)) {
        const struct append_order order = {.partition_index = target->partition_index,
                                           .count = count,
                                           .records = records,
                                           .reservation = wait == NULL ? NULL : &wait->left,
                                           .sticky = target->sticky};
        status = appender_append(self->core, &order, result);
        is_sender_wanted |= result->is_sender_wanted;
    }
    slots_end_wait(&wait);
    result->is_sender_wanted = is_sender_wanted;
    return status == STATUS_OK;
}

bool append_wake_sender(struct appender_object *self)
{
    const struct arena *core = self->arena->core;
    if (self->wake == NULL || self->wake == Py_None ||
        (exchange_u32(&core->globals->sender_sleep, 0) == 0 && !process_sender_is_silent(core))) { /* D3 */
        return true;
    }
    PyObject *answer = PyObject_CallNoArgs(self->wake);
    Py_XDECREF(answer);
    return answer != NULL;
}
