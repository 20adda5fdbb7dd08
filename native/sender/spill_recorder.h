/* SPDX-License-Identifier: Apache-2.0
 *
 * The recorder of a batch loop that ships a sender's overflow (sender/batch_loop.h, shmaccum/sender/overflow.py).
 *
 *   acked ── row ──> result in the arena ──> position on disk ──> the window moves
 *
 *   spill file   | position 64 | position 64 | zeros to 4096 | row 32 | row 32 | ...        one for each partition
 *   position     number u64 · offset i64 · bytes that the batch loop does not change · CRC-32C of these u32
 *   row          base offset i64 · seq u64 · slot index u32 · record count u32 · arena u64
 *
 * Rules, per field
 *   number   The position with the larger number is valid. A new position replaces the other one.
 *   offset   The sink has every record of the log below it.
 *   row      Rows ascend by base offset. A batch has no result if its row is missing or belongs to another arena.
 *
 * Why it is safe
 *   The results of batches are in the arena before their position is written. A sender that dies in between leaves
 *   batches that the next one sends again; the broker drops them, and the results are recorded once more.
 *   The process that writes the file holds the lock of the log. The ranges in the arena (arena/spilled.h) are updated
 *   after the batch loop, so a batch in a range may have its result.
 *   If bytes are hostile: the arena checks the slot of a row. A row that matches no batch is skipped, up to a few
 *   thousand rows for each batch.
 */
#ifndef SENDER_SPILL_RECORDER_H
#define SENDER_SPILL_RECORDER_H

#include "sender/sender.h"
#include "sender/partition_stream.h"

enum { SPILL_POSITION_SIZE = 52 /* without its CRC */ };

/* The spill file of a stream. */
struct spill_stream {
    int file;
    uint32_t partition_index;
    uint64_t row_index; /* all batches of earlier rows are recorded */
    uint64_t number;    /* of the valid position */
    uint8_t position[SPILL_POSITION_SIZE];
};

struct spill_recorder {
    struct ship_recorder recorder;
    struct sender_half *half;
    struct spill_stream *streams; /* in the order of the batch loop's streams */
    uint64_t arena;           /* as stored in the rows */
    bool is_synced;           /* positions are forced to disk */
};

bool spill_record(struct ship_recorder *recorder, struct partition_stream *streams, uint32_t stream_count);

#endif
