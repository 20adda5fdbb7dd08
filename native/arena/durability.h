/* SPDX-License-Identifier: Apache-2.0
 *
 * Durability: the part of an arena on a disk that survives a crash of its host.
 *
 *   DURABILITY_PROCESS   the bytes that the kernel has written by itself; enough for every death of processes
 *   DURABILITY_INTERVAL  all but the last sync_interval_ms: any attached process forces the arena to disk that often
 *   DURABILITY_SYNC      everything that was acknowledged: an append waits until it is on disk
 *
 *   sync region   | A of slot 0 | B of slot 0 | A of slot 1 | B of slot 1 | ...     a sector (512 bytes) each
 *
 * For every sector, independently, a disk has one of the versions since the last completed force. So the header of an
 * open batch may be newer than its bytes: it claims n + m records, and only the first n reached the disk. A sync record
 * describes the first n: count, size and checksum, forced together with those bytes. READY batches need none: their
 * header does not change any more, so once forced it agrees with their bytes.
 *
 * GROUP COMMIT. A process that wants its appends on disk:
 *   1  ticket  t = ++sync_wanted, after its commits                                            (S1)
 *   2  lead    byte lock SYNC_LOCK_BYTE, exclusive; the process that gets it works for all tickets drawn so far:
 *                w = sync_wanted (S1) → a sync record for each open batch that grew → fdatasync → sync_done = w
 *                (S2) → unlock → wake all
 *   3  follow  a process that does not get it sleeps until sync_done changes, in slices, then repeats 2 unless
 *                sync_done >= t (S2)
 *
 * Of a slot's two records, the leader replaces the one that is not needed: one with a number above sync_done (its
 * leader died before it was forced), else the older one. The other one was forced together with its bytes.
 *
 * WHY A DURABLE RECORD STAYS. Bytes below a committed size are never written again, and an append changes no other byte
 *   of a sector, so a torn later write of that sector leaves them intact. Records A and B share no sector.
 * DEATHS. A leader at any step: the kernel releases the byte, the next one leads. Its records are replaced or agree.
 *   STOPS: others wait for it. Their appends are in the arena and are delivered, but not acknowledged.
 * WHEN THE DISK FAILS. A failed force may have lost pages that count as clean now, so no later one proves anything: the
 *   arena is poisoned (STATUS_SYNC_FAILED), nothing more is acknowledged, and it can be inspected and exported.
 *
 *   S1 appender: commit, then ++sync_wanted     pairs with  S1 leader: sync_wanted (acquire), then slot words
 *   S2 leader: force, then sync_done (release)  pairs with  S2 waiter: sync_done (acquire)
 */
#ifndef ARENA_DURABILITY_H
#define ARENA_DURABILITY_H

#include "arena/arena.h"

/* Returns STATUS_INVALID if the level is impossible on the file system of `descriptor`, because that is in memory. */
enum status durability_check_place(int descriptor, uint32_t level, struct error *error) MUST_USE;

/* Returns a ticket for everything that this process has committed so far. */
uint64_t durability_ticket(struct arena *arena);

/* Does one step of waiting for a ticket: leads, or sleeps for a slice. Returns STATUS_OK if it is on disk,
 * STATUS_PENDING to step again, STATUS_POISONED if it will never be known, and STATUS_OS with errno if the lead could
 * not be requested. Requires a level above DURABILITY_PROCESS. */
enum status durability_step(struct arena *arena, uint64_t ticket) MUST_USE;

/* Forces the arena to disk if the last force is interval_ns ago and no other process is doing it. */
enum status durability_force_if_due(struct arena *arena, uint64_t interval_ns) MUST_USE;

/* ---- recovery after a crash of the host ---- */

/* Finds the newest sync record of the slot's batch that agrees with its bytes. It was forced, or is equivalent. */
bool sync_record_find(const struct arena *arena, uint32_t slot_index, uint64_t word, struct sync_record *found);

/* Requires that no other process is attached. Makes later numbers greater than every number ever used. */
void durability_recover(struct arena *arena);

#endif
