/* SPDX-License-Identifier: Apache-2.0
 */
#include "log/segment_end.h"

#include "base/bytes.h"
#include "base/point.h"
#include "format/crc32c.h"
#include "format/record_batch.h"
#include "format/sequence.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    PREFIX_SIZE = RECORD_BATCH_MAGIC, /* base offset, batch length, leader epoch */
    PIECES_PER_BATCH = 2,
};

/* ---- fitting batches ---- */

/* Returns true if the index has space for two entries. The second one is reserved: a roll adds an entry, too. */
static bool index_has_room(const struct index_file_end *index, int64_t entry_size)
{
    return index->size + 2 * entry_size <= INDEX_FILE_SIZE_MAX;
}

static int64_t timestamp_limit(const struct log_end *log, int64_t first_timestamp_ms)
{
    int64_t limit;
    return __builtin_add_overflow(first_timestamp_ms, log->segment_ms, &limit) ? INT64_MAX : limit;
}

uint32_t segment_fit(const struct log_end *log, const struct log_batch *batches, uint32_t count)
{
    const struct segment_end *end = log->segment;
    int64_t size = end->size;
    int64_t offset_count = end->next_offset - log->position->base_offset;
    int64_t youngest_ms = size == 0 ? INT64_MAX : timestamp_limit(log, end->first_timestamp_ms);
    if (!index_has_room(log->offset_index, OFFSET_ENTRY_SIZE) || !index_has_room(log->time_index, TIME_ENTRY_SIZE)) {
        return 0;
    }
    for (uint32_t i = 0; i < count && i < LOG_RUN_MAX; i++) {
        size += batches[i].size;
        offset_count += batches[i].record_count;
        if (size > log->segment_bytes || offset_count > (int64_t)INT32_MAX + 1 ||
            batches[i].max_timestamp_ms > youngest_ms) {
            return i;
        }
        if (end->size == 0 && i == 0) {
            youngest_ms = timestamp_limit(log, batches[0].max_timestamp_ms);
        }
    }
    return count < LOG_RUN_MAX ? count : LOG_RUN_MAX;
}

uint32_t log_batches_in_sequence(const struct log_batch *batches, uint32_t count, int32_t sequence)
{
    const struct log_batch *first = &batches[0];
    uint32_t i = 0;
    while (i < count && batches[i].producer_id == first->producer_id &&
           (first->producer_id < 0 ||
            (batches[i].producer_epoch == first->producer_epoch && batches[i].base_sequence == sequence))) {
        sequence = sequence_increment(sequence, (int32_t)batches[i].record_count);
        i++;
    }
    return i;
}

/* ---- the log ---- */

struct gathered {
    uint8_t prefixes[LOG_RUN_MAX][PREFIX_SIZE];
    struct iovec pieces[LOG_RUN_MAX * PIECES_PER_BATCH];
    int64_t size;
};

static void batches_gather(const struct log_end *log, const struct log_batch *batches, uint32_t count,
                           struct gathered *gathered)
{
    int64_t offset = log->segment->next_offset;
    gathered->size = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *prefix = gathered->prefixes[i];
        store_be64(prefix + RECORD_BATCH_BASE_OFFSET, (uint64_t)offset);
        store_be32(prefix + RECORD_BATCH_LENGTH, batches[i].size - RECORD_BATCH_UNCOUNTED_SIZE);
        store_be32(prefix + RECORD_BATCH_LEADER_EPOCH, (uint32_t)log->leader_epoch);
        struct iovec *pieces = &gathered->pieces[PIECES_PER_BATCH * i];
        pieces[0] = (struct iovec){.iov_base = prefix, .iov_len = PREFIX_SIZE};
        pieces[1].iov_base = (void *)(batches[i].bytes + PREFIX_SIZE);
        pieces[1].iov_len = batches[i].size - PREFIX_SIZE;
        gathered->size += batches[i].size;
        offset += batches[i].record_count;
    }
}

/* Skips the bytes of a short write. */
static struct iovec *pieces_advance(struct iovec *pieces, int *piece_count, size_t written)
{
    while (written > 0 && written >= pieces->iov_len) {
        written -= pieces->iov_len;
        pieces++;
        (*piece_count)--;
    }
    if (written > 0) {
        pieces->iov_base = (uint8_t *)pieces->iov_base + written;
        pieces->iov_len -= written;
    }
    return pieces;
}

/* Returns the number of written bytes. If not all were written, `error` receives the reason. */
static int64_t pieces_write(const struct segment_end *end, struct gathered *gathered, int piece_count, int *error)
{
    struct iovec *pieces = gathered->pieces;
    int64_t done = 0;
    *error = 0;
    while (done < gathered->size) {
        ssize_t written = pwritev(end->descriptor, pieces, piece_count, end->size + done);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            *error = written == 0 ? EIO : errno;
            break;
        }
        done += written;
        pieces = pieces_advance(pieces, &piece_count, (size_t)written);
    }
    return done;
}

static uint32_t whole_count(const struct log_batch *batches, uint32_t count, int64_t done)
{
    int64_t end = 0;
    for (uint32_t i = 0; i < count; i++) {
        end += batches[i].size;
        if (end > done) {
            return i;
        }
    }
    return count;
}

static bool batch_is_unchanged(const struct log_batch *batch)
{
    uint32_t crc = crc32c_extend(0, batch->bytes + RECORD_BATCH_ATTRIBUTES, batch->size - RECORD_BATCH_ATTRIBUTES);
    return crc == batch->crc && batch->bytes[RECORD_BATCH_MAGIC] == RECORD_BATCH_MAGIC_VALUE &&
           load_be32(batch->bytes + RECORD_BATCH_CRC) == batch->crc;
}

/* Returns how many batches in the file, from the first on, have the same checksum as before the write. */
static uint32_t unchanged_count(const struct log_end *log, const struct log_batch *batches, uint32_t count)
{
    uint32_t unchanged = 0;
    POINT(segment_written);
    while (unchanged < count && (!log->verifies_written || batch_is_unchanged(&batches[unchanged]))) {
        unchanged++;
    }
    return unchanged;
}

/* ---- the indexes ---- */

struct entries {
    uint8_t offsets[LOG_RUN_MAX * OFFSET_ENTRY_SIZE];
    uint8_t times[LOG_RUN_MAX * TIME_ENTRY_SIZE];
    size_t offsets_size;
    size_t times_size;
};

static void time_entry_add(struct index_position *position, struct entries *entries)
{
    uint8_t *entry = entries->times + entries->times_size;
    store_be64(entry, (uint64_t)position->max_timestamp_ms);
    store_be32(entry + 8, (uint32_t)(position->max_timestamp_offset - position->base_offset));
    entries->times_size += TIME_ENTRY_SIZE;
    position->indexed_timestamp_ms = position->max_timestamp_ms;
}

static void offset_entry_add(const struct index_position *position, int64_t last_offset, int64_t batch_position,
                             struct entries *entries)
{
    uint8_t *entry = entries->offsets + entries->offsets_size;
    store_be32(entry, (uint32_t)(last_offset - position->base_offset));
    store_be32(entry + 4, (uint32_t)batch_position);
    entries->offsets_size += OFFSET_ENTRY_SIZE;
}

/* Indexes a batch that was written at `batch_position`. */
static void batch_index(struct index_position *position, const struct log_batch *batch, int64_t batch_position,
                        int64_t last_offset, struct entries *entries)
{
    if (batch->max_timestamp_ms > position->max_timestamp_ms) {
        position->max_timestamp_ms = batch->max_timestamp_ms;
        position->max_timestamp_offset = last_offset;
    }
    if (batch_position - position->entry_position <= position->interval) {
        return;
    }
    offset_entry_add(position, last_offset, batch_position, entries);
    if (position->max_timestamp_ms > position->indexed_timestamp_ms) {
        time_entry_add(position, entries);
    }
    position->entry_position = batch_position;
}

/* Adds all entries, or none. Returns 0 or errno. */
static int entries_write(struct index_file_end *index, const uint8_t *entries, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t written = write(index->descriptor, entries + done, size - done);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            int error = written == 0 ? EIO : errno;
            return ftruncate(index->descriptor, index->size) == 0 ? error : errno;
        }
        done += (size_t)written;
    }
    index->size += (int64_t)size;
    return 0;
}

/* ---- append ---- */

/* Advances the numbers past the complete batches in the file, and writes their index entries. Returns 0 or errno. */
static int batches_index(struct log_end *log, const struct log_batch *batches, uint32_t count)
{
    struct segment_end *end = log->segment;
    struct entries entries = {.offsets_size = 0, .times_size = 0};
    if (count > 0 && end->size == 0) {
        end->first_timestamp_ms = batches[0].max_timestamp_ms;
    }
    for (uint32_t i = 0; i < count; i++) {
        int64_t next_offset = end->next_offset + batches[i].record_count;
        batch_index(log->position, &batches[i], end->size, next_offset - 1, &entries);
        end->size += batches[i].size;
        end->next_offset = next_offset;
    }
    int error = entries_write(log->offset_index, entries.offsets, entries.offsets_size);
    return error != 0 ? error : entries_write(log->time_index, entries.times, entries.times_size);
}

/* Returns true if the file has the expected size. If another process has truncated it, a write would leave a hole. */
static bool segment_has_size(const struct log_end *log)
{
    const struct segment_end *end = log->segment;
    struct stat found;
    if (log->path == NULL) {
        return true;
    }
    return fstat(end->descriptor, &found) == 0 &&
           (end->is_torn ? found.st_size >= end->size : found.st_size == end->size);
}

/* Returns true if the path leads to the open file, and its first `size` bytes are there. */
static bool segment_has_name(const struct log_end *log, int64_t size)
{
    struct stat found;
    if (log->path == NULL) {
        return true;
    }
    return stat(log->path, &found) == 0 && (uint64_t)found.st_dev == log->segment->device &&
           (uint64_t)found.st_ino == log->segment->inode && found.st_size >= size;
}

/* Returns false if the file is still torn. */
static bool segment_cut(struct segment_end *end)
{
    end->is_torn = ftruncate(end->descriptor, end->size) != 0;
    return !end->is_torn;
}

struct log_append segment_append(struct log_end *log, const struct log_batch *batches, uint32_t count)
{
    CHECK(count <= LOG_RUN_MAX);
    CHECK(log->segment->descriptor >= 0);
    struct segment_end *end = log->segment;
    struct log_append append = {0};
    struct gathered gathered;
    if (!segment_has_size(log)) {
        end->is_lost = true;
        append.error = ESTALE;
        return append;
    }
    if (end->is_torn && !segment_cut(end)) {
        append.error = errno;
        return append;
    }
    batches_gather(log, batches, count, &gathered);
    end->is_torn = true;
    int64_t done = pieces_write(end, &gathered, (int)(PIECES_PER_BATCH * count), &append.error);
    if (!segment_has_name(log, end->size + done)) {
        end->is_lost = true;
        append.error = ESTALE;
        return append;
    }
    uint32_t written_count = whole_count(batches, count, done);
    append.batch_count = unchanged_count(log, batches, written_count);
    append.is_changed = append.batch_count < written_count;
    append.index_error = batches_index(log, batches, append.batch_count);
    if (append.error == 0 && !append.is_changed) {
        end->is_torn = false;
    } else {
        (void)segment_cut(end); /* the next append cuts before it writes */
    }
    return append;
}
