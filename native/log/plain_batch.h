/* SPDX-License-Identifier: Apache-2.0
 *
 * An iteration over the plain batches of a block that was read from a log. It ends at the first batch that is not
 * plain: compressed, transactional, a control batch, longer than the block, at an unexpected offset, or with a
 * wrong header or CRC. The caller handles such a batch.
 *
 * The bytes are untrusted: no byte outside of the block is read.
 */
#ifndef LOG_PLAIN_BATCH_H
#define LOG_PLAIN_BATCH_H

#include "format/record_batch.h"
#include "format/record_walk.h"

struct plain_block {
    const uint8_t *start;
    int64_t size;
    int64_t position;       /* the position of the next batch */
    int64_t expected_first; /* the range in which its offset may be */
    int64_t expected_last;
    bool is_crc_checked;
};

/* Returns true if a whole plain batch begins at the position. */
bool plain_batch_find(const struct plain_block *block, struct record_batch_header *header);

/* Moves past the batch. If one exact offset was expected, one exact offset is expected for the next batch. */
void plain_batch_pass(struct plain_block *block, const struct record_batch_header *header);

/* Returns the records of the batch at the position. */
struct log_records plain_batch_records(const struct plain_block *block, const struct record_batch_header *header);

static inline int64_t plain_batch_size(const struct record_batch_header *header)
{
    return (int64_t)header->batch_length + RECORD_BATCH_UNCOUNTED_SIZE;
}

#endif
