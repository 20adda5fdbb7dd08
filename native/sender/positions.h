/* SPDX-License-Identifier: Apache-2.0
 *
 * The positions of streams -> a line of the file that a shipper keeps (shmaccum/log/files/shipped.py has its format).
 *
 *   CRC-32C of the JSON, 8 hexadecimal digits · blank · {"flights-0": [offset, epoch, origin, leader epoch, "id"], ...}
 *
 * A line is one write, and is forced to disk before a window moves on behind it. A write that failed is cut off.
 */
#ifndef SENDER_POSITIONS_H
#define SENDER_POSITIONS_H

#include "sender/partition_stream.h"

struct ship_positions {
    struct ship_keeper keeper; /* is over, too, when it is time to write the file anew */
    int file;
    off_t size; /* of the whole lines */
    off_t size_max;
    char *line;
    size_t room;
    bool has_failed; /* nobody knows whether the line is on disk; the streams are where they were */
};

/* The keeper's function. */
bool positions_keep(struct ship_keeper *keeper, struct partition_stream *streams, uint32_t stream_count);

void positions_free(struct ship_positions *positions);

#endif
