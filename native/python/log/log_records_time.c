/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the records of a batch are those that its header tells of, and from when to when they are.
 */
#include "format/record_batch.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/log/log.h"

struct time_call {
    PyObject *records;
    int64_t base_timestamp_ms;
    int64_t record_count;
};

static const struct argument_table time_table = {
    .signature = {.function = "records_time",
                  .names = {"records", "base_timestamp_ms", "record_count"},
                  .required_count = 3,
                  .count = 3},
    .arguments = {OBJECT_ARGUMENT(struct time_call, records),
                  INTEGER_ARGUMENT(struct time_call, base_timestamp_ms, INT64_MIN, INT64_MAX),
                  INTEGER_ARGUMENT(struct time_call, record_count, 1, INT32_MAX)},
};

PyObject *log_records_time(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    const struct module_state *state = PyModule_GetState(module);
    struct time_call given;
    Py_buffer bytes;
    if (!arguments_parse(state, &time_table, args, count, names, &given) ||
        PyObject_GetBuffer(given.records, &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    struct timestamp_range range;
    struct error error = {0};
    const uint8_t *start = bytes.buf;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = records_time(start, start + bytes.len, (int32_t)given.record_count, given.base_timestamp_ms, &range,
                          &error);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&bytes);
    return status == STATUS_OK ? Py_BuildValue("(LL)", (long long)range.min, (long long)range.max)
                               : raise_error(state, &error);
}
