/* SPDX-License-Identifier: Apache-2.0
 *
 * A sealed batch as the sender takes it out: its facts, and its header, which is written here and nowhere else.
 */
#ifndef SENDER_DRAINED_BATCH_H
#define SENDER_DRAINED_BATCH_H

#include "producer/accumulator.h"

/* Shared memory is input: a word that cannot be true is not sent. */
bool drained_batch_is_possible(const struct accumulator *accumulator, uint32_t slot_index, uint64_t word);

/* The header is the sender's: no producer ever touches the first 61 bytes. It gets the sequence that the batch has; its
 * checksum comes from the running one. */
void drained_batch_describe(const struct accumulator *accumulator, uint32_t slot_index, uint64_t word,
                            struct drained_batch *batch);

#endif
