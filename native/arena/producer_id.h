/* SPDX-License-Identifier: Apache-2.0
 *
 * The arena's producer id, and the sequences of batches, by which a log or broker drops duplicates (Kafka's idempotent
 * producer, KIP-98, KIP-360; here all processes of a host are one producer).
 *
 *   globals      producer id, epoch, and the sink that assigned them; they outlive a sender
 *   partition    producer id, epoch, next sequence of the last batch that got one
 *   batch        producer id, epoch, base sequence: stored before the first transmission, the same in every later one
 *
 *   assign       a batch that is drained for the first time gets the partition's next sequence. If the arena's id or
 *                epoch differs from the partition's, the partition starts over at 0. That waits until nothing of the
 *                partition is in flight: a broker rejects the older epoch once it has seen the newer one.
 *   resequence   batches that the sink certainly does not have lose their sequences and get new ones, of the new epoch
 *
 *   doubt        after a crash of the host, sequences that were assigned since the arena was last forced are lost, and
 *                the next batches would get them again. A sink that compares only sequences would drop these batches as
 *                duplicates. Cold recovery adds SEQUENCES_IN_DOUBT to the arena's epoch. The sender of such a sink then
 *                requests another id, which clears the flag. Batches that have a sequence keep it.
 *
 * Cells named producer_epoch hold the epoch with EPOCH_ASSIGNED, so that 0 means that none was ever assigned.
 *
 * DEATHS. The sender may die between any two stores.
 *   producer_id_set   producer id -1 first and the new one last. In between there is none, and the next sender requests
 *                     another one from its sink.
 *   assign            1 the batch's sequence and id  2 its epoch (release)  3 the partition's next sequence. Between 2
 *                     and 3: sequence_raise of the next sender does 3. Before 2: nothing was assigned.
 *   resequence        from the youngest batch to the oldest, so that after a death, the older batches still have a
 *                     sequence. The next sender detects the gap again.
 */
#ifndef ARENA_PRODUCER_ID_H
#define ARENA_PRODUCER_ID_H

#include "arena/arena.h"

#define EPOCH_ASSIGNED (UINT32_C(1) << 16)
#define SEQUENCES_IN_DOUBT (UINT32_C(1) << 17) /* a flag in the arena's epoch; never in that of a batch */

struct producer_identity {
    int64_t producer_id; /* -1 if there is none */
    int16_t producer_epoch;
    uint8_t sink[16];
};

void producer_identity_read(const struct arena *arena, struct producer_identity *identity);

/* Set and read the flag SEQUENCES_IN_DOUBT. */
void sequences_doubt(struct arena *arena);
bool sequences_are_in_doubt(const struct arena *arena);

/* Sender only. From now on, batches without a sequence get their sequences with this producer id and epoch. */
void producer_identity_set(struct arena *arena, const struct producer_identity *identity);

/* Returns true if the batch has no sequence and would be the first of another id or epoch in its partition. */
bool sequence_starts_over(const struct arena *arena, const struct slot_header *slot, uint32_t partition_index);

/* Assigns the batch its sequence, unless it has one or the arena has no producer id. */
void sequence_assign(struct arena *arena, struct slot_header *slot, uint32_t partition_index, uint32_t record_count);

/* Makes the partition's next sequence at least the end of a batch that has one, because it may have been transmitted.
 */
void sequence_raise(struct arena *arena, const struct slot_header *slot, uint32_t partition_index, uint64_t word);

#endif
