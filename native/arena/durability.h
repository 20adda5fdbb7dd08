/* SPDX-License-Identifier: Apache-2.0
 *
 * Durability: what survives a crash of the host, if the arena is on a disk.
 *
 *   DURABILITY_PROCESS   the bytes that the kernel has written by itself; enough if only processes die
 *   DURABILITY_INTERVAL  all but the last sync_interval_ms: a process forces the arena to disk so often
 *   DURABILITY_SYNC      everything that was acknowledged: an append waits until it is on disk
 *
 *   sync region   | A of slot 0 | B of slot 0 | A of slot 1 | B of slot 1 | ...     a sector (512 bytes) each
 *
 * After a crash, each sector of the disk has any one of its versions since the last completed force. So the header of
 * an open batch may be newer than its bytes: it names n + m records, and only the first n reached the disk. A sync
 * record describes the first n: their count, size and checksum, forced together with their bytes. READY batches need no
 * sync record: their header no longer changes, so once forced it agrees with their bytes.
 *
 * GROUP COMMIT. A process that wants its appends on disk:
 *   1  ticket  t = ++sync_wanted, after its commits                                            (S1)
 *   2  lead    byte lock SYNC_LOCK_BYTE, exclusive; the process that gets it works for all tickets drawn so far:
 *                w = sync_wanted (S1) → a sync record for each open batch that grew → fdatasync → sync_done = w
 *                (S2) → unlock → wake all
 *   3  follow  a process that does not get it sleeps until sync_done changes, in slices, then repeats 2 unless
 *                sync_done >= t (S2)
 *
 * A slot has two sync records. The leader overwrites one with a number above sync_done, because its leader died before
 * it was forced. If there is none, it overwrites the older one. The other one was forced with its bytes.
 *
 * WHY A DURABLE RECORD STAYS. Bytes below a committed size are never written again. An append changes only later bytes
 *   of the sector, so an incomplete write of that sector leaves the earlier ones intact. A and B share no sector.
 * DEATHS. A leader may die at any step: the kernel releases the byte, and the next one leads. Its sync records are
 *   overwritten, or agree. STOPS: others wait for a stopped leader. Their appends are delivered, not acknowledged.
 * WHEN THE DISK FAILS. After a failed force, the kernel may mark lost pages as clean, so later forces prove nothing.
 *   The arena is poisoned (STATUS_SYNC_FAILED): it acknowledges nothing more, and can be inspected and exported.
 *
 *   S1 appender: commit, then ++sync_wanted     pairs with  S1 leader: sync_wanted (acquire), then slot words
 *   S2 leader: force, then sync_done (release)  pairs with  S2 waiter: sync_done (acquire)
 */
#ifndef ARENA_DURABILITY_H
#define ARENA_DURABILITY_H

#include "arena/arena.h"

/* Returns STATUS_INVALID if the file system of `descriptor` is in memory and the level needs a disk. */
enum status durability_check_place(int descriptor, uint32_t level, struct error *error) MUST_USE;

/* Returns a ticket for everything that this process has committed so far. */
uint64_t durability_ticket(struct arena *arena);

/* Does one step of waiting for a ticket: leads, or sleeps for a slice. Returns STATUS_OK if the ticket is on disk,
 * STATUS_PENDING to call again, STATUS_POISONED if it will never be known, and STATUS_OS with errno if the lock failed.
 * Requires a level above DURABILITY_PROCESS. */
enum status durability_step(struct arena *arena, uint64_t ticket) MUST_USE;

/* Forces the arena to disk if the last force was interval_ns ago or longer, unless another process is doing it. */
enum status durability_force_if_due(struct arena *arena, uint64_t interval_ns) MUST_USE;

/* ---- recovery after a crash of the host ---- */

/* Finds the newest sync record of the slot's batch that agrees with its bytes. It was forced, or equals such a one. */
bool sync_record_find(const struct arena *arena, uint32_t slot_index, uint64_t word, struct sync_record *found);

/* Requires that no other process is attached. Makes later numbers greater than every number ever used. */
void durability_recover(struct arena *arena);

#endif
