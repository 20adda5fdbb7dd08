/* SPDX-License-Identifier: Apache-2.0
 *
 * The module's state, and the references between the Python types of shmaccum._native:
 *
 *   View ──> Batch ──> SenderHalf ──> Arena ──> struct arena (the mapping)
 *   FlushTicket ─────> Appender ────> Arena
 *   Producer ────────> Appender
 *   ConfluentProducer ─────────────> Producer
 *   BufferWait ─────────────────────> Arena
 *   Receipt ────────────────────────> Arena, tracker
 *   ProduceRequest: its buffers, until it is written
 *   LogEnd ──> SegmentEnd, IndexPosition, two IndexFileEnds, a dict of the producers
 *   DeliveryFuture: a Token (numbers only) ──> tracker (Python's) ──> Arena (Python's)
 *
 * Each arrow is a strong reference, so the mapping outlives everything that points into it. close() unmaps while
 * references exist. It raises an error while any of these counts is above 0:
 *
 *   half_count     open Appenders and SenderHalves of the Arena
 *   export_count   buffers (memoryviews, numpy arrays) over the mapping
 *   call_count     calls that may have released the GIL, in other threads
 *
 * The GIL is released only in the arena's blocking hooks (a wait for a lock of the arena, a copy of a large record) and
 * during create and attach. A call that releases it holds its Python arguments (arguments.h). Without a GIL, a call
 * locks its arena instead (alone.h), under the same rules.
 *
 * After fork, the child's handle is not attached (owner 0), and no call of the parent runs in the child. The first use
 * attaches again, and counts calls from 0.
 */
#ifndef PYTHON_COMMON_MODULE_STATE_H
#define PYTHON_COMMON_MODULE_STATE_H

#include <Python.h>
#include <stdbool.h>

#include "base/atomic.h"
#include "base/status.h"

/* A function of METH_FASTCALL | METH_KEYWORDS for a row of a PyMethodDef array. */
#define FAST(function) ((PyCFunction)(void (*)(void))(function))

/* The types that are attributes of the module. NAME_type is its member of the state, NAME_spec its PyType_Spec. */
#define PUBLIC_TYPES(X) \
    X(appender)         \
    X(arena)            \
    X(batch)            \
    X(buffer_wait)      \
    X(confluent)        \
    X(consumer_record)  \
    X(flush_ticket)     \
    X(index_file_end)   \
    X(index_position)   \
    X(log_end)          \
    X(produce_request)  \
    X(producer)         \
    X(receipt)          \
    X(result_waiters)   \
    X(segment_end)      \
    X(sender_half)      \
    X(token)

/* The spec of a type of this module, whose objects have a fixed size and whose attributes do not change. */
#define NATIVE_TYPE(title, object, type_slots, more_flags)                     \
    {.name = "shmaccum._native." title,                                        \
     .basicsize = sizeof(object),                                              \
     .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | (more_flags),    \
     .slots = (type_slots)}

#define TYPE_MEMBER(name) PyTypeObject *name##_type;
#define TYPE_SPEC(name) extern PyType_Spec name##_spec;

PUBLIC_TYPES(TYPE_SPEC)
extern PyType_Spec future_spec; /* a subclass of Token */
extern PyType_Spec view_spec;   /* not an attribute of the module */

enum {
    SEND_ARGUMENT_COUNT = 6,    /* topic, value, key, headers, partition, timestamp_ms */
    PRODUCE_ARGUMENT_COUNT = 8, /* topic, value, key, partition, callback, on_delivery, timestamp, headers */
};

struct module_state {
    PyObject *exceptions[STATUS_COUNT]; /* one class per status (errors.c) */
    PyObject *arena_closed;
    PyObject *arena_in_use;
    PyObject *batch_in_use;
    PyObject *not_sender;
    PyObject *producer_closed;
    PyObject *unknown_partition;
    PyObject *send_names[SEND_ARGUMENT_COUNT]; /* interned names, because keywords are compared by identity */
    PyObject *produce_names[PRODUCE_ARGUMENT_COUNT];
    PyObject *produce_in_python; /* the name of a method of ConfluentProducer */
    atomic_pointer future_functions; /* the module shmaccum.producer.future, or NULL until it is needed */
    void *spare_future; /* memory, or NULL: producer/future_type.h */
    PUBLIC_TYPES(TYPE_MEMBER)
    PyTypeObject *future_type;
    PyTypeObject *view_type;
};

/* An object may store the state's address: the state exists as long as the module, the module as long as its types, and
 * a type as long as its objects. */

#endif
