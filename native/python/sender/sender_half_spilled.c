/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf: the batches in the overflow (arena/spilled.h).
 */
#include "arena/spilled.h"
#include "arena/registry.h"
#include "arena/topic_share.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/sender/batch_type.h"

/* ---- the need ---- */

PyObject *py_half_pressure(struct sender_half_object *self, const struct py_half_pressure *given)
{
    const struct ready_options options = {.now_ns = (uint64_t)given->now_ns, .linger_ns = (uint64_t)given->linger_ns};
    struct sender_half *core = self->core;
    const struct arena *arena = core->arena;
    const struct globals *globals = arena->globals;
    uint64_t waits_since_ns = sender_waits_since_ns(core, &options);
    uint32_t waiter_count = load_relaxed_u32(&globals->waiting_count) + load_relaxed_u32(&globals->parked_count);
    PyObject *since = waits_since_ns == UINT64_MAX ? Py_NewRef(Py_None) : PyLong_FromUnsignedLongLong(waits_since_ns);
    return Py_BuildValue("(IIKNK)", arena->geometry.slot_count - free_count(arena), waiter_count,
                         (unsigned long long)load_relaxed_u64(&globals->acked_ns), since,
                         (unsigned long long)core->former_heartbeat_ns);
}

static PyObject *stuck_partition(const void *core, uint32_t index)
{
    bool is_stuck = ((const struct sender_half *)core)->queues[index].stuck_reason != STUCK_NOT;
    return is_stuck ? PyLong_FromUnsignedLong(index) : NULL;
}

PyObject *py_half_stuck_partitions(struct sender_half_object *self)
{
    return list_of(registry_partition_count(self->core->arena), stuck_partition, self->core);
}

/* ---- results ---- */

PyObject *py_half_complete_spilled(struct sender_half_object *self, const struct py_half_complete_spilled *given)
{
    const struct completion completion = {.seq = (uint64_t)given->seq,
                                          .slot_index = (uint32_t)given->slot_index,
                                          .partition_index = (uint32_t)given->partition_index,
                                          .first_record = (uint32_t)given->first_record,
                                          .record_count = (uint32_t)given->record_count,
                                          .result = (enum batch_result)given->result,
                                          .error_code = (int32_t)given->error_code,
                                          .base_offset = given->base_offset,
                                          .log_append_time_ms = given->log_append_time_ms};
    enum status status = sender_complete_spilled(self->core, &completion);
    return none_or_raise(self->state, status);
}

/* ---- partitions ---- */

PyObject *py_half_partition_index(struct sender_half_object *self, const struct py_half_partition_index *given)
{
    uint32_t topic_index;
    uint32_t partition_index;
    if (!arena_object_topic(self->arena, given->topic, &topic_index)) {
        return NULL;
    }
    const struct registry_limit limit = {.block_ms = REGISTRY_BLOCK_MS};
    enum status status =
        arena_object_partition(self->arena, topic_index, (uint32_t)given->partition, limit, &partition_index);
    return status == STATUS_OK ? PyLong_FromUnsignedLong(partition_index) : raise_registry(self->state, status);
}
