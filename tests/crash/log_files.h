/* SPDX-License-Identifier: Apache-2.0
 *
 * The log of a tracee whose sink is a segment log: the files of one partition, which outlive it.
 *
 *   tracee ── pwritev, index entries ──> files in memory: the harness reads them after the tracee's death
 *
 * A batch has arrived when its last byte is in the file. A recovery of the log cuts off an incomplete batch, and so
 * does the reader here. The numbers of the log's end are stored beside the ledger: each store to them is a change at
 * which a tracee dies or stops.
 *
 * Where the log is an overflow, the spill file lies beside it: a row for each batch that may leave the arena.
 */
#ifndef CRASH_LOG_FILES_H
#define CRASH_LOG_FILES_H

#include "arrived.h"
#include "ledger.h"
#include "log/segment_end.h"
#include "sender/spill_row.h"

struct log_files {
    int log;
    int offset_index;
    int time_index;
    int rows; /* the spill file */
};

/* The state of the log's writer, which is lost with it. */
struct log_numbers {
    struct segment_end segment;
    struct index_position position;
    struct index_file_end offset_index;
    struct index_file_end time_index;
};

void log_files_open(struct log_files *files);
void log_files_close(struct log_files *files);

/* The end of the log, which is empty. */
struct log_end log_files_end(const struct log_files *files, struct log_numbers *numbers);

/* Reads the batches that are whole in the log. False, with a sentence, if an offset is not the next one, or if an index
 * entry is of no batch. */
bool log_files_read(const struct log_files *files, struct arrived *arrived, char problem[PROBLEM_SIZE]);

/* Read the rows of the spill file; batches get rows in the order of the log. Return false, with a sentence, if a row
 * differs from the batch at its index in `arrived`. */
bool log_files_read_rows(const struct log_files *files, const struct arrived *arrived,
                         struct spill_row rows[ARRIVED_MAX], uint32_t *count, char problem[PROBLEM_SIZE]);

#endif
