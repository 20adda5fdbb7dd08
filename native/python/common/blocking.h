/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PYTHON_COMMON_BLOCKING_H
#define PYTHON_COMMON_BLOCKING_H

#include "arena/arena.h"

/* The core calls these before and after each sleep, when it holds no lock of the arena. Other threads run meanwhile. */
extern const struct blocking_hooks gil_hooks;

#endif
