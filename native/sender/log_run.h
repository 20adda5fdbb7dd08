/* SPDX-License-Identifier: Apache-2.0
 *
 * The ordinary round of a sender whose sink is a segment log. It writes drained batches of a partition to the log.
 *
 *   drained   | batch | batch | batch | batch | batch |      of one partition, in order
 *             |<------ a run's fit_count ----->| left
 *               log_run_write: checksums, one pwritev, index entries
 *               log_run_complete: results, slots free        or, if the log is an overflow,
 *               log_run_spill: rows of the spill file, ranges in the arena, slots free
 *
 * An ordinary batch is in one slot, has no result, has unchanged bytes and the next sequence, and fits into the open
 * segment. The first batch that is not ordinary ends the run. This batch and all later ones stay in flight, in their
 * order, and the sender delivers them to the sink.
 *
 * Another process may change a batch between its checksum and the end of the write. A log that verifies written
 * batches does not append such a batch (log/segment_end.h). The sender finds that its checksum is wrong, and
 * quarantines it.
 *
 * log_run_write reads the arena and changes nothing in it, so a thread may run it while other threads of the process
 * use the arena.
 *
 * DEATHS. After a death before pwritev, the next sender sends the batches again. After a death in or after pwritev, the
 * recovery of the log finds the complete batches in the file. The log recognizes them when the next sender sends them.
 * The recovery also cuts a torn batch, and adds missing index entries. For an overflow, see
 * shmaccum/sender/overflow.py.
 */
#ifndef SENDER_LOG_RUN_H
#define SENDER_LOG_RUN_H

#include "log/segment_end.h"
#include "sender/sender.h"

struct log_run {
    struct log_end *log;
    const struct drained_batch *drained;
    const struct log_batch *batches; /* the same batches for the log */
    uint32_t count;
    uint32_t fit_count;       /* the first batches, which seem to be ordinary */
    int64_t base_offset;      /* of the first batch */
    struct log_append append; /* the result of log_run_write */
    uint32_t ended_count;     /* the number of batches that left the arena */
    uint32_t largest_record;  /* bytes of the largest record, if it is larger than `known_largest` */
};

/* Fills `batches` up to the first batch that is not ordinary, regardless of the log. Returns their number. */
uint32_t log_run_describe(const struct sender_half *half, const struct drained_batch *drained, uint32_t count,
                          struct log_batch *batches);

/* Writes the run's batches that fit, up to a damaged one. Finds records larger than `known_largest`. */
void log_run_write(struct log_run *run, uint32_t known_largest);

/* Completes the written batches. `completions` has one element per batch of the run. */
void log_run_complete(struct sender_half *half, struct log_run *run, struct batch_completion *completions,
                      struct wake_set *wakes);

/* The spill file of an overflow's partition. */
struct log_run_spill_file {
    int file;
    uint64_t row_count; /* rows in the file */
    uint64_t end_seq;   /* a batch with a smaller seq is not ordinary, because a later one is in the file */
    uint64_t arena;     /* as stored in the rows */
};

/* Returns how many drained batches, from the first on, have a larger seq than all spilled ones. */
uint32_t log_run_fit_spill(const struct log_run *run, const struct log_run_spill_file *spill);

/* Frees the written batches in the arena. If their rows cannot be written, all of them stay in the arena. */
void log_run_spill(struct sender_half *half, struct log_run *run, const struct log_run_spill_file *spill,
                   struct wake_set *wakes);

#endif
