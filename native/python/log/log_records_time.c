/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks that a batch has the records that its header announces, and finds their smallest and largest timestamp.
 */
#include "format/record_batch.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/log/log.h"

PyObject *py_module_records_time(PyObject *module, const struct py_module_records_time *given)
{
    Py_buffer bytes;
    if (PyObject_GetBuffer(given->records, &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    struct timestamp_range range;
    struct error error = {0};
    const uint8_t *start = bytes.buf;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = records_time(start, start + bytes.len, (int32_t)given->record_count, given->base_timestamp_ms, &range,
                          &error);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&bytes);
    return status == STATUS_OK ? Py_BuildValue("(LL)", (long long)range.min, (long long)range.max)
                               : raise_error(PyModule_GetState(module), &error);
}
