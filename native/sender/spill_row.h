/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of a spill file: the place of each batch of the arena in the overflow (shmaccum/sender/spill_file.py).
 *
 *   spill file   | positions 4096 | row 32 | row 32 | ...        one for each partition
 */
#ifndef SENDER_SPILL_ROW_H
#define SENDER_SPILL_ROW_H

#include <stdint.h>
#include <sys/types.h>

struct spill_row {
    int64_t base_offset; /* in the overflow; rows ascend by it */
    uint64_t seq;
    uint32_t slot_index;
    uint32_t record_count;
    uint64_t arena; /* the first 8 bytes of its uuid */
};

enum { SPILL_ROWS_BEGIN = 4096, SPILL_ROW_SIZE = 32 };

_Static_assert(sizeof(struct spill_row) == SPILL_ROW_SIZE, "a row of the file is one of these");

/* Returns the position of a row in the file. */
static inline off_t spill_row_place(uint64_t index)
{
    return (off_t)(SPILL_ROWS_BEGIN + index * SPILL_ROW_SIZE);
}

#endif
