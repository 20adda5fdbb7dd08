/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading and serving logs, and the commits of their groups: the functions of the module.
 */
#ifndef PYTHON_LOG_LOG_H
#define PYTHON_LOG_LOG_H

#include "python/common/module_state.h"

/* decode_records(records, record_type, base_offset, ...): the records of a batch of a segment log. */
PyObject *log_decode(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* header_for_producer(header, producer_id, producer_epoch, base_sequence): the header of a batch in front of the same
 * records, for another producer. */
PyObject *log_header_for_producer(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* records_time(records, base_timestamp_ms, record_count): smallest and largest timestamp of the records of a batch. */
PyObject *log_records_time(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* consume_batch(records, place, ...), consume_block(block, position, place, ...): the records for a consumer. */
PyObject *log_consume_batch(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *log_consume_block(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* decode_columns(batches, first_offset, end_offset, has_headers): the records of many such batches as Arrow columns. */
PyObject *log_columns(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* decode_block(block, position, first_offset, end_offset, ...): the same of the plain batches of a block. */
PyObject *log_block_columns(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* read_fetch(body, version, request_type, wanted_type): a Fetch request of a consumer. */
PyObject *log_read_fetch(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* write_fetch(version, correlation_id, error, session_id, found): the pieces of the answer to one. */
PyObject *log_write_fetch(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* find_batch(descriptor, position, end, offset): place and size of the batch that has an offset. */
PyObject *log_find_batch(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* send_pieces(socket, pieces): how many bytes of an answer a socket took. */
PyObject *log_send_pieces(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* serve_ready(epoll, timeout_ns, clients, ...): the files that are ready; ordinary fetches are answered by then. */
PyObject *log_serve_ready(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* append_frame(lock, byte, file, size, body): the size of a file behind a frame that was written under a lock. */
PyObject *log_append_frame(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names);

/* Fields are stored straight into the objects of a type, so it must be laid out as a tuple. */
static inline bool is_tuple_type(PyObject *object)
{
    return PyType_Check(object) && PyType_IsSubtype((PyTypeObject *)object, &PyTuple_Type) &&
           ((PyTypeObject *)object)->tp_basicsize == PyTuple_Type.tp_basicsize;
}

#endif
