/* SPDX-License-Identifier: Apache-2.0
 *
 * A convoy: the ordinary rounds of a shipper, for many lanes and the brokers that lead their partitions.
 *
 *   segment ── lane ── header ──> request ──> link ──> broker
 *                ^                              │
 *                └────── keeper <──── acked ────┘
 *
 *   Of each batch, the header is in memory, and the records are a range of the segment. A request has at most one batch
 *   of each lane. A response without an error acks the batches of its request. Any other breaks their lanes, and the
 *   caller sends the batches again by shmaccum/sender/send_window.py, which takes errors. The broker drops those that
 *   it has.
 *
 *   1 send what the windows allow ─> 2 keep what is acked, where windows are full ─> 1 ... ─> 3 wait ─> 1
 *
 * It ends when its time is over, when the bell rings, when a signal comes, when a lane or an answer is not ordinary,
 * and when nothing is left to do. At its end nothing is in flight: each answer has come, or its link is broken.
 *
 * The keeper writes down how far lanes are. That of a shipper has one file for all (positions.h); that of a sender's
 * overflow has one for each partition, and gives the batches their results before (sender/spill_keeper.h).
 *
 * A death anywhere leaves what the death of a shipper leaves in the same step (shmaccum/sender/shipping/shipper.py), or
 * that of a sender (shmaccum/sender/overflow.py).
 */
#ifndef SHIPPING_CONVOY_H
#define SHIPPING_CONVOY_H

#include "broker/link.h"
#include "sender/lane.h"

/* A batch of a request. */
struct ship_piece {
    struct ship_lane *lane;
    uint64_t number;
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
};

/* A link, and the lanes whose partitions its broker leads. */
struct ship_link {
    struct broker_link broker;
    uint32_t request_size_max;
    struct ship_lane *lanes; /* those of a topic are adjacent */
    uint32_t lane_count;
    uint32_t lane_next; /* whose turn it is */
    struct ship_piece *pieces[BROKER_REQUESTS_MAX]; /* the batches of request n in place n % BROKER_REQUESTS_MAX */
};

struct ship_convoy {
    struct ship_link *links;
    uint32_t link_count;
    struct ship_lane *lanes; /* those of a link in a row */
    uint32_t lane_count;
    struct ship_keeper *keeper;
    int bell; /* ends the convoy when it is readable; never read here */
    uint64_t time_ns;
    uint64_t answer_time_ns; /* so long an answer may take */
};

/* False when memory was short, and nothing was begun. */
bool convoy_run(struct ship_convoy *convoy);

#endif
