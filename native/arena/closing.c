/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/closing.h"

#include <sys/stat.h>

#include "arena/batch_seal.h"
#include "arena/lost_memory.h"
#include "base/point.h"

static void closing_raise(struct arena *arena, enum closing closing)
{
    CHECK(closing != CLOSING_NOT);
    CHECK(!arena->is_read_only);
    uint32_t seen = load_relaxed_u32(&arena->globals->closing);
    while (seen < (uint32_t)closing && !cas_u32(&arena->globals->closing, &seen, (uint32_t)closing)) { /* X5 */
    }
    barrier_store_load(); /* X1 */
}

void closing_begin(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    closing_raise(arena, CLOSING_BEGUN);
    POINT(closing_begun);
    batch_seal_all(arena);
}

void closing_end(struct arena *arena)
{
    CHECK(arena->is_sender);
    closing_raise(arena, CLOSING_DONE);
    POINT(closing_ended);
}

bool arena_lost_its_name(const struct arena *arena)
{
    CHECK(arena->map_descriptor >= 0);
    struct stat found;
    return arena->had_name && fstat(arena->map_descriptor, &found) == 0 && found.st_nlink == 0;
}

void closing_check_now(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    arena->name_checked_ns = arena_now_ns(arena);
    lost_memory_check(arena);
    if (arena_takes_records(arena) && arena_lost_its_name(arena)) {
        closing_begin(arena);
    }
}

void closing_check(struct arena *arena)
{
    if (arena_now_ns(arena) - arena->name_checked_ns >= NS_PER_S) {
        closing_check_now(arena);
    }
}
