/* SPDX-License-Identifier: Apache-2.0
 *
 * decode_block: reads the plain batches of a block of a log into buffers of Arrow columns (log/block_columns.h). No
 * Python code runs per batch.
 */
#include "log/block_columns.h"
#include "python/common/module_methods.h"
#include "python/log/column_objects.h"

static PyObject *block_decode(struct block_walk *walk)
{
    struct record_columns_room room = {0};
    struct column_objects objects = {0};
    struct record_columns columns;
    PyObject *answer = NULL;
    int64_t end = block_columns_measure(walk, &room);
    if (column_objects_new(&room, walk->has_headers, &objects, &columns)) {
        block_columns_append(walk, end, &columns);
        answer = column_objects_cut(&columns, &objects) ? column_objects_tuple(&columns, &objects) : NULL;
    }
    column_objects_release(&objects);
    return answer == NULL ? NULL
                          : Py_BuildValue("(NLL)", answer, (long long)walk->block.position,
                                          (long long)walk->block.expected_first);
}

PyObject *py_module_decode_block(PyObject *module, const Py_buffer *bytes, const struct py_module_decode_block *given)
{
    struct block_walk walk = {.has_headers = given->has_headers,
                              .range = {.first = given->first_offset, .end = given->end_offset},
                              .block = {.start = bytes->buf,
                                        .size = bytes->len,
                                        .position = given->position,
                                        .expected_first = given->expected_first,
                                        .expected_last = given->expected_last,
                                        .is_crc_checked = given->is_crc_checked}};
    (void)module;
    return block_decode(&walk);
}
