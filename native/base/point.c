/* SPDX-License-Identifier: Apache-2.0 */
#include "base/point.h"

#ifdef SHMACCUM_POINTS
void (*point_hook)(const char *name);
#else
typedef int point_is_compiled_out; /* ISO C forbids an empty translation unit */
#endif
