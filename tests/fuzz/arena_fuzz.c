/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile arenas. The input selects the damage to an arena that has batches, waiters and entries of every kind. Then
 * the arena is read as stat, inspect and check do, recovered as by the first process or joined as it is, and used.
 * Meanwhile, another process overwrites bytes, between two calls or between two steps of one call. With any bytes in
 * the file, no process crashes, hangs or touches a byte outside of it. Any status is accepted. Three more rules are
 * checked:
 *
 *   reading changes no byte · recovery leaves nothing to recover · an unknown extension region stays as it is
 *
 *   input   flags, number of events before the attach, entries of other living processes, a reserved byte;
 *           then events of 14 bytes: kind, how, place, value.
 *   event   If kind < KIND_WORK, damage: in the file before the attach, in the mapping after it. With HOW_AT_POINT it
 *           occurs at the nth later point of base/point.h. Otherwise, an operation of a process.
 *
 * Damage follows the layout. It changes words, indices and counts far more often than the bytes of records, and often
 * stores plausible values (limits, other indices, other states). The mutator changes whole events.
 */
#include "arena/attach.h"
#include "arena/completion.h"
#include "arena/counters.h"
#include "arena/durability.h"
#include "arena/extension.h"
#include "arena/process.h"
#include "arena/producer_id.h"
#include "arena/recovery.h"
#include "arena/registry.h"
#include "core/planting.h"
#include "fuzzing.h"
#include "producer/partitioner.h"
#include "randomness.h"
#include "sender/sender_half.h"

enum { SLOTS = 10, BATCH_SIZE = 512, ARENA_ROOM = 192 << 10 };
enum { OTHER_BOOT = 1, RIGHT_CHECKSUMS = 2, ONLY_READ = 4, NOT_ALONE = 8, ROOM_BEHIND = 16, DISK_FAILS = 32 };
enum { HEADER_SIZE = 4, EVENT_SIZE = 14, EVENTS_MAX = 70, KIND_WORK = 144, HOW_BIT = 0x80, HOW_AT_POINT = 0x40 };

/* Ignores a status, because any is right. */
static void whatever(enum status status)
{
    (void)status;
}

/* Set the checksum and the size, which results from the geometry and the regions, to their right values. */
static void superblock_make_right(uint8_t *image)
{
    struct superblock *superblock = (struct superblock *)(void *)image;
    struct layout other;
    if (geometry_validate(&superblock->geometry, NULL) == STATUS_OK) {
        layout_compute(&superblock->geometry, &other);
        superblock->arena_size = other.arena_size;
        uint32_t count = superblock->extension_count;
        const struct extension *last = &superblock->extensions[(count - 1) % EXTENSION_COUNT_MAX];
        if (count >= 1 && last->stride <= EXTENSION_STRIDE_MAX && last->count <= EXTENSION_ELEMENTS_MAX) {
            uint64_t end = last->ref + (uint64_t)last->stride * last->count;
            superblock->arena_size = (end + PAGE_SIZE_BYTES - 1) / PAGE_SIZE_BYTES * PAGE_SIZE_BYTES;
        }
    }
    size_t start = offsetof(struct superblock, layout_fingerprint);
    size_t used = superblock->options_size < OPTIONS_SIZE_MAX ? superblock->options_size : OPTIONS_SIZE_MAX;
    superblock->superblock_crc = crc32c_extend(0, image + start, offsetof(struct superblock, options) + used - start);
}

/* ---- the arena that is damaged ---- */

static uint8_t *sound_image;
static uint8_t *seen_image;
static struct layout layout;
static uint64_t image_size; /* of the layout and the extension regions after it */

enum { EXTENSION_BYTE = 0x5a, EXTENSION_STRIDE = 24 };

static void topics_plant(struct arena *arena)
{
    struct registry *registry;
    struct error error;
    EXPECT_STATUS(registry_open(arena, &registry, &error), STATUS_OK);
    for (uint32_t topic = 0; topic < 2; topic++) {
        uint32_t topic_index;
        uint32_t partition_index;
        const char *name = topic == 0 ? "flights" : "cargo";
        EXPECT_STATUS(registry_topic(registry, name, (uint32_t)strlen(name), &topic_index), STATUS_OK);
        EXPECT_STATUS(registry_partition(registry, topic_index, 0, &partition_index), STATUS_OK);
    }
    registry_close(registry);
}

/* Results, an open batch with a sync record, a sealed one, a chain, a quarantined one, a dead owner's slot, and a
 * waiter's grant. */
static void everything_plant(struct arena *arena)
{
    struct ledger *ledger = calloc(1, sizeof *ledger);
    struct accumulator *sender = sender_opened(arena);
    uint32_t slot_index;
    topics_plant(arena);
    ready_batch_plant(arena, 3);
    deliver_everything(sender, ledger);
    accumulator_close(sender);
    free(ledger);
    chain_plant(arena);
    ready_batch_plant(arena, 4);
    slot_index = ready_batch_plant(arena, 2);
    uint64_t word = slot_word_at(arena, slot_index);
    store_release_u64(&arena->slots[slot_index].word, slot_word_with_state(word, SLOT_BAD));
    batch_plant(arena, 3);
    EXPECT_STATUS(durability_step(arena, durability_ticket(arena)), STATUS_OK);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_OK);
    struct buffer_wait wait;
    EXPECT_STATUS(buffer_pool_enqueue(arena, NO_PARTITION, 1, &wait, NULL), STATUS_OK);
}

/* A small geometry, so that an execution is short. Each table still has more rows than the image uses. */
static struct geometry geometry_small(void)
{
    struct geometry wanted = geometry_of(SLOTS, BATCH_SIZE);
    wanted.process_slot_count_max = SLOTS - 2;
    wanted.durability = DURABILITY_SYNC;
    wanted.process_count = 6;
    wanted.waiter_count = 4;
    wanted.partition_count = 6;
    wanted.name_heap_size = 320;
    wanted.completion_count = 32;
    return wanted;
}

/* A region of a feature that this build does not know and need not know. */
static void extension_plant(uint8_t *image)
{
    struct superblock *superblock = (struct superblock *)(void *)image;
    superblock->features_compatible = UINT64_C(1) << 62;
    superblock->extension_count = 1;
    superblock->extensions[0] =
        (struct extension){.kind = 77, .ref = layout.arena_size, .stride = EXTENSION_STRIDE, .count = SLOTS};
    memset(image + layout.arena_size, EXTENSION_BYTE, image_size - layout.arena_size);
    superblock_make_right(image);
}

static void sound_image_make(void)
{
    memory_system.file = aligned_alloc(PAGE_SIZE_BYTES, ARENA_ROOM);
    memset(memory_system.file, 0, ARENA_ROOM);
    memory_system.file_capacity = ARENA_ROOM;
    memory_system.is_alone = true;
    struct arena *arena = arena_created(0, geometry_small());
    everything_plant(arena);
    layout = arena->layout;
    image_size = layout.arena_size + PAGE_SIZE_BYTES;
    sound_image = aligned_alloc(PAGE_SIZE_BYTES, image_size);
    seen_image = malloc(image_size);
    memcpy(sound_image, arena->base, layout.arena_size);
    extension_plant(sound_image);
    arena_detach(arena);
    if (testing_exit_code() != 0) {
        exit(testing_exit_code());
    }
}

/* ---- damage ---- */

struct target_range {
    uint64_t start;
    uint64_t end;
    uint32_t step; /* damage begins at a multiple of this many bytes */
};

/* Slots and globals are listed several times, so that they are damaged more often. */
static struct target_range target_of(uint32_t which)
{
    uint64_t slots_end = layout.slot_headers + sizeof(struct slot_header) * (uint64_t)SLOTS;
    const struct target_range ranges[] = {
        {layout.slot_headers, slots_end, 8},
        {layout.slot_headers, slots_end, 4},
        {layout.slot_headers, slots_end, sizeof(struct slot_header)}, /* the words themselves */
        {GLOBALS_REF, GLOBALS_REF + sizeof(struct globals), 8},
        {GLOBALS_REF, GLOBALS_REF + sizeof(struct globals), 4},
        {layout.partitions, layout.names, 8},
        {layout.partitions, layout.names, 4},
        {layout.topics, layout.partitions, 4},
        {layout.names, layout.free_hints, 1},
        {layout.waiters, layout.topics, 4},
        {layout.processes, layout.waiters, 4},
        {layout.free_hints, layout.slot_headers, 8},
        {layout.completions, layout.counters, 4},
        {layout.counters, layout.sync_records, 4},
        {layout.sync_records, layout.slot_data, 4},
        {layout.sync_records + offsetof(struct sync_record, count), layout.slot_data, SECTOR_SIZE},
        {layout.sync_records + offsetof(struct sync_record, size), layout.slot_data, SECTOR_SIZE},
        {layout.slot_data, layout.arena_size, 1},
        {SUPERBLOCK_REF, offsetof(struct superblock, options), 4},
        {offsetof(struct superblock, features_compatible), offsetof(struct superblock, geometry), 8},
        {offsetof(struct superblock, extensions), offsetof(struct superblock, extensions) + 96, 4},
        {GLOBALS_REF + offsetof(struct globals, extension_epoch), GLOBALS_REF + sizeof(struct globals), 8},
    };
    return ranges[which % COUNT_OF(ranges)];
}

/* Returns a value that a field of the arena could have, made from `value`. */
static uint64_t plausible(uint8_t how, uint64_t value)
{
    static const uint64_t edges[] = {0, 1, SLOTS - 1, SLOTS, SLOTS + 1, BATCH_SIZE, BATCH_SIZE + 1, RECORDS_START,
                                     UINT32_MAX, UINT64_MAX, INT64_MAX, BATCH_SIZE_MAX, SLOT_COUNT_MAX};
    switch (how % 5) {
    case 0:
        return edges[value % COUNT_OF(edges)];
    case 1: /* a filled slot */
        return slot_word((enum slot_state)(value % 8), (uint32_t)(value >> 8 & 3),
                         slot_payload_filled((uint32_t)(value >> 16 & 15), (uint32_t)(value >> 24 & 0xfff)));
    case 2: /* a piece, a grant or an owner */
        return slot_word((enum slot_state)(value % 8), (uint32_t)(value >> 8 & 3),
                         slot_payload_cont((uint32_t)(value >> 16 & 15), (uint32_t)(value >> 24 & 3)));
    case 3:
        return value % (2 * SLOTS);
    default:
        return value;
    }
}

struct event {
    uint8_t kind;
    uint8_t how;
    uint32_t place;
    uint64_t value;
};

static struct event event_read(const uint8_t *bytes)
{
    struct event event = {.kind = bytes[0], .how = bytes[1]};
    memcpy(&event.place, bytes + 2, sizeof event.place);
    memcpy(&event.value, bytes + 6, sizeof event.value);
    return event;
}

static void damage(uint8_t *image, const struct event *event)
{
    struct target_range target_range = target_of(event->kind);
    uint64_t value = event->value;
    uint32_t size = target_range.step >= 8 ? 8 : target_range.step;
    uint64_t count = (target_range.end - target_range.start) / target_range.step;
    uint8_t *target = image + target_range.start + event->place % count * target_range.step;
    if (event->how & HOW_BIT) {
        target[value % size] ^= (uint8_t)(1u << (value >> 8 & 7)); /* one bit */
    } else {
        value = plausible(event->how, value);
        memcpy(target, &value, size);
    }
}

/* Make damaged batches look as if they were appended: with matching counts, sizes and checksums. */
static void batches_make_right(uint8_t *image)
{
    struct slot_header *slots = (struct slot_header *)(void *)(image + layout.slot_headers);
    for (uint32_t i = 0; i < SLOTS; i++) {
        uint64_t word = load_relaxed_u64(&slots[i].word);
        uint32_t size = slot_word_size(word);
        if (size > RECORDS_START && size <= BATCH_SIZE) {
            const uint8_t *bytes = image + layout.slot_data + (uint64_t)PAGE_SIZE_BYTES * i;
            slots[i].meta[slot_word_count(word) & 1].records_crc =
                crc32c_extend(0, bytes + RECORDS_START, size - RECORDS_START);
        }
    }
}

static void sync_records_make_right(uint8_t *image)
{
    struct sync_record *records = (struct sync_record *)(void *)(image + layout.sync_records);
    size_t start = offsetof(struct sync_record, partition_index);
    size_t size = offsetof(struct sync_record, end) - start;
    for (uint32_t i = 0; i < 2 * SLOTS; i++) {
        records[i].own_crc = crc32c_extend(0, (const uint8_t *)&records[i] + start, size);
    }
}

static bool event_is_damage(const struct event *event)
{
    return event->kind < KIND_WORK;
}

/* ---- another process that overwrites bytes ---- */

static struct event armed;
static uint32_t points_before;
static uint8_t *mapping;

static void scribble_at_point(const char *name)
{
    (void)name;
    if (points_before-- == 0) {
        point_hook = NULL;
        damage(mapping, &armed);
    }
}

/* The arena may have another layout than the sound one, so this changes only bytes that are mapped. */
static void scribble(struct arena *arena, const struct event *event)
{
    if (arena->size < image_size) {
        return;
    }
    mapping = arena->base;
    if (event->how & HOW_AT_POINT) {
        armed = *event;
        points_before = event->place >> 24;
        point_hook = scribble_at_point;
    } else {
        damage(mapping, event);
    }
}

/* ---- reading ---- */

static void arena_verify(const struct arena *arena)
{
    struct finding findings[4];
    for (int depth = VERIFY_QUICK; depth <= VERIFY_DEEP; depth++) {
        const struct verify_options options = {.depth = (enum verify_depth)depth, .is_idle = (depth & 1) == 0};
        (void)verify(arena, &options, findings, COUNT_OF(findings));
    }
}

static void topics_read(const struct arena *arena)
{
    for (uint32_t i = 0; i < registry_topic_count(arena); i++) {
        const char *name;
        uint32_t size;
        if (registry_topic_name(arena, i, &name, &size) == STATUS_OK) {
            (void)crc32c_extend(0, name, size); /* every byte is readable */
        }
    }
}

static void sink_name_read(const struct arena *arena)
{
    char name[SINK_NAME_SIZE];
    if (process_sink_name(arena, name)) {
        (void)crc32c_extend(0, name, strlen(name)); /* the string has an end */
    }
}

static void results_read(const struct arena *arena)
{
    struct completion completion;
    for (uint32_t i = 0; i < arena->geometry.slot_count && i < 2 * SLOTS; i++) {
        const struct record_token token = {.slot_index = i, .seq = i};
        (void)slot_chain_walk(arena, i, arena->chain_scratch, arena->chain_slot_count_max);
        whatever(completion_find(arena, &token, &completion));
    }
    for (uint64_t number = 0; number < arena->geometry.completion_count && number < 64; number++) {
        whatever(completion_at(arena, number, &completion));
    }
}

/* Read the arena as stat and inspect do. */
static void arena_read(struct arena *arena)
{
    struct recovery_report report;
    struct error error;
    uint32_t counts[SLOT_BAD + 1];
    arena_verify(arena);
    verify_count_states(arena, counts);
    whatever(recovery_plan(arena, &report, &error));
    topics_read(arena);
    results_read(arena);
    (void)process_sender_is_alive(arena);
    sink_name_read(arena);
}

/* The mapping is writable here. A comparison of the bytes shows that the reader changed nothing. */
static void arena_read_from_outside(void)
{
    struct arena *arena;
    struct error error;
    if (arena_open_read_only(3, 4, &arena, &error) == STATUS_OK) {
        size_t size = arena->size < image_size ? arena->size : image_size;
        memcpy(seen_image, arena->base, size);
        arena_read(arena);
        if (memcmp(seen_image, arena->base, size) != 0) {
            fuzz_fail("reading an arena changed it");
        }
        arena_detach(arena);
    }
}

/* ---- working ---- */

enum { IN_FLIGHT_MAX = 32 };

struct worker {
    struct arena *arena;
    struct accumulator *accumulator;
    struct registry *registry;
    struct drained_batch in_flight[IN_FLIGHT_MAX];
    uint32_t in_flight_count;
    struct wake_set wakes;
};

static bool worker_begin(struct worker *worker)
{
    struct error error;
    if (arena_attach(3, 4, &worker->arena, &error) != STATUS_OK) {
        return false;
    }
    if (worker->arena->was_recovered && point_hook == NULL) {
        struct recovery_report report;
        if (recovery_plan(worker->arena, &report, &error) != STATUS_OK ||
            report.freed_count + report.sealed_count + report.cut_count + report.quarantined_count > 0) {
            fuzz_fail("recovery left something to recover");
        }
    }
    if (accumulator_open(worker->arena, &worker->accumulator, &error) != STATUS_OK ||
        registry_open(worker->arena, &worker->registry, &error) != STATUS_OK) {
        fuzz_fail("no memory");
    }
    worker->in_flight_count = 0;
    return true;
}

static void worker_end(struct worker *worker, bool is_death)
{
    point_hook = NULL;
    if (is_death) { /* private memory is freed, and the arena is unchanged */
        sender_half_free(worker->accumulator->sender);
        worker->accumulator->sender = NULL;
        worker->arena->owner = 0;
    }
    accumulator_close(worker->accumulator);
    registry_close(worker->registry);
    arena_detach(worker->arena);
}

static void batch_read(const struct arena *arena, const struct drained_batch *batch)
{
    uint32_t count = slot_chain_walk(arena, batch->slot_index, arena->chain_scratch, arena->chain_slot_count_max);
    uint32_t rest = batch->size;
    for (uint32_t i = 0; i < count && rest > 0; i++) {
        uint32_t used = rest < arena->geometry.batch_size ? rest : arena->geometry.batch_size;
        (void)crc32c_extend(0, arena_slot_data(arena, arena->chain_scratch[i]), used);
        rest -= used;
    }
}

/* A caller may pass only existing partition indices, because the registry returns no others. */
static uint32_t partition_of(const struct worker *worker, const struct event *event)
{
    return event->place % worker->arena->geometry.partition_count;
}

static const uint8_t value_bytes[8192];

static void work_append(struct worker *worker, const struct event *event)
{
    struct append_result result;
    const struct record record = {.key_size = -1,
                                  .value = value_bytes,
                                  .value_size = (int32_t)(event->value % (BATCH_SIZE + 100)),
                                  .timestamp_ms = (int64_t)(event->value >> 16 & 0xffff)};
    whatever(append_record(worker->accumulator, partition_of(worker, event), record, &result));
}

static void work_append_waiting(struct worker *worker, const struct event *event)
{
    struct arena *arena = worker->arena;
    struct append_result result;
    struct buffer_wait wait;
    uint32_t slots[64];
    struct measured_record one = {.record = record_of(value_bytes, (uint32_t)(event->value % 3000), 1)};
    if (accumulator_measure(worker->accumulator, &one.record, &one.size) != STATUS_OK ||
        accumulator_append(worker->accumulator, partition_of(worker, event), &one, 1, NULL, &result) !=
            STATUS_EXHAUSTED ||
        result.need > COUNT_OF(slots) ||
        buffer_pool_enqueue(arena, partition_of(worker, event), result.need, &wait, &worker->wakes) != STATUS_OK) {
        return;
    }
    for (uint32_t i = 0; i < 3 && buffer_pool_poll(arena, &wait) == STATUS_EXHAUSTED; i++) {
        buffer_pool_wait_on(arena, &wait, &worker->wakes);
    }
    struct reservation reservation = {.slots = slots, .count = result.need};
    if (buffer_pool_leave(arena, &wait, slots, &worker->wakes) == STATUS_OK) {
        whatever(accumulator_append(worker->accumulator, partition_of(worker, event), &one, 1, &reservation, &result));
        buffer_pool_return(arena, reservation.slots, reservation.count, &worker->wakes);
    }
}

static void work_drain(struct worker *worker, const struct event *event)
{
    struct error error;
    uint32_t partitions[IN_FLIGHT_MAX];
    uint32_t seen;
    uint64_t next_check_ns;
    struct accumulator *accumulator = worker->accumulator;
    if (accumulator->sender == NULL && accumulator_become_sender(accumulator, &error) != STATUS_OK) {
        return;
    }
    sender_publish_delivery_timeout(accumulator->sender, event->value, (event->how & 2) != 0);
    sender_run_delivery_clock(accumulator->sender, event->value);
    const struct ready_options ready = {.now_ns = arena_now_ns(worker->arena),
                                        .linger_ns = event->value % 1000000,
                                        .in_flight_max = 1 + event->place % 5,
                                        .is_everything_ready = (event->how & 1) == 0};
    const struct drain_options drain = {
        .now_ns = ready.now_ns, .size_max = UINT32_MAX, .in_flight_max = ready.in_flight_max};
    uint32_t room = IN_FLIGHT_MAX - worker->in_flight_count;
    uint32_t count = sender_ready(accumulator->sender, &ready, partitions, room, &next_check_ns);
    struct drained_batch *batches = &worker->in_flight[worker->in_flight_count];
    uint32_t drained = sender_drain(accumulator->sender, &drain, partitions, count, batches, &seen);
    for (uint32_t i = 0; i < drained; i++) {
        batch_read(worker->arena, &batches[i]);
    }
    worker->in_flight_count += drained;
}

static struct batch_outcome outcome_of(const struct event *event)
{
    return (struct batch_outcome){.result = 1 + (enum batch_result)(event->value % 2),
                                  .error_code = (int32_t)(event->value >> 8 & 0xff),
                                  .base_offset = (int64_t)(event->value >> 16),
                                  .log_append_time_ms = -1};
}

/* The sender's own calls are valid: it completes one of the batches that are in flight. */
static void work_settle(struct worker *worker, const struct event *event)
{
    struct accumulator *accumulator = worker->accumulator;
    const struct batch_outcome outcome = outcome_of(event);
    if (worker->in_flight_count == 0 || accumulator->sender == NULL) {
        return;
    }
    uint32_t which = event->place % worker->in_flight_count;
    const struct drained_batch batch = worker->in_flight[which];
    uint32_t rest = batch.record_count > batch.acked_record_count ? batch.record_count - batch.acked_record_count : 1;
    switch (event->how % 8) {
    case 0:
        whatever(accumulator_requeue(accumulator, batch.slot_index, batch.seq, event->value % 3));
        break;
    case 1:
        whatever(sender_quarantine(accumulator->sender, batch.slot_index, batch.seq));
        break;
    case 2:
        whatever(accumulator_complete_part(accumulator, batch.slot_index, batch.seq,
                                           1 + (uint32_t)(event->value >> 32) % rest, &outcome, &worker->wakes));
        return;
    default:
        whatever(accumulator_complete(accumulator, batch.slot_index, batch.seq, &outcome, &worker->wakes));
        break;
    }
    worker->in_flight[which] = worker->in_flight[--worker->in_flight_count];
}

static void work_sender_duties(struct worker *worker, const struct event *event)
{
    struct accumulator *accumulator = worker->accumulator;
    uint64_t next_expiry_ns;
    struct sender_statistics statistics;
    if (accumulator->sender == NULL) {
        return;
    }
    switch (event->how % 8) {
    case 0:
        sender_maintain(accumulator->sender, &worker->wakes);
        break;
    case 1:
        (void)sender_expire(accumulator->sender, arena_now_ns(worker->arena), event->value % 10000000, &next_expiry_ns,
                            &worker->wakes);
        break;
    case 2:
        (void)sender_abort(accumulator->sender, (event->value & 1) != 0, &worker->wakes);
        break;
    case 3:
        accumulator_set_producer_id(accumulator, (int64_t)(event->value % 8) - 1, (int16_t)(event->value >> 8 & 3));
        break;
    case 4:
        sender_resequence_all(accumulator->sender);
        break;
    case 5:
        sender_set_available(accumulator->sender, partition_of(worker, event), (event->value & 1) != 0);
        sender_mute(accumulator->sender, partition_of(worker, event), (event->value & 2) != 0);
        break;
    case 6:
        sender_end_backoff(accumulator->sender, partition_of(worker, event));
        sender_resequence(accumulator->sender, partition_of(worker, event));
        break;
    default:
        sender_publish_queues(accumulator->sender);
        sender_statistics_read(accumulator->sender, &statistics);
        break;
    }
}

static void work_flush(struct worker *worker, const struct event *event)
{
    struct flush_ticket ticket;
    (void)event;
    if (accumulator_flush_begin(worker->accumulator, &ticket) == STATUS_OK) {
        (void)accumulator_flush_remaining(worker->accumulator, &ticket);
        (void)accumulator_flush_record_count(worker->accumulator, &ticket);
        accumulator_flush_end(&ticket);
    }
}

static void work_repair(struct worker *worker, const struct event *event)
{
    uint32_t slot_index;
    if (event->how & 1) {
        whatever(buffer_pool_try_allocate(worker->arena, &slot_index));
    }
    buffer_pool_repair(worker->arena);
}

static void work_read(struct worker *worker, const struct event *event)
{
    struct completion completion;
    const struct record_token token = {.seq = event->value >> 32,
                                       .partition_index = event->place,
                                       .slot_index = (uint32_t)(event->value & 31),
                                       .record_index = (uint32_t)(event->value >> 8 & 3)};
    arena_read(worker->arena);
    whatever(completion_find(worker->arena, &token, &completion));
}

static void work_sync(struct worker *worker, const struct event *event)
{
    memory_system.os_error = (event->how & 3) == 0 ? (int)(event->value % 40) : 0;
    if (worker->arena->geometry.durability == DURABILITY_PROCESS) {
        return;
    }
    if (event->how & 4) {
        whatever(durability_force_if_due(worker->arena, event->value % 1000000));
    } else {
        whatever(durability_step(worker->arena, durability_ticket(worker->arena)));
    }
}

static void work_name(struct worker *worker, const struct event *event)
{
    static const char names[] = "flightscargo-and_more.of.them";
    uint32_t topic_index;
    uint32_t partition_index;
    uint32_t start = event->place % 12;
    if (registry_topic(worker->registry, names + start, 1 + (uint32_t)(event->value % 12), &topic_index) ==
        STATUS_OK) {
        whatever(registry_partition(worker->registry, topic_index, (int32_t)(event->value >> 8 & 7), &partition_index));
        (void)registry_find_partition(worker->registry, topic_index, 0, &partition_index);
    }
}

static void work_stick(struct worker *worker, const struct event *event)
{
    struct partitioner partitioner = {.arena = worker->arena,
                                      .registry = worker->registry,
                                      .random_state = event->value,
                                      .is_adaptive = (event->how & 1) != 0};
    struct sticky sticky = {.topic_index = event->place % worker->arena->geometry.topic_count};
    uint32_t count = topic_partition_count(worker->arena, sticky.topic_index);
    if (count > 0) {
        (void)partitioner_sticky(&partitioner, &sticky, count);
        (void)sticky_stays(worker->arena, &sticky, (event->how & 2) != 0);
    }
}

static void (*const works[])(struct worker *worker, const struct event *event) = {
    work_append, work_append, work_append, work_append_waiting, work_drain, work_drain,  work_settle, work_settle,
    work_sender_duties, work_flush, work_repair, work_read, work_sync, work_name, work_stick,
};

/* Returns false if no process is attached any more, because one died and the arena cannot be attached to again. */
static bool work(struct worker *worker, const struct event *event)
{
    uint32_t which = (event->kind - KIND_WORK) % (COUNT_OF(works) + 1);
    if (which == COUNT_OF(works)) {
        worker_end(worker, (event->how & 1) != 0);
        memory_system.is_alone = (event->how & 2) != 0;
        return worker_begin(worker);
    }
    works[which](worker, event);
    return true;
}

/* ---- one input ---- */

static void file_write(const uint8_t *data, size_t before_attach)
{
    uint8_t *image = memory_system.file;
    memory_system.file_size = image_size;
    memcpy(image, sound_image, image_size);
    for (size_t i = 0; i < before_attach; i++) {
        struct event event = event_read(data + HEADER_SIZE + i * EVENT_SIZE);
        if (event_is_damage(&event)) {
            damage(image, &event);
        }
    }
    if (data[0] & OTHER_BOOT) {
        image[GLOBALS_REF + offsetof(struct globals, boot_id)] ^= 1;
    }
    if (data[0] & RIGHT_CHECKSUMS) {
        batches_make_right(image);
        superblock_make_right(image);
        sync_records_make_right(image);
    }
    if (data[0] & ROOM_BEHIND) { /* room after the arena, for a superblock that claims a larger size */
        memset(image + image_size, data[3], ARENA_ROOM - image_size);
        memory_system.file_size = ARENA_ROOM;
    }
}

static void events_happen(const uint8_t *data, size_t first, size_t count)
{
    struct worker worker = {0};
    bool is_attached = worker_begin(&worker);
    for (size_t i = first; i < count && is_attached; i++) {
        struct event event = event_read(data + HEADER_SIZE + i * EVENT_SIZE);
        if (event_is_damage(&event)) {
            scribble(worker.arena, &event);
        } else {
            is_attached = work(&worker, &event);
        }
    }
    bool is_behind = is_attached && worker.arena->layout.arena_size == layout.arena_size;
    if (is_attached) {
        worker_end(&worker, false);
    }
    for (uint64_t i = layout.arena_size; is_behind && i < image_size; i++) {
        if (memory_system.file[i] != EXTENSION_BYTE) {
            fuzz_fail("a region of an unknown feature was written to");
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (sound_image == NULL) {
        sound_image_make();
    }
    if (size < HEADER_SIZE || size > FUZZ_SIZE_MAX) {
        return 0;
    }
    size_t count = (size - HEADER_SIZE) / EVENT_SIZE;
    size_t before_attach = data[1] < count ? data[1] : count;
    memory_system.now_ns = 5000000000;
    memory_system.sleep_count = 0;
    memory_system.os_error = 0;
    memory_system.is_alone = true;
    memory_system.living = 0;
    file_write(data, before_attach);
    arena_read_from_outside();
    if (!(data[0] & ONLY_READ)) {
        memory_system.is_alone = (data[0] & NOT_ALONE) == 0;
        memory_system.living = memory_system.is_alone ? 0 : data[2] & 31;
        events_happen(data, before_attach, count);
    }
    return 0;
}

/* ---- mutation: whole events ---- */

static void event_make(struct randomness *randomness, uint8_t *event)
{
    random_fill(randomness, event, EVENT_SIZE);
    if (random_below(randomness, 2) == 0) {
        event[0] = (uint8_t)(KIND_WORK + random_below(randomness, 256 - KIND_WORK));
    }
    if (random_below(randomness, 2) == 0) { /* small numbers */
        uint64_t small = random_below(randomness, 64);
        memcpy(event + 6, &small, sizeof small);
    }
}

static size_t events_mutate(struct randomness *randomness, uint8_t *data, size_t count, size_t count_max)
{
    size_t where = count == 0 ? 0 : (size_t)random_below(randomness, count);
    uint8_t *event = data + HEADER_SIZE + where * EVENT_SIZE;
    size_t behind = (count - where) * EVENT_SIZE;
    switch (random_below(randomness, 6)) {
    case 0: /* a new one */
    case 1: /* the same event again */
        if (count < count_max) {
            memmove(event + EVENT_SIZE, event, behind);
            if (count == 0 || random_below(randomness, 2) == 0) {
                event_make(randomness, event);
            }
            return count + 1;
        }
        return count;
    case 2:
        if (count > 1) {
            memmove(event, event + EVENT_SIZE, behind - EVENT_SIZE);
            return count - 1;
        }
        return count;
    case 3:
        if (count > 0) {
            event_make(randomness, event);
        }
        return count;
    default:
        if (count > 0) {
            (void)LLVMFuzzerMutate(event, EVENT_SIZE, EVENT_SIZE);
        }
        return count;
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t size_max, unsigned int seed)
{
    struct randomness randomness = {.state = seed};
    if (size < HEADER_SIZE) {
        random_fill(&randomness, data, HEADER_SIZE);
        size = HEADER_SIZE;
    }
    size_t count_max = size_max < HEADER_SIZE + EVENT_SIZE ? 0 : (size_max - HEADER_SIZE) / EVENT_SIZE;
    count_max = count_max < EVENTS_MAX ? count_max : EVENTS_MAX;
    size_t count = (size - HEADER_SIZE) / EVENT_SIZE;
    count = count < count_max ? count : count_max;
    if (random_below(&randomness, 8) == 0) {
        data[0] ^= (uint8_t)(1u << random_below(&randomness, 8));
    }
    if (random_below(&randomness, 8) == 0) {
        data[1] = (uint8_t)random_below(&randomness, 8);
        data[2] = (uint8_t)random_below(&randomness, 32);
    }
    return HEADER_SIZE + EVENT_SIZE * events_mutate(&randomness, data, count, count_max);
}
