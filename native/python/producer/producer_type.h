/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_PRODUCER_TYPE_H
#define PYTHON_PRODUCER_PRODUCER_TYPE_H

#include "base/wall_clock.h"
#include "producer/record_chunk.h"
#include "python/producer/append.h"

/* A cell of a cache from the address of a str to the topic index. For an equal str at another address, the topic is
 * looked up by its name. The cell has a reference to its str, so that its address is not reused. */
struct topic_cell {
    PyObject *topic;
    uint32_t topic_index;
};

enum { TOPIC_CELL_COUNT = 64 };

struct producer_object {
    PyObject ob_base;
    struct module_state *state;
    struct appender_object *appender; /* NULL before __init__ */
    PyObject *tracker;                      /* the object that its futures refer to */
    PyObject *wait_for_partitions; /* (topic, max_block_ms, deadline_ns, least) -> partition count, or raises */
    PyObject *prepare; /* (arguments of send) -> the six arguments, serialized; NULL if records are sent unchanged */
    PyObject *conclude;  /* called with (future or None, exception or None) after each append, or NULL */
    PyObject *fallback; /* called with (exception, arguments of send...) if a send raised, or NULL */
    bool is_open;
    bool is_piped; /* prepare, conclude or fallback is set */
    bool ignores_keys;
    uint64_t record_count; /* the number of records that were sent through this producer */
    uint64_t record_bytes;
    struct wall_clock clock;
    struct partitioner partitioner;
    struct topic_note *topics; /* by topic index */
    uint32_t topic_count;      /* the topic_count of the arena, which is the length of `topics` */
    struct topic_cell cells[TOPIC_CELL_COUNT];
};

/* Returns NULL before __init__, when there is no arena. */
static inline PyObject *arena_of_producer(PyObject *self)
{
    struct appender_object *appender = ((struct producer_object *)self)->appender;
    return appender == NULL ? self : (PyObject *)appender->arena;
}

/* Call these before and after a call of many records. Returns false with an exception set if the producer is closed. */
bool producer_begin(struct producer_object *self);
void producer_end(struct producer_object *self);

/* Finds or creates the topic, and waits for its partition count. Call it between producer_begin and producer_end.
 * Returns false with an exception set. */
bool producer_topic(struct producer_object *self, PyObject *topic, struct append_target *target, uint32_t *topic_index,
                    uint32_t *partition_count);

/* Waits until the topic has `least` partitions, and stores their number. Returns false with an exception set. */
bool producer_wait_for_partitions(struct producer_object *self, PyObject *topic, struct append_target *target,
                                  int64_t least, uint32_t *partition_count);

/* Sets the target to a partition of the topic, and creates it if necessary. Returns false with an exception set. */
static inline bool partition_find(struct producer_object *self, struct topic_note *topic, uint32_t partition,
                                  struct append_target *target)
{
    uint32_t topic_index = topic->sticky.topic_index;
    enum status status = partition_indices_find(&topic->indices, self->appender->arena->registry, topic_index,
                                                partition, &target->partition_index);
    return LIKELY(status == STATUS_OK) ||
           partition_find_slow(self->appender, target, topic_index, partition, &target->partition_index);
}

/* The method send(). */
PyObject *producer_send(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

#define METHODS_PART METHODS_DECLARED
#include "python/producer/producer_method_list.h"

#endif
