/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass of a sender that appends to segment logs: drained batches -> runs of one partition (sender/log_run.h).
 *
 *   log_pass_drain     │ run │ run │ run │       the batches of a partition are adjacent
 *        the owner sets the log of each run, and the number of its batches that fit; a run without a log is not written
 *   log_pass_write     without the handle of the arena
 *   log_pass_end       records the results of a run, or writes rows of its spill file
 *   log_pass_gather    the batches that are left, in their order
 *
 * Memory is allocated first: after a byte is written, nothing can fail before the results agree with the log.
 */
#ifndef SENDER_LOG_PASS_H
#define SENDER_LOG_PASS_H

#include "sender/delivered.h"
#include "sender/log_run.h"

struct log_pass_run {
    struct log_run run;
    struct log_run_spill_file spill;
    uint32_t fit_count; /* fit_count of the run before the write, which reduces it at a damaged batch */
};

struct log_pass {
    /* set by the owner */
    struct sender_half *half;
    bool spills;             /* the logs are an overflow: `spill` of each run with a log is set */
    uint32_t largest_record; /* the largest size that is known at the beginning */

    uint32_t *partitions; /* partitions that may be drained; the owner sets them */
    struct log_pass_run *runs;
    struct drained_batch *drained;
    uint32_t run_count;
    uint32_t drained_count;
    uint32_t seen_count; /* partitions that were visited */

    /* private */
    struct log_batch *batches;
    struct batch_completion *completions;
};

/* Allocates memory for these partitions. Returns false if there is not enough. Call log_pass_free in either case. */
bool log_pass_make(struct log_pass *pass, uint32_t partition_count);
void log_pass_free(struct log_pass *pass);

/* Drains the partitions, and makes the runs. */
void log_pass_drain(struct log_pass *pass, const struct drain_options *options, uint32_t partition_count);

/* Returns the elements for the batches of a run. log_run_describe fills some of them. */
struct log_batch *log_pass_batches(const struct log_pass *pass, const struct log_run *run);

/* Writes each run that has batches that fit. It reads the arena and changes only the heartbeat in it. */
void log_pass_write(struct log_pass *pass);

/* Ends the written batches of a run. Requires that batches of it fit. */
void log_pass_end(struct log_pass *pass, uint32_t run_index, struct wake_set *wakes);

/* Adds the ended batches to `delivered`. Their append began at `begun_ns`. Returns their number. */
uint32_t log_pass_tally(const struct log_pass *pass, struct delivered *delivered, uint64_t begun_ns);

/* Moves the batches that did not end to the front of `drained`, and returns how many they are. */
uint32_t log_pass_gather(struct log_pass *pass);

#endif
