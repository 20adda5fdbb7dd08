/* SPDX-License-Identifier: Apache-2.0
 *
 * A sealed batch as the sender takes it out, for the other files of this folder: its facts, and its header, which is
 * written here and nowhere else.
 */
#ifndef SENDER_DRAINED_BATCH_H
#define SENDER_DRAINED_BATCH_H

#include "sender/sender_half.h"

/* Shared memory is input: a batch with an impossible word is not sent. */
bool drained_batch_is_possible(const struct sender_half *half, uint32_t slot_index, uint64_t word);

/* Writes the header and fills in the facts. No producer ever touches the first 61 bytes of a batch. The header gets the
 * sequence that the batch has, and its checksum comes from the running one. */
void drained_batch_describe(const struct sender_half *half, uint32_t slot_index, uint64_t word,
                            struct drained_batch *batch);

/* True when the batch lies whole in one slot and has no result so far. */
bool drained_batch_is_whole(const struct sender_half *half, const struct drained_batch *drained);

/* False when `bytes`, those of a whole batch, contradict the checksum of what was appended. The times of its header are
 * in no checksum that a producer kept: where they are far apart, the records have to give the same largest time. */
bool drained_batch_is_sound(const struct drained_batch *drained, const uint8_t *bytes);

/* Bytes of the largest record, or `known_largest` when none is larger. It looks at the head of each record, so it costs
 * least where the bytes were just read. */
uint32_t drained_batch_largest_record(const struct drained_batch *drained, const uint8_t *bytes,
                                      uint32_t known_largest);

#endif
