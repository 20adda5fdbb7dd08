/* SPDX-License-Identifier: Apache-2.0
 *
 * Hostile arenas: an arena with something of everything in it is damaged where an input says, then looked at as stat,
 * inspect and check do, recovered as the first to attach does, and worked in. Whatever is in the file, nobody crashes,
 * hangs or touches a byte outside of it; wrong statuses are right answers.
 *
 *   input   flags, then damages of 14 bytes: region, place, how, value
 *           flags  1: another boot · 2: checksums of superblock and sync records are made right again · 4: nothing is
 *                  worked, only read
 *
 * Damage knows the layout: it hits words, indices and counts far more often than the bytes of records, and stores what
 * such fields could hold (limits, other indices, other states), not only noise.
 *
 * The entry is the one of libFuzzer and AFL++. `main` is a driver without either:
 *
 *   arena_fuzz SECONDS SEED            inputs SEED, SEED + 1, ... ; answers how many
 *   arena_fuzz 0 SEED                  this one input
 *
 * An input that kills the process is named by its number on standard error.
 */
#include <inttypes.h>
#include <time.h>

#include "shm/planting.h"
#include "randomness.h"
#include "shm/attach.h"
#include "shm/completion.h"
#include "shm/counters.h"
#include "shm/durability.h"
#include "shm/recovery.h"
#include "shm/registry.h"

enum { SLOTS = 12, BATCH_SIZE = 512, DAMAGE_SIZE = 14, DAMAGES_MAX = 12, ROUNDS_MAX = 4, HANG_SECONDS = 60 };
enum { OTHER_BOOT = 1, RIGHT_CHECKSUMS = 2, ONLY_READ = 4 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A right answer may be any. */
static void whatever(enum status status)
{
    (void)status;
}

/* ---- the arena that is damaged ---- */

static uint8_t *sound_image;
static struct layout layout;
static struct geometry geometry;
static int file = -1;

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

static int force_nothing(int descriptor)
{
    (void)descriptor;
    return 0;
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
    arena->force = force_nothing;
    EXPECT_STATUS(durability_step(arena, durability_ticket(arena)), STATUS_OK);
    EXPECT_STATUS(buffer_pool_try_allocate(arena, &slot_index), STATUS_OK);
    struct buffer_wait wait;
    EXPECT_STATUS(buffer_pool_enqueue(arena, 1, &wait, NULL), STATUS_OK);
}

static void sound_image_make(void)
{
    struct geometry wanted = geometry_of(SLOTS, BATCH_SIZE);
    wanted.process_slot_count_max = SLOTS - 2;
    wanted.durability = DURABILITY_SYNC;
    file = arena_file_new();
    struct arena *arena = arena_created(file, wanted);
    everything_plant(arena);
    layout = arena->layout;
    geometry = arena->geometry;
    sound_image = malloc(layout.arena_size);
    memcpy(sound_image, arena->base, layout.arena_size);
    arena_detach(arena);
    if (testing_exit_code() != 0) {
        exit(testing_exit_code());
    }
}

/* ---- damage ---- */

struct region {
    uint64_t start;
    uint64_t end;
    uint32_t step; /* damage begins at a multiple of it */
};

/* Slots and globals are named several times: that is how often they are hit. */
static struct region region_of(uint32_t which)
{
    uint64_t slots_end = layout.slot_headers + sizeof(struct slot_header) * (uint64_t)SLOTS;
    const struct region regions[] = {
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
    };
    return regions[which % COUNT_OF(regions)];
}

/* What a field of the arena could hold, from `value`. */
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

static void damage(uint8_t *image, const uint8_t *bytes)
{
    uint32_t place;
    uint64_t value;
    struct region region = region_of(bytes[0]);
    memcpy(&place, bytes + 1, sizeof place);
    memcpy(&value, bytes + 6, sizeof value);
    uint32_t size = region.step >= 8 ? 8 : region.step;
    uint64_t count = (region.end - region.start) / region.step;
    uint8_t *target = image + region.start + place % count * region.step;
    if (bytes[5] & 0x80) {
        target[value % size] ^= (uint8_t)(1u << (value >> 8 & 7)); /* one bit */
    } else {
        value = plausible(bytes[5], value);
        memcpy(target, &value, size);
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

static void superblock_make_right(uint8_t *image)
{
    struct superblock *superblock = (struct superblock *)(void *)image;
    size_t start = offsetof(struct superblock, layout_fingerprint);
    size_t used = superblock->options_size < OPTIONS_SIZE_MAX ? superblock->options_size : OPTIONS_SIZE_MAX;
    superblock->superblock_crc = crc32c_extend(0, image + start, offsetof(struct superblock, options) + used - start);
}

static void image_write(const uint8_t *data, size_t size)
{
    static uint8_t *image;
    if (image == NULL) {
        image = aligned_alloc(SECTOR_SIZE, layout.arena_size);
    }
    memcpy(image, sound_image, layout.arena_size);
    for (size_t at = 1; at + DAMAGE_SIZE <= size; at += DAMAGE_SIZE) {
        damage(image, data + at);
    }
    if (data[0] & OTHER_BOOT) {
        image[GLOBALS_REF + offsetof(struct globals, boot_id)] ^= 1;
    }
    if (data[0] & RIGHT_CHECKSUMS) {
        superblock_make_right(image);
        sync_records_make_right(image);
    }
    if (pwrite(file, image, layout.arena_size, 0) != (ssize_t)layout.arena_size) {
        abort();
    }
}

/* ---- what is done with it ---- */

static void arena_verify(const struct arena *arena)
{
    struct finding findings[4];
    for (int depth = VERIFY_QUICK; depth <= VERIFY_DEEP; depth++) {
        const struct verify_options options = {.depth = (enum verify_depth)depth, .is_idle = (depth & 1) == 0};
        (void)verify(arena, &options, findings, COUNT_OF(findings));
    }
}

/* As stat and inspect do. */
static void arena_look(struct arena *arena)
{
    struct recovery_report report;
    struct error error;
    struct completion completion;
    arena_verify(arena);
    whatever(recovery_plan(arena, &report, &error));
    for (uint32_t i = 0; i < registry_topic_count(arena); i++) {
        const char *name;
        uint32_t size;
        if (registry_topic_name(arena, i, &name, &size) == STATUS_OK) {
            (void)crc32c_extend(0, name, size); /* every byte is readable */
        }
    }
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        const struct record_token token = {.slot_index = i, .seq = i};
        (void)slot_chain_walk(arena, i, arena->chain_scratch, arena->chain_slot_count_max);
        whatever(completion_find(arena, &token, &completion));
    }
    for (uint64_t number = 0; number < arena->geometry.completion_count && number < 64; number++) {
        whatever(completion_at(arena, number, &completion));
    }
}

static void batch_read(const struct arena *arena, const struct drained_batch *batch)
{
    uint32_t count =
        slot_chain_walk(arena, batch->slot_index, arena->chain_scratch, arena->chain_slot_count_max);
    uint32_t rest = batch->size;
    for (uint32_t i = 0; i < count && rest > 0; i++) {
        uint32_t used = rest < arena->geometry.batch_size ? rest : arena->geometry.batch_size;
        (void)crc32c_extend(0, arena_slot_data(arena, arena->chain_scratch[i]), used);
        rest -= used;
    }
}

static void everything_deliver(struct accumulator *sender)
{
    struct drained_batch batches[64];
    struct wake_set wakes = {0};
    for (int round = 0; round < ROUNDS_MAX; round++) {
        uint32_t count = drain_round(sender, 5, batches);
        for (uint32_t i = 0; i < count; i++) {
            batch_read(sender->arena, &batches[i]);
            uint32_t slot_index = batches[i].slot_index;
            uint64_t seq = batches[i].seq;
            whatever(round == 0 ? accumulator_requeue(sender, slot_index, seq, 0)
                                : accumulator_complete(sender, slot_index, seq, &success, &wakes));
        }
    }
    accumulator_maintain(sender, &wakes);
    accumulator_publish_queues(sender);
    (void)accumulator_abort(sender, true, &wakes);
}

static void arena_work(struct arena *arena)
{
    struct error error;
    struct accumulator *accumulator;
    struct flush_ticket ticket;
    if (accumulator_open(arena, &accumulator, &error) != STATUS_OK) {
        return;
    }
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t partition_index = i % arena->geometry.partition_count;
        whatever(append_number(accumulator, partition_index, i));
    }
    if (accumulator_flush_begin(accumulator, &ticket) == STATUS_OK) {
        (void)accumulator_flush_remaining(accumulator, &ticket);
        accumulator_flush_end(&ticket);
    }
    if (accumulator_become_sender(accumulator, &error) == STATUS_OK) {
        everything_deliver(accumulator);
    }
    accumulator_close(accumulator);
}

/* ---- one input ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena *arena;
    struct error error;
    if (sound_image == NULL) {
        sound_image_make();
    }
    if (size == 0 || size > 1 + DAMAGES_MAX * DAMAGE_SIZE) {
        return 0;
    }
    image_write(data, size);
    if (arena_open_read_only(file_opened_again(file), file_opened_again(file), &arena, &error) == STATUS_OK) {
        arena_look(arena);
        arena_detach(arena);
    }
    for (int again = 0; again < 2 && !(data[0] & ONLY_READ); again++) {
        if (arena_attach(file_opened_again(file), file_opened_again(file), &arena, &error) == STATUS_OK) {
            arena_look(arena);
            arena_work(arena);
            arena_verify(arena);
            arena_detach(arena);
        }
    }
    return 0;
}

/* ---- a driver ---- */

#ifndef FUZZER_HAS_MAIN
static uint64_t current_input;

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void current_say(void)
{
    fprintf(stderr, "input %" PRIu64 "\n", current_input);
}

static void hang_say(int signal)
{
    (void)signal;
    fprintf(stderr, "hangs: ");
    current_say();
    abort();
}

static void input_run(uint64_t number)
{
    uint8_t data[1 + DAMAGES_MAX * DAMAGE_SIZE];
    struct randomness randomness = {.state = number};
    size_t size = 1 + DAMAGE_SIZE * (1 + random_below(&randomness, DAMAGES_MAX));
    random_fill(&randomness, data, size);
    current_input = number;
    alarm(HANG_SECONDS);
    LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s SECONDS SEED\n", argv[0]);
        return 2;
    }
    time_t end = time(NULL) + atoi(argv[1]);
    uint64_t seed = strtoull(argv[2], NULL, 0);
    uint64_t count = 0;
    signal(SIGALRM, hang_say);
    if (__sanitizer_set_death_callback != NULL) {
        __sanitizer_set_death_callback(current_say);
    }
    do {
        input_run(seed + count++);
    } while (time(NULL) < end);
    printf("%" PRIu64 " inputs\n", count);
    return 0;
}
#endif
