/* SPDX-License-Identifier: Apache-2.0
 *
 * The positions of streams -> a line of a shipper's file (shmaccum/log/files/shipping_positions.py has its format).
 *
 *   CRC-32C of the JSON, 8 hexadecimal digits · blank · {"flights-0": [offset, epoch, origin, leader epoch, "id"], ...}
 *
 * A line is one write, and is forced to disk before a window advances past it. A line that was not written whole is
 * cut off.
 */
#ifndef SENDER_POSITIONS_H
#define SENDER_POSITIONS_H

#include "sender/partition_stream.h"

struct ship_positions {
    struct ship_recorder recorder; /* `is_over` is also set if the file has to be rewritten */
    int file;
    off_t size; /* bytes of whole lines */
    off_t size_max;
    char *line;
    size_t room;
    bool has_failed; /* it is unknown whether the line is on disk; the streams are unchanged */
};

bool positions_record(struct ship_recorder *recorder, struct partition_stream *streams, uint32_t stream_count);

void positions_free(struct ship_positions *positions);

#endif
