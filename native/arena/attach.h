/* SPDX-License-Identifier: Apache-2.0
 *
 * How a process attaches to an arena, and detaches from it.
 *
 *   create   exclusive byte lock 0 → reserve space → map and populate → regions → superblock → magic (release) →
 *            downgrade to shared → register
 *   attach   check owner, mode and size → byte lock 0: exclusive if no other process is attached (then cold recovery),
 *            else shared, if some process has an entry → superblock by pread → map → register
 *   detach   return what this process holds → mark the entry clean → close the lock descriptor and its byte locks
 *   fork     the child handler closes the lock descriptor and forgets the entry; the first use attaches again, with the
 *            child's mapping and new locks, and with cold recovery if no other process is attached
 *
 * DEATHS. A creator names the file after these steps (shmaccum/arena/creation.py), so a named arena is complete. A file
 * without the magic is reported as UNFINISHED. A process that dies while it attaches leaves at most an entry, whose
 * byte the kernel unlocks. No step uses a timeout to decide that a process is dead.
 *
 * The caller opens the file twice: `map_descriptor` is mapped, `lock_descriptor` has the byte locks and is never
 * mapped. A mapping would keep the open file description, and with it the locks, alive in a forked child.
 */
#ifndef ARENA_ATTACH_H
#define ARENA_ATTACH_H

#include "arena/arena.h"

/* Both functions take ownership of the descriptors, even if they fail. */
enum status arena_create(int map_descriptor, int lock_descriptor, const struct geometry *geometry, const void *options,
                         uint32_t options_size, struct arena **arena, struct error *error) MUST_USE;
enum status arena_attach(int map_descriptor, int lock_descriptor, struct arena **arena, struct error *error) MUST_USE;

/* Maps without write permission, and takes neither a lock nor an entry: for stat, inspect and check. */
enum status arena_open_read_only(int map_descriptor, int lock_descriptor, struct arena **arena,
                                 struct error *error) MUST_USE;

/* Requires that no thread of this process uses the arena any more. Never fails: the kernel frees what remains. */
void arena_detach(struct arena *arena);

/* After a fork, opens the same inode again through /proc/self/fd and takes an entry. Returns STATUS_OK at once if the
 * process is attached. */
enum status arena_ensure_attached(struct arena *arena, struct error *error) MUST_USE;

#endif
