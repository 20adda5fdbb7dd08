/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/blocking.h"

#include <Python.h>

static void *gil_let_go(void)
{
    return PyEval_SaveThread();
}

static void gil_take_again(void *state)
{
    PyEval_RestoreThread(state);
}

const struct blocking_hooks gil_hooks = {.begin = gil_let_go, .end = gil_take_again};
