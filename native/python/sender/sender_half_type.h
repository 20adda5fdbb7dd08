/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf: the sender's side of an arena, with or without the role.
 */
#ifndef PYTHON_SENDER_SENDER_HALF_TYPE_H
#define PYTHON_SENDER_SENDER_HALF_TYPE_H

#include "python/common/arena_object.h"
#include "python/common/arguments.h"
#include "sender/sender_half.h"

extern PyType_Spec sender_half_spec;

/* A batch whose object went away before it was completed. */
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
    atomic_u32 export_count;  /* buffers over batches */
    bool is_closed;
    bool is_in_call;
    bool is_interrupted; /* the running call of `pump` is to end */
    bool wants_dead_letters;         /* for the next time the role is taken */
    char sink_name[SINK_NAME_SIZE];  /* likewise */
    uint64_t stint; /* how often it took the role: a batch of an earlier stint is not ours any more */
    struct abandoned_batch *abandoned; /* room for every slot; NULL before the first stint */
    uint32_t abandoned_count;
};

static inline PyObject *arena_of_half(PyObject *self)
{
    return (PyObject *)((struct sender_half_object *)self)->arena;
}

/* False without the role, and in the child of a fork: it inherits the queues, not the role. */
bool half_has_role(const struct sender_half_object *self);

/* Every call that needs the role runs between these; end takes over `result`. False with an exception set. */
bool half_begin(struct sender_half_object *self);
PyObject *half_end(struct sender_half_object *self, PyObject *result);

/* Parses a call's arguments and begins it. False with an exception set. */
bool half_begin_with(struct sender_half_object *self, const struct argument_table *table, PyObject *const *args,
                     Py_ssize_t count, PyObject *names, void *fields);

enum { NOW = -1 };

/* `now_ns` of a call; NOW: the arena's clock. */
uint64_t half_now_or(const struct sender_half_object *self, int64_t now_ns);

/* The indices of a tuple. False with an exception set. */
bool half_partitions_parse(const struct sender_half_object *self, PyObject *tuple, uint32_t *partitions);

/* A Batch for each. A batch without an object of its own could never be completed: it goes back. NULL with an exception
 * set. */
PyObject *half_batches_to_list(struct sender_half_object *self, const struct drained_batch *batches, uint32_t count);

/* ---- the methods: sender_half_rounds.c ---- */

PyObject *half_abort(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_complete(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_complete_many(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_complete_part(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_dead_letters(PyObject *self, PyObject *unused);
PyObject *half_decide(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_drain(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_expire(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_get_oldest_created_ns(PyObject *self, void *unused);
PyObject *half_maintain(PyObject *self, PyObject *unused);
PyObject *half_quarantine(PyObject *self, PyObject *batch);
PyObject *half_ready(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_requeue(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_show_life(PyObject *self, PyObject *unused);
PyObject *half_spill(PyObject *self, PyObject *batch);
PyObject *half_spill_in_flight(PyObject *self, PyObject *batch);
PyObject *half_statistics(PyObject *self, PyObject *unused);
PyObject *half_take_expired(PyObject *self, PyObject *unused);

/* ---- the methods: sender_half_append.c ---- */

PyObject *half_append_to_log(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* ---- the methods: sender_half_batch_loop.c ---- */

PyObject *half_run_batch_loop(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* ---- the methods: sender_half_pump.c ---- */

PyObject *half_pump(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_interrupt(PyObject *self, PyObject *unused);

/* ---- the methods: sender_half_settings.c ---- */

PyObject *half_end_backoff(PyObject *self, PyObject *partition_index);
PyObject *half_mute(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_publish_queues(PyObject *self, PyObject *unused);
PyObject *half_resequence(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_set_refused(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_set_available(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_set_producer_id(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_publish_outage(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_run_delivery_clock(PyObject *self, PyObject *run_ns);
PyObject *half_next_transaction_task(PyObject *self, PyObject *timeout_ns);
PyObject *half_end_transaction(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_fail_transaction(PyObject *self, PyObject *why);
PyObject *half_keep_transaction_standing(PyObject *self, PyObject *standing);
PyObject *half_set_sink_name(PyObject *self, PyObject *name);
PyObject *half_publish_delivery_timeout(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_want_dead_letters(PyObject *self, PyObject *is_wanted);

/* ---- the methods: sender_half_spilled.c ---- */

PyObject *half_complete_spilled(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_partition_index(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_pressure(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_publish_spilled(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_set_spilled(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *half_stuck_partitions(PyObject *self, PyObject *unused);

#endif
