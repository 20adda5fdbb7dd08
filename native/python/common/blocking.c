/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/blocking.h"

#include <Python.h>

static void *gil_release(void)
{
    return PyEval_SaveThread();
}

static void gil_reacquire(void *state)
{
    PyEval_RestoreThread(state);
}

const struct blocking_hooks gil_hooks = {.begin = gil_release, .end = gil_reacquire};
