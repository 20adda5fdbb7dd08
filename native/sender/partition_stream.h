/* SPDX-License-Identifier: Apache-2.0
 *
 * A partition stream: the state of a partition in the batch loop, which sends its ordinary batches to a sink.
 *
 *   segment   │ shipped, on disk │ acked │ in flight │ header read │ not read yet ...
 *                                ^ recorded          ^ next
 *                                └──── window ───────┘ at most SHIP_WINDOW batches
 *
 * Rules
 *   The window begins at the position on disk, and a broker remembers the last five batches of a producer. So if the
 *   outcome of a batch is unknown after a death, the broker recognizes the batch when it is sent again.
 *   Only the 61 bytes of a header are read, so its checksum is not verified. It is valid if it has the next offset and
 *   the file contains its whole batch. Any other header ends the stream, and the caller examines it.
 *   If a stream `syncs`, its batches are on disk before they are sent. A sync is valid only for the batches that were
 *   complete before it, because a torn batch may be cut off and overwritten.
 *   The records of a batch do not change. Its header gets the producer, and a sequence that is computed from its
 *   offset. A stream that `keeps_producer` takes only batches of one producer and epoch, and keeps their sequences.
 *
 * Python sends the batches that are not ordinary (shmaccum/sender/send_window.py has the same window).
 *
 * The file is untrusted: each number from it is checked before it is used.
 */
#ifndef SENDER_PARTITION_STREAM_H
#define SENDER_PARTITION_STREAM_H

#include "base/check.h"
#include "format/produce.h"
#include "format/record_batch.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    SHIP_WINDOW = 5,                  /* batches of a producer that a broker remembers */
    SHIP_WINDOW_ROOM = 8,             /* a power of two */
    SHIP_BATCH_SIZE_MAX = 64 << 20,   /* a larger batch is read before its header is trusted */
};
STATIC_CHECK(SHIP_WINDOW <= SHIP_WINDOW_ROOM);

enum partition_stream_state {
    STREAM_GOES,   /* the next batch may be ordinary */
    STREAM_ENDS,   /* the next batch is not ordinary; the caller examines it */
    STREAM_BROKEN, /* a batch has no ack: all batches after the recorded position are sent again */
};

/* Bytes owned by the caller. */
struct ship_text {
    const char *bytes;
    size_t size;
};

/* A place in the log, and the leader epoch of the batch before it. */
struct ship_place {
    int64_t offset;
    off_t position;
    int32_t leader_epoch;
};

struct ship_batch {
    struct ship_place end;
    int64_t record_count;
    uint32_t size;
    bool is_acked;
    struct produce_result result; /* valid when the batch is acked */
};

struct partition_stream {
    struct produce_topic topic; /* its batch count is unused */
    int32_t partition;
    int file;
    int64_t limit_offset; /* batches at and above it are not shipped */
    bool syncs;
    off_t synced; /* the bytes of the segment before it are on disk */
    struct record_batch_producer producer; /* its base sequence is unused */
    bool keeps_producer;
    int64_t origin; /* the offset of the record with sequence 0; unused if batches keep their producer */
    struct ship_text name; /* as in the positions file, including quotes */
    struct ship_text topic_id;
    enum partition_stream_state state;
    struct ship_place recorded; /* the position on disk */
    struct ship_place next;
    off_t file_size;
    bool has_header; /* the header of the batch at `next` was read */
    uint8_t header[RECORD_BATCH_HEADER_SIZE];
    struct record_batch_header fields;
    struct ship_batch window[SHIP_WINDOW_ROOM]; /* [n % SHIP_WINDOW_ROOM] is batch n of the stream */
    uint64_t first; /* of the window */
    uint64_t end;
    int64_t batch_count; /* of the recorded batches, as the next two fields */
    int64_t record_count;
    int64_t byte_count;
};

/* The part of a batch loop that writes the positions of streams. */
struct ship_recorder {
    /* Writes the positions that are due (stream_due), and moves the windows (stream_record). Returns false if that
     * failed. The streams are then unchanged. */
    bool (*record)(struct ship_recorder *recorder, struct partition_stream *streams, uint32_t stream_count);
    bool is_over; /* the batch loop must end, because no position can be written */
};

/* Returns true if the stream has another batch that may be sent. `stream_batch_size` and `stream_take` refer to that
 * batch. Reads the header, and ends the stream if it is not ordinary. */
bool stream_read_ahead(struct partition_stream *stream);

/* Returns the bytes of the next batch, including its header. */
static inline uint32_t stream_batch_size(const struct partition_stream *stream)
{
    return (uint32_t)stream->fields.batch_length + RECORD_BATCH_UNCOUNTED_SIZE;
}

/* Adds the next batch to the window, writes its header for the sink, and returns its number. */
uint64_t stream_take(struct partition_stream *stream, uint8_t header[RECORD_BATCH_HEADER_SIZE]);

void stream_ack(struct partition_stream *stream, uint64_t number, const struct produce_result *result);

/* Returns true if batches past the position on disk are acked. `place` receives the new position. */
bool stream_due(const struct partition_stream *stream, struct ship_place *place);

/* Records that the place of `stream_due` is on disk. */
void stream_record(struct partition_stream *stream);

#endif
