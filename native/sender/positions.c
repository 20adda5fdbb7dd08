/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/positions.h"

#include "base/check.h"
#include "format/crc32c.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CRC_SIZE = 9 /* including the blank after it */, DIGITS_MAX = 20, NUMBERS_SIZE_MAX = 4 * 21 + 16 };

/* Grows the line by `more` bytes after `size`. */
static bool room_make(struct ship_positions *positions, size_t size, size_t more)
{
    if (size + more <= positions->room) {
        return true;
    }
    size_t room = 2 * (size + more);
    char *line = realloc(positions->line, room);
    if (line == NULL) {
        return false;
    }
    positions->line = line;
    positions->room = room;
    return true;
}

/* Each of these functions returns the end of the text that it has written. */
static char *text_write(char *target, const char *text, size_t size)
{
    memcpy(target, text, size);
    return target + size;
}

static char *number_write(char *target, int64_t number)
{
    char digits[DIGITS_MAX];
    size_t first = sizeof digits;
    uint64_t left = number < 0 ? -(uint64_t)number : (uint64_t)number;
    do {
        digits[--first] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    CHECK(first < sizeof digits);
    if (number < 0) {
        *target++ = '-';
    }
    return text_write(target, digits + first, sizeof digits - first);
}

/* Writes the stream's element. Returns false if there is not enough memory. */
static bool element_write(struct ship_positions *positions, const struct partition_stream *stream,
                          const struct ship_place *place, size_t *size)
{
    bool is_first = *size == CRC_SIZE;
    if (!room_make(positions, *size, stream->name.size + stream->topic_id.size + NUMBERS_SIZE_MAX)) {
        return false;
    }
    const int64_t numbers[] = {place->offset, stream->producer.epoch, stream->origin, place->leader_epoch};
    char *target = positions->line + *size;
    target = is_first ? text_write(target, "{", 1) : text_write(target, ", ", 2);
    target = text_write(target, stream->name.bytes, stream->name.size);
    target = text_write(target, ": [", 3);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        target = text_write(number_write(target, numbers[i]), ", ", 2);
    }
    target = text_write(target, stream->topic_id.bytes, stream->topic_id.size);
    *target++ = ']';
    *size = (size_t)(target - positions->line);
    return true;
}

/* Writes the line of the positions that are due. `size` receives its size, or 0 if none is due. */
static bool line_write(struct ship_positions *positions, const struct partition_stream *streams, uint32_t stream_count,
                       size_t *size)
{
    struct ship_place place;
    *size = CRC_SIZE;
    for (uint32_t i = 0; i < stream_count; i++) {
        if (stream_due(&streams[i], &place) && !element_write(positions, &streams[i], &place, size)) {
            return false;
        }
    }
    if (*size == CRC_SIZE) {
        *size = 0;
        return true;
    }
    char crc[CRC_SIZE + 1];
    positions->line[(*size)++] = '}'; /* `element_write` has allocated it */
    (void)snprintf(crc, sizeof crc, "%08" PRIx32 " ",
                   crc32c_extend(0, positions->line + CRC_SIZE, *size - CRC_SIZE));
    memcpy(positions->line, crc, CRC_SIZE);
    positions->line[(*size)++] = '\n';
    return true;
}

static bool line_append(const struct ship_positions *positions, size_t size)
{
    size_t written = 0;
    while (written < size) {
        ssize_t some = write(positions->file, positions->line + written, size - written);
        if (some < 0 && errno != EINTR) {
            return false;
        }
        written += some < 0 ? 0 : (size_t)some;
    }
    return fdatasync(positions->file) == 0;
}

bool positions_record(struct ship_recorder *recorder, struct partition_stream *streams, uint32_t stream_count)
{
    struct ship_positions *positions = (struct ship_positions *)recorder; /* its first field */
    size_t size;
    if (positions->has_failed || !line_write(positions, streams, stream_count, &size)) {
        return false;
    }
    if (size == 0) {
        return true;
    }
    if (!line_append(positions, size)) {
        positions->has_failed = recorder->is_over = true;
        (void)!ftruncate(positions->file, positions->size);
        return false;
    }
    positions->size += (off_t)size;
    recorder->is_over |= positions->size >= positions->size_max;
    for (uint32_t i = 0; i < stream_count; i++) {
        stream_record(&streams[i]);
    }
    return true;
}

void positions_free(struct ship_positions *positions)
{
    free(positions->line);
}
