/* SPDX-License-Identifier: Apache-2.0
 *
 * The effect of a fork on attached arenas: the child is attached to none. It closes its copies of the lock descriptors,
 * so that they do not keep its parent's byte locks alive, and it forgets its parent's process entry.
 */
#ifndef ARENA_FORK_H
#define ARENA_FORK_H

#include "arena/arena.h"

/* Adds to, or removes from, the list that the fork handler of this process walks. */
void fork_list_add(struct arena *arena);
void fork_list_remove(struct arena *arena);

#endif
