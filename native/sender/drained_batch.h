/* SPDX-License-Identifier: Apache-2.0
 *
 * A sealed batch that the sender drains, for the other files of this folder: its description, and its header, which is
 * written only here.
 */
#ifndef SENDER_DRAINED_BATCH_H
#define SENDER_DRAINED_BATCH_H

#include "sender/sender_half.h"

/* Shared memory is untrusted: a batch with an impossible word is not sent. */
bool drained_batch_is_possible(const struct sender_half *half, uint32_t slot_index, uint64_t word);

/* Writes the header and fills `batch`. Producers do not write to the first 61 bytes of a batch, which are the header.
 * The header gets the batch's sequence. Its checksum is computed from the running checksum of the records. */
void drained_batch_describe(const struct sender_half *half, uint32_t slot_index, uint64_t word,
                            struct drained_batch *batch);

/* Returns true if the whole batch is in one slot and has no result so far. */
bool drained_batch_is_whole(const struct sender_half *half, const struct drained_batch *drained);

/* Returns false if the bytes of a whole batch do not match the checksum of the appended records. This checksum does not
 * cover the times in the header. If the times are far apart, they are compared with the records. */
bool drained_batch_is_sound(const struct drained_batch *drained, const uint8_t *bytes);

/* Returns the size of the largest record, or `known_largest` if none is larger. It reads the head of each record, so it
 * is fastest if it is called when the bytes are in the cache. */
uint32_t drained_batch_largest_record(const struct drained_batch *drained, const uint8_t *bytes,
                                      uint32_t known_largest);

#endif
