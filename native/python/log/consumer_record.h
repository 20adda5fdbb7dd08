/* SPDX-License-Identifier: Apache-2.0
 *
 * ConsumerRecord: one record that a consumer returns, with the fields and the behaviour of kafka-python's named tuple.
 *
 *   +-----------+------------+-----------+--------+-----------+-------+ - - - - - - - - - - - - - - - - +
 *   | place     | key, value | offset    | timestamp          | sizes | small key, small value, headers |
 *   +----|------+----|-------+-----------+--------+-----------+-------+ - - - - - - - - - - - - - - - - +
 *        |           +--> objects, or NULL if the part follows as bytes
 *        +--> (topic, partition, leader epoch), shared by the records of a batch
 *
 * A program reads few fields of most records. So a record is one object with numbers and a copy of its bytes, and a
 * field becomes an object when the program reads it. Only a memoryview refers to memory of the log.
 *
 * Rules: a record never changes. A part above PACKED_PART_SIZE_MAX is an object from the beginning, and is copied once.
 * The garbage collector tracks records that refer to objects of the program (deserialized parts, or all fields of a
 * record that the program made). Other records refer to nothing that could refer back to them, and are not tracked.
 */
#ifndef PYTHON_LOG_CONSUMER_RECORD_H
#define PYTHON_LOG_CONSUMER_RECORD_H

#include "python/common/record_decode.h"

/* A record with two such parts still fits in a small block of Python's object memory (512 bytes). */
enum { PACKED_PART_SIZE_MAX = 200 };

/* The memory of the records of a batch. A part that is a slice refers to it. */
struct record_source {
    const uint8_t *start;
    PyObject *view; /* a memoryview from `start` on; needed for slices only */
    bool has_key_views;
    bool has_value_views;
};

/* Makes the record that the walk has read last. `place` is a tuple of topic, partition and leader epoch. Returns NULL
 * with an exception set. */
PyObject *consumer_record_new(const struct module_state *state, const struct record_walk *walk, PyObject *place,
                              const struct record_source *source);

/* Adds `_fields` and `__match_args__` to the new type. Returns false with an exception set. */
bool consumer_record_finish(PyTypeObject *type);

#endif
