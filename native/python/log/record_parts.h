/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a record that was read from a log, as Python objects, for every function here that makes records.
 */
#ifndef PYTHON_LOG_RECORD_PARTS_H
#define PYTHON_LOG_RECORD_PARTS_H

#include "format/record.h"
#include "python/common/module_state.h"

enum { RECORD_SIZE_MIN = 7 }; /* bytes of an empty record: each of its parts takes one */

/* The facts of a batch that its records need. */
struct batch_facts {
    int64_t base_offset;
    int64_t base_timestamp_ms;
    int64_t record_count;
    int64_t log_append_time_ms; /* NO_TIMESTAMP if each record has its own */
};

/* Reads the next record, whose offset must lie above `last_delta`. */
MUST_USE static inline enum status batch_record_next(const uint8_t **cursor, const uint8_t *end,
                                                     const struct batch_facts *facts, int32_t last_delta,
                                                     struct record_view *view)
{
    RETURN_IF_FAILED(record_read(cursor, end, view));
    bool is_in_order = view->offset_delta > last_delta && view->offset_delta <= INT64_MAX - facts->base_offset;
    return is_in_order ? STATUS_OK : STATUS_CORRUPT;
}

/* Returns milliseconds since 1970, or NO_TIMESTAMP if the sum overflows. */
static inline int64_t record_timestamp_ms(const struct record_view *view, const struct batch_facts *facts)
{
    int64_t timestamp_ms = facts->log_append_time_ms;
    if (timestamp_ms == NO_TIMESTAMP &&
        __builtin_add_overflow(facts->base_timestamp_ms, view->timestamp_delta, &timestamp_ms)) {
        return NO_TIMESTAMP;
    }
    return timestamp_ms;
}

static inline PyObject *bytes_or_none(const uint8_t *start, int32_t size)
{
    return size < 0 ? Py_NewRef(Py_None) : PyBytes_FromStringAndSize((const char *)start, size);
}

/* The headers from `cursor` on, as a tuple of pairs (str, bytes or None). Returns NULL with an exception set. */
PyObject *headers_to_tuple(const uint8_t *cursor, const uint8_t *end, int32_t count);

/* Each raises as raise_format: for a damaged record, for bytes after the last record, for more records than bytes. */
PyObject *raise_record(const struct module_state *state, Py_ssize_t index);
PyObject *raise_rest(const struct module_state *state, ptrdiff_t rest);
PyObject *raise_count(const struct module_state *state, int64_t record_count, Py_ssize_t size);

#endif
