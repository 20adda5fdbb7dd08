/* SPDX-License-Identifier: Apache-2.0
 *
 * The Python types of shmaccum._native: what each object holds, who holds it, and what must be over before it may go.
 *
 *   View ──> Batch ──> Accumulator ──> Arena ──> struct arena (the mapping)
 *                      FlushTicket ──> Accumulator
 *          Producer ──────────────> Accumulator
 *                      BufferWait ───────────────> Arena
 *                      Receipt ──────────────────> Arena, tracker
 *   ProduceRequest: buffers it was given, until it is written
 *   Token: numbers only
 *   DeliveryFuture: a Token ──> tracker (Python's) ──> Arena (Python's)
 *
 * Each arrow is a strong reference, so the mapping outlives everything that points into it. What ends the mapping
 * before its last reference is close(); it is refused, with an exception, while any of these is above 0:
 *
 *   accumulator_count   open Accumulators of the Arena
 *   export_count        buffers (memoryviews, numpy arrays) over the mapping
 *   call_count          calls that may have let go of the GIL: another thread is still inside
 *
 * The GIL is let go of only inside the arena's blocking hooks (a wait for a lock of the arena, a copy of a large
 * record) and around create and attach. Whoever does so keeps its Python arguments alive itself (arguments.h).
 *
 * After fork the child's handle is not attached (owner 0) and none of its parent's calls go on in it: the first use
 * attaches anew and counts calls from the beginning.
 */
#ifndef PYTHON_COMMON_TYPES_H
#define PYTHON_COMMON_TYPES_H

#include <Python.h>
#include <stdbool.h>

#include "arena/registry.h"
#include "producer/accumulator.h"
#include "producer/partition_indices.h"

enum { SEND_ARGUMENT_COUNT = 6 }; /* topic, value, key, headers, partition, timestamp_ms */

struct module_state {
    PyObject *exceptions[STATUS_COUNT]; /* errors.c: one per status */
    PyObject *arena_closed;
    PyObject *arena_in_use;
    PyObject *batch_in_use;
    PyObject *not_sender;
    PyObject *producer_closed;
    PyObject *sender_busy;
    PyObject *unknown_partition;
    PyObject *send_names[SEND_ARGUMENT_COUNT]; /* interned: keywords are found by identity */
    PyTypeObject *accumulator_type;
    PyTypeObject *arena_type;
    PyTypeObject *batch_type;
    PyTypeObject *buffer_wait_type;
    PyTypeObject *flush_ticket_type;
    PyTypeObject *future_type;
    PyTypeObject *produce_request_type;
    PyTypeObject *producer_type;
    PyTypeObject *receipt_type;
    PyTypeObject *token_type;
    PyTypeObject *view_type;
};

/* An object keeps the state's address: the state lives as long as the module, the module as long as its types, a type
 * as long as its objects. */

/* ---- arena_type.c ---- */

extern PyType_Spec arena_spec;

struct arena_object {
    PyObject ob_base;
    struct module_state *state;
    struct arena *core; /* NULL once closed */
    struct registry *registry;
    uint32_t accumulator_count;
    uint32_t export_count;
    uint32_t call_count;
};

/* Takes over `core`; NULL with an exception set, and `core` detached, when there is no memory. */
PyObject *arena_object_new(struct module_state *state, struct arena *core);

/* False, with an exception set, when the arena is closed. */
bool arena_object_is_open(const struct arena_object *self);

/* The same, and attached: after fork the child takes an entry of its own here. */
bool arena_object_attach(struct arena_object *self);

/* Finds or creates. False with an exception set. */
bool arena_object_topic(struct arena_object *self, PyObject *topic, uint32_t *topic_index);

/* What became of records; arena_completion.c. */
PyObject *arena_completion_find(PyObject *self, PyObject *token);
PyObject *arena_completion_list(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *arena_sync(PyObject *self, PyObject *timeout_ns);
PyObject *arena_force_if_due(PyObject *self, PyObject *interval_ns);
PyObject *arena_get_closing(PyObject *self, void *unused);
PyObject *arena_get_file_id(PyObject *self, void *unused);
PyObject *arena_get_has_lost_its_name(PyObject *self, void *unused);
PyObject *arena_look_at_name(PyObject *self, PyObject *unused);
PyObject *arena_begin_closing(PyObject *self, PyObject *unused);
PyObject *arena_end_closing(PyObject *self, PyObject *unused);
PyObject *arena_completion_wait(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* Region -> (name, offset, size, struct size) of the fields that an upgrade copies; layout_fields.c. */
PyObject *layout_fields(PyObject *module, PyObject *unused);

/* Methods that only read and show; arena_report.c. */
PyObject *arena_report_counters(PyObject *self, PyObject *unused);
PyObject *arena_report_errors(PyObject *self, PyObject *unused);
PyObject *arena_report_geometry(PyObject *self, void *unused);
PyObject *arena_report_layout(PyObject *self, void *unused);
PyObject *arena_report_partitions(PyObject *self, PyObject *unused);
PyObject *arena_report_processes(PyObject *self, PyObject *unused);
PyObject *arena_report_recovery_plan(PyObject *self, PyObject *unused);
PyObject *arena_report_delivery_clock(PyObject *self, PyObject *unused);
PyObject *arena_report_sender(PyObject *self, PyObject *unused);
PyObject *arena_report_state_counts(PyObject *self, PyObject *unused);
PyObject *arena_report_topics(PyObject *self, PyObject *unused);
PyObject *arena_report_verify(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* ---- accumulator_type.c ---- */

extern PyType_Spec accumulator_spec;

/* (topic, partition) -> partition index, by the identity of the topic's str: the same name in another str is only a
 * slower answer. A cell keeps its str alive, so an address is never reused for another name. */
struct partition_cell {
    PyObject *topic;
    int32_t partition;
    uint32_t partition_index;
};

enum { PARTITION_CELL_COUNT = 256 };

/* A batch whose object went away before it was completed. */
struct abandoned_batch {
    uint64_t seq;
    uint32_t slot_index;
};

struct accumulator_object {
    PyObject ob_base;
    struct module_state *state;
    struct arena_object *arena;
    struct accumulator *core; /* NULL once closed */
    PyObject *wait; /* wait(need, max_block_ms, deadline_ns) -> BufferWait whose slots were taken */
    PyObject *wake; /* wake(waiter indices) */
    PyObject *ring; /* ring(), or None */
    int64_t max_block_ms;
    uint32_t call_count;
    uint32_t call_owner;   /* who call_count counts for: after fork it starts anew */
    uint32_t export_count; /* buffers over batches */
    bool is_in_sender_call;
    uint64_t stint; /* how often it became the sender: a batch of an earlier stint is not ours any more */
    struct abandoned_batch *abandoned; /* room for every slot; NULL before the first stint */
    uint32_t abandoned_count;
    struct partition_cell cells[PARTITION_CELL_COUNT];
};

/* The producer's half; accumulator_append.c. */
PyObject *accumulator_append_many(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_append_one(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_partition_index(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* Every call of the sender's half runs between these; end takes over `result`. */
bool accumulator_sender_begin(struct accumulator_object *self);
PyObject *accumulator_sender_end(struct accumulator_object *self, PyObject *result);

/* The sender's half; accumulator_sender.c, accumulator_settings.c. */
PyObject *accumulator_sender_abort(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_become(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_complete(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_complete_many(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_complete_part(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_dead_letters(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_decide(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_drain(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_end_backoff(PyObject *self, PyObject *partition_index);
PyObject *accumulator_sender_expire(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_is_sender(PyObject *self, void *unused);
PyObject *accumulator_sender_maintain(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_show_life(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_mute(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_publish_queues(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_quarantine(PyObject *self, PyObject *batch);
PyObject *accumulator_sender_ready(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_requeue(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_resign(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_resequence(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_set_available(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_set_producer_id(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                             PyObject *names);
PyObject *accumulator_sender_statistics_dict(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_take_expired(PyObject *self, PyObject *unused);
PyObject *accumulator_sender_tell_delivery_timeout(PyObject *self, PyObject *const *args, Py_ssize_t count,
                                                   PyObject *names);
PyObject *accumulator_sender_run_delivery_clock(PyObject *self, PyObject *run_ns);
PyObject *accumulator_sender_publish_outage(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *accumulator_sender_get_oldest_created_ns(PyObject *self, void *unused);
PyObject *accumulator_sender_want_dead_letters(PyObject *self, PyObject *is_wanted);
PyObject *accumulator_sender_set_sink_name(PyObject *self, PyObject *name);

/* Leaves the role if it is held. False, with an exception set, while buffers of batches are exported. */
bool accumulator_sender_drop(struct accumulator_object *self);

/* ---- batch_type.c ---- */

extern PyType_Spec batch_spec;

struct batch_object {
    PyVarObject ob_base;
    struct accumulator_object *accumulator;
    struct drained_batch facts;
    uint64_t stint;
    uint32_t export_count;
    uint32_t slot_count;
    bool is_over; /* completed, requeued or quarantined */
    uint32_t slots[]; /* head first */
};

PyObject *batch_object_new(struct accumulator_object *accumulator, const struct drained_batch *facts);

/* False, with an exception set, when the batch is over or belongs to an earlier stint or another process. */
bool batch_object_is_current(const struct batch_object *self);

/* ---- token_type.c ---- */

extern PyType_Spec token_spec;

struct token_object {
    PyObject ob_base;
    uint64_t seq;
    int64_t timestamp_ms;
    uint32_t partition_index;
    uint32_t slot_index;
    uint32_t record_index;
};

/* Uninitialized numbers: taken before the append, filled after it, so that no record is committed without its token. */
static inline struct token_object *token_object_new(const struct module_state *state)
{
    return PyObject_New(struct token_object, state->token_type);
}

static inline void token_object_fill(struct token_object *self, uint32_t partition_index,
                                     const struct batch_place *place)
{
    self->seq = place->seq;
    self->timestamp_ms = place->timestamp_ms;
    self->partition_index = partition_index;
    self->slot_index = place->slot_index;
    self->record_index = place->record_index;
}

/* ---- future_type.c ---- */

extern PyType_Spec future_spec;

/* A token that knows where to look. Not tracked by the garbage collector: it refers to its tracker, and to a tuple of
 * numbers once its result is known. */
struct future_object {
    struct token_object token;
    PyObject *tracker;
    PyObject *completion; /* a tuple as Arena.find() answers it, or NULL: not looked up yet */
    int32_t key_size;     /* bytes; -1: null */
    int32_t value_size;
    int32_t headers_size; /* bytes of all header keys and values; -1: no headers */
};

/* Numbers are filled in after the append, as with a token. */
struct future_object *future_object_new(const struct module_state *state, PyObject *tracker);

/* ---- producer_type.c ---- */

extern PyType_Spec producer_spec;

/* What a producer knows of a topic. */
struct topic_note {
    struct sticky sticky;
    uint64_t indexed_word;    /* the sticky word that partition_index belongs to */
    uint32_t partition_index;
    struct partition_indices indices; /* of the partitions that calls of many records went to */
};

/* topic's str -> topic index, by identity, as partition_cell. */
struct topic_cell {
    PyObject *topic;
    uint32_t topic_index;
};

enum { TOPIC_CELL_COUNT = 64 };

struct producer_object {
    PyObject ob_base;
    struct module_state *state;
    struct accumulator_object *accumulator; /* NULL before __init__ */
    PyObject *tracker;                      /* what its futures refer to */
    PyObject *wait_for_partitions; /* (topic, max_block_ms, deadline_ns) -> partition count, or raises */
    PyObject *pipeline; /* send(...) with serializers, interceptors, a partitioner of the user; NULL: none of them */
    bool is_open;
    bool ignores_keys;
    uint64_t record_count; /* sent through it, with their bytes */
    uint64_t record_bytes;
    struct partitioner partitioner;
    struct topic_note *topics; /* by topic index */
    uint32_t topic_count;      /* of the arena: room in `topics` */
    struct topic_cell cells[TOPIC_CELL_COUNT];
};

/* Around a call of many records. False, with an exception set, when the producer is closed. */
bool producer_begin(struct producer_object *self);
void producer_end(struct producer_object *self);

/* The topic as it stands in the arena, created if it is new, with a partition count that is known; waits for it if need
 * be. Inside a counted call. False with an exception set. */
struct append_target;
bool producer_topic(struct producer_object *self, PyObject *topic, struct append_target *target, uint32_t *topic_index,
                    uint32_t *partition_count);

/* Many records in one call; producer_columns.c, producer_arrow.c. */
PyObject *producer_append_rows(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *producer_append_columns(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* ---- view_type.c ---- */

extern PyType_Spec view_spec;

/* Each is raised while a memoryview of bytes of the mapping lives. */
struct view_counts {
    uint32_t *arena;
    uint32_t *accumulator; /* or NULL */
    uint32_t *batch;       /* or NULL */
};

/* A read-only memoryview; `owner`, which holds the counts, is kept alive. */
PyObject *view_memory(struct module_state *state, PyObject *owner, const struct view_counts *counts,
                      const uint8_t *start, size_t size);

/* ---- buffer_wait_type.c ---- */

extern PyType_Spec buffer_wait_spec;

enum buffer_wait_stage { WAIT_QUEUED, WAIT_TAKEN, WAIT_OVER };

struct buffer_wait_object {
    PyVarObject ob_base;
    struct arena_object *arena;
    uint32_t owner; /* who waits: after fork the child has no part in it */
    enum buffer_wait_stage stage;
    struct buffer_wait wait;
    struct reservation left; /* of `slots`, while TAKEN */
    uint32_t slots[];
};

/* Joins the queue; a method of Arena. */
PyObject *buffer_wait_enqueue(PyObject *arena, PyObject *need);

/* Gives back what append did not use. */
void buffer_wait_finish(struct buffer_wait_object *self, struct wake_set *wakes);

/* The tuple of waiter indices in a set, which is emptied. */
PyObject *wake_set_to_tuple(struct wake_set *wakes);

/* ---- produce_request_type.c ---- */

extern PyType_Spec produce_request_spec;

/* ---- flush_ticket_type.c ---- */

extern PyType_Spec flush_ticket_spec;

/* A method of Accumulator. */
PyObject *flush_ticket_begin(PyObject *accumulator, PyObject *unused);

/* ---- record_decode.c ---- */

/* decode_batch(buffer): the records of any uncompressed batch, and Batch.decode(). */
PyObject *record_decode_buffer(PyObject *module, PyObject *buffer);
PyObject *record_decode_bytes(struct module_state *state, const uint8_t *bytes, size_t size);

/* ---- log_decode.c ---- */

/* decode_records(records, record_type, base_offset, ...): the records of a batch of a segment log. */
PyObject *log_decode(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* ---- log_columns.c ---- */

/* decode_columns(batches, first_offset, end_offset, has_headers): the records of many such batches as Arrow columns. */
PyObject *log_columns(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

#endif
