/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PYTHON_COMMON_BLOCKING_H
#define PYTHON_COMMON_BLOCKING_H

#include "arena/arena.h"

/* The core calls these around each sleep for a lock of the arena, while it holds none: other threads run meanwhile. */
extern const struct blocking_hooks gil_hooks;

#endif
