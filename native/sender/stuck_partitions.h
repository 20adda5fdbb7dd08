/* SPDX-License-Identifier: Apache-2.0
 *
 * Stuck partitions: those to which nothing can be delivered now, while the sink works. Their batches may not take the
 * memory of all others (topic_share.h, R1), so the sender marks them in the arena, and says why and since when.
 *
 *   STUCK_NO_LEADER   sender_set_available has said that nothing can be delivered there
 *   STUCK_REFUSED     sender_set_refused has given the error code with which its broker refuses its batches
 *   STUCK_SILENT      its oldest batch is older than max(1 s, 10 * usual delivery), none of its batches was
 *                     acknowledged for as long, and a batch of another partition was acknowledged since
 *   STUCK_NOT         none of these; also REFUSED and SILENT without a batch: nothing is known about it any more
 *
 *   partition.stuck   sender, when it changes: the first of the reasons above that holds
 *   queued_batch_count of it   PARTITION_UNAVAILABLE, so that records without a key go elsewhere
 *   stuck_epoch       sender, when it takes the role, behind the stores that clear all stuck words. Before, and without
 *                     a sender, no stuck word counts
 *   acked_ns, usual_delivery_ns   sender, with the acknowledgements of a call
 *
 * Killed anywhere here: the epoch of the next sender is another one, so the words do not count, until that sender has
 * cleared them. It learns them anew: from the sink, from the first error, and from the first acknowledgement that comes
 * behind the oldest batch.
 */
#ifndef SENDER_STUCK_PARTITIONS_H
#define SENDER_STUCK_PARTITIONS_H

#include "sender/sender_half.h"

/* A process has taken the role. */
void stuck_partitions_begin(struct sender_half *half);

/* Batches were acknowledged; one of them was created then. */
void stuck_partitions_note_acked(struct sender_half *half, uint64_t created_ns);

/* Stores the stuck word of a partition if it has changed. */
void stuck_partition_tell(struct sender_half *half, uint32_t partition_index, uint64_t now_ns);

/* With the sender's maintenance. */
void stuck_partitions_maintain(struct sender_half *half);

#endif
