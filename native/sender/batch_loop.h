/* SPDX-License-Identifier: Apache-2.0
 *
 * The batch loop: ordinary batches of many partitions of logs go to the brokers that lead these partitions.
 *
 *   segment ── stream ── header ──> request ──> link ──> broker
 *                ^                              │
 *                └───── recorder <─── acked ────┘
 *
 *   Of each batch, the header is in memory, and the records are a range of the segment. A request has at most one batch
 *   of each stream (partition_stream.h). A response without an error acks the batches of its request. Any other breaks
 *   their streams, and the caller sends the batches again through shmaccum/sender/send_window.py, which handles errors.
 *   The broker drops the batches that it has.
 *
 *   1 send what the windows allow ─> 2 record what is acked, if windows are full ─> 1 ... ─> 3 wait ─> 1
 *
 * It ends if its time is over, the wake fd is readable, a signal arrives, a stream or a response is not ordinary, or
 * nothing is left to do. At its end nothing is in flight: each response has arrived, or its link is broken.
 *
 * The recorder writes the positions of streams. A shipper's has one file for all (positions.h). That of a sender's
 * overflow has one for each partition, and first records the results of the batches (sender/spill_recorder.h).
 *
 * A death anywhere leaves what the death of a shipper leaves in the same step (shmaccum/sender/shipping/shipper.py), or
 * that of a sender (shmaccum/sender/overflow.py).
 */
#ifndef SENDER_BATCH_LOOP_H
#define SENDER_BATCH_LOOP_H

#include "broker/link.h"
#include "sender/partition_stream.h"

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
    uint32_t stream_next; /* the index of the stream whose turn it is */
    struct ship_piece *pieces[BROKER_REQUESTS_MAX]; /* the batches of request n in place n % BROKER_REQUESTS_MAX */
};

struct batch_loop {
    struct ship_link *links;
    uint32_t link_count;
    struct partition_stream *streams; /* those of a link are adjacent */
    uint32_t stream_count;
    struct ship_recorder *recorder;
    int wake_fd; /* ends the batch loop when it is readable; never read here */
    uint64_t time_ns;
    uint64_t answer_time_ns; /* the longest time for a response */
};

/* Returns false if memory was short, and nothing was begun. */
bool batch_loop_run(struct batch_loop *loop);

#endif
