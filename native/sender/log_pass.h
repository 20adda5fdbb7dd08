/* SPDX-License-Identifier: Apache-2.0
 *
 * One pass of a sender that appends to segment logs: drained batches -> runs of one partition (sender/log_run.h).
 *
 *   log_pass_drain     │ run │ run │ run │       the batches of a partition are adjacent
 *        the owner gives each run a log, and the number of its batches that fit; without a log they are left
 *   log_pass_write     without the handle of the arena
 *   log_pass_end       a run: results, or rows of its spill file
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
    uint32_t fit_count; /* of the run before it was written: a damaged batch makes it less */
};

struct log_pass {
    /* set by the owner */
    struct sender_half *half;
    bool spills;             /* the logs are an overflow: `spill` of each run with a log is set */
    uint32_t largest_record; /* known before */

    uint32_t *partitions; /* that may be drained; the owner fills them */
    struct log_pass_run *runs;
    struct drained_batch *drained;
    uint32_t run_count;
    uint32_t drained_count;
    uint32_t seen_count; /* partitions that were visited */

    /* private */
    struct log_batch *batches;
    struct batch_completion *completions;
};

/* Allocates for so many partitions. Returns false if memory is short. log_pass_free follows in either case. */
bool log_pass_make(struct log_pass *pass, uint32_t partition_count);
void log_pass_free(struct log_pass *pass);

/* Drains the partitions, and makes the runs. */
void log_pass_drain(struct log_pass *pass, const struct drain_options *options, uint32_t partition_count);

/* The batches of a run for its log, of which log_run_describe fills some. */
struct log_batch *log_pass_batches(const struct log_pass *pass, const struct log_run *run);

/* Writes each run that has batches that fit. It reads the arena and changes only the heartbeat in it. */
void log_pass_write(struct log_pass *pass);

/* Ends what was written of a run with batches that fit. */
void log_pass_end(struct log_pass *pass, uint32_t run_index, struct wake_set *wakes);

/* Adds the batches that ended, which began at `begun_ns`. Returns their number. */
uint32_t log_pass_tally(const struct log_pass *pass, struct delivered *delivered, uint64_t begun_ns);

/* Moves the batches that did not end to the front of `drained`, and returns how many they are. */
uint32_t log_pass_gather(struct log_pass *pass);

#endif
