/* SPDX-License-Identifier: Apache-2.0
 *
 * Dead letters: batches that failed and have their result, whose bytes the sender still wants to put somewhere.
 *
 * Only with `wants_dead_letters`, which is set before the role is taken. A dead letter is READY, with what was decided
 * in the slot's `result`, and in no queue: it is in nobody's way, it is not sent, and it cannot expire again. The
 * sender takes it (accumulator_dead_letters), writes it elsewhere, and frees it with accumulator_complete; requeueing
 * it puts it back to be taken again.
 *
 * The sender dies: the next one finds READY with a decision, records the result once more (the last one may not have
 * come so far) and has a dead letter, too, or frees it when it wants none.
 */
#ifndef SENDER_DEAD_LETTER_H
#define SENDER_DEAD_LETTER_H

#include "producer/accumulator.h"

/* What was aborted is nobody's letter: whoever aborts wants nothing kept. */
bool dead_letter_is_wanted(const struct accumulator *accumulator, enum batch_result result);

/* Takes a batch that has its result out of its queue. */
void dead_letter_keep(struct accumulator *accumulator, uint32_t slot_index);
void dead_letter_put_back(struct accumulator *accumulator, uint32_t slot_index);

/* A batch that an earlier sender decided about. False when it is no letter. */
bool dead_letter_inherit(struct accumulator *accumulator, uint32_t slot_index, const struct batch_outcome *outcome);

#endif
