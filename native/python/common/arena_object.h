/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: the object that all folders of the extension use (python/arena/arena_type.c).
 */
#ifndef PYTHON_COMMON_ARENA_OBJECT_H
#define PYTHON_COMMON_ARENA_OBJECT_H

#include "arena/lost_memory.h"
#include "arena/registry.h"
#include "python/common/module_state.h"

struct arena_object {
    PyObject ob_base;
    struct module_state *state;
    struct arena *core; /* NULL after close */
    struct registry *registry;
    uint32_t half_count;
    atomic_u32 export_count;
    uint32_t call_count;
};

/* Takes over `core`. If there is no memory, detaches it and returns NULL with an exception set. */
PyObject *arena_object_new(struct module_state *state, struct arena *core);

/* Returns true with an exception set if the arena is closed. */
bool arena_object_is_closed(const struct arena_object *self);

/* Sets the exception for an arena whose memory is lost, and returns false. */
bool arena_object_raise_lost(const struct arena_object *self);

/* Returns false with an exception set if the memory of an open arena is lost. */
static inline bool arena_object_check_memory(const struct arena_object *self)
{
    return LIKELY(!arena_is_lost(self->core)) || arena_object_raise_lost(self);
}

/* Returns false with an exception set if the arena is closed, or its memory is lost. */
bool arena_object_is_open(const struct arena_object *self);

/* The same. Attaches a forked child. */
bool arena_object_attach(struct arena_object *self);

enum { REGISTRY_BLOCK_MS = 60000 }; /* the default of max_block_ms */

/* The longest wait for the lock of the registry. */
struct registry_limit {
    int64_t block_ms;
    int64_t deadline_ns; /* on the clock of monotonic_ns, or 0: block_ms after the first refusal */
};

/* Finds or creates the partition. Returns STATUS_BUSY at the limit, and with an exception set after a signal: call
 * raise_registry. */
enum status arena_object_partition(struct arena_object *self, uint32_t topic_index, uint32_t partition,
                                   struct registry_limit limit, uint32_t *partition_index);

/* Raises the status of a call of the registry, unless a signal has raised. Returns NULL. */
PyObject *raise_registry(const struct module_state *state, enum status status);

/* Finds or creates the topic. Returns false with an exception set. */
bool arena_object_topic(struct arena_object *self, PyObject *topic, uint32_t *topic_index);

/* The same, with another limit than REGISTRY_BLOCK_MS. */
bool arena_object_topic_within(struct arena_object *self, PyObject *topic, struct registry_limit limit,
                               uint32_t *topic_index);

#endif
