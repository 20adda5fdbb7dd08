/* SPDX-License-Identifier: Apache-2.0
 *
 * Waits that have ended for their caller, but not yet in the arena, because a stopped process kept the pool lock
 * (buffer_pool.h). A caller whose deadline has passed must not wait for that process.
 *
 *   end          leave the queue, or return the slots. If the lock is refused, add the wait to a private list
 *   end again    before this process joins the queue again, after it opens a batch, and before it leaves the arena. If
 *                it cannot do so before it leaves, others repair the pool as after its death
 *
 * WHY IT IS SAFE. To others, the process appears to be stopped while it waits, or while it owns slots. Its grants are
 *   revoked when others need them (REVOKE in buffer_pool.h), and if it dies, repair frees the rest. The list is private
 *   memory, so a death loses nothing. A forked child drops the waits of its parent.
 */
#ifndef ARENA_UNFINISHED_WAITS_H
#define ARENA_UNFINISHED_WAITS_H

#include "arena/buffer_pool.h"

/* Ends a wait. `slots` has room for `need` slots; the first `taken_count` of them were taken and are returned. If it is
 * 0, the wait is still in the queue. */
void wait_end(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots, uint32_t taken_count,
              struct wake_set *wakes);

/* Tries to end the waits in the list. */
void unfinished_waits_end(struct arena *arena, struct wake_set *wakes);

/* Frees the list. Requires that this process has left the arena. */
void unfinished_waits_drop(struct arena *arena);

#endif
