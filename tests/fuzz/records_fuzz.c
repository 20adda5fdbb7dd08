/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile record batches: bytes as a log, another process or a broker may have left them, passed to every reader.
 * Besides the code's own bounds, these rules are checked:
 *
 *   a batch in pieces has the verdict of the whole · every part of a valid batch is valid · renumbering a record
 *   with its own number changes nothing · appending columns fills the size measured for them
 *
 *   input   choices: where pieces, parts and ranges begin and end (CHOICES_SIZE bytes), then the bytes
 *
 * The mutator usually corrects length, count, magic and checksum after a change, because a wrong one would stop every
 * reader.
 */
#include "fuzzing.h"
#include "randomness.h"

#include <limits.h>
#include <string.h>

#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/record.h"
#include "format/record_batch.h"
#include "format/columns.h"

enum { CHOICES_SIZE = 12, RECORDS_MAX = 6 };

struct choices {
    uint16_t cut[2];
    uint8_t first;
    uint8_t count;
    uint8_t range_first;
    uint8_t range_count;
    uint8_t has_log_time;
    uint8_t has_headers;
    uint8_t base_offset_shift;
    uint8_t count_claimed; /* the number of records to walk over, if it is not that of the header */
};

/* ---- a whole batch ---- */

static enum status validate_in_pieces(const struct choices *choices, const uint8_t *bytes, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    memcpy(copy, bytes, size);
    size_t first = choices->cut[0] % (size + 1);
    size_t second = first + choices->cut[1] % (size - first + 1);
    const struct piece pieces[] = {{copy, first}, {copy + first, second - first}, {copy + second, size - second}};
    enum status status = record_batch_validate_pieces(pieces, 3, NULL);
    free(copy);
    return status;
}

static void parts_check(const struct choices *choices, const uint8_t *bytes, size_t size, int32_t record_count)
{
    uint8_t *target = malloc(size);
    size_t target_size;
    const struct record_range range = {.first = choices->first % record_count - (choices->first == 255),
                                       .count = choices->count % (record_count + 1)};
    enum status status = record_batch_part(bytes, size, range, target, &target_size);
    bool is_possible = range.first >= 0 && range.count > 0 && range.count <= record_count - range.first;
    if ((status == STATUS_OK) != is_possible) {
        fuzz_fail("a part that is there was refused, or one that is not was given");
    }
    if (status == STATUS_OK && record_batch_validate(target, target_size, NULL) != STATUS_OK) {
        fuzz_fail("a part of a valid batch is not valid");
    }
    free(target);
}

static void batch_check(const struct choices *choices, const uint8_t *bytes, size_t size)
{
    struct error error;
    struct record_batch_header header;
    uint8_t written[RECORD_BATCH_HEADER_SIZE];
    enum status status = record_batch_validate(bytes, size, &error);
    if (validate_in_pieces(choices, bytes, size) != status) {
        fuzz_fail("a batch in pieces has another verdict than the whole");
    }
    if (record_batch_header_read(bytes, size, &header) != STATUS_OK) {
        return;
    }
    record_batch_header_write(written, &header);
    if (memcmp(written, bytes, sizeof written) != 0) {
        fuzz_fail("a header that was read is not written as it was");
    }
    if (status == STATUS_OK) {
        parts_check(choices, bytes, size, header.record_count);
        if (records_walk(bytes + RECORD_BATCH_HEADER_SIZE, bytes + size, (uint32_t)header.record_count) != STATUS_OK) {
            fuzz_fail("the records of a valid batch cannot be walked");
        }
    }
}

/* ---- records without a header ---- */

static void headers_read(const struct record_view *view)
{
    const uint8_t *cursor = view->headers;
    for (int32_t i = 0; i < view->header_count; i++) {
        struct record_header_view header;
        if (record_header_read(&cursor, view->headers_end, &header) != STATUS_OK) {
            fuzz_fail("a header was valid at the first read, and is invalid now");
        }
    }
}

static void renumber_check(const uint8_t *start, const uint8_t *end, const struct record_view *view)
{
    uint8_t *copy = malloc((size_t)(end - start) + RECORD_PREFIX_SIZE_MAX);
    uint8_t *target = copy;
    const uint8_t *cursor = start;
    if (record_renumber(&cursor, end, view->offset_delta, &target) != STATUS_OK) {
        fuzz_fail("a record that can be read cannot be renumbered");
    }
    const uint8_t *read_again = copy;
    struct record_view again;
    if (record_read(&read_again, target, &again) != STATUS_OK || read_again != target ||
        again.offset_delta != view->offset_delta || again.timestamp_delta != view->timestamp_delta ||
        again.key_size != view->key_size || again.value_size != view->value_size ||
        again.header_count != view->header_count) {
        fuzz_fail("a renumbered record is another one");
    }
    free(copy);
}

static void records_check(const uint8_t *start, const uint8_t *end, uint32_t count)
{
    const uint8_t *cursor = start;
    struct record_view view;
    (void)!records_walk(start, end, count);
    const uint8_t *before = cursor;
    while (cursor < end && record_read(&cursor, end, &view) == STATUS_OK) {
        headers_read(&view);
        renumber_check(before, end, &view);
        before = cursor;
    }
}

/* ---- columns ---- */

/* Appends twice. The second time, the bytes are those of `other`, so possibly only some of the records fit. */
static void columns_check(const struct log_records *records, const struct log_range *range,
                          const struct log_records *other, bool has_headers)
{
    struct record_columns_room room = {0};
    if (record_columns_measure(records, range, &room) != STATUS_OK) {
        return;
    }
    struct columns_memory memory;
    struct record_columns columns = columns_new(&room, has_headers, &memory);
    if (record_columns_append(records, range, &columns) != STATUS_OK || columns.row_count != room.row_count ||
        columns.value.used.data_size != room.value.data_size || columns.key.used.cell_count != room.row_count) {
        fuzz_fail("the measured size is not the appended size");
    }
    columns_free(&memory);
    columns = columns_new(&room, has_headers, &memory);
    (void)!record_columns_append(other, range, &columns);
    columns_free(&memory);
}

static void columns_of(const struct choices *choices, const uint8_t *bytes, size_t size)
{
    struct record_batch_header header = {.record_count = choices->count_claimed, .base_timestamp = INT64_MAX - 5};
    if (size >= RECORD_BATCH_HEADER_SIZE) {
        (void)!record_batch_header_read(bytes, size, &header);
        header.record_count = header.record_count < 0 ? 0 : header.record_count;
        bytes += RECORD_BATCH_HEADER_SIZE;
        size -= RECORD_BATCH_HEADER_SIZE;
    }
    const struct log_records records = {.start = bytes,
                                        .end = bytes + size,
                                        .base_offset = INT64_MAX >> choices->base_offset_shift % 64,
                                        .base_timestamp_ms = header.base_timestamp,
                                        .log_append_time_ms =
                                            choices->has_log_time & 1 ? header.max_timestamp : NO_TIMESTAMP,
                                        .record_count = header.record_count};
    const struct log_range range = {.first = records.base_offset / 2 + choices->range_first - 4,
                                    .end = choices->range_count & 128
                                               ? INT64_MAX
                                               : records.base_offset / 2 + choices->range_count};
    uint8_t *changed = malloc(size + 1);
    memcpy(changed, bytes, size);
    if (size > 0) {
        changed[choices->cut[0] % size] ^= (uint8_t)(choices->cut[1] | 1);
    }
    struct log_records other = records;
    other.start = changed;
    other.end = changed + size;
    columns_check(&records, &range, &other, (choices->has_headers & 1) != 0);
    free(changed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct choices choices;
    _Static_assert(sizeof choices == CHOICES_SIZE, "choices are read as they lie");
    if (size < CHOICES_SIZE) {
        return 0;
    }
    memcpy(&choices, data, sizeof choices);
    data += CHOICES_SIZE;
    size -= CHOICES_SIZE;
    batch_check(&choices, data, size);
    records_check(data, data + size, choices.count_claimed);
    columns_of(&choices, data, size);
    return 0;
}

/* ---- mutation ---- */

static struct record record_draw(struct randomness *randomness, const uint8_t *bytes, struct record_header *headers)
{
    struct record record = {.key = bytes,
                            .key_size = (int32_t)random_below(randomness, 30) - 1,
                            .value = bytes,
                            .value_size = (int32_t)random_below(randomness, 40) - 1,
                            .headers = headers,
                            .header_count = (int32_t)random_below(randomness, 12) - 8};
    record.header_count = record.header_count < 0 ? 0 : record.header_count;
    for (int32_t i = 0; i < record.header_count; i++) {
        headers[i] = (struct record_header){.key = bytes,
                                            .key_size = (int32_t)random_below(randomness, 6),
                                            .value = bytes,
                                            .value_size = (int32_t)random_below(randomness, 6) - 1};
    }
    return record;
}

/* Write some records with the core's writer, and return their number. */
static int32_t records_draw(struct randomness *randomness, uint8_t *target, const uint8_t *end, uint8_t **behind)
{
    uint8_t bytes[64];
    struct record_header headers[4];
    int32_t count = 0;
    int32_t wanted = 1 + (int32_t)random_below(randomness, RECORDS_MAX);
    random_fill(randomness, bytes, sizeof bytes);
    while (count < wanted) {
        struct record_size size;
        struct record record = record_draw(randomness, bytes, headers);
        if (record_measure(&record, &size) != STATUS_OK || record_size_upper_bound(&size) > end - target) {
            break;
        }
        int64_t timestamp_delta = (int64_t)random_magnitude(randomness) >> 1;
        target = record_write(target, &record, &size, count, random_below(randomness, 2) ? timestamp_delta : count);
        count++;
    }
    *behind = target;
    return count;
}

static size_t batch_draw(struct randomness *randomness, uint8_t *batch, size_t room)
{
    uint8_t *behind;
    struct record_batch_header header = {.partition_leader_epoch = -1,
                                         .magic = RECORD_BATCH_MAGIC_VALUE,
                                         .base_timestamp = 1000,
                                         .producer_id = (int64_t)random_below(randomness, 3) - 1};
    header.record_count = records_draw(randomness, batch + RECORD_BATCH_HEADER_SIZE, batch + room, &behind);
    header.last_offset_delta = header.record_count - 1;
    record_batch_header_write(batch, &header);
    return (size_t)(behind - batch);
}

/* Returns the largest timestamp of the records that can be read. */
static int64_t max_timestamp_of(const uint8_t *batch, size_t size, int64_t base)
{
    const uint8_t *cursor = batch + RECORD_BATCH_HEADER_SIZE;
    struct record_view view;
    int64_t max = NO_TIMESTAMP;
    int64_t timestamp;
    while (cursor < batch + size && record_read(&cursor, batch + size, &view) == STATUS_OK) {
        if (!__builtin_add_overflow(base, view.timestamp_delta, &timestamp) && timestamp > max) {
            max = timestamp;
        }
    }
    return max;
}

static void batch_mend(struct randomness *randomness, uint8_t *batch, size_t size)
{
    struct record_batch_header header;
    if (record_batch_header_read(batch, size, &header) != STATUS_OK) {
        return;
    }
    header.batch_length = (int32_t)(size - RECORD_BATCH_UNCOUNTED_SIZE);
    header.magic = RECORD_BATCH_MAGIC_VALUE;
    if (random_below(randomness, 4) != 0) {
        header.base_offset = 0;
        header.attributes &= RECORD_BATCH_TRANSACTIONAL;
        header.last_offset_delta = (int32_t)((uint32_t)header.record_count - 1);
        header.max_timestamp = max_timestamp_of(batch, size, header.base_timestamp);
    }
    record_batch_header_write(batch, &header);
    record_batch_set_crc(batch, crc32c_extend(0, batch + RECORD_BATCH_ATTRIBUTES, size - RECORD_BATCH_ATTRIBUTES));
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed)
{
    struct randomness randomness = {.state = seed};
    if (size_max < CHOICES_SIZE + RECORD_BATCH_HEADER_SIZE + 64) {
        return LLVMFuzzerMutate(data, size, size_max);
    }
    if (size < CHOICES_SIZE + RECORD_BATCH_HEADER_SIZE || random_below(&randomness, 64) == 0) {
        random_fill(&randomness, data, CHOICES_SIZE);
        size = CHOICES_SIZE + batch_draw(&randomness, data + CHOICES_SIZE, size_max - CHOICES_SIZE);
    }
    size_t start = random_below(&randomness, 4) == 0 ? 0 : CHOICES_SIZE;
    size = start + LLVMFuzzerMutate(data + start, size - start, size_max - start);
    if (size > CHOICES_SIZE && random_below(&randomness, 8) != 0) {
        batch_mend(&randomness, data + CHOICES_SIZE, size - CHOICES_SIZE);
    }
    return size;
}
