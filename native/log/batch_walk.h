/* SPDX-License-Identifier: Apache-2.0
 *
 * Searches a segment of a log for the batch that has an offset, header by header. Each fetch begins with this search.
 *
 *   | header, records | header, records | header, records | ...        several small batches in one read
 *   ^ position, from an index                ^ found
 *
 * The bytes are untrusted: an invalid header ends the search. The caller keeps the file open.
 */
#ifndef LOG_BATCH_WALK_H
#define LOG_BATCH_WALK_H

#include <stdint.h>

struct batch_walk {
    int descriptor;
    int64_t position; /* where a batch begins */
    int64_t end;
    int64_t offset;
};

/* Returns the size of the batch with the offset, at walk->position; 0 if there is none; -1 with errno set. */
int64_t batch_find(struct batch_walk *walk);

#endif
