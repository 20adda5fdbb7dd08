/* SPDX-License-Identifier: Apache-2.0
 *
 * Stuck partitions: no batch can be delivered to them now, while the sink works. Their batches may not take the memory
 * of all others (topic_share.h, R1), so the sender marks them in the arena, with the reason and the time.
 *
 *   STUCK_NO_LEADER   sender_set_available has reported that the partition is unavailable
 *   STUCK_REFUSED     sender_set_refused has reported the error code with which its broker rejects its batches
 *   STUCK_SILENT      its oldest batch is older than max(1 s, 10 * usual delivery), none of its batches was
 *                     acknowledged for as long, and a batch of another partition was acknowledged since
 *   STUCK_NOT         none of these; replaces REFUSED and SILENT when the partition has no batch left
 *
 *   partition.stuck   sender, when it changes: the first reason above that applies, and since when one has applied. A
 *                     new sender stores STUCK_NOT with the old time, until it delivers to it or finds it empty
 *   queued_batch_count of it   PARTITION_UNAVAILABLE, so that records without a key go elsewhere
 *   stuck_epoch       sender, when it takes the role, after the stores that clear all reasons. Before that, and without
 *                     a sender, no stuck word counts
 *   acked_ns, usual_delivery_ns   sender, after acknowledgements
 *
 * DEATHS. The next sender has another epoch, so the words do not count until that sender has cleared their reasons. It
 * determines the reasons again: from the sink, from the first error, and from the first acknowledgement after the
 * oldest batch.
 */
#ifndef SENDER_STUCK_PARTITIONS_H
#define SENDER_STUCK_PARTITIONS_H

#include "sender/sender_half.h"

/* Called after a process has taken the role. */
void stuck_partitions_begin(struct sender_half *half);

/* Called after batches were acknowledged, with the creation time of one of them. */
void stuck_partitions_update_acked(struct sender_half *half, uint64_t created_ns);

/* Stores the stuck word of a partition if it has changed. */
void stuck_partition_publish(struct sender_half *half, uint32_t partition_index, uint64_t now_ns);

void stuck_partitions_maintain(struct sender_half *half);

#endif
