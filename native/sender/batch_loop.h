/* SPDX-License-Identifier: Apache-2.0
 *
 * The batch loop sends ordinary batches of many partitions of logs to the brokers that lead these partitions.
 *
 *   segment ── stream ── header ──> request ──> link ──> broker
 *                ^                              │
 *                └───── recorder <─── acked ────┘
 *
 *   The header of each batch is in memory, and its records are a range of the segment. A request has at most one batch
 *   of each stream (partition_stream.h). A response without an error acks the batches of its request. After any other
 *   response, their streams are broken: the caller sends the batches again by shmaccum/sender/send_window.py, which
 *   handles errors. The broker drops the batches that it already has.
 *
 *   1 send as far as the windows permit ─> 2 if windows are full, record acked batches ─> 1 ... ─> 3 wait ─> 1
 *
 * The loop ends if its time is over, the wake fd is readable, a signal arrives, a stream or a response is not ordinary,
 * or no batch is left. At its end no batch is in flight: each response has arrived, or its link is broken.
 *
 * The recorder writes the positions of streams. The recorder of a shipper has one file for all streams (positions.h).
 * The recorder of a sender's overflow has one file for each partition, and first records the results of the batches
 * (sender/spill_recorder.h).
 *
 * DEATHS are those of a shipper (shmaccum/sender/shipping/shipper.py) or a sender (shmaccum/sender/overflow.py).
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
    struct partition_stream *streams; /* the streams of a topic are adjacent */
    uint32_t stream_count;
    uint32_t stream_next; /* the index of the stream that gets the next place in a request */
    struct ship_piece *pieces[BROKER_REQUESTS_MAX]; /* [n % BROKER_REQUESTS_MAX] has the batches of request n */
};

struct batch_loop {
    struct ship_link *links;
    uint32_t link_count;
    struct partition_stream *streams; /* the streams of a link are adjacent */
    uint32_t stream_count;
    struct ship_recorder *recorder;
    int wake_fd; /* ends the batch loop when it is readable; the caller reads it */
    uint64_t time_ns;
    uint64_t answer_time_ns; /* the longest time for a response */
};

/* Returns false, without having begun, if there is not enough memory. */
bool batch_loop_run(struct batch_loop *loop);

#endif
