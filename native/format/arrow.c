/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens a batch: checks the types of the columns, then the arrays against their types and parents. Copies the values of
 * the array that later reads use.
 */
#include "format/arrow.h"

#include <string.h>

/* ---- types ---- */

static const struct {
    const char *format;
    const char *name;
} type_names[] = {
    {"n", "null"},           {"b", "bool"},        {"c", "int8"},         {"C", "uint8"},
    {"s", "int16"},          {"S", "uint16"},      {"i", "int32"},        {"I", "uint32"},
    {"l", "int64"},          {"L", "uint64"},      {"e", "float16"},      {"f", "float32"},
    {"g", "float64"},        {"z", "binary"},      {"Z", "large_binary"}, {"u", "string"},
    {"U", "large_string"},   {"vz", "binary_view"}, {"vu", "string_view"}, {"tdD", "date32"},
    {"tdm", "date64"},       {"+s", "struct"},     {"+l", "list"},        {"+L", "large_list"},
    {"+m", "map"},           {"+r", "run_end_encoded"},
};

static bool format_is(const struct ArrowSchema *schema, const char *format)
{
    return strcmp(schema->format, format) == 0;
}

/* Returns the usual name of the type, or its Arrow format string if there is no simple name. */
static const char *type_name(const struct ArrowSchema *schema)
{
    if (schema->dictionary != NULL) {
        return "dictionary";
    }
    for (size_t i = 0; i < sizeof type_names / sizeof type_names[0]; i++) {
        if (format_is(schema, type_names[i].format)) {
            return type_names[i].name;
        }
    }
    return schema->format;
}

static bool integer_format_parse(const struct ArrowSchema *schema, uint32_t *width, bool *is_signed)
{
    static const char formats[] = "csilCSIL";
    const char *found = schema->format[0] == '\0' ? NULL : strchr(formats, schema->format[0]);
    if (found == NULL || schema->format[1] != '\0') {
        return false;
    }
    *width = 1u << ((found - formats) & 3);
    *is_signed = found - formats < 4;
    return true;
}

static bool string_kind(const struct ArrowSchema *schema, enum arrow_bytes_kind *kind)
{
    *kind = format_is(schema, "u") ? ARROW_BYTES_OFFSETS_32
            : format_is(schema, "U") ? ARROW_BYTES_OFFSETS_64
                                     : ARROW_BYTES_VIEWS;
    return *kind != ARROW_BYTES_VIEWS || format_is(schema, "vu");
}

static bool bytes_kind(const struct ArrowSchema *schema, enum arrow_bytes_kind *kind)
{
    if (string_kind(schema, kind)) {
        return true;
    }
    *kind = format_is(schema, "z")    ? ARROW_BYTES_OFFSETS_32
            : format_is(schema, "Z")  ? ARROW_BYTES_OFFSETS_64
            : format_is(schema, "vz") ? ARROW_BYTES_VIEWS
                                      : ARROW_BYTES_NULL;
    return *kind != ARROW_BYTES_NULL || format_is(schema, "n");
}

static bool is_plain(const struct ArrowSchema *schema)
{
    return schema->dictionary == NULL;
}

/* Returns the type of the values, which are in the dictionary if there is one. */
static const struct ArrowSchema *text_values(const struct ArrowSchema *schema)
{
    uint32_t width;
    bool is_signed;
    bool has_indices = !is_plain(schema) && integer_format_parse(schema, &width, &is_signed);
    return has_indices ? schema->dictionary : schema;
}

static bool is_text(const struct ArrowSchema *schema)
{
    enum arrow_bytes_kind kind;
    const struct ArrowSchema *values = text_values(schema);
    return is_plain(values) && bytes_kind(values, &kind);
}

static bool is_string(const struct ArrowSchema *schema)
{
    enum arrow_bytes_kind kind;
    const struct ArrowSchema *values = text_values(schema);
    return is_plain(values) && (string_kind(values, &kind) || format_is(schema, "n"));
}

static bool is_partition(const struct ArrowSchema *schema)
{
    return is_plain(schema) && (format_is(schema, "i") || format_is(schema, "l") || format_is(schema, "n"));
}

static bool unit_parse(const struct ArrowSchema *schema, enum arrow_unit *unit)
{
    static const char letters[] = "smun";
    const char *found = NULL;
    if (strncmp(schema->format, "ts", 2) == 0 && schema->format[2] != '\0' && schema->format[3] == ':') {
        found = strchr(letters, schema->format[2]);
    } else if (format_is(schema, "l")) {
        found = strchr(letters, 'm');
    }
    *unit = found == NULL ? ARROW_MILLISECONDS : (enum arrow_unit)(found - letters);
    return found != NULL;
}

static bool is_timestamp(const struct ArrowSchema *schema)
{
    enum arrow_unit unit;
    return is_plain(schema) && (unit_parse(schema, &unit) || format_is(schema, "n"));
}

static bool name_is(const struct ArrowSchema *schema, const char *name)
{
    return schema->name != NULL && strcmp(schema->name, name) == 0;
}

/* Returns 0 or 1: the index of the key among the two children of a header. */
static int key_index(const struct ArrowSchema *entries)
{
    return name_is(entries->children[0], "key") ? 0 : 1;
}

static bool is_header_part(const struct ArrowSchema *part, const char *name)
{
    enum arrow_bytes_kind kind;
    return name_is(part, name) && is_plain(part) && bytes_kind(part, &kind);
}

static bool is_headers(const struct ArrowSchema *schema)
{
    if (is_plain(schema) && format_is(schema, "n")) {
        return true;
    }
    if (!is_plain(schema) || (!format_is(schema, "+l") && !format_is(schema, "+L")) || schema->n_children != 1) {
        return false;
    }
    const struct ArrowSchema *entries = schema->children[0];
    return is_plain(entries) && format_is(entries, "+s") && entries->n_children == 2 &&
           is_header_part(entries->children[key_index(entries)], "key") &&
           is_header_part(entries->children[1 - key_index(entries)], "value");
}

/* ---- the columns of a batch ---- */

enum column {
    COLUMN_VALUE,
    COLUMN_KEY,
    COLUMN_TOPIC,
    COLUMN_PARTITION,
    COLUMN_TIMESTAMP,
    COLUMN_HEADERS,
    COLUMN_COUNT
};

static const struct {
    const char *name;
    bool (*is_allowed)(const struct ArrowSchema *schema);
    const char *allowed;
} columns[COLUMN_COUNT] = {
    {"value", is_text, "binary or string (also large_ or _view, or a dictionary of them) or null"},
    {"key", is_text, "binary or string (also large_ or _view, or a dictionary of them) or null"},
    {"topic", is_string, "string, large_string or string_view, or a dictionary of them"},
    {"partition", is_partition, "int32 or int64"},
    {"timestamp", is_timestamp, "timestamp of any unit, or int64 in milliseconds"},
    {"headers", is_headers, "list or large_list of struct<key: string, value: binary>"},
};

/* The index of each column among the children, or -1. */
struct column_map {
    int64_t child[COLUMN_COUNT];
};

static enum status schema_validate(const struct ArrowSchema *schema, int depth)
{
    if (schema == NULL || schema->format == NULL || schema->n_children < 0 || depth > 4 ||
        (schema->n_children > 0 && schema->children == NULL)) {
        return STATUS_INVALID;
    }
    for (int64_t i = 0; i < schema->n_children; i++) {
        RETURN_IF_FAILED(schema_validate(schema->children[i], depth + 1));
    }
    return schema->dictionary == NULL ? STATUS_OK : schema_validate(schema->dictionary, depth + 1);
}

static int column_find(const char *name)
{
    int found = 0;
    while (found < COLUMN_COUNT && strcmp(columns[found].name, name) != 0) {
        found++;
    }
    return found;
}

static enum status column_place(const struct ArrowSchema *child, int64_t index, struct column_map *map,
                                struct error *error)
{
    const char *name = child->name == NULL ? "" : child->name;
    int found = column_find(name);
    if (found == COLUMN_COUNT) {
        return error_set(error, STATUS_INVALID, "the batch has a column '%.80s': allowed are value, key, topic, "
                         "partition, timestamp and headers; drop or rename it", name);
    }
    if (map->child[found] >= 0) {
        return error_set(error, STATUS_INVALID, "the batch has two columns '%s': drop or rename one", name);
    }
    if (!columns[found].is_allowed(child)) {
        return error_set(error, STATUS_INVALID, "column '%s' has the Arrow type %.40s: it must be %s", name,
                         type_name(child), columns[found].allowed);
    }
    map->child[found] = index;
    return STATUS_OK;
}

static enum status schema_map(const struct ArrowSchema *schema, struct column_map *map, struct error *error)
{
    memset(map, -1, sizeof *map);
    if (schema_validate(schema, 0) != STATUS_OK) {
        return error_set(error, STATUS_INVALID, "the Arrow schema contradicts itself");
    }
    if (!format_is(schema, "+s") || !is_plain(schema)) {
        return error_set(error, STATUS_INVALID, "the Arrow data is of type %.40s: it must be a record batch, a table "
                         "or a struct array", type_name(schema));
    }
    for (int64_t i = 0; i < schema->n_children; i++) {
        RETURN_IF_FAILED(column_place(schema->children[i], i, map, error));
    }
    if (map->child[COLUMN_VALUE] < 0) {
        return error_set(error, STATUS_INVALID, "the batch has no column 'value': a record needs one (null is a "
                         "tombstone); select or rename it");
    }
    return STATUS_OK;
}

enum status arrow_schema_check(const struct ArrowSchema *schema, struct error *error)
{
    struct column_map map;
    return schema_map(schema, &map, error);
}

/* ---- arrays ---- */

static enum status raise_contradiction(const char *name, const char *what, struct error *error)
{
    return error_set(error, STATUS_INVALID, "the Arrow array of column '%s' contradicts itself: %s", name, what);
}

/* The product of this limit and the size of a cell does not overflow. */
static const int64_t cell_count_max = INT64_MAX / 64;

static bool numbers_are_possible(const struct ArrowArray *array)
{
    return array->length >= 0 && array->length <= cell_count_max && array->offset >= 0 &&
           array->offset <= cell_count_max - array->length && array->null_count >= -1 &&
           array->null_count <= array->length;
}

/* Opens cells [base, base + length) of the array, which are those of its parent. */
static enum status cells_open(const struct ArrowArray *array, int64_t base, int64_t length, const char *name,
                              struct arrow_cells *cells, struct error *error)
{
    if (array == NULL || array->release == NULL) {
        return raise_contradiction(name, "it is missing, or was released", error);
    }
    if (!numbers_are_possible(array)) {
        return raise_contradiction(name, "its length, offset or count of nulls is impossible", error);
    }
    if (base > array->length - length) {
        return raise_contradiction(name, "it is shorter than its parent", error);
    }
    bool has_validity = array->n_buffers > 0 && array->buffers != NULL && array->buffers[0] != NULL;
    if (!has_validity && array->null_count > 0 && array->n_buffers != 0) {
        return raise_contradiction(name, "it has nulls but no validity bitmap", error);
    }
    *cells = (struct arrow_cells){.validity = has_validity && array->null_count != 0 ? array->buffers[0] : NULL,
                                  .first = array->offset + base,
                                  .length = length};
    return STATUS_OK;
}

static enum status buffers_check(const struct ArrowArray *array, int64_t count_min, int64_t count_max,
                                 int64_t child_count, const char *name, struct error *error)
{
    if (array->n_buffers < count_min || array->n_buffers > count_max || array->buffers == NULL) {
        return raise_contradiction(name, "it has not the buffers of its type", error);
    }
    bool has_children = array->n_children == child_count && (child_count == 0 || array->children != NULL);
    return has_children ? STATUS_OK : raise_contradiction(name, "it has not the children of its type", error);
}

static enum status buffer_check(const struct ArrowArray *array, int64_t index, const char *name, struct error *error)
{
    return array->buffers[index] != NULL ? STATUS_OK : raise_contradiction(name, "a buffer is missing", error);
}

/* ---- integers ---- */

static enum status integers_open(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t base,
                                 int64_t length, struct arrow_integers *column, struct error *error)
{
    if (!integer_format_parse(schema, &column->width, &column->is_signed)) {
        column->width = 8; /* a timestamp */
        column->is_signed = true;
    }
    RETURN_IF_FAILED(cells_open(array, base, length, column->name, &column->cells, error));
    if (length == 0) {
        return STATUS_OK;
    }
    RETURN_IF_FAILED(buffers_check(array, 2, 2, 0, column->name, error));
    RETURN_IF_FAILED(buffer_check(array, 1, column->name, error));
    column->numbers = array->buffers[1];
    return STATUS_OK;
}

/* ---- bytes ---- */

static int64_t offset_load(const uint8_t *offsets, int64_t index, bool is_large)
{
    int32_t narrow;
    int64_t wide;
    if (is_large) {
        memcpy(&wide, offsets + index * 8, sizeof wide);
        return wide;
    }
    memcpy(&narrow, offsets + index * 4, sizeof narrow);
    return narrow;
}

/* The buffer of the data may be NULL if the data has no bytes. */
static enum status offsets_open(const struct ArrowArray *array, struct arrow_bytes *column, struct error *error)
{
    static const uint8_t nothing[1];
    RETURN_IF_FAILED(buffers_check(array, 3, 3, 0, column->name, error));
    RETURN_IF_FAILED(buffer_check(array, 1, column->name, error));
    column->places = array->buffers[1];
    column->data = array->buffers[2] != NULL ? array->buffers[2] : nothing;
    column->data_size =
        offset_load(column->places, array->offset + array->length, column->kind == ARROW_BYTES_OFFSETS_64);
    if (column->data_size < 0 || (column->data_size > 0 && column->data == nothing)) {
        return raise_contradiction(column->name, "its last offset is negative, or its data is missing", error);
    }
    return STATUS_OK;
}

/* Opens validity, views, any number of data buffers, and their sizes. */
static enum status views_open(const struct ArrowArray *array, struct arrow_bytes *column, struct error *error)
{
    RETURN_IF_FAILED(buffers_check(array, 3, INT64_MAX, 0, column->name, error));
    RETURN_IF_FAILED(buffer_check(array, 1, column->name, error));
    column->view_buffer_count = array->n_buffers - 3;
    if (column->view_buffer_count > 0) {
        RETURN_IF_FAILED(buffer_check(array, array->n_buffers - 1, column->name, error));
    }
    column->places = array->buffers[1];
    column->view_buffers = array->buffers + 2;
    column->view_buffer_sizes = array->buffers[array->n_buffers - 1];
    return STATUS_OK;
}

static enum status bytes_open(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t base,
                              int64_t length, struct arrow_bytes *column, struct error *error)
{
    (void)bytes_kind(schema, &column->kind);
    RETURN_IF_FAILED(cells_open(array, base, length, column->name, &column->cells, error));
    if (length == 0 || column->kind == ARROW_BYTES_NULL) {
        column->kind = ARROW_BYTES_NULL; /* an empty array may have no buffers */
        return STATUS_OK;
    }
    return column->kind == ARROW_BYTES_VIEWS ? views_open(array, column, error) : offsets_open(array, column, error);
}

static enum status text_open(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t base,
                             int64_t length, struct arrow_text *column, struct error *error)
{
    column->has_dictionary = !is_plain(schema);
    if (!column->has_dictionary) {
        return bytes_open(schema, array, base, length, &column->bytes, error);
    }
    column->indices.name = column->bytes.name;
    RETURN_IF_FAILED(integers_open(schema, array, base, length, &column->indices, error));
    int64_t value_count = array->dictionary == NULL ? 0 : array->dictionary->length;
    return bytes_open(schema->dictionary, array->dictionary, 0, value_count < 0 ? 0 : value_count, &column->bytes,
                      error);
}

/* ---- headers ---- */

static enum status entries_open(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t length,
                                struct arrow_headers *headers, struct error *error)
{
    int key = key_index(schema);
    int value = 1 - key;
    headers->key.name = headers->value.name = "headers";
    RETURN_IF_FAILED(cells_open(array, 0, length, "headers", &headers->entries, error));
    if (array->n_children != 2 || array->children == NULL) {
        return raise_contradiction("headers", "it has not the children of its type", error);
    }
    RETURN_IF_FAILED(
        bytes_open(schema->children[key], array->children[key], array->offset, length, &headers->key, error));
    return bytes_open(schema->children[value], array->children[value], array->offset, length, &headers->value, error);
}

static enum status headers_open(const struct ArrowSchema *schema, const struct ArrowArray *array, int64_t base,
                                int64_t length, struct arrow_headers *headers, struct error *error)
{
    RETURN_IF_FAILED(cells_open(array, base, length, "headers", &headers->cells, error));
    if (length == 0) {
        return STATUS_OK;
    }
    RETURN_IF_FAILED(buffers_check(array, 2, 2, 1, "headers", error));
    RETURN_IF_FAILED(buffer_check(array, 1, "headers", error));
    headers->is_large = format_is(schema, "+L");
    headers->offsets = array->buffers[1];
    int64_t end = offset_load(headers->offsets, array->offset + array->length, headers->is_large);
    if (end < 0 || end > cell_count_max) {
        return raise_contradiction("headers", "its last offset is impossible", error);
    }
    return entries_open(schema->children[0], array->children[0], end, headers, error);
}

/* ---- the batch ---- */

/* A struct array may have null rows, but a record batch has none. */
static enum status rows_check(const struct arrow_cells *rows, struct error *error)
{
    for (int64_t i = 0; rows->validity != NULL && i < rows->length; i++) {
        int64_t cell = rows->first + i;
        if ((rows->validity[cell >> 3] >> (cell & 7) & 1) == 0) {
            return error_set(error, STATUS_INVALID, "row %lld of the batch is null as a whole: leave it out",
                             (long long)i);
        }
    }
    return STATUS_OK;
}

struct opening {
    const struct ArrowSchema *schema;
    const struct ArrowArray *array;
    struct column_map map;
    struct arrow_batch *batch;
};

/* Returns true if the column is present and its type is not null. Stores its index. */
static bool column_get(const struct opening *opening, enum column column, int64_t *child)
{
    *child = opening->map.child[column];
    return *child >= 0 && !format_is(opening->schema->children[*child], "n");
}

static enum status text_column_open(const struct opening *opening, int64_t child, struct arrow_text *column,
                                    struct error *error)
{
    return text_open(opening->schema->children[child], opening->array->children[child], opening->array->offset,
                     opening->array->length, column, error);
}

static enum status integer_column_open(const struct opening *opening, int64_t child, struct arrow_integers *column,
                                       struct error *error)
{
    return integers_open(opening->schema->children[child], opening->array->children[child], opening->array->offset,
                         opening->array->length, column, error);
}

static enum status columns_open(const struct opening *opening, struct error *error)
{
    struct arrow_batch *batch = opening->batch;
    int64_t child;
    RETURN_IF_FAILED(text_column_open(opening, opening->map.child[COLUMN_VALUE], &batch->value, error));
    if ((batch->has_key = column_get(opening, COLUMN_KEY, &child))) {
        RETURN_IF_FAILED(text_column_open(opening, child, &batch->key, error));
    }
    if ((batch->has_topic = column_get(opening, COLUMN_TOPIC, &child))) {
        RETURN_IF_FAILED(text_column_open(opening, child, &batch->topic, error));
    }
    if ((batch->has_partition = column_get(opening, COLUMN_PARTITION, &child))) {
        RETURN_IF_FAILED(integer_column_open(opening, child, &batch->partition, error));
    }
    if ((batch->has_timestamp = column_get(opening, COLUMN_TIMESTAMP, &child))) {
        (void)unit_parse(opening->schema->children[child], &batch->timestamp_unit);
        RETURN_IF_FAILED(integer_column_open(opening, child, &batch->timestamp, error));
    }
    if ((batch->has_headers = column_get(opening, COLUMN_HEADERS, &child))) {
        RETURN_IF_FAILED(headers_open(opening->schema->children[child], opening->array->children[child],
                                      opening->array->offset, opening->array->length, &batch->headers, error));
    }
    return STATUS_OK;
}

enum status arrow_batch_open(const struct ArrowSchema *schema, const struct ArrowArray *array,
                             struct arrow_batch *batch, struct error *error)
{
    struct opening opening = {.schema = schema, .array = array, .batch = batch};
    struct arrow_cells rows;
    RETURN_IF_FAILED(schema_map(schema, &opening.map, error));
    RETURN_IF_FAILED(cells_open(array, 0, array->length, "(the batch)", &rows, error));
    if (array->n_children != schema->n_children || array->children == NULL) {
        return error_set(error, STATUS_INVALID, "the Arrow array has other columns than its schema");
    }
    RETURN_IF_FAILED(rows_check(&rows, error));
    *batch = (struct arrow_batch){
        .row_count = array->length,
        .value.bytes.name = columns[COLUMN_VALUE].name,
        .key.bytes.name = columns[COLUMN_KEY].name,
        .topic.bytes.name = columns[COLUMN_TOPIC].name,
        .partition.name = columns[COLUMN_PARTITION].name,
        .timestamp.name = columns[COLUMN_TIMESTAMP].name,
    };
    return columns_open(&opening, error);
}
