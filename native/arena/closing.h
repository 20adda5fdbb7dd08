/* SPDX-License-Identifier: Apache-2.0
 *
 * The closing of an arena whose file lost its name. No new process finds such an arena, so no later sender would
 * deliver what is appended to it. It takes no more records, and its sender delivers the present ones before it leaves.
 *
 *   globals.closing   NOT ── closing_begin, by anyone ──> BEGUN ── closing_end, by the sender ──> DONE
 *                      ^                                                                           │
 *                      └── cold recovery of a file that has a name (again) ────────────────────────┘
 *
 * RULES
 *   closing   anyone, by cas from the value read, and only upwards; cold recovery alone stores NOT
 *
 * CLOSE, by any number of processes, any number of times:
 *   1 closing = BEGUN by cas, full barrier (X1)
 *   2 each OPEN slot is sealed
 * OPEN A BATCH (producer_batch.h): word = OPEN, full barrier (X2), read closing. If the arena closes, the opener takes
 *   its empty slot back before `open` names it.
 * ALLOCATE (buffer_pool.h): fails. So an append that finds a sealed batch takes the slow path, and fails there.
 * COMMIT AN OVERSIZED RECORD: read closing under the partition's lock; head = READY; full barrier (X2); read closing
 *   again. The record is rejected if the sender left in between (DONE), else it is accepted.
 * LEAVE, by the sender: closing = DONE, full barrier (X1), then one more scan for READY slots.
 *
 * WHY THE SENDER FINDS EACH ACCEPTED RECORD. A record is committed by a cas on an OPEN word, in a slot that a partition
 * names. An opener that read NOT at X2 had stored its word before the closer's X1, so step 2 finds and seals it. A
 * later opener reads BEGUN. So after step 2 no commit succeeds. An oversized record needs no OPEN slot: its producer
 * finds DONE, or the sender's last scan finds its head.
 *
 * DEATHS. A closer that dies between 1 and 2 leaves batches OPEN, which still accept records. The sender seals and
 * delivers them, because it runs both steps itself in each tick. If a sender dies while the arena closes, BEGUN stays:
 * a standby takes the role and begins with step 1. If an opener dies before a partition names its slot, the slot is
 * empty, and the sender makes it DONE (sender_half.h). If a sender dies after DONE and before its last scan, the next
 * holder of the role scans.
 */
#ifndef SHM_CLOSING_H
#define SHM_CLOSING_H

#include "arena/arena.h"

static inline enum closing arena_closing(const struct arena *arena)
{
    return (enum closing)load_relaxed_u32(&arena->globals->closing);
}

static inline bool arena_takes_records(const struct arena *arena)
{
    return arena_closing(arena) == CLOSING_NOT;
}

/* Does steps 1 and 2. If a process died between them, the next call seals the batches that it left open. */
void closing_begin(struct arena *arena);

/* Stores DONE: no later sender will deliver from this arena. Requires the sender role. */
void closing_end(struct arena *arena);

/* Returns true if the arena's file had a name when this process opened it, and has none now. An arena that never had a
 * name (a memfd) cannot lose it. */
bool arena_lost_its_name(const struct arena *arena);

/* Begins to close an arena that lost its name. Requires that no lock of the arena is held. */
void closing_check_now(struct arena *arena);

/* The same as closing_check_now, but calls the kernel at most once a second. So a process calls it for each batch. */
void closing_check(struct arena *arena);

#endif
