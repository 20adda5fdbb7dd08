/* SPDX-License-Identifier: Apache-2.0
 *
 * A mapping whose file was cut: the process goes on, and the arena is lost to it.
 *
 * The kernel answers an access to a page that the file does not have any more, or that a full tmpfs cannot give, with
 * SIGBUS, which ends a process. The process of a producer is somebody else's program, so it has a handler:
 *
 *   SIGBUS at an address in a mapping of ours   is_lost = 1, then private pages of zeros over the whole mapping, then
 *                                               their word `poisoned_status`; the access is made again, and succeeds
 *   SIGBUS at any other address, or of kill()   the former handler; without one the process dies as it did before
 *
 * From the first fault on, nothing that this process writes reaches another process, and nothing that it reads says
 * anything. So is_lost is read behind each append and before a result is told:
 *
 *   M1  handler: is_lost = 1, then mmap
 *   M2  append:  accesses to the mapping, barrier, then load of is_lost
 *   Stores that went into private pages came behind mmap, which lets no thread go on with its old pages. So the load
 *   finds 1. Stores that came before went into the file. On x86 the barrier is none: a load that ran ahead of the
 *   accesses is repeated if its line changes before they are done.
 *
 * The handler is installed once per process, by the first mapping. It takes no lock: a row of the list is never freed,
 * and `version` is odd while it changes. A row that changes is none of an arena that is in use. A handler that somebody
 * installs later goes first, and has to call this one. A forked child has handler, list and mappings of its parent.
 *
 * The semaphores beside an arena (waiter_semaphores.h) have mappings of their own, which this does not cover.
 */
#ifndef ARENA_LOST_MEMORY_H
#define ARENA_LOST_MEMORY_H

#include "arena/arena.h"

/* Requires arena->base. */
enum status lost_memory_watch(struct arena *arena, struct error *error) MUST_USE;

/* Finds that the file was cut where this process does not touch what is gone: a thread that waits for a buffer, for
 * example, reads the beginning alone. */
void lost_memory_look(struct arena *arena);

/* Before the memory is unmapped. */
void lost_memory_forget(struct arena *arena);

/* True when this process has private pages in place of the arena. */
static inline bool arena_is_lost(const struct arena *arena)
{
    barrier_after_cas(); /* M2 */
    return load_relaxed_u32(&arena->is_lost) != 0;
}

/* The sentence and STATUS_TRUNCATED. */
enum status lost_memory_tell(struct error *error);

#endif
