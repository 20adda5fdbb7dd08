/* SPDX-License-Identifier: Apache-2.0 */
#include "python/common/wakes.h"

static bool waiter_indices_add(PyObject *list, uint32_t word_index, uint64_t bits)
{
    for (; bits != 0; bits &= bits - 1) {
        PyObject *index = PyLong_FromUnsignedLong(word_index * 64 + (uint32_t)__builtin_ctzll(bits));
        bool is_added = index != NULL && PyList_Append(list, index) == 0;
        Py_XDECREF(index);
        if (!is_added) {
            return false;
        }
    }
    return true;
}

PyObject *wake_set_to_tuple(struct wake_set *wakes)
{
    PyObject *list = PyList_New(0);
    bool is_filled = list != NULL;
    for (uint32_t i = 0; i < WAITER_COUNT_MAX / 64 && is_filled; i++) {
        is_filled = waiter_indices_add(list, i, wakes->bits[i]);
    }
    *wakes = (struct wake_set){0};
    PyObject *tuple = is_filled ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

bool wake_set_hand_over(struct wake_set *wakes, PyObject *wake)
{
    if (LIKELY(wakes->count == 0) || wake == NULL) {
        return true;
    }
    PyObject *indices = wake_set_to_tuple(wakes);
    PyObject *answer = indices == NULL ? NULL : PyObject_CallOneArg(wake, indices);
    Py_XDECREF(indices);
    Py_XDECREF(answer);
    return answer != NULL;
}
