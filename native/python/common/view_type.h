/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_COMMON_VIEW_TYPE_H
#define PYTHON_COMMON_VIEW_TYPE_H

#include "python/common/module_state.h"

extern PyType_Spec view_spec;

/* Each is raised while a memoryview of bytes of the mapping lives. */
struct view_counts {
    uint32_t *arena;
    uint32_t *half;  /* or NULL */
    uint32_t *batch;       /* or NULL */
};

/* A read-only memoryview; `owner`, which holds the counts, is kept alive. */
PyObject *view_memory(struct module_state *state, PyObject *owner, const struct view_counts *counts,
                      const uint8_t *start, size_t size);

#endif
