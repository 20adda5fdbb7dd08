/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a batch, for the other files of this folder (sender.h has the calls of others).
 *
 * RESULT. It is stored in two places. The *decided* result is in the batch's slot: a later sender finds it there and
 * does not send the batch again. The *recorded* result is a completion, which its producer reads (completion.h).
 *
 * QUARANTINE. If the bytes of a batch do not match their checksum, its slot becomes BAD. The batch is not sent, and the
 * slot is not written, until an administrator has inspected it (recovery, `shmaccum recover --export`).
 *
 * DEAD LETTERS. With `wants_dead_letters`, a batch that failed has its result, and its bytes stay until the sender has
 * written them elsewhere. Such a batch is READY, with the decision in the slot's `result`, and in no queue: it delays
 * no batch, it is not sent, and it cannot expire again. The sender takes it (sender_dead_letters), writes it, and frees
 * it with sender_complete. If it is requeued, it is taken again.
 *
 * If the sender dies, the slot is READY with a decision. The dead sender may not have recorded the result. So the next
 * sender records it again, and keeps the batch or frees it.
 */
#ifndef SENDER_COMPLETE_H
#define SENDER_COMPLETE_H

#include "sender/sender_half.h"

/* Returns the decided result of a batch, or RESULT_NONE if there is none or it is invalid. */
struct batch_outcome decision_of(const struct slot_header *slot);

/* Keeps a batch with a decision of an earlier sender. Returns false if its bytes are not needed. */
bool dead_letter_inherit(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome);

/* Quarantines a batch that is in flight or dead (sender_quarantine). */
void batch_quarantine(struct sender_half *half, uint32_t slot_index);

#endif
