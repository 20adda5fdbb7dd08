/* SPDX-License-Identifier: Apache-2.0
 *
 * Batches are built by hand. Every buffer is in memory of exactly its size, so that the address sanitizer detects any
 * access outside of it. Each number of a batch is replaced by wrong ones in turn.
 */
#include "format/arrow_rows.h"

#include <stdlib.h>

#include "randomness.h"
#include "testing.h"

/* ---- building ---- */

enum { COLUMN_MAX = 6, CHILD_MAX = 2, BUFFER_MAX = 5 };

static void release_schema(struct ArrowSchema *schema)
{
    schema->release = NULL;
}

static void release_array(struct ArrowArray *array)
{
    array->release = NULL;
}

/* A node of the schema tree together with its node of the array tree. */
struct node {
    struct ArrowSchema schema;
    struct ArrowArray array;
    struct ArrowSchema *child_schemas[COLUMN_MAX];
    struct ArrowArray *child_arrays[COLUMN_MAX];
    const void *buffers[BUFFER_MAX];
};

static void node_init(struct node *node, const char *name, const char *format, int64_t length, int64_t buffer_count)
{
    *node = (struct node){.schema = {.format = format, .name = name, .release = release_schema},
                          .array = {.length = length, .n_buffers = buffer_count, .release = release_array}};
    node->schema.children = node->child_schemas;
    node->array.children = node->child_arrays;
    node->array.buffers = node->buffers;
}

static void node_adopt(struct node *parent, struct node *child)
{
    parent->child_schemas[parent->schema.n_children++] = &child->schema;
    parent->child_arrays[parent->array.n_children++] = &child->array;
}

static void node_free(struct node *node)
{
    for (int i = 0; i < BUFFER_MAX; i++) {
        free((void *)(uintptr_t)node->buffers[i]);
    }
}

static const void *copied(const void *bytes, size_t size)
{
    void *copy = malloc(size + (size == 0));
    memcpy(copy, bytes, size);
    return copy;
}

#define NODE_SET(node, index, ...)                                             \
    do {                                                                       \
        free((void *)(uintptr_t)(node)->buffers[index]);                       \
        (node)->buffers[index] = copied((__VA_ARGS__), sizeof(__VA_ARGS__));   \
    } while (0)

/* "a", null, "ccc", "" */
static void strings_init(struct node *node, const char *name, const char *format)
{
    node_init(node, name, format, 4, 3);
    node->array.null_count = 1;
    NODE_SET(node, 0, (uint8_t[]){0x0d});
    NODE_SET(node, 1, (int32_t[]){0, 1, 1, 4, 4});
    NODE_SET(node, 2, (char[]){'a', 'c', 'c', 'c'});
}

static void large_strings_init(struct node *node, const char *name, const char *format)
{
    strings_init(node, name, format);
    NODE_SET(node, 1, (int64_t[]){0, 1, 1, 4, 4});
}

static void batch_init(struct node *batch, struct node *value)
{
    node_init(batch, "", "+s", value->array.length, 1);
    node_adopt(batch, value);
}

static enum status batch_open(const struct node *batch, struct arrow_batch *opened, struct error *error)
{
    *error = (struct error){.status = STATUS_OK};
    return arrow_batch_open(&batch->schema, &batch->array, opened, error);
}

#define EXPECT_SENTENCE(error, part) \
    EXPECT_OR_SAY(strstr((error).message, part) != NULL, "'%s' should contain '%s'", (error).message, part)

#define EXPECT_REFUSED(batch, part)                                             \
    do {                                                                        \
        struct arrow_batch refused_batch;                                       \
        struct error refused_error;                                             \
        EXPECT_STATUS(batch_open(batch, &refused_batch, &refused_error), STATUS_INVALID); \
        EXPECT_SENTENCE(refused_error, part);                                   \
    } while (0)

static struct arrow_batch opened(const struct node *batch)
{
    struct arrow_batch result = {0};
    struct error error;
    EXPECT_STATUS(batch_open(batch, &result, &error), STATUS_OK);
    return result;
}

static bool slice_is(const struct arrow_slice *slice, const char *expected)
{
    if (expected == NULL) {
        return slice->size == -1;
    }
    return slice->size == (int32_t)strlen(expected) && memcmp(slice->start, expected, strlen(expected)) == 0;
}

static void expect_values(const struct node *batch, const char *const *expected)
{
    struct arrow_batch result = opened(batch);
    struct arrow_slice slices[8];
    struct error error;
    uint32_t count = (uint32_t)result.row_count;
    EXPECT_STATUS(arrow_text_read(&result.value, 0, &count, slices, &error), STATUS_OK);
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(slice_is(&slices[i], expected[i]));
        struct arrow_slice alone;
        uint32_t one = 1;
        EXPECT_STATUS(arrow_text_read(&result.value, i, &one, &alone, &error), STATUS_OK);
        EXPECT(slice_is(&alone, expected[i]));
    }
}

/* Reads the values. If a row is wrong, the error names it, and the rows before it can be read. */
static enum status read_values(const struct node *batch, struct error *error)
{
    struct arrow_batch result = opened(batch);
    struct arrow_slice slices[8];
    struct error no_error;
    char row[32];
    uint32_t count = (uint32_t)result.row_count;
    enum status status = arrow_text_read(&result.value, 0, &count, slices, error);
    EXPECT(status != STATUS_OK);
    snprintf(row, sizeof row, "in row %u: ", count);
    EXPECT_SENTENCE(*error, row);
    EXPECT_STATUS(arrow_text_read(&result.value, 0, &count, slices, &no_error), STATUS_OK);
    return status;
}

/* ---- strings of bytes ---- */

static const char *const four_values[] = {"a", NULL, "ccc", ""};

TEST(every_kind_with_offsets_reads_alike)
{
    static const char *const narrow[] = {"z", "u"};
    static const char *const wide[] = {"Z", "U"};
    for (int i = 0; i < 2; i++) {
        struct node value, batch;
        strings_init(&value, "value", narrow[i]);
        batch_init(&batch, &value);
        expect_values(&batch, four_values);
        node_free(&value);
        large_strings_init(&value, "value", wide[i]);
        batch_init(&batch, &value);
        expect_values(&batch, four_values);
        node_free(&value);
    }
}

static void views_init(struct node *node, const char *format)
{
    node_init(node, "value", format, 3, 5);
    node->array.null_count = 1;
    struct {
        int32_t size;
        char rest[12];
    } views[3] = {{12, "twelve bytes"}, {-7, "\xff\xff\xff\xff\xff\xff\xff\xff"}, {13, "thir"}};
    memcpy(views[2].rest + 4, (int32_t[]){0, 2}, 8);
    node->buffers[1] = copied(views, sizeof views);
    NODE_SET(node, 0, (uint8_t[]){0x05});
    NODE_SET(node, 2, (char[]){'-', '-', 't', 'h', 'i', 'r', 't', 'e', 'e', 'n', ' ', 'b', 'y', 't', 'e'});
    NODE_SET(node, 3, (char[]){'x'});
    NODE_SET(node, 4, (int64_t[]){15, 1});
}

static void view_patch(struct node *node, int32_t size, int32_t buffer_index, int32_t start)
{
    int32_t *view = (int32_t *)(uintptr_t)node->buffers[1] + 8;
    view[0] = size;
    view[2] = buffer_index;
    view[3] = start;
}

TEST(views_are_read_in_place_and_in_their_buffers_and_a_null_is_not_looked_at)
{
    struct node value, batch;
    views_init(&value, "vz");
    batch_init(&batch, &value);
    expect_values(&batch, (const char *const[]){"twelve bytes", NULL, "thirteen byte"});
    value.schema.format = "vu";
    expect_values(&batch, (const char *const[]){"twelve bytes", NULL, "thirteen byte"});
    node_free(&value);
}

TEST(a_view_that_passes_its_buffer_is_refused)
{
    static const int32_t wrong[][3] = {{14, 0, 2},  {13, 0, 3},         {13, 1, 0},        {13, 2, 0},
                                       {13, -1, 0}, {13, 0, INT32_MAX}, {INT32_MAX, 0, 2}, {-1, 0, 2},
                                       {13, 0, -1}, {INT32_MIN, 0, 0}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct node value, batch;
        struct error error;
        views_init(&value, "vz");
        batch_init(&batch, &value);
        view_patch(&value, wrong[i][0], wrong[i][1], wrong[i][2]);
        EXPECT_STATUS(read_values(&batch, &error), STATUS_INVALID);
        EXPECT_SENTENCE(error, "column 'value' contradicts itself in row 2: its view");
        node_free(&value);
    }
}

TEST(a_view_into_a_buffer_that_is_missing_is_refused)
{
    struct node value, batch;
    struct error error;
    views_init(&value, "vz");
    batch_init(&batch, &value);
    free((void *)(uintptr_t)value.buffers[2]);
    value.buffers[2] = NULL;
    EXPECT_STATUS(read_values(&batch, &error), STATUS_INVALID);
    EXPECT_SENTENCE(error, "column 'value' contradicts itself in row 2: its view");
    node_free(&value);
}

TEST(a_column_of_type_null_is_nulls)
{
    struct node value, batch;
    node_init(&value, "value", "n", 2, 0);
    value.array.null_count = 2;
    batch_init(&batch, &value);
    expect_values(&batch, (const char *const[]){NULL, NULL});
}

TEST(offsets_of_array_and_struct_add_up)
{
    struct node value, batch;
    strings_init(&value, "value", "z");
    batch_init(&batch, &value);
    value.array.offset = 1;
    value.array.length = 3;
    value.array.null_count = -1;
    batch.array.length = 3;
    expect_values(&batch, four_values + 1);
    batch.array.offset = 1;
    batch.array.length = 2;
    expect_values(&batch, four_values + 2);
    batch.array.length = 1;
    expect_values(&batch, four_values + 2);
    node_free(&value);
}

TEST(an_empty_batch_needs_no_buffers)
{
    struct node value, batch;
    node_init(&value, "value", "z", 0, 3);
    batch_init(&batch, &value);
    EXPECT_EQ_U64((uint64_t)opened(&batch).row_count, 0);
    value.array.buffers = NULL;
    EXPECT_EQ_U64((uint64_t)opened(&batch).row_count, 0);
}

TEST(data_of_no_bytes_needs_no_buffer)
{
    struct node value, batch;
    node_init(&value, "value", "z", 2, 3);
    NODE_SET(&value, 1, (int32_t[]){0, 0, 0});
    batch_init(&batch, &value);
    expect_values(&batch, (const char *const[]){"", ""});
    node_free(&value);
}

TEST(offsets_that_cannot_be_are_refused_where_they_are_read)
{
    static const int32_t wrong[][5] = {{-1, 1, 1, 4, 4}, {0, 5, 1, 4, 4}, {0, 1, 0, 4, 4}, {5, 5, 5, 5, 4},
                                       {0, 1, 1, INT32_MAX, 4}, {0, INT32_MIN, 1, 4, 4}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct node value, batch;
        struct error error;
        strings_init(&value, "value", "z");
        batch_init(&batch, &value);
        free((void *)(uintptr_t)value.buffers[1]);
        value.buffers[1] = copied(wrong[i], sizeof wrong[i]);
        EXPECT_STATUS(read_values(&batch, &error), STATUS_INVALID);
        EXPECT_SENTENCE(error, "column 'value' contradicts itself in row");
        node_free(&value);
    }
}

TEST(a_last_offset_that_is_negative_is_refused)
{
    struct node value, batch;
    strings_init(&value, "value", "z");
    batch_init(&batch, &value);
    NODE_SET(&value, 1, (int32_t[]){0, 1, 1, 4, -4});
    EXPECT_REFUSED(&batch, "its last offset is negative");
    node_free(&value);
}

TEST(a_cell_larger_than_a_record_may_be_is_too_large)
{
    struct node value, batch;
    struct error error;
    large_strings_init(&value, "value", "Z");
    batch_init(&batch, &value);
    NODE_SET(&value, 1, (int64_t[]){0, 1, 1, INT64_C(0x80000001), INT64_C(0x80000001)});
    EXPECT_STATUS(read_values(&batch, &error), STATUS_RECORD_TOO_LARGE);
    EXPECT_SENTENCE(error, "2147483648 bytes in row 2");
    node_free(&value);
}

/* ---- dictionaries ---- */

static void dictionary_init(struct node *indices, struct node *values)
{
    node_init(indices, "value", "C", 4, 2);
    NODE_SET(indices, 1, (uint8_t[]){2, 0, 1, 2});
    strings_init(values, "", "u");
    indices->schema.dictionary = &values->schema;
    indices->array.dictionary = &values->array;
}

TEST(indices_of_any_width_name_values_of_the_dictionary)
{
    static const char *const formats[] = {"c", "C", "s", "S", "i", "I", "l", "L"};
    for (int i = 0; i < 8; i++) {
        struct node indices, values, batch;
        uint8_t numbers[4 * 8] = {0};
        int width = 1 << (i / 2);
        dictionary_init(&indices, &values);
        numbers[0] = numbers[3 * width] = 2;
        numbers[2 * width] = 1;
        free((void *)(uintptr_t)indices.buffers[1]);
        indices.buffers[1] = copied(numbers, (size_t)(4 * width));
        indices.schema.format = formats[i];
        batch_init(&batch, &indices);
        expect_values(&batch, (const char *const[]){"ccc", "a", NULL, "ccc"});
        node_free(&indices);
        node_free(&values);
    }
}

TEST(an_index_outside_the_dictionary_is_refused)
{
    static const uint8_t wrong[] = {4, 0x7f, 0x80, 0xff};
    static const char *const formats[] = {"C", "c"};
    for (int i = 0; i < 8; i++) {
        struct node indices, values, batch;
        struct error error;
        dictionary_init(&indices, &values);
        indices.schema.format = formats[i % 2];
        NODE_SET(&indices, 1, (uint8_t[]){2, wrong[i / 2], 1, 2});
        batch_init(&batch, &indices);
        EXPECT_STATUS(read_values(&batch, &error), STATUS_INVALID);
        EXPECT_SENTENCE(error, "in row 1: its index is outside the dictionary");
        node_free(&indices);
        node_free(&values);
    }
}

TEST(a_dictionary_that_is_missing_is_refused)
{
    struct node indices, values, batch;
    dictionary_init(&indices, &values);
    batch_init(&batch, &indices);
    indices.array.dictionary = NULL;
    EXPECT_REFUSED(&batch, "column 'value' contradicts itself: it is missing");
    indices.schema.format = "u";
    EXPECT_REFUSED(&batch, "column 'value' has the Arrow type dictionary");
    node_free(&indices);
    node_free(&values);
}

/* ---- integers ---- */

struct two_columns {
    struct node value;
    struct node other;
    struct node batch;
};

static void two_columns_init(struct two_columns *two, const char *name, const char *format)
{
    strings_init(&two->value, "value", "z");
    node_init(&two->other, name, format, 4, 2);
    batch_init(&two->batch, &two->value);
    node_adopt(&two->batch, &two->other);
}

static void two_columns_free(struct two_columns *two)
{
    node_free(&two->value);
    node_free(&two->other);
}

TEST(partitions_are_numbers_or_null)
{
    struct two_columns two;
    struct error error;
    int32_t partitions[4];
    uint32_t count = 4;
    two_columns_init(&two, "partition", "i");
    NODE_SET(&two.other, 0, (uint8_t[]){0x0b});
    NODE_SET(&two.other, 1, (int32_t[]){0, INT32_MAX, -5, 7});
    two.other.array.null_count = -1;
    struct arrow_batch batch = opened(&two.batch);
    EXPECT(batch.has_partition);
    EXPECT_STATUS(arrow_partitions_read(&batch, 0, &count, partitions, &error), STATUS_OK);
    EXPECT(partitions[0] == 0 && partitions[1] == INT32_MAX && partitions[2] == -1 && partitions[3] == 7);
    two_columns_free(&two);
}

TEST(a_partition_out_of_range_is_refused)
{
    static const int64_t wrong[] = {-1, INT64_C(0x80000000), INT64_MIN, INT64_MAX};
    for (int i = 0; i < 4; i++) {
        struct two_columns two;
        struct error error;
        int32_t partitions[4];
        uint32_t count = 4;
        two_columns_init(&two, "partition", "l");
        NODE_SET(&two.other, 1, (int64_t[]){0, 1, wrong[i], 2});
        struct arrow_batch batch = opened(&two.batch);
        EXPECT_STATUS(arrow_partitions_read(&batch, 0, &count, partitions, &error), STATUS_INVALID);
        EXPECT_EQ_U64(count, 2);
        EXPECT_SENTENCE(error, "in row 2: it must lie between 0 and 2147483647");
        two_columns_free(&two);
    }
}

static void expect_timestamps(const char *format, const int64_t *numbers, const int64_t *expected)
{
    struct two_columns two;
    struct error error;
    int64_t timestamps[4];
    uint32_t count = 4;
    two_columns_init(&two, "timestamp", format);
    two.other.buffers[1] = copied(numbers, 4 * sizeof *numbers);
    struct arrow_batch batch = opened(&two.batch);
    EXPECT_STATUS(arrow_timestamps_read(&batch, 0, &count, timestamps, &error), STATUS_OK);
    EXPECT(memcmp(timestamps, expected, sizeof timestamps) == 0);
    two_columns_free(&two);
}

TEST(timestamps_of_every_unit_become_milliseconds)
{
    const int64_t small[] = {0, 999, 1000, 1999999};
    expect_timestamps("tss:", small, (int64_t[]){0, 999000, 1000000, 1999999000});
    expect_timestamps("tsm:UTC", small, small);
    expect_timestamps("l", small, small);
    expect_timestamps("tsu:Europe/Berlin", small, (int64_t[]){0, 0, 1, 1999});
    expect_timestamps("tsn:", small, (int64_t[]){0, 0, 0, 1});
    expect_timestamps("tsu:", (int64_t[]){INT64_MAX, 0, 0, 0}, (int64_t[]){INT64_MAX / 1000, 0, 0, 0});
}

TEST(a_timestamp_before_1970_or_beyond_what_a_record_may_have_is_refused)
{
    static const struct {
        const char *format;
        int64_t number;
    } wrong[] = {{"tss:", -1},        {"tsm:", -1},        {"tsu:", -1},
                 {"tsn:", INT64_MIN}, {"tss:", INT64_MAX}, {"tsm:", INT64_MAX / 1000 + 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct two_columns two;
        struct error error;
        int64_t timestamps[4];
        uint32_t count = 4;
        two_columns_init(&two, "timestamp", wrong[i].format);
        NODE_SET(&two.other, 1, (int64_t[]){0, wrong[i].number, 0, 0});
        struct arrow_batch batch = opened(&two.batch);
        EXPECT_STATUS(arrow_timestamps_read(&batch, 0, &count, timestamps, &error), STATUS_INVALID);
        EXPECT_EQ_U64(count, 1);
        EXPECT_SENTENCE(error, "column 'timestamp' is ");
        EXPECT_SENTENCE(error, "in row 1");
        two_columns_free(&two);
    }
}

TEST(a_null_timestamp_is_none)
{
    struct two_columns two;
    struct error error;
    int64_t timestamps[4];
    uint32_t count = 4;
    two_columns_init(&two, "timestamp", "tsm:");
    NODE_SET(&two.other, 0, (uint8_t[]){0x0e});
    NODE_SET(&two.other, 1, (int64_t[]){-9, 1, 2, 3});
    two.other.array.null_count = 1;
    struct arrow_batch batch = opened(&two.batch);
    EXPECT_STATUS(arrow_timestamps_read(&batch, 0, &count, timestamps, &error), STATUS_OK);
    EXPECT(timestamps[0] == NO_TIMESTAMP && timestamps[3] == 3);
    two_columns_free(&two);
}

/* ---- headers ---- */

/* The rows are [h=x, i=null], null (whose entry is also null), [], and [h=y]. */
struct header_columns {
    struct two_columns two; /* the other column is the list */
    struct node entries;
    struct node key;
    struct node value;
};

static void header_columns_init(struct header_columns *columns, const char *list_format)
{
    two_columns_init(&columns->two, "headers", list_format);
    NODE_SET(&columns->two.other, 0, (uint8_t[]){0x0d});
    columns->two.other.array.null_count = 1;
    NODE_SET(&columns->two.other, 1, (int32_t[]){0, 2, 3, 3, 4});
    node_init(&columns->entries, "element", "+s", 4, 1);
    NODE_SET(&columns->entries, 0, (uint8_t[]){0x0b});
    columns->entries.array.null_count = 1;
    node_init(&columns->key, "key", "u", 4, 3);
    NODE_SET(&columns->key, 1, (int32_t[]){0, 1, 2, 2, 3});
    NODE_SET(&columns->key, 2, (char[]){'h', 'i', 'h'});
    node_init(&columns->value, "value", "z", 4, 3);
    columns->value.array.null_count = 1;
    NODE_SET(&columns->value, 0, (uint8_t[]){0x0d});
    NODE_SET(&columns->value, 1, (int32_t[]){0, 1, 1, 1, 2});
    NODE_SET(&columns->value, 2, (char[]){'x', 'y'});
    node_adopt(&columns->entries, &columns->value);
    node_adopt(&columns->entries, &columns->key);
    node_adopt(&columns->two.other, &columns->entries);
}

static void header_columns_free(struct header_columns *columns)
{
    two_columns_free(&columns->two);
    node_free(&columns->entries);
    node_free(&columns->key);
    node_free(&columns->value);
}

static enum status headers_read(const struct header_columns *columns, struct record_header *headers,
                                struct arrow_header_run *runs, struct error *error)
{
    struct arrow_batch batch = opened(&columns->two.batch);
    int64_t header_count;
    uint32_t count = 4;
    RETURN_IF_FAILED(arrow_headers_count(&batch, 0, &count, &header_count, error));
    EXPECT(header_count <= 4);
    enum status status = arrow_headers_read(&batch, 0, &count, headers, runs, error);
    EXPECT(status == STATUS_OK ? count == 4 : count < 4);
    return status;
}

static void expect_four_rows_of_headers(const struct header_columns *columns)
{
    struct record_header headers[4];
    struct arrow_header_run runs[4];
    struct error error;
    EXPECT_STATUS(headers_read(columns, headers, runs, &error), STATUS_OK);
    EXPECT(runs[0].count == 2 && runs[1].count == 0 && runs[2].count == 0 && runs[3].count == 1);
    EXPECT(runs[0].headers == headers && runs[3].headers == headers + 2);
    EXPECT(headers[0].key_size == 1 && memcmp(headers[0].key, "h", 1) == 0);
    EXPECT(headers[0].value_size == 1 && memcmp(headers[0].value, "x", 1) == 0);
    EXPECT(memcmp(headers[1].key, "i", 1) == 0 && headers[1].value_size == -1);
    EXPECT(memcmp(headers[2].key, "h", 1) == 0 && memcmp(headers[2].value, "y", 1) == 0);
}

TEST(headers_come_row_by_row_and_a_null_row_has_none)
{
    struct header_columns columns;
    header_columns_init(&columns, "+l");
    expect_four_rows_of_headers(&columns);
    columns.two.other.schema.format = "+L";
    NODE_SET(&columns.two.other, 1, (int64_t[]){0, 2, 3, 3, 4});
    expect_four_rows_of_headers(&columns);
    header_columns_free(&columns);
}

TEST(a_header_that_is_null_or_has_no_key_is_refused)
{
    struct header_columns columns;
    struct record_header headers[4];
    struct arrow_header_run runs[4];
    struct error error;
    header_columns_init(&columns, "+l");
    NODE_SET(&columns.entries, 0, (uint8_t[]){0x0d});
    EXPECT_STATUS(headers_read(&columns, headers, runs, &error), STATUS_INVALID);
    EXPECT_SENTENCE(error, "row 0 has a header that is null");
    NODE_SET(&columns.entries, 0, (uint8_t[]){0x0f});
    NODE_SET(&columns.key, 0, (uint8_t[]){0x07});
    columns.key.array.null_count = -1;
    EXPECT_STATUS(headers_read(&columns, headers, runs, &error), STATUS_INVALID);
    EXPECT_SENTENCE(error, "row 3 has a header whose key is null");
    header_columns_free(&columns);
}

TEST(lists_that_pass_their_entries_are_refused)
{
    static const int32_t wrong[][5] = {{-1, 2, 3, 3, 4}, {0, 5, 3, 3, 4}, {0, 2, 1, 3, 4}, {0, 2, INT32_MAX, 3, 4}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct header_columns columns;
        struct record_header headers[4];
        struct arrow_header_run runs[4];
        struct error error;
        header_columns_init(&columns, "+l");
        free((void *)(uintptr_t)columns.two.other.buffers[1]);
        columns.two.other.buffers[1] = copied(wrong[i], sizeof wrong[i]);
        EXPECT_STATUS(headers_read(&columns, headers, runs, &error), STATUS_INVALID);
        EXPECT_SENTENCE(error, "column 'headers' contradicts itself in row");
        header_columns_free(&columns);
    }
    struct header_columns columns;
    header_columns_init(&columns, "+l");
    NODE_SET(&columns.two.other, 1, (int32_t[]){0, 2, 3, 3, 5});
    EXPECT_REFUSED(&columns.two.batch, "column 'headers' contradicts itself: it is shorter than its parent");
    NODE_SET(&columns.two.other, 1, (int32_t[]){0, 2, 3, 3, -1});
    EXPECT_REFUSED(&columns.two.batch, "its last offset is impossible");
    header_columns_free(&columns);
}

/* ---- rows of all columns ---- */

TEST(rows_have_null_where_a_column_is_missing)
{
    struct node value, batch;
    struct arrow_rows rows;
    struct error error;
    uint32_t count = 3;
    strings_init(&value, "value", "z");
    batch_init(&batch, &value);
    struct arrow_batch open_batch = opened(&batch);
    arrow_rows_begin(&rows);
    EXPECT_STATUS(arrow_rows_read(&open_batch, 1, &count, &rows, &error), STATUS_OK);
    EXPECT(count == 3 && slice_is(&rows.values[0], NULL) && slice_is(&rows.values[1], "ccc"));
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(rows.keys[i].size == -1 && rows.topics[i].size == -1 && rows.partitions[i] == -1);
        EXPECT(rows.timestamps_ms[i] == NO_TIMESTAMP && rows.runs[i].count == 0);
    }
    arrow_rows_free(&rows);
    node_free(&value);
}

TEST(the_first_wrong_row_ends_the_rows_and_has_the_error)
{
    for (int64_t wrong_partition = 1; wrong_partition < 4; wrong_partition += 2) {
        struct two_columns two;
        struct arrow_rows rows;
        struct error error;
        uint32_t count = 4;
        int64_t partitions[] = {0, 0, 0, 0};
        partitions[wrong_partition] = -1;
        two_columns_init(&two, "partition", "l");
        NODE_SET(&two.value, 0, (uint8_t[]){0x0f});
        NODE_SET(&two.value, 1, (int32_t[]){0, 1, 4, 3, 4}); /* row 2 is wrong */
        two.other.buffers[1] = copied(partitions, sizeof partitions);
        struct arrow_batch batch = opened(&two.batch);
        arrow_rows_begin(&rows);
        EXPECT_STATUS(arrow_rows_read(&batch, 0, &count, &rows, &error), STATUS_INVALID);
        EXPECT_EQ_U64(count, wrong_partition == 1 ? 1 : 2);
        EXPECT_SENTENCE(error, wrong_partition == 1 ? "'partition'" : "'value'");
        arrow_rows_free(&rows);
        two_columns_free(&two);
    }
}

TEST(rows_have_their_headers)
{
    struct header_columns columns;
    struct arrow_rows rows;
    struct error error;
    uint32_t count = 4;
    header_columns_init(&columns, "+l");
    struct arrow_batch batch = opened(&columns.two.batch);
    arrow_rows_begin(&rows);
    for (int round = 0; round < 2; round++) { /* the second round reuses the memory of the headers */
        EXPECT_STATUS(arrow_rows_read(&batch, 0, &count, &rows, &error), STATUS_OK);
        EXPECT(count == 4);
        int64_t header_count = 0;
        for (uint32_t i = 0; i < count; i++) {
            header_count += rows.runs[i].count;
        }
        EXPECT(header_count > 0 && header_count <= rows.header_capacity);
    }
    arrow_rows_free(&rows);
    header_columns_free(&columns);
}

TEST(headers_are_key_and_value_and_nothing_else)
{
    struct header_columns columns;
    header_columns_init(&columns, "+l");
    columns.key.schema.name = "name";
    EXPECT_REFUSED(&columns.two.batch, "column 'headers' has the Arrow type list: it must be list or large_list of");
    columns.key.schema.name = "value";
    EXPECT_REFUSED(&columns.two.batch, "column 'headers' has the Arrow type list");
    columns.key.schema.name = "key";
    columns.key.schema.format = "i";
    EXPECT_REFUSED(&columns.two.batch, "column 'headers' has the Arrow type list");
    columns.key.schema.format = "u";
    columns.two.other.schema.format = "+m";
    EXPECT_REFUSED(&columns.two.batch, "column 'headers' has the Arrow type map");
    header_columns_free(&columns);
}

/* ---- which columns ---- */

TEST(value_is_required_and_others_are_refused_by_name)
{
    struct node value, batch;
    strings_init(&value, "valve", "z");
    batch_init(&batch, &value);
    EXPECT_REFUSED(&batch, "the batch has a column 'valve': allowed are value, key, topic, partition, timestamp");
    value.schema.name = NULL;
    EXPECT_REFUSED(&batch, "the batch has a column ''");
    value.schema.name = "key";
    EXPECT_REFUSED(&batch, "the batch has no column 'value'");
    value.schema.name = "value";
    node_adopt(&batch, &value);
    EXPECT_REFUSED(&batch, "the batch has two columns 'value'");
    node_free(&value);
}

TEST(the_error_of_each_column_names_its_types)
{
    static const struct {
        const char *name;
        const char *format;
        const char *sentence;
    } wrong[] = {
        {"value", "g", "column 'value' has the Arrow type float64: it must be binary or string"},
        {"key", "w:16", "column 'key' has the Arrow type w:16: it must be binary or string"},
        {"topic", "z", "column 'topic' has the Arrow type binary: it must be string, large_string or string_view"},
        {"partition", "s", "column 'partition' has the Arrow type int16: it must be int32 or int64"},
        {"partition", "", "column 'partition' has the Arrow type : it must be int32 or int64"},
        {"timestamp", "tdD", "column 'timestamp' has the Arrow type date32: it must be timestamp of any unit"},
        {"timestamp", "tsx:", "column 'timestamp' has the Arrow type tsx:"},
        {"timestamp", "ts", "column 'timestamp' has the Arrow type ts:"},
        {"headers", "z", "column 'headers' has the Arrow type binary: it must be list"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct node value, batch;
        struct error error;
        strings_init(&value, wrong[i].name, wrong[i].format);
        batch_init(&batch, &value);
        EXPECT_REFUSED(&batch, wrong[i].sentence);
        EXPECT_STATUS(arrow_schema_check(&batch.schema, &error), STATUS_INVALID);
        node_free(&value);
    }
}

TEST(a_column_of_type_null_counts_as_a_missing_column)
{
    static const char *const names[] = {"key", "topic", "partition", "timestamp", "headers"};
    for (int i = 0; i < 5; i++) {
        struct two_columns two;
        two_columns_init(&two, names[i], "n");
        two.other.array.n_buffers = 0;
        two.other.array.null_count = 4;
        struct arrow_batch batch = opened(&two.batch);
        EXPECT(!batch.has_key && !batch.has_topic && !batch.has_partition && !batch.has_timestamp &&
               !batch.has_headers);
        two_columns_free(&two);
    }
}

TEST(only_a_struct_is_a_batch)
{
    struct node value;
    strings_init(&value, "value", "z");
    EXPECT_REFUSED(&value, "the Arrow data is of type binary: it must be a record batch");
    node_free(&value);
}

TEST(a_batch_with_a_null_row_is_refused)
{
    struct node value, batch;
    strings_init(&value, "value", "z");
    batch_init(&batch, &value);
    NODE_SET(&batch, 0, (uint8_t[]){0x0b});
    batch.array.null_count = -1;
    EXPECT_REFUSED(&batch, "row 2 of the batch is null as a whole");
    NODE_SET(&batch, 0, (uint8_t[]){0x0f});
    expect_values(&batch, four_values);
    node_free(&batch);
    node_free(&value);
}

/* ---- impossible numbers ---- */

#define EXPECT_BROKEN(change, part)                     \
    do {                                                \
        struct node value, batch;                       \
        strings_init(&value, "value", "z");             \
        batch_init(&batch, &value);                     \
        change;                                         \
        EXPECT_REFUSED(&batch, part);                   \
        node_free(&value);                              \
    } while (0)

TEST(hostile_numbers_are_refused)
{
    EXPECT_BROKEN(batch.array.length = -1, "impossible");
    EXPECT_BROKEN(batch.array.length = INT64_MAX, "impossible");
    EXPECT_BROKEN(batch.array.length = 5, "shorter than its parent");
    EXPECT_BROKEN(batch.array.offset = 1, "shorter than its parent");
    EXPECT_BROKEN(batch.array.offset = -1, "impossible");
    EXPECT_BROKEN(batch.array.offset = INT64_MAX - 1, "impossible");
    EXPECT_BROKEN(batch.array.n_children = 2, "other columns than its schema");
    EXPECT_BROKEN(batch.array.children = NULL, "other columns than its schema");
    EXPECT_BROKEN(batch.array.release = NULL, "was released");
    EXPECT_BROKEN(batch.array.null_count = 1, "no validity bitmap");
    EXPECT_BROKEN(batch.child_arrays[0] = NULL, "missing");
    EXPECT_BROKEN(batch.schema.n_children = -1, "schema contradicts itself");
    EXPECT_BROKEN(batch.schema.children = NULL, "schema contradicts itself");
    EXPECT_BROKEN(batch.child_schemas[0] = NULL, "schema contradicts itself");
    EXPECT_BROKEN(value.schema.format = NULL, "schema contradicts itself");
    EXPECT_BROKEN(value.array.length = 3, "shorter than its parent");
    EXPECT_BROKEN(value.array.length = -4, "impossible");
    EXPECT_BROKEN(value.array.offset = INT64_MIN, "impossible");
    EXPECT_BROKEN(value.array.null_count = -2, "impossible");
    EXPECT_BROKEN(value.array.null_count = 5, "impossible");
    EXPECT_BROKEN(value.array.n_buffers = 2, "not the buffers of its type");
    EXPECT_BROKEN(value.array.n_buffers = -3, "contradicts itself");
    EXPECT_BROKEN(value.array.buffers = NULL, "no validity bitmap");
    EXPECT_BROKEN(value.array.n_children = 1, "not the children of its type");
    EXPECT_BROKEN(value.array.release = NULL, "was released");
    EXPECT_BROKEN((free((void *)(uintptr_t)value.buffers[1]), value.buffers[1] = NULL), "a buffer is missing");
    EXPECT_BROKEN((free((void *)(uintptr_t)value.buffers[2]), value.buffers[2] = NULL), "its data is missing");
}

/* ---- against a model ---- */

/* Random cells, with random offsets of array and struct. Every cell that is read must be equal to the model's. */
TEST(random_batches_read_as_they_were_written)
{
    struct randomness randomness = randomness_seeded(__func__);
    for (int round = 0; round < 200; round++) {
        enum { CELLS = 70 };
        int32_t offsets[CELLS + 1] = {0};
        uint8_t validity[(CELLS + 7) / 8];
        uint8_t data[CELLS * 5];
        random_fill(&randomness, validity, sizeof validity);
        random_fill(&randomness, data, sizeof data);
        for (int i = 0; i < CELLS; i++) {
            offsets[i + 1] = offsets[i] + (int32_t)random_below(&randomness, 6);
        }
        struct node value, batch;
        node_init(&value, "value", "z", 0, 3);
        value.array.null_count = -1;
        value.buffers[0] = copied(validity, sizeof validity);
        value.buffers[1] = copied(offsets, sizeof offsets);
        value.buffers[2] = copied(data, (size_t)offsets[CELLS]);
        value.array.offset = (int64_t)random_below(&randomness, 20);
        value.array.length = CELLS - value.array.offset;
        batch_init(&batch, &value);
        batch.array.offset = (int64_t)random_below(&randomness, 20);
        batch.array.length -= batch.array.offset;
        struct arrow_batch result = opened(&batch);
        struct arrow_slice slices[CELLS];
        struct error error;
        uint32_t count = (uint32_t)result.row_count;
        EXPECT_STATUS(arrow_text_read(&result.value, 0, &count, slices, &error), STATUS_OK);
        for (int i = 0; i < (int)result.row_count; i++) {
            int64_t cell = value.array.offset + batch.array.offset + i;
            bool is_valid = (validity[cell / 8] >> (cell % 8) & 1) != 0;
            int32_t size = offsets[cell + 1] - offsets[cell];
            EXPECT(slices[i].size == (is_valid ? size : -1));
            EXPECT(!is_valid || memcmp(slices[i].start, data + offsets[cell], (size_t)size) == 0);
        }
        node_free(&value);
    }
}

RUN_ALL()
