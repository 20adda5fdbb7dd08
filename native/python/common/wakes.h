/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiters that a call of the core served: Python posts their semaphores.
 */
#ifndef PYTHON_COMMON_WAKES_H
#define PYTHON_COMMON_WAKES_H

#include "arena/buffer_pool.h"
#include "python/common/module_state.h"

/* The tuple of waiter indices in a set, which is emptied. */
PyObject *wake_set_to_tuple(struct wake_set *wakes);

/* Calls wake(indices), unless the set is empty. False with an exception set. */
bool wake_set_hand_over(struct wake_set *wakes, PyObject *wake);

#endif
