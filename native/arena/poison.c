/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/poison.h"

#include "arena/counters.h"

void arena_poison(struct arena *arena, enum status status, const char *what)
{
    uint32_t none = 0;
    cas_u32(&arena->globals->poisoned_status, &none, (uint32_t)status);
    error_log_record(arena, status, what);
}
