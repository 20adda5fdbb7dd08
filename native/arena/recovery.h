/* SPDX-License-Identifier: Apache-2.0
 *
 * Cold recovery: the first process that attaches repairs the arena, with byte lock 0 exclusive, so no other can attach.
 *
 *   1. locks, hazards, waiter words, grants: cleared, because no living process holds them
 *   2. every slot by its word:  GRANT OWNED -> FREE · CONT without its head -> FREE · DONE -> FREE
 *                               OPEN n = 0 -> FREE · OPEN n > 0 -> READY (sealed at its committed length)
 *                               READY, BAD: kept
 *   3. same boot id: the page cache survived, so the words are valid.
 *      other boot id: the host crashed, and only content whose running CRC-32C verifies is trusted. Any other batch is
 *      cut back to the records that had been forced to disk (durability.h). If there are none, it becomes BAD. Losses
 *      are in the error log, and a damaged batch does not prevent the start.
 *      The tables of topics and partitions are cut back to the entries whose checksums verify (registry.h), and a batch
 *      of another partition becomes BAD.
 *      The age of a batch of another boot restarts at 0 (delivery_clock.h), because that boot's clock has ended.
 *   4. partitions: open = none, next_seq = highest seq in a slot + 1 (never lowered), next_base_sequence accordingly
 *   5. caches (hints, counts) rebuilt, arena_epoch raised; after a crash of the host the arena is forced to disk, so
 *      that a second crash finds none of the cut entries; boot id stored last
 *
 * Each step depends only on the words, so it can be repeated. If the process dies in any step, the kernel releases the
 * byte and the next process repeats all steps. An impossible word makes its slot BAD.
 */
#ifndef ARENA_RECOVERY_H
#define ARENA_RECOVERY_H

#include "arena/arena.h"

struct recovery_report {
    uint32_t freed_count;       /* slots freed */
    uint32_t sealed_count;      /* OPEN batches sealed at their committed length */
    uint32_t cut_count;         /* batches of another boot, cut back to what had been forced to disk */
    uint32_t ready_count;       /* batches that the next sender will deliver */
    uint32_t quarantined_count; /* slots that became BAD in this recovery */
    uint32_t partition_count;   /* partitions with a valid entry */
    uint64_t record_count;      /* records in the ready batches */
    bool is_same_boot;
};

/* Requires byte lock 0 exclusive and a writable mapping. Returns STATUS_CORRUPT, with a sentence, only if a count
 * exceeds the geometry. Damaged batches are not an error. */
enum status recovery_run(struct arena *arena, struct recovery_report *report, struct error *error) MUST_USE;

/* Computes the report of recovery_run without changing a byte. Works on a read-only mapping. */
enum status recovery_plan(struct arena *arena, struct recovery_report *report, struct error *error) MUST_USE;

void boot_id_read(uint8_t boot_id[16]);

#endif
