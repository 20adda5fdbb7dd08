/* SPDX-License-Identifier: Apache-2.0
 *
 * How a batch ends, for the other files of this folder (sender.h has the calls of others).
 *
 * RESULT. It stands in two places. The *decided* result lies in the batch's slot: a next sender finds it there and does
 * not send the batch again. The *recorded* result lies in the ring, where its producer reads it (completion.h).
 *
 * QUARANTINE. The slot of a batch whose bytes contradict their checksum becomes BAD: nothing is written there and
 * nothing is sent, until a person has looked at it (recovery, `shmaccum recover --export`).
 *
 * DEAD LETTERS. With `wants_dead_letters`, a batch that failed has its result, and its bytes stay until the sender has
 * written them elsewhere. A dead letter is READY, with the decision in the slot's `result`, and in no queue: it delays
 * no batch, it is not sent, and it cannot expire again. The sender takes it (sender_dead_letters), writes it, and frees
 * it with sender_complete; a dead letter that is requeued is taken again.
 *
 * A sender that dies leaves READY with a decision. The next one records the result once more, because the last one may
 * have died before that, and keeps the dead letter, or frees it when it wants none.
 */
#ifndef SENDER_COMPLETE_H
#define SENDER_COMPLETE_H

#include "sender/sender_half.h"

/* The decision about a batch; RESULT_NONE: nothing yet, or an impossible value. */
struct batch_outcome decision_of(const struct slot_header *slot);

/* Keeps a batch that an earlier sender decided about. False when it is no dead letter. */
bool dead_letter_inherit(struct sender_half *half, uint32_t slot_index, const struct batch_outcome *outcome);

/* sender_quarantine of a batch that is in flight or a dead letter. */
void batch_quarantine(struct sender_half *half, uint32_t slot_index);

#endif
