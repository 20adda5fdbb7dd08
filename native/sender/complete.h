/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a batch, for the other files of this folder (sender.h has the calls of others).
 *
 * RESULT. It is stored in two places. The *decided* result is in the batch's slot: a later sender finds it there and
 * does not send the batch again. The *recorded* result is a completion, which its producer reads (completion.h).
 *
 * QUARANTINE. The slot of a batch whose bytes contradict their checksum becomes BAD: nothing is written there and
 * nothing is sent until a person has inspected it (recovery, `shmaccum recover --export`).
 *
 * DEAD LETTERS. With `wants_dead_letters`, a batch that failed has its result, and its bytes stay until the sender has
 * written them elsewhere. Such a batch is READY, with the decision in the slot's `result`, and in no queue: it delays
 * no batch, it is not sent, and it cannot expire again. The sender takes it (sender_dead_letters), writes it, and frees
 * it with sender_complete. If it is requeued, it is taken again.
 *
 * A sender that dies leaves READY with a decision. The next one records the result once more, because the dead one may
 * not have done so, and keeps the batch, or frees it.
 */
#ifndef SENDER_COMPLETE_H
#define SENDER_COMPLETE_H

#include "sender/sender_half.h"

/* Returns the decision about a batch, or RESULT_NONE if there is none or its value is impossible. */
struct batch_outcome decision_of(const struct slot_header *slot);

/* Keeps a batch that an earlier sender decided about. Returns false if its bytes are not needed. */
bool dead_letter_inherit(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome);

/* sender_quarantine of a batch that is in flight or dead. */
void batch_quarantine(struct sender_half *half, uint32_t slot_index);

#endif
