/* SPDX-License-Identifier: Apache-2.0
 *
 * Group commits of living, dying and stopped processes, a disk that fails, and crash images.
 *
 * A crash image is a state that a disk may have after the host died. Each sector of 512 bytes has any of the versions
 * that it had since the last completed force. Bytes after the forced ones have any value. More than a thousand images
 * for each level are built from random work, recovered, and compared with the guarantee. A record that was appended
 * before the last completed force (`sync` acknowledges exactly these) and was not delivered is there, once, in order.
 * No other record is there.
 */
#include "arena/durability.h"

#include "arena/attach.h"
#include "arena/counters.h"
#include "arena/process.h"
#include "core/planting.h"
#include "randomness.h"

enum { SLOTS = 8, BATCH_SIZE = 2048, PARTITIONS = 3, VERSIONS_MAX = 6, STEPS = 400, NUMBERS_MAX = 4096 };

static struct geometry durable_geometry(uint16_t level)
{
    struct geometry geometry = geometry_of(SLOTS, BATCH_SIZE);
    geometry.durability = level;
    return geometry;
}

static enum status synced(struct arena *arena)
{
    uint64_t ticket = durability_ticket(arena);
    enum status status;
    while ((status = durability_step(arena, ticket)) == STATUS_PENDING) {
    }
    return status;
}

static uint64_t done_of(const struct arena *arena)
{
    return load_acquire_u64(&arena->globals->sync_done);
}

/* ---- group commit ---- */

static uint32_t force_count;

static int force_counted(int descriptor)
{
    (void)descriptor;
    force_count++;
    return 0;
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), one_force_is_for_all_tickets_drawn_before_it)
{
    struct arena *other = arena_attached(file);
    arena->force = force_counted;
    force_count = 0;
    uint64_t mine = durability_ticket(arena);
    uint64_t others = durability_ticket(other);
    EXPECT_STATUS(durability_step(arena, mine), STATUS_OK);
    EXPECT_STATUS(durability_step(other, others), STATUS_OK);
    EXPECT_EQ_U64(force_count, 1);
    EXPECT_EQ_U64(counter_value(arena, COUNTER_SYNCS), 1);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT_EQ_U64(force_count, 2);
    arena_detach(other);
}

static void sync_at_once(void *other)
{
    EXPECT_STATUS(synced(other), STATUS_OK);
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), a_process_that_leads_after_its_ticket_is_done_forces_nothing)
{
    struct arena *other = arena_attached(file);
    arena->force = other->force = force_counted;
    force_count = 0;
    interrupt_at("sync_needed", 0, sync_at_once, other);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(force_count, 1);
    arena_detach(other);
}

static void step_once(void *follower)
{
    struct arena *arena = follower;
    EXPECT_STATUS(durability_step(arena, durability_ticket(arena)), STATUS_PENDING);
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), processes_that_arrive_during_a_force_wait_for_the_next_one)
{
    struct arena *follower = arena_attached(file);
    interrupt_at("sync_recorded", 0, step_once, follower);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_EQ_U64(done_of(arena), 1);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->sync_wanted), 2);
    EXPECT_STATUS(durability_step(follower, 2), STATUS_OK);
    arena_detach(follower);
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), another_thread_of_the_leader_follows_too)
{
    interrupt_at("sync_forced", 0, step_once, arena); /* byte locks of one handle do not conflict */
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT(interruption_is_over());
    EXPECT_STATUS(synced(arena), STATUS_OK);
}

static void append_and_sync(struct arena *arena, void *unused)
{
    struct accumulator *producer = accumulator_opened(arena);
    EXPECT_STATUS(append_number(producer, 0, 1), STATUS_OK);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    accumulator_close(producer);
    (void)unused;
}

TEST(a_leader_that_is_killed_is_followed_by_another)
{
    static const char *const points[] = {"sync_record_stored", "sync_recorded", "sync_forced"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        int file = arena_file_new();
        struct arena *arena = arena_created(file, durable_geometry(DURABILITY_SYNC));
        partitions_register(arena);
        EXPECT(child_was_killed(child_started(file, append_and_sync, NULL, points[i], SIGKILL)));
        EXPECT_EQ_U64(done_of(arena), 0);
        EXPECT_STATUS(synced(arena), STATUS_OK);
        EXPECT_EQ_U64(done_of(arena), 2);
        arena_end(arena, file);
    }
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), a_leader_that_is_stopped_is_waited_for)
{
    pid_t child = child_started(file, append_and_sync, NULL, "sync_recorded", SIGSTOP);
    EXPECT(child_is_stopped(child));
    EXPECT_STATUS(durability_step(arena, durability_ticket(arena)), STATUS_PENDING);
    EXPECT(child_finishes(child));
    EXPECT_STATUS(synced(arena), STATUS_OK);
}

TEST_IN_ARENA(durable_geometry(DURABILITY_INTERVAL), the_interval_is_that_of_the_host)
{
    struct arena *other = arena_attached(file);
    arena->force = other->force = force_counted;
    arena->clock = other->clock = (struct clock){.is_manual = true, .manual_ns = 1000};
    force_count = 0;
    EXPECT_STATUS(durability_force_if_due(arena, 100), STATUS_OK);
    EXPECT_STATUS(durability_force_if_due(other, 100), STATUS_OK);
    EXPECT_EQ_U64(force_count, 1);
    other->clock.manual_ns = 1100;
    EXPECT_STATUS(durability_force_if_due(other, 100), STATUS_OK);
    EXPECT_EQ_U64(force_count, 2);
    arena->clock.manual_ns = 50; /* a clock that starts over at the next boot */
    EXPECT_STATUS(durability_force_if_due(arena, 100), STATUS_OK);
    EXPECT_EQ_U64(force_count, 3);
    arena_detach(other);
}

/* ---- a disk that fails ---- */

static int force_failing(int descriptor)
{
    (void)descriptor;
    errno = EIO;
    return -1;
}

static int force_interrupted(int descriptor)
{
    errno = EINTR;
    (void)descriptor;
    return force_count++ == 0 ? -1 : 0;
}

TEST(a_failed_force_poisons_the_arena_for_all_and_permanently)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, durable_geometry(DURABILITY_SYNC));
    partitions_register(arena);
    struct arena *other = arena_attached(file);
    struct accumulator *producer = accumulator_opened(arena);
    EXPECT_STATUS(append_number(producer, 0, 1), STATUS_OK);
    uint64_t waiting = durability_ticket(other);
    arena->force = force_failing;
    EXPECT_STATUS(synced(arena), STATUS_POISONED);
    EXPECT_EQ_U64(load_relaxed_u32(&other->globals->poisoned_status), STATUS_SYNC_FAILED);
    EXPECT_STATUS(durability_step(other, waiting), STATUS_POISONED);
    EXPECT_STATUS(durability_force_if_due(other, 0), STATUS_POISONED);
    EXPECT_STATUS(append_number(producer, 0, 2), STATUS_POISONED);
    EXPECT(strstr(arena->error_log[0].text, "forcing the arena to disk failed") != NULL);
    EXPECT_EQ_U64(done_of(arena), 0);
    accumulator_close(producer);
    arena_detach(other);
    arena_detach(arena);
    arena = arena_attached(file); /* the next attach finds the same */
    EXPECT(arena_is_poisoned(arena));
    arena_detach(arena);
    close(file);
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), an_interrupted_force_is_repeated)
{
    arena->force = force_interrupted;
    force_count = 0;
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT_EQ_U64(force_count, 2);
}

TEST(memory_is_no_disk)
{
    struct error error = {0};
    int file = arena_file_new();
    EXPECT_STATUS(durability_check_place(file, DURABILITY_PROCESS, &error), STATUS_OK);
    EXPECT_STATUS(durability_check_place(file, DURABILITY_INTERVAL, &error), STATUS_INVALID);
    EXPECT_STATUS(durability_check_place(file, DURABILITY_SYNC, &error), STATUS_INVALID);
    EXPECT(strstr(error.message, "give it a path on a disk") != NULL);
    close(file);
}

/* ---- sync records ---- */

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), a_record_that_was_forced_is_not_replaced_by_one_that_was_not)
{
    struct accumulator *producer = accumulator_opened(arena);
    EXPECT_STATUS(append_number(producer, 0, 1), STATUS_OK);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    uint32_t slot_index = open_word_slot(load_acquire_u64(&arena->partitions[0].open));
    struct sync_record *pair = &arena->sync_records[(size_t)slot_index * 2];
    struct sync_record forced = pair[0];
    EXPECT_EQ_U64(forced.count, 1);
    for (int i = 0; i < 3; i++) { /* the leaders die before they force, so no force completes */
        EXPECT(child_was_killed(child_started(file, append_and_sync, NULL, "sync_recorded", SIGKILL)));
        EXPECT(memcmp(&forced, &pair[0], sizeof forced) == 0);
        EXPECT_EQ_U64(pair[1].count, (uint32_t)i + 2);
    }
    accumulator_close(producer);
}

/* The process that recovers is killed while it cuts a batch back. The next one cuts it back again. */
static void recover_and_die(int file)
{
    int signal = SIGKILL;
    pid_t child = child_forked();
    if (child == 0) {
        interrupt_at("recovery_cut", 0, raise_signal, &signal);
        arena_detach(arena_attached(file));
        _exit(0);
    }
    EXPECT(child_was_killed(child));
}

TEST(torn_bytes_after_the_forced_records_are_cut_off)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, durable_geometry(DURABILITY_SYNC));
    partitions_register(arena);
    struct accumulator *producer = accumulator_opened(arena);
    for (uint64_t number = 0; number < 5; number++) {
        EXPECT_STATUS(append_number(producer, 0, number), STATUS_OK);
    }
    EXPECT_STATUS(synced(arena), STATUS_OK);
    uint32_t slot_index = open_word_slot(load_acquire_u64(&arena->partitions[0].open));
    uint32_t forced_size = slot_word_size(slot_word_at(arena, slot_index));
    EXPECT_STATUS(append_number(producer, 0, 5), STATUS_OK);
    arena_slot_data(arena, slot_index)[forced_size + 3] ^= 0x40;
    accumulator_close(producer);
    boot_again(arena);
    arena_detach(arena);
    recover_and_die(file);
    arena = arena_attached(file);
    EXPECT_EQ_U64(slot_state_at(arena, slot_index), SLOT_READY);
    EXPECT_EQ_U64(slot_word_count(slot_word_at(arena, slot_index)), 5);
    EXPECT_EQ_U64(slot_word_size(slot_word_at(arena, slot_index)), forced_size);
    struct ledger *ledger = calloc(1, sizeof *ledger);
    struct accumulator *sender = sender_opened(arena);
    deliver_everything(sender, ledger);
    EXPECT_EQ_U64(ledger->count, 5);
    free(ledger);
    accumulator_close(sender);
    expect_all_free(arena);
    arena_end(arena, file);
}

TEST(a_sync_record_that_contradicts_the_bytes_is_not_used)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, durable_geometry(DURABILITY_SYNC));
    partitions_register(arena);
    struct accumulator *producer = accumulator_opened(arena);
    EXPECT_STATUS(append_number(producer, 0, 7), STATUS_OK);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    uint32_t slot_index = open_word_slot(load_acquire_u64(&arena->partitions[0].open));
    uint32_t forced_size = slot_word_size(slot_word_at(arena, slot_index));
    EXPECT(child_was_killed(child_started(file, append_and_sync, NULL, "sync_recorded", SIGKILL)));
    arena_slot_data(arena, slot_index)[slot_word_size(slot_word_at(arena, slot_index)) - 3] ^= 0x40; /* in its value */
    struct sync_record found;
    EXPECT(sync_record_find(arena, slot_index, slot_word_at(arena, slot_index), &found));
    EXPECT_EQ_U64(found.count, 1);
    EXPECT_EQ_U64(found.size, forced_size);
    arena->sync_records[(size_t)slot_index * 2].count++; /* now the record contradicts itself */
    EXPECT(!sync_record_find(arena, slot_index, slot_word_at(arena, slot_index), &found));
    accumulator_close(producer);
    arena_detach(arena);
    close(file);
}

static void append_twice(void *producer)
{
    EXPECT_STATUS(append_number(producer, 0, 2), STATUS_OK);
    EXPECT_STATUS(append_number(producer, 0, 3), STATUS_OK); /* into the meta cell that the leader has read */
}

TEST_IN_ARENA(durable_geometry(DURABILITY_SYNC), a_sync_record_is_of_one_moment_also_while_others_append)
{
    struct arena *other = arena_attached(file);
    struct accumulator *producer = accumulator_opened(arena);
    struct accumulator *appender = accumulator_opened(other);
    EXPECT_STATUS(append_number(producer, 0, 1), STATUS_OK);
    interrupt_at("sync_state_read", 0, append_twice, appender);
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT(interruption_is_over());
    uint32_t slot_index = open_word_slot(load_acquire_u64(&arena->partitions[0].open));
    struct sync_record found = {0};
    EXPECT(sync_record_find(arena, slot_index, slot_word_at(arena, slot_index), &found));
    EXPECT_EQ_U64(found.count, 3);
    accumulator_close(appender);
    accumulator_close(producer);
    arena_detach(other);
}

/* The globals on the disk are older than the sync records. */
TEST(after_a_crash_no_ticket_is_below_a_number_that_was_used)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, durable_geometry(DURABILITY_SYNC));
    partitions_register(arena);
    struct accumulator *producer = accumulator_opened(arena);
    for (uint64_t number = 0; number < 3; number++) {
        EXPECT_STATUS(append_number(producer, 0, number), STATUS_OK);
        EXPECT_STATUS(synced(arena), STATUS_OK);
    }
    accumulator_close(producer);
    store_relaxed_u64(&arena->globals->sync_wanted, 1);
    store_relaxed_u64(&arena->globals->sync_done, 1);
    boot_again(arena);
    arena_detach(arena);
    arena = arena_attached(file);
    EXPECT_EQ_U64(done_of(arena), 3);
    arena->force = force_counted;
    force_count = 0;
    EXPECT_STATUS(synced(arena), STATUS_OK);
    EXPECT_EQ_U64(force_count, 1); /* a completed force acknowledges it; a larger number alone does not */
    arena_end(arena, file);
}

/* ---- crash images ---- */

struct host {
    struct arena *arena;
    struct accumulator *producer;
    struct accumulator *sender;
    struct randomness randomness;
    size_t size;
    uint8_t *versions[VERSIONS_MAX]; /* [0] was forced; the others are later states of the memory */
    uint32_t version_count;
    uint64_t next_number;
    uint64_t acknowledged_count;    /* numbers below were appended before the last completed force */
    struct ledger *delivered;
    uint32_t image_count;
    uint32_t cut_count;
};
static struct host *host;

static void version_take(struct host *self, uint32_t index)
{
    memcpy(self->versions[index], self->arena->base, self->size);
}

/* Store some of the states since the last force, always including the last one. */
static void version_add(struct host *self)
{
    if (self->version_count < VERSIONS_MAX) {
        self->version_count++;
    } else {
        uint32_t out = 1 + (uint32_t)random_below(&self->randomness, VERSIONS_MAX - 2);
        uint8_t *bytes = self->versions[out];
        memmove(&self->versions[out], &self->versions[out + 1], (VERSIONS_MAX - 1 - out) * sizeof bytes);
        self->versions[VERSIONS_MAX - 1] = bytes;
    }
    version_take(self, self->version_count - 1);
}

/* Replace the changed bytes of a sector, which were not forced, with garbage. */
static void sector_garble(struct host *self, uint8_t *sector, const uint8_t *forced)
{
    for (uint32_t i = 0; i < SECTOR_SIZE; i++) {
        if (sector[i] != forced[i]) {
            sector[i] = (uint8_t)random_bits(&self->randomness);
        }
    }
}

static int image_built(struct host *self)
{
    uint8_t *image = malloc(self->size);
    uint64_t boldness = random_below(&self->randomness, 4);
    for (size_t at = 0; at < self->size; at += SECTOR_SIZE) {
        uint32_t newest = self->version_count - 1;
        uint32_t chosen = boldness == 0 ? newest : (uint32_t)random_below(&self->randomness, self->version_count);
        memcpy(image + at, self->versions[chosen] + at, SECTOR_SIZE);
        if (boldness >= 2 && at >= self->arena->layout.slot_data && random_below(&self->randomness, 4) == 0) {
            sector_garble(self, image + at, self->versions[0] + at);
        }
    }
    int file = arena_file_new();
    EXPECT(write(file, image, self->size) == (ssize_t)self->size);
    free(image);
    return file;
}

static bool was_delivered(const struct host *self, uint64_t number)
{
    return ledger_count_of(self->delivered, number) > 0;
}

static void expect_promise_kept(struct host *self, const struct ledger *found)
{
    uint64_t last[PARTITIONS] = {0};
    for (uint64_t number = 0; number < self->acknowledged_count; number++) {
        EXPECT_OR_SAY(ledger_count_of(found, number) == 1 || was_delivered(self, number),
                      "number %" PRIu64 " of %" PRIu64 " acknowledged ones is there %u times", number,
                      self->acknowledged_count, ledger_count_of(found, number));
    }
    for (uint32_t i = 0; i < found->count; i++) {
        uint64_t number = found->numbers[i];
        EXPECT_OR_SAY(number < self->next_number, "number %" PRIu64 " was never appended", number);
        EXPECT_OR_SAY(last[number % PARTITIONS] <= number, "number %" PRIu64 " is out of order", number);
        last[number % PARTITIONS] = number;
    }
}

static uint32_t cuts_logged(const struct arena *arena)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < ERROR_LOG_COUNT; i++) {
        const struct error_entry *entry = &arena->error_log[i];
        count += strstr(entry->text, "cut back") != NULL ? load_relaxed_u64(&entry->count) : 0;
    }
    return (uint32_t)count;
}

static void crash_and_recover(struct host *self)
{
    void (*hook)(const char *name) = point_hook;
    point_hook = NULL;
    int file = image_built(self);
    uint8_t other_boot[16] = {1};
    EXPECT(pwrite(file, other_boot, sizeof other_boot, (off_t)(GLOBALS_REF + offsetof(struct globals, boot_id))) == 16);
    struct arena *arena = arena_attached(file);
    EXPECT(arena->was_recovered);
    expect_sound(arena);
    self->cut_count += cuts_logged(arena);
    struct ledger *found = calloc(1, sizeof *found);
    struct accumulator *sender = sender_opened(arena);
    deliver_everything(sender, found);
    expect_promise_kept(self, found);
    accumulator_close(sender);
    free(found);
    arena_detach(arena);
    close(file);
    self->image_count++;
    point_hook = hook;
}

/* An incomplete force guarantees nothing, and any part of it may have happened. */
static int force_imaged(int descriptor)
{
    (void)descriptor;
    version_add(host);
    for (int i = 0; i < 8; i++) {
        crash_and_recover(host);
    }
    version_take(host, 0);
    host->version_count = 1;
    host->acknowledged_count = host->next_number;
    return 0;
}

static void host_append(struct host *self)
{
    uint8_t value[120] = {0};
    uint32_t size = 8 + (uint32_t)random_below(&self->randomness, sizeof value - 8);
    uint32_t partition_index = (uint32_t)(self->next_number % PARTITIONS);
    memcpy(value, &self->next_number, sizeof self->next_number);
    if (append_value(self->producer, partition_index, value, size) == STATUS_EXHAUSTED) {
        deliver_everything(self->sender, self->delivered);
        EXPECT_STATUS(append_value(self->producer, partition_index, value, size), STATUS_OK);
    }
    self->next_number++;
}

static void host_step(struct host *self)
{
    uint64_t choice = random_below(&self->randomness, 100);
    if (choice < 80) {
        host_append(self);
    } else if (choice < 86) {
        struct flush_ticket ticket;
        EXPECT_STATUS(accumulator_flush_begin(self->producer, &ticket), STATUS_OK);
        accumulator_flush_end(&ticket);
    } else if (choice < 89) {
        deliver_everything(self->sender, self->delivered);
    } else if (self->arena->geometry.durability == DURABILITY_SYNC) {
        EXPECT_STATUS(synced(self->arena), STATUS_OK);
    } else {
        EXPECT_STATUS(durability_force_if_due(self->arena, 0), STATUS_OK); /* with interval 0, each check forces */
    }
}

static struct host *host_new(int file, uint16_t level, const char *test)
{
    struct host *self = calloc(1, sizeof *self);
    host = self;
    self->randomness = randomness_seeded(test);
    self->arena = arena_created(file, durable_geometry(level));
    partitions_register(self->arena);
    self->arena->force = force_imaged;
    self->size = self->arena->size;
    self->delivered = calloc(1, sizeof *self->delivered);
    for (uint32_t i = 0; i < VERSIONS_MAX; i++) {
        self->versions[i] = malloc(self->size);
    }
    version_take(self, 0);
    self->version_count = 1;
    self->producer = accumulator_opened(self->arena);
    self->sender = sender_opened(self->arena);
    return self;
}

static void host_end(struct host *self, int file)
{
    deliver_everything(self->sender, self->delivered);
    accumulator_close(self->sender);
    accumulator_close(self->producer);
    arena_end(self->arena, file);
    for (uint32_t i = 0; i < VERSIONS_MAX; i++) {
        free(self->versions[i]);
    }
    free(self->delivered);
    free(self);
}

static void expect_images_recovered(uint16_t level, const char *test)
{
    int file = arena_file_new();
    struct host *self = host_new(file, level, test);
    for (uint32_t step = 0; step < STEPS && self->next_number < NUMBERS_MAX; step++) {
        host_step(self);
        version_add(self);
        for (int i = 0; i < 3; i++) {
            crash_and_recover(self);
        }
    }
    EXPECT(self->acknowledged_count > 0);
    EXPECT_OR_SAY(self->cut_count > 0, "none of %u images had a batch to cut", self->image_count);
    printf("%u crash images, %u batches cut back\n", self->image_count, self->cut_count);
    host_end(self, file);
}

TEST(whichever_sectors_reached_the_disk_acknowledged_records_are_there)
{
    expect_images_recovered(DURABILITY_SYNC, __func__);
}

TEST(whichever_sectors_reached_the_disk_records_appended_before_the_last_force_are_there)
{
    expect_images_recovered(DURABILITY_INTERVAL, __func__);
}

RUN_ALL()
