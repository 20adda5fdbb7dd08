/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/layout.h"

#include <inttypes.h>
#include <string.h>

#include "arena/layout_fields.h"
#include "base/bytes.h"

/* ---- the fields ---- */

#define CHECK_STRUCT(type, bytes) STATIC_CHECK(sizeof(struct type) == (bytes));
#define CHECK_FIELD(type, name, start, bytes)            \
    STATIC_CHECK(offsetof(struct type, name) == (start)); \
    STATIC_CHECK(sizeof(((struct type *)NULL)->name) == (bytes));
LAYOUT_FIELDS(CHECK_STRUCT, CHECK_FIELD)

#define LIST_STRUCT(type, bytes) {#type, "", 0, bytes},
#define LIST_FIELD(type, name, start, bytes) {#type, #name, start, bytes},

static const struct layout_field fields[] = {LAYOUT_FIELDS(LIST_STRUCT, LIST_FIELD)};

const struct layout_field *layout_fields(size_t *count)
{
    *count = sizeof fields / sizeof fields[0];
    return fields;
}

const struct layout_field *geometry_fields(size_t *count)
{
    const struct layout_field *first = fields;
    const struct layout_field *end;
    while (strcmp(first->type, "geometry") != 0) {
        first++;
    }
    first++; /* the struct itself */
    for (end = first; strcmp(end->field, "reserved") != 0; end++) {
        CHECK(strcmp(end->type, "geometry") == 0);
    }
    *count = (size_t)(end - first);
    return first;
}

STATIC_CHECK(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__); /* required by the next two lines */

uint64_t geometry_number(const struct geometry *geometry, const struct layout_field *field)
{
    uint64_t number = 0;
    CHECK(field->size <= sizeof number);
    memcpy(&number, (const uint8_t *)geometry + field->offset, field->size);
    return number;
}

void geometry_set_number(struct geometry *geometry, const struct layout_field *field, uint64_t number)
{
    CHECK(field->size <= sizeof number);
    CHECK(field->size == sizeof number || number >> 8 * field->size == 0);
    memcpy((uint8_t *)geometry + field->offset, &number, field->size);
}

/* ---- the fingerprint ---- */

static uint64_t fingerprint_mix(uint64_t fingerprint, uint64_t number)
{
    return (fingerprint ^ number) * UINT64_C(0x100000001b3); /* FNV-1a over whole numbers */
}

uint64_t layout_fingerprint(void)
{
    static const uint64_t numbers[] = {
        LAYOUT_VERSION,       CACHE_LINE,          PROCESS_LOCK_START,     COUNTER_COUNT,         ERROR_LOG_COUNT,
        READY_GROUP_WORDS,     SLOT_GENERATION_BITS, SLOT_COUNT_BITS,       SLOT_SIZE_BITS,        SLOT_INDEX_BITS,
        OWNER_GENERATION_BITS, OWNER_INDEX_BITS,    WAITER_INDEX_BITS,      WAITER_NEED_BITS,      SLOT_BAD,
        WAITER_PARKED,        TRANSACTION_WHY_BITS, TRANSACTION_STATE_BITS, TRANSACTION_ABORT_ONLY,
    };
    uint64_t fingerprint = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        fingerprint = fingerprint_mix(fingerprint, numbers[i]);
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        fingerprint = fingerprint_mix(fingerprint_mix(fingerprint, fields[i].offset), fields[i].size);
    }
    return fingerprint;
}

/* ---- the geometry ---- */

struct bound {
    const char *name;
    uint64_t value;
    uint64_t min;
    uint64_t max;
};

static enum status bounds_check(const struct bound *bounds, size_t count, struct error *error)
{
    CHECK(count >= 1);
    for (size_t i = 0; i < count; i++) {
        if (bounds[i].value < bounds[i].min || bounds[i].value > bounds[i].max) {
            return error_set(error, STATUS_INVALID, "%s is %" PRIu64 ", it must lie between %" PRIu64 " and %" PRIu64,
                             bounds[i].name, bounds[i].value, bounds[i].min, bounds[i].max);
        }
    }
    return STATUS_OK;
}

enum status geometry_validate(const struct geometry *geometry, struct error *error)
{
    const struct bound bounds[] = {
        {"batch_size", geometry->batch_size, RECORDS_START + 1, BATCH_SIZE_MAX},
        {"buffer_memory in buffers of batch_size", geometry->slot_count, 1, SLOT_COUNT_MAX},
        {"process_count", geometry->process_count, 1, PROCESS_COUNT_MAX},
        {"waiter_count", geometry->waiter_count, 1, WAITER_COUNT_MAX},
        {"topic_count", geometry->topic_count, 1, 1 << 20},
        {"partition_count", geometry->partition_count, 1, 1 << 22},
        {"name_heap_size", geometry->name_heap_size, TOPIC_NAME_SIZE_MAX, 1 << 28},
        {"completion_count", geometry->completion_count, 2, 1 << 28},
        {"oversized_bytes_max", geometry->oversized_bytes_max, 0, geometry->buffer_memory},
        {"record_size_max", geometry->record_size_max, RECORDS_START + 1, BATCH_SIZE_MAX},
        {"process_slot_count_max", geometry->process_slot_count_max, 0, geometry->slot_count},
        {"durability", geometry->durability, DURABILITY_PROCESS, DURABILITY_SYNC},
        {"is_transactional", geometry->is_transactional, 0, 1},
    };
    RETURN_IF_FAILED(bounds_check(bounds, sizeof bounds / sizeof bounds[0], error));
    if (geometry->topic_share_factor != 0 && (geometry->topic_share_factor < TOPIC_SHARE_ONE / 2 ||
                                              geometry->topic_share_factor > 64 * TOPIC_SHARE_ONE)) {
        return error_set(error, STATUS_INVALID, "topic_share_factor must be 0 or between 1/2 and 64");
    }
    if (geometry->slot_stride != round_up(geometry->batch_size, PAGE_SIZE_BYTES) ||
        geometry->buffer_memory / geometry->batch_size != geometry->slot_count ||
        (geometry->completion_count & (geometry->completion_count - 1)) != 0) {
        return error_set(error, STATUS_INVALID, "the geometry's numbers contradict each other");
    }
    return STATUS_OK;
}

/* ---- the regions ---- */

static uint64_t region_take(uint64_t *end, uint64_t size)
{
    CHECK(*end % CACHE_LINE == 0);
    uint64_t start = *end;
    *end = round_up(start + size, CACHE_LINE);
    return start;
}

static uint64_t sync_records_take(uint64_t *end, const struct geometry *geometry)
{
    CHECK(geometry->durability <= DURABILITY_SYNC);
    if (geometry->durability == DURABILITY_PROCESS) {
        return 0;
    }
    *end = round_up(*end, SECTOR_SIZE);
    return region_take(end, 2 * sizeof(struct sync_record) * (uint64_t)geometry->slot_count);
}

void layout_compute(const struct geometry *geometry, struct layout *layout)
{
    CHECK(geometry->slot_count >= 1);
    CHECK(geometry->slot_stride % PAGE_SIZE_BYTES == 0);
    uint64_t end = PROCESSES_REF;
    layout->bitmap_word_count = (uint32_t)divide_rounded_up(geometry->slot_count, 64);
    layout->ready_group_count = (uint32_t)divide_rounded_up(layout->bitmap_word_count, READY_GROUP_WORDS);
    layout->processes = region_take(&end, sizeof(struct process_entry) * (uint64_t)geometry->process_count);
    layout->waiters = region_take(&end, sizeof(struct waiter_entry) * (uint64_t)geometry->waiter_count);
    layout->topics = region_take(&end, sizeof(struct topic_entry) * (uint64_t)geometry->topic_count);
    layout->partitions = region_take(&end, sizeof(struct partition_entry) * (uint64_t)geometry->partition_count);
    layout->names = region_take(&end, geometry->name_heap_size);
    layout->free_hints = region_take(&end, sizeof(atomic_u64) * (uint64_t)layout->bitmap_word_count);
    layout->ready_hints = region_take(&end, sizeof(atomic_u64) * (uint64_t)layout->bitmap_word_count);
    layout->ready_groups = region_take(&end, sizeof(atomic_u64) * (uint64_t)layout->ready_group_count);
    layout->slot_headers = region_take(&end, sizeof(struct slot_header) * (uint64_t)geometry->slot_count);
    layout->completions = region_take(&end, sizeof(struct completion_entry) * (uint64_t)geometry->completion_count);
    layout->counters = region_take(&end, sizeof(struct counter_entry) * COUNTER_COUNT);
    layout->error_log = region_take(&end, sizeof(struct error_entry) * ERROR_LOG_COUNT);
    layout->sync_records = sync_records_take(&end, geometry);
    end = round_up(end, PAGE_SIZE_BYTES);
    layout->slot_data = region_take(&end, (uint64_t)geometry->slot_stride * geometry->slot_count);
    layout->arena_size = end;
}

void layout_regions(const struct geometry *geometry, const struct layout *layout, struct region regions[REGION_COUNT])
{
    const uint64_t bitmap_size = sizeof(atomic_u64) * (uint64_t)layout->bitmap_word_count;
    const uint64_t sync_size = 2 * sizeof(struct sync_record) * (uint64_t)geometry->slot_count;
    const struct region all[REGION_COUNT] = {
        {"superblock", SUPERBLOCK_REF, sizeof(struct superblock)},
        {"globals", GLOBALS_REF, sizeof(struct globals)},
        {"processes", layout->processes, sizeof(struct process_entry) * (uint64_t)geometry->process_count},
        {"waiters", layout->waiters, sizeof(struct waiter_entry) * (uint64_t)geometry->waiter_count},
        {"topics", layout->topics, sizeof(struct topic_entry) * (uint64_t)geometry->topic_count},
        {"partitions", layout->partitions, sizeof(struct partition_entry) * (uint64_t)geometry->partition_count},
        {"names", layout->names, geometry->name_heap_size},
        {"free_hints", layout->free_hints, bitmap_size},
        {"news_hints", layout->ready_hints, bitmap_size},
        {"news_groups", layout->ready_groups, sizeof(atomic_u64) * (uint64_t)layout->ready_group_count},
        {"slot_headers", layout->slot_headers, sizeof(struct slot_header) * (uint64_t)geometry->slot_count},
        {"completions", layout->completions, sizeof(struct completion_entry) * (uint64_t)geometry->completion_count},
        {"counters", layout->counters, sizeof(struct counter_entry) * COUNTER_COUNT},
        {"error_log", layout->error_log, sizeof(struct error_entry) * ERROR_LOG_COUNT},
        {"sync_records", layout->sync_records, layout->sync_records == 0 ? 0 : sync_size},
        {"slot_data", layout->slot_data, (uint64_t)geometry->slot_stride * geometry->slot_count},
    };
    CHECK(layout->slot_data != 0);
    memcpy(regions, all, sizeof all);
}
