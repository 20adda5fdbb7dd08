/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile Arrow data through the C data interface: schemas and arrays with every contradiction that a reader can notice
 * (arrow.h, "what is checked"). Every buffer, list of buffers and list of children has exactly the size that its
 * numbers say, so AddressSanitizer detects code that trusts an unchecked number. The target touches every byte of every
 * slice that the reader returns.
 *
 *   input   a stream of choices: a choice past its end is 0, which always selects the right value
 */
#include "fuzzing.h"

#include <stdbool.h>
#include <string.h>

#include "format/arrow.h"

enum { CELLS_MAX = 40, DATA_MAX = 4096, COLUMNS_MAX = 8, NODES_MAX = 64, BUFFERS_MAX = 6, READ_MAX = 64 };

/* ---- choices ---- */

static const uint8_t *rest;
static size_t rest_size;

static uint8_t choose_byte(void)
{
    if (rest_size == 0) {
        return 0;
    }
    rest_size--;
    return *rest++;
}

static uint32_t choose(uint32_t limit)
{
    return choose_byte() % limit;
}

/* True for one byte in sixteen: the caller then makes something wrong. */
static bool is_wrong(void)
{
    return choose_byte() >= 240;
}

static void choose_fill(uint8_t *target, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        target[i] = choose_byte();
    }
}

static int64_t impossible(void)
{
    static const int64_t numbers[] = {-1, INT64_MIN, INT64_MAX, INT64_MAX - 1, -2, INT64_MAX / 64 + 1, INT32_MIN};
    return numbers[choose(sizeof numbers / sizeof numbers[0])];
}

/* ---- memory that is freed after the input ---- */

static void *given[1024];
static size_t given_count;

static void *give(size_t size)
{
    if (given_count == sizeof given / sizeof given[0]) {
        fuzz_fail("an array of the target has more buffers than it may");
    }
    void *memory = malloc(size);
    memset(memory, 0, size);
    given[given_count++] = memory;
    return memory;
}

static void take_everything_back(void)
{
    while (given_count > 0) {
        free(given[--given_count]);
    }
}

static char *give_text(const char *text)
{
    return strcpy(give(strlen(text) + 1), text);
}

/* ---- schemas ---- */

static void schema_release(struct ArrowSchema *schema)
{
    schema->release = NULL;
}

static void array_release(struct ArrowArray *array)
{
    array->release = NULL;
}

static struct ArrowSchema *schema_new(const char *format, const char *name, uint32_t child_count)
{
    struct ArrowSchema *schema = give(sizeof *schema);
    schema->format = is_wrong() ? NULL : give_text(format);
    schema->name = is_wrong() ? NULL : give_text(name);
    schema->n_children = child_count;
    schema->children = child_count == 0 || is_wrong() ? NULL : give(child_count * sizeof *schema->children);
    schema->release = schema_release;
    if (is_wrong()) {
        schema->n_children = child_count > 0 ? (int64_t)choose(child_count) : INT64_MIN;
    }
    return schema;
}

/* Returns any format that could be the type of a column. */
static const char *format_any(void)
{
    static const char *const formats[] = {"z", "u", "Z", "U", "vz", "vu", "n", "i", "l", "c",    "C",  "s",   "S",
                                          "I", "L", "b", "e", "+s", "+l", "+L", "", "ts", "tsu:", "+m", "tss", "w:3"};
    return formats[choose(sizeof formats / sizeof formats[0])];
}

static const char *format_of(const char *const *formats, uint32_t count)
{
    return is_wrong() ? format_any() : formats[choose(count)];
}

static struct ArrowSchema *schema_bytes(const char *name)
{
    static const char *const formats[] = {"z", "u", "Z", "U", "vz", "vu", "n"};
    return schema_new(format_of(formats, 7), name, 0);
}

static struct ArrowSchema *schema_text(const char *name)
{
    static const char *const indices[] = {"i", "c", "C", "s", "S", "I", "l", "L"};
    if (choose(4) != 3) {
        return schema_bytes(name);
    }
    struct ArrowSchema *schema = schema_new(format_of(indices, 8), name, 0);
    schema->dictionary = choose(16) == 15 ? schema_text(name) : schema_bytes(name);
    return schema;
}

static struct ArrowSchema *schema_headers(void)
{
    static const char *const formats[] = {"+l", "+L"};
    struct ArrowSchema *list = schema_new(format_of(formats, 2), "headers", 1);
    struct ArrowSchema *entries = schema_new(is_wrong() ? format_any() : "+s", "element", 2);
    bool is_turned = choose(2) == 1;
    if (list->children != NULL) {
        list->children[0] = is_wrong() ? NULL : entries;
    }
    if (entries->children != NULL) {
        entries->children[is_turned] = is_wrong() ? NULL : schema_bytes(is_wrong() ? "k" : "key");
        entries->children[!is_turned] = is_wrong() ? NULL : schema_bytes("value");
    }
    return list;
}

static struct ArrowSchema *schema_column(uint32_t which)
{
    static const char *const partitions[] = {"i", "l", "n"};
    static const char *const timestamps[] = {"tsm:", "tss:", "tsu:UTC", "tsn:", "l", "n"};
    switch (which) {
    case 0:
        return schema_text("value");
    case 1:
        return schema_text("key");
    case 2:
        return schema_text("topic");
    case 3:
        return schema_new(format_of(partitions, 3), "partition", 0);
    case 4:
        return schema_new(format_of(timestamps, 6), "timestamp", 0);
    case 5:
        return schema_headers();
    default:
        return schema_new(format_any(), "other", 0);
    }
}

static struct ArrowSchema *schema_batch(void)
{
    uint8_t columns = choose_byte(); /* bit i: column i is present. Column 0 is missing only if wrong */
    struct ArrowSchema *children[COLUMNS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < COLUMNS_MAX - 1; i++) {
        if ((i == 0 && !is_wrong()) || (columns >> i & 1 && i < 6) || (i == 6 && is_wrong())) {
            children[count++] = schema_column(i);
        }
    }
    struct ArrowSchema *schema = schema_new(is_wrong() ? format_any() : "+s", "", count);
    for (uint32_t i = 0; i < count && schema->children != NULL; i++) {
        schema->children[i] = is_wrong() ? NULL : children[i];
    }
    return schema;
}

/* ---- arrays ---- */

struct numbers {
    int64_t length;
    int64_t offset;
};

/* Makes an array with `buffer_count` buffers, of which the first is the validity bitmap. */
static struct ArrowArray *array_new(struct numbers numbers, int64_t buffer_count)
{
    struct ArrowArray *array = give(sizeof *array);
    int64_t cells = numbers.length + numbers.offset;
    array->length = is_wrong() ? impossible() : numbers.length;
    array->offset = is_wrong() ? impossible() : numbers.offset;
    array->null_count = is_wrong() ? impossible() : (int64_t)choose(4) - 1;
    array->n_buffers = is_wrong() ? (int64_t)choose((uint32_t)buffer_count + 1) - (int64_t)choose(2) : buffer_count;
    array->buffers = is_wrong() ? NULL : give((size_t)buffer_count * sizeof *array->buffers);
    array->release = is_wrong() ? NULL : array_release;
    if (array->buffers != NULL && buffer_count > 0 && choose(2) == 1) {
        uint8_t *validity = give(((size_t)cells + 7) / 8);
        choose_fill(validity, ((size_t)cells + 7) / 8);
        array->buffers[0] = validity;
    }
    return array;
}

static void buffer_set(struct ArrowArray *array, uint32_t index, const void *buffer)
{
    if (array->buffers != NULL && !is_wrong()) {
        array->buffers[index] = buffer;
    }
}

/* Write increasing offsets, one of which may be wrong, and return the last one. */
static int64_t offsets_make(uint8_t *offsets, int64_t count, uint32_t width, int64_t limit)
{
    int64_t last = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t step = (int64_t)choose(12);
        last = last + step <= limit ? last + step : last;
        int64_t stored = is_wrong() ? (choose(2) == 0 ? impossible() : last - (int64_t)choose(20)) : last;
        memcpy(offsets + i * width, &stored, width);
        if (i == count - 1) {
            last = width == 4 ? (int32_t)stored : stored;
        }
    }
    return last;
}

static struct ArrowArray *array_offsets(struct numbers numbers, uint32_t width)
{
    struct ArrowArray *array = array_new(numbers, 3);
    int64_t count = numbers.length + numbers.offset + 1;
    uint8_t *offsets = give((size_t)count * width);
    int64_t last = offsets_make(offsets, count, width, DATA_MAX);
    buffer_set(array, 1, offsets);
    buffer_set(array, 2, give(last >= 0 && last <= DATA_MAX ? (size_t)last : 0));
    return array;
}

struct view {
    int32_t size;
    int32_t prefix;
    int32_t buffer_index;
    int32_t start;
};

static struct ArrowArray *array_views(struct numbers numbers)
{
    uint32_t data_count = choose(3);
    int64_t buffer_count = 2 + (int64_t)data_count + 1;
    struct ArrowArray *array = array_new(numbers, buffer_count);
    int64_t count = numbers.length + numbers.offset;
    struct view *views = give((size_t)count * sizeof *views);
    int64_t *sizes = give(data_count * sizeof *sizes);
    for (int64_t i = 0; i < count; i++) {
        views[i] = (struct view){.size = (int32_t)choose(30), .buffer_index = (int32_t)choose(2)};
        views[i].start = (int32_t)choose(16);
        if (is_wrong()) {
            choose_fill((uint8_t *)&views[i], sizeof views[i]);
        }
    }
    for (uint32_t i = 0; i < data_count; i++) {
        uint32_t size = choose(64);
        sizes[i] = size;
        buffer_set(array, 2 + i, give(size));
    }
    buffer_set(array, 1, views);
    buffer_set(array, (uint32_t)buffer_count - 1, sizes);
    if (array->n_buffers != buffer_count && array->n_buffers > 3) {
        array->n_buffers = 3; /* else a data buffer, which may be too short, would be read as the sizes */
    }
    return array;
}

static struct ArrowArray *array_integers(struct numbers numbers, uint32_t width)
{
    struct ArrowArray *array = array_new(numbers, 2);
    size_t size = (size_t)(numbers.length + numbers.offset) * width;
    uint8_t *cells = give(size);
    for (size_t i = 0; i < size; i++) {
        cells[i] = is_wrong() ? choose_byte() : i % width == 0 ? (uint8_t)choose(8) : 0;
    }
    buffer_set(array, 1, cells);
    return array;
}

static struct numbers numbers_draw(int64_t least)
{
    return (struct numbers){.length = least + (is_wrong() ? -(int64_t)choose(3) : (int64_t)choose(2)),
                            .offset = (int64_t)choose(5)};
}

static struct numbers numbers_of(int64_t least)
{
    struct numbers numbers = numbers_draw(least);
    numbers.length = numbers.length < 0 ? 0 : numbers.length;
    return numbers;
}

static struct ArrowArray *array_of(const struct ArrowSchema *schema, int64_t least);

static void children_make(const struct ArrowSchema *schema, struct ArrowArray *array, int64_t least)
{
    int64_t count = schema->n_children < 0 ? 0 : schema->n_children;
    array->n_children = count;
    array->children = count == 0 || schema->children == NULL || is_wrong() ? NULL
                                                                           : give((size_t)count * sizeof(void *));
    for (int64_t i = 0; i < count && array->children != NULL; i++) {
        array->children[i] = schema->children[i] == NULL || is_wrong() ? NULL : array_of(schema->children[i], least);
    }
    if (is_wrong()) {
        array->n_children = count > 0 ? count - 1 : -1;
    }
}

static struct ArrowArray *array_list(const struct ArrowSchema *schema, struct numbers numbers, uint32_t width)
{
    struct ArrowArray *array = array_new(numbers, 2);
    int64_t count = numbers.length + numbers.offset + 1;
    uint8_t *offsets = give((size_t)count * width);
    int64_t last = offsets_make(offsets, count, width, CELLS_MAX);
    buffer_set(array, 1, offsets);
    children_make(schema, array, last >= 0 && last <= CELLS_MAX ? last : CELLS_MAX);
    return array;
}

static struct ArrowArray *array_struct(const struct ArrowSchema *schema, struct numbers numbers)
{
    struct ArrowArray *array = array_new(numbers, 1);
    children_make(schema, array, numbers.length + numbers.offset);
    return array;
}

static uint32_t width_of(const char *format)
{
    static const char formats[] = "cCsSiIlL";
    const char *found = format[0] == '\0' ? NULL : strchr(formats, format[0]);
    return found == NULL || format[1] != '\0' ? 8 : 1u << (found - formats) / 2;
}

static struct ArrowArray *array_plain(const struct ArrowSchema *schema, int64_t least)
{
    const char *format = schema->format == NULL ? "n" : schema->format;
    struct numbers numbers = numbers_of(least);
    if (strcmp(format, "z") == 0 || strcmp(format, "u") == 0) {
        return array_offsets(numbers, 4);
    }
    if (strcmp(format, "Z") == 0 || strcmp(format, "U") == 0) {
        return array_offsets(numbers, 8);
    }
    if (format[0] == 'v') {
        return array_views(numbers);
    }
    if (strcmp(format, "+l") == 0 || strcmp(format, "+L") == 0) {
        return array_list(schema, numbers, format[1] == 'l' ? 4 : 8);
    }
    if (strcmp(format, "+s") == 0) {
        return array_struct(schema, numbers);
    }
    return strcmp(format, "n") == 0 ? array_new(numbers, 0) : array_integers(numbers, width_of(format));
}

static struct ArrowArray *array_of(const struct ArrowSchema *schema, int64_t least)
{
    struct ArrowArray *array = array_plain(schema, least);
    if (schema->dictionary != NULL && !is_wrong()) {
        array->dictionary = array_of(schema->dictionary, (int64_t)choose(10));
    }
    return array;
}

/* ---- reading ---- */

static volatile uint8_t sink;

static void slices_touch(const struct arrow_bytes *column, const struct arrow_slice *slices, uint32_t count)
{
    bool is_unknown = (column->kind == ARROW_BYTES_OFFSETS_32 || column->kind == ARROW_BYTES_OFFSETS_64) &&
                      column->data_size > DATA_MAX; /* more data than was given; unnoticeable */
    for (uint32_t i = 0; i < count && !is_unknown; i++) {
        for (int32_t j = 0; j < slices[i].size; j++) {
            sink ^= ((const uint8_t *)slices[i].start)[j];
        }
    }
}

static void text_read(const struct arrow_text *column, int64_t start, uint32_t count)
{
    struct arrow_slice *slices = malloc(count * sizeof *slices);
    struct error error;
    uint32_t read = count;
    enum status status = arrow_text_read(column, start, &read, slices, &error);
    if (read > count || (status == STATUS_OK) != (read == count)) {
        fuzz_fail("rows that were read are miscounted");
    }
    slices_touch(&column->bytes, slices, read);
    free(slices);
}

static void numbers_read(const struct arrow_batch *batch, int64_t start, uint32_t count)
{
    int32_t partitions[READ_MAX];
    int64_t timestamps_ms[READ_MAX];
    struct error error;
    uint32_t read = count;
    if (batch->has_partition) {
        (void)!arrow_partitions_read(batch, start, &read, partitions, &error);
    }
    read = count;
    if (batch->has_timestamp) {
        (void)!arrow_timestamps_read(batch, start, &read, timestamps_ms, &error);
    }
}

static void headers_read(const struct arrow_batch *batch, int64_t start, uint32_t count)
{
    struct error error;
    struct arrow_header_run runs[READ_MAX];
    int64_t header_count;
    if (arrow_headers_count(batch, start, &count, &header_count, &error) != STATUS_OK && count == 0) {
        return;
    }
    struct record_header *headers = malloc((size_t)header_count * sizeof *headers);
    uint32_t read = count;
    (void)!arrow_headers_read(batch, start, &read, headers, runs, &error);
    for (uint32_t i = 0; i < read; i++) {
        for (int32_t j = 0; j < runs[i].count; j++) {
            const struct record_header *header = &runs[i].headers[j];
            struct arrow_slice slices[] = {{header->key, header->key_size}, {header->value, header->value_size}};
            slices_touch(&batch->headers.key, &slices[0], 1);
            slices_touch(&batch->headers.value, &slices[1], 1);
        }
    }
    free(headers);
}

static void batch_read(const struct arrow_batch *batch)
{
    int64_t start = batch->row_count > 0 ? (int64_t)choose((uint32_t)batch->row_count) : 0;
    uint32_t count = (uint32_t)(batch->row_count - start);
    text_read(&batch->value, start, count);
    if (batch->has_key) {
        text_read(&batch->key, start, count);
    }
    if (batch->has_topic) {
        text_read(&batch->topic, start, count);
    }
    numbers_read(batch, start, count);
    if (batch->has_headers) {
        headers_read(batch, start, count);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arrow_batch batch;
    struct error error;
    rest = data;
    rest_size = size;
    struct ArrowSchema *schema = schema_batch();
    enum status is_schema_right = arrow_schema_check(schema, &error);
    if (schema->format != NULL) {
        struct ArrowArray *array = array_of(schema, (int64_t)choose(CELLS_MAX));
        enum status is_right = arrow_batch_open(schema, array, &batch, &error);
        if (is_right == STATUS_OK && is_schema_right != STATUS_OK) {
            fuzz_fail("data of a schema that was refused was opened");
        }
        if (is_right == STATUS_OK && batch.row_count <= READ_MAX) {
            batch_read(&batch);
        }
    }
    take_everything_back();
    return 0;
}
