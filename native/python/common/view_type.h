/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_COMMON_VIEW_TYPE_H
#define PYTHON_COMMON_VIEW_TYPE_H

#include "base/atomic.h"
#include "python/common/module_state.h"

/* Each count is above 0 while a memoryview of the mapping exists. Any thread may release the last reference. */
struct view_counts {
    atomic_u32 *arena;
    atomic_u32 *half;  /* or NULL */
    atomic_u32 *batch; /* or NULL */
};

/* Returns a read-only memoryview. It has a reference to `owner`, which has the counts. */
PyObject *view_memory(struct module_state *state, PyObject *owner, const struct view_counts *counts,
                      const uint8_t *start, size_t size);

#endif
