/* SPDX-License-Identifier: Apache-2.0
 *
 * The private tables: open addressing, one for topics by name and one for partitions by topic and number. A cell holds
 * an index + 1. The tables double their size as they grow, and entries are never removed.
 */
#include "arena/registry.h"

#include <stdlib.h>
#include <string.h>

#include "arena/lock.h"
#include "base/bytes.h"
#include "base/point.h"
#include "format/crc32c.h"
#include "format/murmur2.h"

struct table {
    uint32_t *cells; /* index + 1, or 0 */
    uint32_t mask;
    uint32_t count; /* the table has all entries of the arena below this index */
};

struct registry {
    struct arena *arena;
    struct table topics;
    struct table partitions;
};

enum { TABLE_SIZE_FIRST = 64 };

/* ---- bounded reads ---- */

static uint32_t count_within(const atomic_u32 *cell, uint32_t count_max)
{
    uint32_t count = load_acquire_u32(cell); /* R2 */
    return count < count_max ? count : count_max;
}

uint32_t registry_topic_count(const struct arena *arena)
{
    return count_within(&arena->globals->topic_count, arena->geometry.topic_count);
}

uint32_t registry_partition_count(const struct arena *arena)
{
    return count_within(&arena->globals->partition_count, arena->geometry.partition_count);
}

enum status registry_topic_name(const struct arena *arena, uint32_t topic_index, const char **name,
                                uint32_t *name_size)
{
    if (topic_index >= registry_topic_count(arena)) {
        return STATUS_INVALID;
    }
    uint32_t start = arena->topics[topic_index].name_index;
    uint32_t size = arena->topics[topic_index].name_size;
    if (size > TOPIC_NAME_SIZE_MAX || start > arena->geometry.name_heap_size - size) {
        return STATUS_CORRUPT;
    }
    *name = (const char *)arena->names + start;
    *name_size = size;
    return STATUS_OK;
}

/* ---- the private table ---- */

static uint32_t hash_name(const char *name, uint32_t size)
{
    return murmur2(name, size);
}

static uint32_t hash_partition(uint32_t topic_index, int32_t partition)
{
    uint32_t key[2] = {topic_index, (uint32_t)partition};
    return murmur2(key, sizeof key);
}

static uint32_t hash_of_topic(const struct arena *arena, uint32_t topic_index)
{
    const char *name;
    uint32_t size;
    return registry_topic_name(arena, topic_index, &name, &size) == STATUS_OK ? hash_name(name, size) : 0;
}

static uint32_t hash_of_partition(const struct arena *arena, uint32_t partition_index)
{
    const struct partition_entry *entry = &arena->partitions[partition_index];
    return hash_partition(entry->topic_index, entry->partition);
}

typedef uint32_t entry_hash(const struct arena *arena, uint32_t entry_index);

static void table_put(struct table *table, uint32_t hash, uint32_t entry_index)
{
    CHECK(table->count < table->mask);
    uint32_t cell = hash & table->mask;
    while (table->cells[cell] != 0) {
        cell = (cell + 1) & table->mask;
    }
    table->cells[cell] = entry_index + 1;
}

static enum status table_grow(const struct arena *arena, struct table *table, entry_hash *hash_of)
{
    CHECK(table->cells == NULL || (table->mask & (table->mask + 1)) == 0);
    uint32_t size = table->cells == NULL ? TABLE_SIZE_FIRST : (table->mask + 1) * 2;
    uint32_t *cells = calloc(size, sizeof *cells);
    if (cells == NULL) {
        return STATUS_OS;
    }
    free(table->cells);
    table->cells = cells;
    table->mask = size - 1;
    for (uint32_t i = 0; i < table->count; i++) {
        table_put(table, hash_of(arena, i), i);
    }
    return STATUS_OK;
}

/* Adds the entries that were published since the last call. */
static enum status table_extend(const struct arena *arena, struct table *table, uint32_t published, entry_hash *hash_of)
{
    while (table->count < published) {
        if (table->count * 2 >= table->mask) {
            RETURN_IF_FAILED(table_grow(arena, table, hash_of));
        }
        table_put(table, hash_of(arena, table->count), table->count);
        table->count++;
    }
    return STATUS_OK;
}

enum status registry_open(struct arena *arena, struct registry **result, struct error *error)
{
    struct registry *registry = calloc(1, sizeof *registry);
    if (registry == NULL) {
        return error_set(error, STATUS_OS, "no memory for the table of topics");
    }
    registry->arena = arena;
    if (table_grow(arena, &registry->topics, hash_of_topic) != STATUS_OK ||
        table_grow(arena, &registry->partitions, hash_of_partition) != STATUS_OK) {
        registry_close(registry);
        return error_set(error, STATUS_OS, "no memory for the table of topics");
    }
    *result = registry;
    return STATUS_OK;
}

void registry_close(struct registry *registry)
{
    free(registry->topics.cells);
    free(registry->partitions.cells);
    free(registry);
}

/* ---- find ---- */

static bool topic_is(const struct arena *arena, uint32_t topic_index, const char *name, uint32_t name_size)
{
    const char *found;
    uint32_t found_size;
    return registry_topic_name(arena, topic_index, &found, &found_size) == STATUS_OK && found_size == name_size &&
           memcmp(found, name, name_size) == 0;
}

static bool find_topic(const struct registry *registry, const char *name, uint32_t name_size, uint32_t *topic_index)
{
    CHECK(registry->topics.cells != NULL);
    const struct table *table = &registry->topics;
    for (uint32_t cell = hash_name(name, name_size) & table->mask; table->cells[cell] != 0;
         cell = (cell + 1) & table->mask) {
        *topic_index = table->cells[cell] - 1;
        if (topic_is(registry->arena, *topic_index, name, name_size)) {
            return true;
        }
    }
    return false;
}

static bool find_partition(const struct registry *registry, uint32_t topic_index, int32_t partition,
                           uint32_t *partition_index)
{
    CHECK(registry->partitions.cells != NULL);
    const struct table *table = &registry->partitions;
    for (uint32_t cell = hash_partition(topic_index, partition) & table->mask; table->cells[cell] != 0;
         cell = (cell + 1) & table->mask) {
        *partition_index = table->cells[cell] - 1;
        const struct partition_entry *entry = &registry->arena->partitions[*partition_index];
        if (entry->topic_index == topic_index && entry->partition == partition) {
            return true;
        }
    }
    return false;
}

static enum status tables_extend(struct registry *registry)
{
    struct arena *arena = registry->arena;
    RETURN_IF_FAILED(table_extend(arena, &registry->topics, registry_topic_count(arena), hash_of_topic));
    return table_extend(arena, &registry->partitions, registry_partition_count(arena), hash_of_partition);
}

bool registry_find_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                             uint32_t *partition_index)
{
    return find_partition(registry, topic_index, partition, partition_index) ||
           (tables_extend(registry) == STATUS_OK && find_partition(registry, topic_index, partition, partition_index));
}

/* ---- checksums ---- */

/* The bits are inverted, so that the checksum of an entry of zeros is not zero. Requires a name inside the heap. */
static uint32_t topic_crc(const struct arena *arena, uint32_t topic_index)
{
    CHECK(topic_index < arena->geometry.topic_count);
    const struct topic_entry *topic = &arena->topics[topic_index];
    uint32_t place[2] = {topic->name_index, topic->name_size};
    return crc32c_extend(crc32c_extend(UINT32_MAX, place, sizeof place), arena->names + topic->name_index,
                         topic->name_size);
}

static uint32_t partition_crc(const struct arena *arena, uint32_t partition_index)
{
    const struct partition_entry *entry = &arena->partitions[partition_index];
    CHECK(entry->topic_index < arena->geometry.topic_count);
    uint32_t key[2] = {entry->topic_index, (uint32_t)entry->partition};
    return crc32c_extend(arena->topics[entry->topic_index].crc, key, sizeof key);
}

/* Names ascend in the heap. A creator that died may have left a gap between two of them. */
static bool topic_is_intact(const struct arena *arena, uint32_t topic_index, uint32_t end_of_previous)
{
    const struct topic_entry *topic = &arena->topics[topic_index];
    return topic->name_size >= 1 && topic->name_size <= TOPIC_NAME_SIZE_MAX &&
           topic->name_size <= arena->geometry.name_heap_size && topic->name_index >= end_of_previous &&
           topic->name_index <= arena->geometry.name_heap_size - topic->name_size &&
           topic->crc == topic_crc(arena, topic_index);
}

struct registry_extent registry_intact(const struct arena *arena)
{
    struct registry_extent found = {0};
    uint32_t topic_count = registry_topic_count(arena);
    while (found.topic_count < topic_count && topic_is_intact(arena, found.topic_count, found.name_heap_used)) {
        const struct topic_entry *topic = &arena->topics[found.topic_count++];
        found.name_heap_used = topic->name_index + topic->name_size;
    }
    uint32_t partition_count = registry_partition_count(arena);
    while (found.partition_count < partition_count &&
           arena->partitions[found.partition_count].topic_index < found.topic_count &&
           arena->partitions[found.partition_count].crc == partition_crc(arena, found.partition_count)) {
        found.partition_count++;
    }
    return found;
}

/* next_seq stays, because the number of a batch is never used again. */
void registry_cut(struct arena *arena, const struct registry_extent *extent)
{
    CHECK(extent->topic_count <= arena->geometry.topic_count);
    CHECK(extent->partition_count <= arena->geometry.partition_count);
    struct globals *globals = arena->globals;
    store_relaxed_u32(&globals->topic_count, extent->topic_count);
    store_relaxed_u32(&globals->partition_count, extent->partition_count);
    store_relaxed_u32(&globals->name_heap_used, extent->name_heap_used);
    memset(arena->names + extent->name_heap_used, 0, arena->geometry.name_heap_size - extent->name_heap_used);
    for (uint32_t i = extent->topic_count; i < arena->geometry.topic_count; i++) {
        memset(&arena->topics[i], 0, sizeof arena->topics[i]);
    }
    for (uint32_t i = extent->partition_count; i < arena->geometry.partition_count; i++) {
        struct partition_entry *entry = &arena->partitions[i];
        entry->topic_index = 0;
        entry->partition = 0;
        entry->crc = 0;
        store_relaxed_u64(&entry->spilled_first_seq, 0);
        store_relaxed_u64(&entry->spilled_end_seq, 0);
    }
}

/* ---- create ---- */

static bool name_is_allowed(const char *name, uint32_t size)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (size == 0 || size > TOPIC_NAME_SIZE_MAX || (size <= 2 && memcmp(name, "..", size) == 0)) {
        return false;
    }
    for (uint32_t i = 0; i < size; i++) {
        if (memchr(allowed, name[i], sizeof allowed - 1) == NULL) {
            return false;
        }
    }
    return true;
}

static enum status locked_create_topic(struct arena *arena, const char *name, uint32_t name_size)
{
    CHECK(name_size >= 1 && name_size <= TOPIC_NAME_SIZE_MAX);
    struct globals *globals = arena->globals;
    uint32_t index = registry_topic_count(arena);
    uint32_t start = count_within(&globals->name_heap_used, arena->geometry.name_heap_size);
    if (index >= arena->geometry.topic_count || name_size > arena->geometry.name_heap_size - start) {
        return STATUS_NO_PARTITION;
    }
    memcpy(arena->names + start, name, name_size);
    arena->topics[index].name_index = start;
    arena->topics[index].name_size = name_size;
    arena->topics[index].crc = topic_crc(arena, index);
    store_relaxed_u32(&arena->topics[index].partition_count, 0);
    store_relaxed_u32(&arena->topics[index].queued_batch_count_max, 0);
    store_relaxed_u64(&arena->topics[index].sticky, 0);
    store_relaxed_u32(&arena->topics[index].wanted_partition_count, 0);
    store_release_u32(&globals->name_heap_used, start + name_size); /* V3 */
    POINT(topic_written);
    store_release_u32(&globals->topic_count, index + 1); /* R1 */
    return STATUS_OK;
}

static enum status locked_create_partition(struct arena *arena, uint32_t topic_index, int32_t partition)
{
    CHECK(partition >= 0);
    uint32_t index = registry_partition_count(arena);
    if (index >= arena->geometry.partition_count) {
        return STATUS_NO_PARTITION;
    }
    arena->partitions[index].topic_index = topic_index;
    arena->partitions[index].partition = partition;
    arena->partitions[index].crc = partition_crc(arena, index);
    POINT(partition_written);
    store_release_u32(&arena->globals->partition_count, index + 1); /* R1 */
    return STATUS_OK;
}

/* Returns false if a stopped process keeps the lock. */
static bool registry_lock(struct arena *arena, uint64_t *held)
{
    CHECK(arena->owner != 0);
    CHECK(!arena->is_read_only);
    return lock_acquire(arena, &arena->globals->registry_lock, held) != LOCK_REFUSED; /* nothing to repair */
}

/* Requires the registry lock: its holder sees every published entry, so a topic is created once. */
static enum status create_topic(struct registry *registry, const char *name, uint32_t name_size, uint32_t *topic_index)
{
    struct arena *arena = registry->arena;
    uint64_t held;
    if (!registry_lock(arena, &held)) {
        return STATUS_BUSY;
    }
    enum status status = tables_extend(registry);
    if (status == STATUS_OK && !find_topic(registry, name, name_size, topic_index)) {
        *topic_index = registry_topic_count(arena);
        status = locked_create_topic(arena, name, name_size);
    }
    lock_release(&arena->globals->registry_lock, held);
    return status == STATUS_OK ? tables_extend(registry) : status;
}

static enum status create_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                                    uint32_t *partition_index)
{
    struct arena *arena = registry->arena;
    uint64_t held;
    if (!registry_lock(arena, &held)) {
        return STATUS_BUSY;
    }
    enum status status = tables_extend(registry);
    if (status == STATUS_OK && !find_partition(registry, topic_index, partition, partition_index)) {
        *partition_index = registry_partition_count(arena);
        status = locked_create_partition(arena, topic_index, partition);
    }
    lock_release(&arena->globals->registry_lock, held);
    return status == STATUS_OK ? tables_extend(registry) : status;
}

/* ---- the public steps ---- */

enum status registry_topic(struct registry *registry, const char *name, uint32_t name_size, uint32_t *topic_index)
{
    if (find_topic(registry, name, name_size, topic_index)) {
        return STATUS_OK;
    }
    if (!name_is_allowed(name, name_size)) {
        return STATUS_INVALID;
    }
    RETURN_IF_FAILED(tables_extend(registry));
    if (find_topic(registry, name, name_size, topic_index)) {
        return STATUS_OK;
    }
    return registry->arena->owner == 0 ? STATUS_DETACHED : create_topic(registry, name, name_size, topic_index);
}

enum status registry_partition(struct registry *registry, uint32_t topic_index, int32_t partition,
                               uint32_t *partition_index)
{
    if (find_partition(registry, topic_index, partition, partition_index)) {
        return STATUS_OK;
    }
    if (partition < 0 || topic_index >= registry_topic_count(registry->arena)) {
        return STATUS_INVALID;
    }
    RETURN_IF_FAILED(tables_extend(registry));
    if (find_partition(registry, topic_index, partition, partition_index)) {
        return STATUS_OK;
    }
    return registry->arena->owner == 0 ? STATUS_DETACHED
                                       : create_partition(registry, topic_index, partition, partition_index);
}

uint32_t registry_count_unknown_topics(const struct arena *arena, uint32_t *first)
{
    uint32_t unknown_count = 0;
    *first = 0;
    for (uint32_t i = registry_topic_count(arena); i-- > 0;) {
        if (load_acquire_u32(&arena->topics[i].partition_count) == 0) { /* V2 */
            *first = i;
            unknown_count++;
        }
    }
    return unknown_count;
}
