/* SPDX-License-Identifier: Apache-2.0 */
#include "format/fetch.h"

#include "base/bytes.h"
#include "format/varint.h"

enum {
    TAGS_MAX = 32,     /* of one structure */
    LENGTH_WIDTH = 32, /* the width of a varint in bits */
    NO_EPOCH = -1,
    NO_REPLICA = -1,
    FRAME_SIZE_MAX = 40,     /* bytes of a frame except its topics */
    PARTITION_SIZE_MAX = 80, /* bytes of a topic and a partition, except name, aborted transactions and records */
    ABORTED_SIZE_MAX = 17,   /* bytes of one aborted transaction */
};

/* ---- the request ---- */

enum { HEAD_SIZE = 14 /* size, api key, version, correlation id and the length of the client id */ };

bool fetch_frame_read(const uint8_t *bytes, size_t size, struct fetch_frame *frame)
{
    if (size < HEAD_SIZE || load_be32(bytes) != size - sizeof(uint32_t) || load_be16(bytes + 4) != FETCH_KEY) {
        return false;
    }
    frame->version = (int16_t)load_be16(bytes + 6);
    frame->correlation_id = (int32_t)load_be32(bytes + 8);
    int16_t client_id_size = (int16_t)load_be16(bytes + 12);
    size_t body = HEAD_SIZE + (size_t)(client_id_size < 0 ? 0 : client_id_size);
    if (frame->version < FETCH_VERSION_MIN || frame->version > FETCH_VERSION_MAX || body >= size) {
        return false;
    }
    bool is_flexible = frame->version >= FETCH_FLEXIBLE;
    bool has_tags = is_flexible && bytes[body] != 0;
    frame->body = bytes + body + is_flexible;
    frame->body_size = size - body - is_flexible;
    return !has_tags;
}

static bool is_since(const struct fetch_reader *reader, int64_t version)
{
    return reader->version >= version;
}

/* Returns NULL with the error set if there are fewer bytes. */
static const uint8_t *bytes_take(struct fetch_reader *reader, size_t size)
{
    const uint8_t *start = reader->cursor;
    if ((size_t)(reader->end - start) < size) {
        (void)error_set(&reader->error, STATUS_INVALID, "the fetch request ends too early");
        return NULL;
    }
    reader->cursor += size;
    return start;
}

static bool varint_take(struct fetch_reader *reader, uint64_t *value)
{
    bool is_read = varint_read_bits(&reader->cursor, reader->end, LENGTH_WIDTH, value) == STATUS_OK;
    if (!is_read) {
        (void)error_set(&reader->error, STATUS_INVALID, "the fetch request has a number that does not end");
    }
    return is_read;
}

static bool tags_skip(struct fetch_reader *reader)
{
    uint64_t count = 0;
    if (is_since(reader, FETCH_FLEXIBLE) && !varint_take(reader, &count)) {
        return false;
    }
    if (count > TAGS_MAX) {
        (void)error_set(&reader->error, STATUS_INVALID, "a structure of the fetch request has %llu tags, more than %d",
                        (unsigned long long)count, TAGS_MAX);
        return false;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t tag, size;
        if (!varint_take(reader, &tag) || !varint_take(reader, &size) || bytes_take(reader, size) == NULL) {
            return false;
        }
    }
    return true;
}

/* Reads a length of fixed size, or a varint. -1 is null. */
static bool length_take(struct fetch_reader *reader, size_t fixed_size, int64_t *length)
{
    uint64_t one_more;
    if (is_since(reader, FETCH_FLEXIBLE)) {
        bool is_read = varint_take(reader, &one_more);
        *length = is_read ? (int64_t)one_more - 1 : 0;
        return is_read;
    }
    const uint8_t *bytes = bytes_take(reader, fixed_size);
    if (bytes != NULL) {
        *length = fixed_size == sizeof(int16_t) ? (int16_t)load_be16(bytes) : (int32_t)load_be32(bytes);
    }
    return bytes != NULL;
}

/* Reads the length of an array. Each element has at least one byte. */
static bool count_take(struct fetch_reader *reader, int64_t *count)
{
    if (!length_take(reader, sizeof(int32_t), count)) {
        return false;
    }
    *count = *count < 0 ? 0 : *count;
    reader->elements_left -= *count;
    bool is_possible = *count <= reader->end - reader->cursor && reader->elements_left >= 0;
    if (!is_possible) {
        (void)error_set(&reader->error, STATUS_INVALID, "the fetch request has an array of %lld elements in %zu bytes",
                        (long long)*count, reader->size);
    }
    return is_possible;
}

/* Reads a text that is not null, and sets its size. Returns NULL with the error set. */
static const uint8_t *text_take(struct fetch_reader *reader, size_t *size)
{
    int64_t length;
    if (!length_take(reader, sizeof(int16_t), &length)) {
        return NULL;
    }
    if (length < 0) {
        (void)error_set(&reader->error, STATUS_INVALID, "a string of the fetch request is null");
        return NULL;
    }
    *size = (size_t)length;
    return bytes_take(reader, *size);
}

/* Reads a number if the version has the field. Otherwise, the value is unchanged. */
static bool int32_take(struct fetch_reader *reader, bool is_there, int32_t *value)
{
    const uint8_t *bytes = is_there ? bytes_take(reader, sizeof *value) : NULL;
    if (bytes != NULL) {
        *value = (int32_t)load_be32(bytes);
    }
    return bytes != NULL || !is_there;
}

static bool int64_take(struct fetch_reader *reader, bool is_there, int64_t *value)
{
    const uint8_t *bytes = is_there ? bytes_take(reader, sizeof *value) : NULL;
    if (bytes != NULL) {
        *value = (int64_t)load_be64(bytes);
    }
    return bytes != NULL || !is_there;
}

static bool limits_take(struct fetch_reader *reader, struct fetch_limits *limits)
{
    int32_t replica_id;
    const uint8_t *isolation_level = NULL;
    *limits = (struct fetch_limits){.session_id = NO_SESSION, .session_epoch = FINAL_EPOCH};
    bool is_read = int32_take(reader, !is_since(reader, 15), &replica_id) &&
                   int32_take(reader, true, &limits->max_wait_ms) && int32_take(reader, true, &limits->min_bytes) &&
                   int32_take(reader, true, &limits->max_bytes) &&
                   (isolation_level = bytes_take(reader, sizeof *isolation_level)) != NULL &&
                   int32_take(reader, is_since(reader, 7), &limits->session_id) &&
                   int32_take(reader, is_since(reader, 7), &limits->session_epoch);
    limits->isolation_level = isolation_level == NULL ? 0 : (int8_t)*isolation_level;
    return is_read;
}

bool fetch_begin(struct fetch_reader *reader, const uint8_t *bytes, size_t size, int64_t version,
                 struct fetch_limits *limits)
{
    reader->cursor = bytes;
    reader->end = bytes + size;
    reader->size = size;
    reader->version = version;
    reader->elements_left = FETCH_ELEMENTS_MAX;
    reader->partitions_left = 0;
    reader->is_in_topic = false;
    reader->is_in_forgotten = false;
    return limits_take(reader, limits) && count_take(reader, &reader->topics_left);
}

static bool partition_take(struct fetch_reader *reader, struct fetch_part *part)
{
    int32_t last_fetched_epoch;
    int64_t log_start_offset;
    reader->partitions_left--;
    if (reader->is_in_forgotten) {
        return int32_take(reader, true, &part->partition);
    }
    part->leader_epoch = NO_EPOCH;
    return int32_take(reader, true, &part->partition) &&
           int32_take(reader, is_since(reader, 9), &part->leader_epoch) && int64_take(reader, true, &part->offset) &&
           int32_take(reader, is_since(reader, 12), &last_fetched_epoch) &&
           int64_take(reader, is_since(reader, 5), &log_start_offset) &&
           int32_take(reader, true, &part->size_max) && tags_skip(reader);
}

static bool topic_take(struct fetch_reader *reader, struct fetch_part *part)
{
    part->topic_size = FETCH_TOPIC_ID_SIZE;
    const uint8_t *topic = is_since(reader, FETCH_TOPIC_IDS) ? bytes_take(reader, FETCH_TOPIC_ID_SIZE)
                                                             : text_take(reader, &part->topic_size);
    part->topic = (const char *)topic;
    reader->topics_left--;
    reader->is_in_topic = true;
    return topic != NULL && count_take(reader, &reader->partitions_left);
}

static bool end_take(struct fetch_reader *reader)
{
    size_t rack_size;
    if ((is_since(reader, 11) && text_take(reader, &rack_size) == NULL) || !tags_skip(reader)) {
        return false;
    }
    if (reader->cursor != reader->end) {
        (void)error_set(&reader->error, STATUS_INVALID, "the fetch request has %zu bytes, of which %zu are used",
                        reader->size, reader->size - (size_t)(reader->end - reader->cursor));
    }
    return reader->cursor == reader->end;
}

enum fetch_part_kind fetch_next(struct fetch_reader *reader, struct fetch_part *part)
{
    if (reader->partitions_left > 0) {
        enum fetch_part_kind kind = reader->is_in_forgotten ? FETCH_FORGOTTEN : FETCH_PARTITION;
        return partition_take(reader, part) ? kind : FETCH_INVALID;
    }
    if (reader->is_in_topic && !tags_skip(reader)) {
        return FETCH_INVALID;
    }
    reader->is_in_topic = false;
    if (reader->topics_left == 0 && !reader->is_in_forgotten) {
        reader->is_in_forgotten = true;
        if (is_since(reader, 7) && !count_take(reader, &reader->topics_left)) {
            return FETCH_INVALID;
        }
    }
    if (reader->topics_left > 0) {
        return topic_take(reader, part) ? FETCH_TOPIC : FETCH_INVALID;
    }
    return end_take(reader) ? FETCH_END : FETCH_INVALID;
}

/* ---- the response ---- */

struct writer {
    const struct fetch_response *response;
    uint8_t *cursor;
};

static bool has(const struct writer *writer, int64_t version)
{
    return writer->response->version >= version;
}

static void int16_write(struct writer *writer, int16_t value)
{
    store_be16(writer->cursor, (uint16_t)value);
    writer->cursor += sizeof value;
}

static void int32_write(struct writer *writer, int32_t value)
{
    store_be32(writer->cursor, (uint32_t)value);
    writer->cursor += sizeof value;
}

static void int64_write(struct writer *writer, int64_t value)
{
    store_be64(writer->cursor, (uint64_t)value);
    writer->cursor += sizeof value;
}

/* Writes the length of an array or of records. */
static void length_write(struct writer *writer, int64_t length)
{
    if (has(writer, FETCH_FLEXIBLE)) {
        writer->cursor = varint_write_groups(writer->cursor, (uint64_t)length + 1);
    } else {
        int32_write(writer, (int32_t)length);
    }
}

static void no_tags_write(struct writer *writer)
{
    if (has(writer, FETCH_FLEXIBLE)) {
        *writer->cursor++ = 0;
    }
}

static void topic_write(struct writer *writer, const struct fetch_found *found)
{
    if (!found->is_topic_id && has(writer, FETCH_FLEXIBLE)) {
        length_write(writer, (int64_t)found->topic_size);
    } else if (!found->is_topic_id) {
        int16_write(writer, (int16_t)found->topic_size);
    }
    memcpy(writer->cursor, found->topic, found->topic_size);
    writer->cursor += found->topic_size;
}

static void partition_write(struct writer *writer, const uint8_t *target, struct fetch_found *found)
{
    int32_write(writer, found->partition);
    int16_write(writer, found->error);
    int64_write(writer, found->end_offset);
    int64_write(writer, found->stable_offset);
    if (has(writer, 5)) {
        int64_write(writer, found->start_offset);
    }
    length_write(writer, (int64_t)found->aborted_count);
    for (size_t i = 0; i < found->aborted_count; i++) {
        int64_write(writer, found->aborted[i].producer_id);
        int64_write(writer, found->aborted[i].first_offset);
        no_tags_write(writer);
    }
    if (has(writer, 11)) {
        int32_write(writer, NO_REPLICA);
    }
    length_write(writer, found->records_size);
    found->cut = (size_t)(writer->cursor - target);
    no_tags_write(writer);
}

/* Returns how many adjacent partitions, from the first on, have the same topic. */
static size_t same_topic_count(const struct fetch_found *found, size_t count)
{
    size_t neighbours = 1;
    while (neighbours < count && found[neighbours].is_topic_id == found->is_topic_id &&
           found[neighbours].topic_size == found->topic_size &&
           memcmp(found[neighbours].topic, found->topic, found->topic_size) == 0) {
        neighbours++;
    }
    return neighbours;
}

static int64_t topic_count(const struct fetch_response *response)
{
    int64_t topics = 0;
    for (size_t i = 0; i < response->count; i += same_topic_count(&response->found[i], response->count - i)) {
        topics++;
    }
    return topics;
}

static void topics_write(struct writer *writer, const uint8_t *target)
{
    const struct fetch_response *response = writer->response;
    length_write(writer, topic_count(response));
    for (size_t i = 0; i < response->count;) {
        size_t end = i + same_topic_count(&response->found[i], response->count - i);
        topic_write(writer, &response->found[i]);
        length_write(writer, (int64_t)(end - i));
        for (; i < end; i++) {
            partition_write(writer, target, &response->found[i]);
        }
        no_tags_write(writer);
    }
}

size_t fetch_response_size_max(const struct fetch_response *response)
{
    size_t size_max = FRAME_SIZE_MAX;
    for (size_t i = 0; i < response->count; i++) {
        const struct fetch_found *found = &response->found[i];
        size_max += PARTITION_SIZE_MAX + found->topic_size + found->aborted_count * ABORTED_SIZE_MAX;
    }
    return size_max;
}

size_t fetch_response_write(const struct fetch_response *response, uint8_t *target, int64_t *frame_size)
{
    struct writer writer = {.response = response, .cursor = target + sizeof(int32_t)};
    int32_write(&writer, response->correlation_id);
    no_tags_write(&writer);
    int32_write(&writer, 0);
    if (has(&writer, 7)) {
        int16_write(&writer, response->error);
        int32_write(&writer, response->session_id);
    }
    topics_write(&writer, target);
    no_tags_write(&writer);
    size_t size = (size_t)(writer.cursor - target);
    *frame_size = (int64_t)(size - sizeof(int32_t));
    for (size_t i = 0; i < response->count; i++) {
        if (__builtin_add_overflow(*frame_size, response->found[i].records_size, frame_size)) {
            *frame_size = INT64_MAX;
            break;
        }
    }
    store_be32(target, (uint32_t)*frame_size);
    return size;
}
