/* SPDX-License-Identifier: Apache-2.0
 *
 * The log of a tracee whose sink is a segment log. It consists of the files of one partition, which outlive the tracee.
 *
 *   tracee ── pwritev, index entries ──> files in memory: the harness reads them after the tracee's death
 *
 * A batch has arrived when its last byte is in the file. The reader here ignores an incomplete batch, as the recovery
 * of a log does. The position of the log's end is in the shared memory of the ledger. So each store to it is also a
 * point at which the harness kills or stops the tracee.
 *
 * If the log is an overflow, it also has a spill file. This file has a row for each batch that may leave the arena.
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

/* The state of the log's writer. It is lost when the writer dies. */
struct log_numbers {
    struct segment_end segment;
    struct index_position position;
    struct index_file_end offset_index;
    struct index_file_end time_index;
};

void log_files_open(struct log_files *files);
void log_files_close(struct log_files *files);

/* Returns the end of an empty log. */
struct log_end log_files_end(const struct log_files *files, struct log_numbers *numbers);

/* Reads the complete batches of the log. Returns false and describes the problem if an offset does not follow the one
 * before it, or if an index entry matches no batch. */
bool log_files_read(const struct log_files *files, struct arrived *arrived, char problem[PROBLEM_SIZE]);

/* Reads the rows of the spill file, which are in the order of the log. Returns false and describes the problem if a row
 * differs from the batch with the same index in `arrived`. */
bool log_files_read_rows(const struct log_files *files, const struct arrived *arrived,
                         struct spill_row rows[ARRIVED_MAX], uint32_t *count, char problem[PROBLEM_SIZE]);

#endif
