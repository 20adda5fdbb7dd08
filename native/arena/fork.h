/* SPDX-License-Identifier: Apache-2.0
 *
 * A forked child is attached to no arena. It closes its copies of the lock descriptors, so that they do not keep its
 * parent's byte locks alive, and it forgets its parent's process entry.
 */
#ifndef ARENA_FORK_H
#define ARENA_FORK_H

#include "arena/arena.h"

/* Add an arena to, and remove it from, the list for the fork handler of this process. */
void fork_list_add(struct arena *arena);
void fork_list_remove(struct arena *arena);

#endif
