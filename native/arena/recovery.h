/* SPDX-License-Identifier: Apache-2.0
 *
 * Cold recovery: the work of the first opener, alone (byte lock 0 exclusive), before anybody else may attach.
 *
 *   1. locks, hazards, waiter words, grants: nobody lives who could hold them -> cleared
 *   2. every slot by its word:  GRANT OWNED -> FREE · CONT without its head -> FREE · DONE -> FREE
 *                               OPEN n = 0 -> FREE · OPEN n > 0 -> READY (sealed at its committed length)
 *                               READY, BAD: kept
 *   3. same boot id: the page cache survived, so the words are true and what they say is kept.
 *      other boot id: the host crashed; only content whose running CRC-32C verifies is trusted. A batch that does not
 *      is cut back to the records that had been forced to disk (durability.h); where there are none it becomes BAD,
 *      with an entry in the error log. Nothing is silently dropped, and nothing damaged stops the start-up.
 *      A kept batch of another boot begins a new span (delivery_clock.h): its times were those of a clock that is gone.
 *   4. partitions: open = none, next_seq = highest seq in a slot + 1 (never lowered), next_base_sequence likewise
 *   5. caches (hints, counts) rebuilt, arena_epoch raised, boot id stored last
 *
 * Idempotent: every step computes from the words alone, so a death anywhere in it frees the byte and the next opener
 * does it again. Input is checked: an impossible word (index, count, size out of range) makes its slot BAD.
 */
#ifndef ARENA_RECOVERY_H
#define ARENA_RECOVERY_H

#include "arena/arena.h"

struct recovery_report {
    uint32_t freed_count;       /* slots taken back */
    uint32_t sealed_count;      /* OPEN batches sealed at their committed length */
    uint32_t cut_count;         /* batches cut back to what had been forced to disk, of another boot */
    uint32_t ready_count;       /* batches that will be delivered by the next sender */
    uint32_t quarantined_count; /* slots that became BAD in this recovery */
    uint64_t record_count;      /* records in the ready batches */
    bool is_same_boot;
};

/* Requires byte lock 0 exclusive and a writable mapping. STATUS_CORRUPT only when the regions themselves make no sense
 * (counts beyond the geometry), with a sentence; damaged batches are never an error. */
enum status recovery_run(struct arena *arena, struct recovery_report *report, struct error *error) MUST_USE;

/* The report that recovery_run would give, without changing a byte; works on a read-only mapping. */
enum status recovery_plan(struct arena *arena, struct recovery_report *report, struct error *error) MUST_USE;

/* The id of this boot of this host. */
void boot_id_read(uint8_t boot_id[16]);

#endif
