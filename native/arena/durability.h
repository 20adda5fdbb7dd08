/* SPDX-License-Identifier: Apache-2.0
 *
 * Durability: the part of an arena on a disk that survives the death of its host.
 *
 *   DURABILITY_PROCESS   the bytes that the kernel wrote by itself: enough for every death of processes
 *   DURABILITY_INTERVAL  all but the last sync_interval_ms: any attached process forces the arena to disk so often
 *   DURABILITY_SYNC      everything that was acknowledged: an append waits until it is on disk
 *
 *   sync region   | A of slot 0 | B of slot 0 | A of slot 1 | B of slot 1 | ...     a sector (512 bytes) each
 *
 * A disk keeps of every sector one of the versions it had since the last completed force, each for itself. So the
 * header of an open batch may be newer than its bytes: it claims n + m records, and only the first n came to the disk.
 * A sync record says what the first n were: count, size and checksum, as they are forced together with those bytes.
 * READY batches need none: their header does not change any more, so once forced it agrees with their bytes.
 *
 * GROUP COMMIT. A process that wants its appends on disk:
 *   1  ticket  t = ++sync_wanted, after its commits                                            (S1)
 *   2  lead    byte lock SYNC_LOCK_BYTE, exclusive; the process that gets it works for all tickets drawn so far:
 *                w = sync_wanted (S1) → a sync record for each open batch that grew → fdatasync → sync_done = w
 *                (S2) → unlock → wake everybody
 *   3  follow  who does not get it sleeps until sync_done changes, in slices, then goes to 2 unless sync_done >= t (S2)
 *
 * Of the two records of a slot that one is replaced that nobody may need: one with a number above sync_done (its leader
 * died before it was forced), else the older. The other one was forced, with the bytes it speaks of.
 *
 * WHY A DURABLE RECORD STAYS. Bytes below a size that was committed are never written again, and an append changes no
 *   byte of a sector but its own, so a torn later write of that sector leaves them. Records A and B share no sector.
 * DEATHS. A leader at any place: the kernel frees the byte, the next one leads. Records that the dead leader wrote are
 * replaced or agree.
 *   IS STOPPED: others wait for it; their appends are in the arena, and are delivered; they are not acknowledged.
 * WHEN THE DISK FAILS. A failed force may have lost pages that count as clean now, so no later one proves anything: the
 *   arena is poisoned (STATUS_SYNC_FAILED), nothing more is acknowledged, and it can be inspected and exported.
 *
 *   S1 appender: commit, then ++sync_wanted     pairs with  S1 leader: sync_wanted (acquire), then slot words
 *   S2 leader: force, then sync_done (release)  pairs with  S2 waiter: sync_done (acquire)
 */
#ifndef ARENA_DURABILITY_H
#define ARENA_DURABILITY_H

#include "arena/arena.h"

/* STATUS_INVALID when the level means nothing on the file system of `descriptor`, which is memory itself. */
enum status durability_check_place(int descriptor, uint32_t level, struct error *error) MUST_USE;

/* A ticket for everything that this process has committed so far. */
uint64_t durability_ticket(struct arena *arena);

/* One step of waiting for a ticket: leads, or sleeps for a slice. STATUS_OK: on disk. STATUS_PENDING: step again.
 * STATUS_POISONED: it will never be known. STATUS_OS: the lead could not be asked for; errno says why. Requires a level
 * above DURABILITY_PROCESS. */
enum status durability_step(struct arena *arena, uint64_t ticket) MUST_USE;

/* Forces the arena to disk if the last time is interval_ns ago and nobody else is about it. */
enum status durability_force_if_due(struct arena *arena, uint64_t interval_ns) MUST_USE;

/* ---- recovery after a crash of the host ---- */

/* The newest sync record of the batch in this slot that agrees with the bytes there: it was forced, or is as good. */
bool sync_record_find(const struct arena *arena, uint32_t slot_index, uint64_t word, struct sync_record *found);

/* Requires to be alone. Numbers go on behind those that were ever used. */
void durability_recover(struct arena *arena);

#endif
