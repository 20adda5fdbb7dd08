/* SPDX-License-Identifier: Apache-2.0
 *
 * A mapping whose file was truncated: the process continues to run, and the arena is lost to it.
 *
 * If a process accesses a page that the file no longer has, or that a full tmpfs cannot provide, the kernel sends
 * SIGBUS, which ends the process. A producer's process is the user's program, so it has a handler:
 *
 *   SIGBUS at an address in a mapped arena   is_lost = 1, then private pages of zeros over the whole mapping, then
 *                                            their word `poisoned_status`; the access is repeated, and succeeds
 *   SIGBUS elsewhere, or of kill()           the previous handler; without one, the signal ends the process
 *
 * From the first fault on, nothing that this process writes reaches another process, and nothing that it reads is
 * valid. So is_lost is read after each append and before a result is returned:
 *
 *   M1  handler: is_lost = 1, then mmap
 *   M2  append:  accesses to the mapping, barrier, then load of is_lost
 *   Stores to private pages follow mmap, after which no thread uses its old pages. So the load finds 1. Stores before
 *   mmap went to the file. On x86 the barrier is no instruction, because the processor repeats a load that it executed
 *   early if the cache line changes before the earlier accesses are done.
 *
 * The first mapping installs the handler, once per process. It takes no lock: a row of the list is never freed, and
 * `version` is odd during a change. A row that changes does not belong to an arena in use. A handler that another
 * library installs later must call this one. A forked child has its parent's handler, list and mappings.
 *
 * The semaphores of an arena (waiter_semaphores.h) have other mappings, which are not covered.
 */
#ifndef ARENA_LOST_MEMORY_H
#define ARENA_LOST_MEMORY_H

#include "arena/arena.h"

/* Requires arena->base. */
enum status lost_memory_watch(struct arena *arena, struct error *error) MUST_USE;

/* Detects a truncated file even if this process does not touch the missing part. A thread that waits for a buffer, for
 * example, reads only the beginning. */
void lost_memory_check(struct arena *arena);

/* Call before the memory is unmapped. */
void lost_memory_forget(struct arena *arena);

/* Returns true if private pages replace the arena in this process. */
static inline bool arena_is_lost(const struct arena *arena)
{
    barrier_after_cas(); /* M2 */
    return load_relaxed_u32(&arena->is_lost) != 0;
}

/* Writes the sentence and returns STATUS_TRUNCATED. */
enum status lost_memory_error(struct error *error);

#endif
