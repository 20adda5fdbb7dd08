/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/layout.h"

#include <inttypes.h>

#include "base/bytes.h"

static uint64_t fingerprint_mix(uint64_t fingerprint, uint64_t number)
{
    return (fingerprint ^ number) * UINT64_C(0x100000001b3); /* FNV-1a over whole numbers */
}

#define MIX_SIZE(type) fingerprint = fingerprint_mix(fingerprint, sizeof(struct type))
#define MIX_FIELD(type, field) fingerprint = fingerprint_mix(fingerprint, offsetof(struct type, field))
#define MIX_NUMBER(number) fingerprint = fingerprint_mix(fingerprint, (uint64_t)(number))

static uint64_t fingerprint_words(uint64_t fingerprint)
{
    MIX_NUMBER(SLOT_GENERATION_BITS);
    MIX_NUMBER(SLOT_COUNT_BITS);
    MIX_NUMBER(SLOT_SIZE_BITS);
    MIX_NUMBER(SLOT_INDEX_BITS);
    MIX_NUMBER(OWNER_GENERATION_BITS);
    MIX_NUMBER(OWNER_INDEX_BITS);
    MIX_NUMBER(WAITER_INDEX_BITS);
    MIX_NUMBER(WAITER_NEED_BITS);
    MIX_NUMBER(SLOT_BAD);
    return fingerprint;
}

static uint64_t fingerprint_globals(uint64_t fingerprint)
{
    MIX_SIZE(superblock);
    MIX_SIZE(geometry);
    MIX_SIZE(globals);
    MIX_FIELD(globals, registry_lock);
    MIX_FIELD(globals, waiting_count);
    MIX_FIELD(globals, next_ticket);
    MIX_FIELD(globals, topic_count);
    MIX_FIELD(globals, sender_epoch);
    MIX_FIELD(globals, sink_identity);
    MIX_FIELD(globals, sender_left_epoch);
    MIX_FIELD(globals, completion_tail);
    MIX_FIELD(globals, completion_wait);
    MIX_FIELD(globals, arena_epoch);
    MIX_FIELD(globals, closing);
    MIX_FIELD(globals, sync_done);
    MIX_FIELD(globals, sink_name);
    MIX_FIELD(globals, delivery_clock_ns);
    MIX_FIELD(globals, outage);
    return fingerprint;
}

static uint64_t fingerprint_tables(uint64_t fingerprint)
{
    MIX_SIZE(process_entry);
    MIX_FIELD(process_entry, writing);
    MIX_FIELD(process_entry, record_count_before);
    MIX_SIZE(waiter_entry);
    MIX_SIZE(topic_entry);
    MIX_FIELD(topic_entry, queued_batch_count_max);
    MIX_FIELD(topic_entry, sticky);
    MIX_SIZE(partition_entry);
    MIX_SIZE(producer_lock);
    MIX_FIELD(partition_entry, next_seq);
    MIX_FIELD(partition_entry, next_base_sequence);
    MIX_FIELD(partition_entry, queued_batch_count);
    MIX_SIZE(slot_header);
    MIX_FIELD(slot_header, meta);
    MIX_FIELD(slot_header, chain_next);
    MIX_FIELD(slot_header, last_completion);
    MIX_FIELD(slot_header, linger);
    MIX_FIELD(slot_header, opener);
    MIX_FIELD(slot_header, delivery_stamp_ms);
    MIX_SIZE(completion_entry);
    MIX_FIELD(completion_entry, result);
    MIX_SIZE(counter_entry);
    MIX_SIZE(error_entry);
    MIX_SIZE(sync_record);
    MIX_FIELD(sync_record, end);
    return fingerprint;
}

uint64_t layout_fingerprint(bool is_transactional)
{
    uint64_t fingerprint = UINT64_C(0xcbf29ce484222325);
    MIX_NUMBER(LAYOUT_VERSION);
    MIX_NUMBER(CACHE_LINE);
    MIX_NUMBER(PROCESS_LOCK_START);
    MIX_NUMBER(COUNTER_COUNT);
    MIX_NUMBER(ERROR_LOG_COUNT);
    MIX_NUMBER(NEWS_GROUP_WORDS);
    if (is_transactional) {
        MIX_FIELD(globals, transaction);
        MIX_NUMBER(TRANSACTION_ABORT_ONLY);
        MIX_NUMBER(TRANSACTION_STATE_BITS);
    }
    return fingerprint_tables(fingerprint_globals(fingerprint_words(fingerprint)));
}

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
    if (geometry->slot_stride != round_up(geometry->batch_size, PAGE_SIZE_BYTES) ||
        geometry->buffer_memory / geometry->batch_size != geometry->slot_count ||
        (geometry->completion_count & (geometry->completion_count - 1)) != 0) {
        return error_set(error, STATUS_INVALID, "the geometry's numbers contradict each other");
    }
    return STATUS_OK;
}

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
    layout->bitmap_word_count = (uint32_t)divide_up(geometry->slot_count, 64);
    layout->news_group_count = (uint32_t)divide_up(layout->bitmap_word_count, NEWS_GROUP_WORDS);
    layout->processes = region_take(&end, sizeof(struct process_entry) * (uint64_t)geometry->process_count);
    layout->waiters = region_take(&end, sizeof(struct waiter_entry) * (uint64_t)geometry->waiter_count);
    layout->topics = region_take(&end, sizeof(struct topic_entry) * (uint64_t)geometry->topic_count);
    layout->partitions = region_take(&end, sizeof(struct partition_entry) * (uint64_t)geometry->partition_count);
    layout->names = region_take(&end, geometry->name_heap_size);
    layout->free_hints = region_take(&end, sizeof(atomic_u64) * (uint64_t)layout->bitmap_word_count);
    layout->news_hints = region_take(&end, sizeof(atomic_u64) * (uint64_t)layout->bitmap_word_count);
    layout->news_groups = region_take(&end, sizeof(atomic_u64) * (uint64_t)layout->news_group_count);
    layout->slot_headers = region_take(&end, sizeof(struct slot_header) * (uint64_t)geometry->slot_count);
    layout->completions = region_take(&end, sizeof(struct completion_entry) * (uint64_t)geometry->completion_count);
    layout->counters = region_take(&end, sizeof(struct counter_entry) * COUNTER_COUNT);
    layout->error_log = region_take(&end, sizeof(struct error_entry) * ERROR_LOG_COUNT);
    layout->sync_records = sync_records_take(&end, geometry);
    end = round_up(end, PAGE_SIZE_BYTES);
    layout->slot_data = region_take(&end, (uint64_t)geometry->slot_stride * geometry->slot_count);
    layout->arena_size = end;
}
