/* SPDX-License-Identifier: Apache-2.0
 *
 * The ordinary round of a sender whose sink is a segment log: drained batches of a partition go to its log and end.
 *
 *   drained   | batch | batch | batch | batch | batch |      of one partition, in order
 *             |<------ a run's fit_count ----->| left
 *               log_run_write: checksums, one pwritev, index entries
 *               log_run_complete: results, slots free        or, if the log is an overflow,
 *               log_run_spill: rows of the spill file, ranges in the arena, slots free
 *
 * An ordinary batch is whole in one slot and has no result so far. Its bytes are the appended ones, its sequence
 * follows, and it fits into the open segment. The first batch that is not ordinary ends the run. This batch and the
 * later ones are left, in flight and in their order: the sender delivers them to the sink like any others.
 *
 * Another process may change a batch between its checksum and the end of the write. A log that verifies what was
 * written does not count such a batch (log/segment_end.h): it is left. The sender finds its checksum wrong, and
 * quarantines it.
 *
 * log_run_write reads the arena and changes nothing in it, so a thread may run it while other threads of the process
 * use the arena.
 *
 * DEATHS. Before pwritev: nothing has happened, and the next sender sends the batches again. After pwritev: the
 * recovery of the log finds the batches that are whole in the file, and the log recognises them when the next sender
 * sends them. The recovery also cuts a torn batch, and completes an index that lags. An overflow's deaths are in
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
    uint32_t fit_count;       /* ordinary as far as is known */
    int64_t base_offset;      /* of the first batch */
    struct log_append append; /* the result of log_run_write */
    uint32_t ended_count;     /* the number of them that left the arena */
    uint32_t largest_record;  /* bytes of the largest record, if any was larger than known before */
};

/* Fills `batches` for the first batches that are ordinary in themselves, and returns their number. */
uint32_t log_run_describe(const struct sender_half *half, const struct drained_batch *drained, uint32_t count,
                          struct log_batch *batches);

/* Writes the run's batches that fit, up to a damaged one. Finds records larger than `known_largest`. */
void log_run_write(struct log_run *run, uint32_t known_largest);

/* Completes what was written. `completions` has the size of the run. */
void log_run_complete(struct sender_half *half, struct log_run *run, struct batch_completion *completions,
                      struct wake_set *wakes);

/* The spill file of an overflow's partition. */
struct log_run_spill_file {
    int file;
    uint64_t row_count; /* so far */
    uint64_t end_seq;   /* batches below it are not ordinary, because younger ones precede them */
    uint64_t arena;     /* as stored in the rows */
};

/* Returns how many drained batches, from the first on, are younger than all spilled ones. */
uint32_t log_run_fit_spill(const struct log_run *run, const struct log_run_spill_file *spill);

/* Moves what was written out of the arena. If its rows cannot be written, all of it stays there. */
void log_run_spill(struct sender_half *half, struct log_run *run, const struct log_run_spill_file *spill,
                   struct wake_set *wakes);

#endif
