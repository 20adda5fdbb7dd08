/* SPDX-License-Identifier: Apache-2.0
 *
 * The batch loop: ordinary batches of many partitions of logs go to the brokers that lead these partitions.
 *
 *   segment ── stream ── header ──> request ──> link ──> broker
 *                ^                              │
 *                └────── keeper <──── acked ────┘
 *
 *   Of each batch, the header is in memory, and the records are a range of the segment. A request has at most one batch
 *   of each stream (partition_stream.h). A response without an error acks the batches of its request. Any other breaks
 *   their streams, and the caller sends the batches again by shmaccum/sender/send_window.py, which takes errors. The
 *   broker drops those that it has.
 *
 *   1 send what the windows allow ─> 2 keep what is acked, where windows are full ─> 1 ... ─> 3 wait ─> 1
 *
 * It ends when its time is over, when the bell rings, when a signal comes, when a stream or an answer is not ordinary,
 * and when nothing is left to do. At its end nothing is in flight: each answer has come, or its link is broken.
 *
 * The keeper writes down how far streams are. That of a shipper has one file for all (positions.h); that of a sender's
 * overflow has one for each partition, and gives the batches their results before (sender/spill_keeper.h).
 *
 * A death anywhere leaves what the death of a shipper leaves in the same step (shmaccum/sender/shipping/shipper.py), or
 * that of a sender (shmaccum/sender/overflow.py).
 */
#ifndef SENDER_BATCH_LOOP_H
#define SENDER_BATCH_LOOP_H

#include "broker/link.h"
#include "sender/partition_stream.h"

/* A batch of a request. */
struct ship_piece {
    struct partition_stream *stream;
    uint64_t number;
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
};

/* A link, and the streams whose partitions its broker leads. */
struct ship_link {
    struct broker_link broker;
    uint32_t request_size_max;
    struct partition_stream *streams; /* those of a topic are adjacent */
    uint32_t stream_count;
    uint32_t stream_next; /* whose turn it is */
    struct ship_piece *pieces[BROKER_REQUESTS_MAX]; /* the batches of request n in place n % BROKER_REQUESTS_MAX */
};

struct batch_loop {
    struct ship_link *links;
    uint32_t link_count;
    struct partition_stream *streams; /* those of a link in a row */
    uint32_t stream_count;
    struct ship_keeper *keeper;
    int bell; /* ends the batch loop when it is readable; never read here */
    uint64_t time_ns;
    uint64_t answer_time_ns; /* so long an answer may take */
};

/* False when memory was short, and nothing was begun. */
bool batch_loop_run(struct batch_loop *loop);

#endif
