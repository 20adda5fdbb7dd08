/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/unfinished_waits.h"

#include <stdlib.h>
#include <string.h>

struct unfinished_wait {
    struct unfinished_wait *next;
    uint32_t owner; /* the process that waited, which is the parent in a forked child */
    struct buffer_wait wait;
    uint32_t taken_count; /* the first slots of `slots` are owned by this process; 0 while it is in the queue */
    uint32_t slots[];     /* `need` of them */
};

/* Returns false if a stopped process keeps the pool lock. Then `taken_count` says what is left to do. */
static bool wait_try_end(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots, uint32_t *taken_count,
                         struct wake_set *wakes)
{
    if (*taken_count == 0) {
        enum status status = buffer_pool_leave(arena, wait, slots, wakes);
        if (status != STATUS_OK) {
            return status != STATUS_BUSY;
        }
        *taken_count = wait->need;
    }
    return buffer_pool_return(arena, slots, *taken_count, wakes);
}

void wait_end(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots, uint32_t taken_count,
              struct wake_set *wakes)
{
    CHECK(taken_count <= wait->need);
    if (wait_try_end(arena, wait, slots, &taken_count, wakes)) {
        return;
    }
    struct unfinished_wait *unfinished = malloc(sizeof *unfinished + wait->need * sizeof unfinished->slots[0]);
    if (unfinished == NULL) {
        return; /* its grants are revoked when others need them, and repair frees the rest when this process ends */
    }
    *unfinished = (struct unfinished_wait){.next = arena->unfinished_waits,
                                           .owner = arena->owner,
                                           .wait = *wait,
                                           .taken_count = taken_count};
    memcpy(unfinished->slots, slots, taken_count * sizeof slots[0]);
    arena->unfinished_waits = unfinished;
}

/* Empties the list first: while a try waits for the lock, other threads of this process run, and may also get here. */
void unfinished_waits_end(struct arena *arena, struct wake_set *wakes)
{
    CHECK(arena->owner != 0);
    struct unfinished_wait *next = arena->unfinished_waits;
    arena->unfinished_waits = NULL;
    while (next != NULL) {
        struct unfinished_wait *found = next;
        next = found->next;
        if (found->owner == arena->owner &&
            !wait_try_end(arena, &found->wait, found->slots, &found->taken_count, wakes)) {
            found->next = arena->unfinished_waits;
            arena->unfinished_waits = found;
        } else {
            free(found);
        }
    }
}

void unfinished_waits_drop(struct arena *arena)
{
    while (arena->unfinished_waits != NULL) {
        struct unfinished_wait *next = arena->unfinished_waits->next;
        free(arena->unfinished_waits);
        arena->unfinished_waits = next;
    }
}
