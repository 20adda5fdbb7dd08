/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process comes to an arena, and leaves it.
 *
 *   create   exclusive byte lock 0 → reserve space → map and populate → regions → superblock → magic (release) →
 *            downgrade to shared → register
 *   attach   check owner, mode and size → byte lock 0: exclusive if nobody else is there (then cold recovery), else
 *            shared, if some process has an entry → superblock by pread → map → register
 *   detach   give back what is ours → mark the entry clean → close the lock descriptor (this frees the byte locks)
 *   fork     the child handler closes the lock descriptor and forgets the entry; the first use attaches anew, on the
 *            mapping that the child has: the same locks, and cold recovery if nobody else is there
 *
 * DEATHS. A creator gives the file its name behind these steps (shmaccum/arena/creation.py), so a name leads to an
 * arena that is complete. A file that was left without the magic says UNFINISHED. An attacher at any place leaves at
 * most an entry whose byte the kernel frees. Nothing here waits for a time-out to decide that somebody is dead.
 *
 * The caller opens the file twice: `map_descriptor` is mapped, `lock_descriptor` carries the byte locks and is never
 * mapped, because a mapping would keep the open file description, and with it the locks, alive in a forked child.
 */
#ifndef ARENA_ATTACH_H
#define ARENA_ATTACH_H

#include "arena/arena.h"

/* Both take ownership of the descriptors, also when they fail. */
enum status arena_create(int map_descriptor, int lock_descriptor, const struct geometry *geometry, const void *options,
                         uint32_t options_size, struct arena **arena, struct error *error) MUST_USE;
enum status arena_attach(int map_descriptor, int lock_descriptor, struct arena **arena, struct error *error) MUST_USE;

/* Maps without write permission, takes no lock and no entry: for stat, inspect and check. */
enum status arena_open_read_only(int map_descriptor, int lock_descriptor, struct arena **arena,
                                 struct error *error) MUST_USE;

/* Requires that nobody of this process uses the arena any more. Never fails: the kernel frees what we cannot. */
void arena_detach(struct arena *arena);

/* After fork: opens the same inode anew through /proc/self/fd and takes an entry. STATUS_OK at once when attached. */
enum status arena_ensure_attached(struct arena *arena, struct error *error) MUST_USE;

#endif
