/* SPDX-License-Identifier: Apache-2.0
 *
 * The result of a batch, in two places. What was *decided* lies in the batch's slot: a next sender finds it there and
 * does not send the batch again. What is *recorded* lies in the ring, where its producer reads it (completion.h).
 */
#ifndef SENDER_RESULT_H
#define SENDER_RESULT_H

#include "producer/accumulator.h"

void decision_store(struct slot_header *slot, const struct batch_outcome *outcome);
/* RESULT_NONE: nothing yet. Of an impossible value, too. */
struct batch_outcome decision_of(const struct slot_header *slot);

/* For records [first_record, first_record + record_count). */
void result_record(struct accumulator *accumulator, uint32_t slot_index, uint32_t first_record, uint32_t record_count,
                   const struct batch_outcome *outcome);
/* For every record that has none yet; the batch is counted. */
void result_record_rest(struct accumulator *accumulator, uint32_t slot_index, const struct batch_outcome *outcome);

#endif
