/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf: the sender's side of an arena, with or without the sender role.
 */
#ifndef PYTHON_SENDER_SENDER_HALF_TYPE_H
#define PYTHON_SENDER_SENDER_HALF_TYPE_H

#include "arena/transaction.h"
#include "python/common/arena_object.h"
#include "sender/sender_half.h"

/* A batch whose object was freed before it was completed. */
struct abandoned_batch {
    uint64_t seq;
    uint32_t slot_index;
};

struct sender_half_object {
    PyObject ob_base;
    struct module_state *state;
    struct arena_object *arena;
    struct sender_half *core; /* NULL without the role */
    struct wake_set wakes;    /* waiters that the running call has served */
    atomic_u32 export_count;  /* exported buffers of batches */
    bool is_closed;
    bool is_in_call;
    bool is_interrupted; /* the running call of `pump` has to end */
    bool wants_dead_letters;         /* for the next time the role is taken */
    char sink_name[SINK_NAME_SIZE];  /* for the next time the role is taken */
    uint64_t role_number; /* how often it took the role. A batch with an earlier number is invalid */
    struct abandoned_batch *abandoned; /* one for each slot; NULL before the role is first taken */
    uint32_t abandoned_count;
};

static inline PyObject *arena_of_half(PyObject *self)
{
    return (PyObject *)((struct sender_half_object *)self)->arena;
}

/* Returns false without the role, and in a forked child. */
bool half_has_role(const struct sender_half_object *self);

/* Called around each call that needs the role. Returns false with an exception set; half_end takes over `result`. */
bool half_begin(struct sender_half_object *self);
PyObject *half_end(struct sender_half_object *self, PyObject *result);

enum { NOW = -1 };

/* Returns `now_ns`, or the arena's time if it is NOW. */
uint64_t half_now_or(const struct sender_half_object *self, int64_t now_ns);

/* Reads partition indices from a tuple. Returns false with an exception set. */
bool half_partitions_parse(const struct sender_half_object *self, PyObject *tuple, uint32_t *partitions);

/* Returns a list with a Batch for each batch. Without memory, requeues batches and returns NULL. */
PyObject *half_batches_to_list(struct sender_half_object *self, const struct drained_batch *batches, uint32_t count);

/* The guard of methods that need the role. */
#define half_call_begin half_begin
#define half_call_end half_end

/* The guard of methods that are called before the role is taken. */
bool half_setting_begin(struct sender_half_object *self);
#define half_setting_end any_end

enum { EVERY_PARTITION = -1 };

#define METHODS_PART METHODS_DECLARED
#include "python/sender/sender_half_method_list.h"

#endif
