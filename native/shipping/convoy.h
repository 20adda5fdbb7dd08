/* SPDX-License-Identifier: Apache-2.0
 *
 * A convoy: the ordinary rounds of a shipper, for many lanes and the brokers that lead their partitions.
 *
 *   segment ── lane ── header ──> request ──> link ──> broker
 *                ^                              │
 *                └── positions file <── acked ──┘
 *
 *   1 send what the windows allow ─> 2 write down what is acked, where windows are full ─> 1 ... ─> 3 wait ─> 1
 *
 * It ends when its time is over, when the bell rings, when a signal comes, when a lane or an answer is not ordinary,
 * and when nothing is left to do. At its end nothing is in flight: each answer has come, or its link is broken.
 *
 * A death anywhere leaves what the death of a shipper leaves in the same step (shmaccum/shipping/shipper.py).
 */
#ifndef SHIPPING_CONVOY_H
#define SHIPPING_CONVOY_H

#include "shipping/link.h"
#include "shipping/positions.h"

struct ship_convoy {
    struct ship_link *links;
    uint32_t link_count;
    struct ship_lane *lanes; /* those of a link in a row */
    uint32_t lane_count;
    struct ship_positions positions;
    off_t positions_size_max; /* of the file; it is time to write it anew then */
    int bell;                 /* ends the convoy when it is readable; never read here */
    uint64_t time_ns;
    uint64_t answer_time_ns; /* so long an answer may take */
};

/* False when memory was short, and nothing was begun. */
bool convoy_run(struct ship_convoy *convoy);

#endif
