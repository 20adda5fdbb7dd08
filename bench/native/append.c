/* SPDX-License-Identifier: Apache-2.0
 *
 * How fast does the C core append while another process drains and verifies every batch?
 *
 *   shmaccum       the appender: encode, running CRC, commit; drained, CRC verified, freed by another process
 *   alone          the same in one process, which appends and drains in turn, so that no cache line moves between cores
 *   robust-mutex   the same record format and CRC, written into shared buffers under a robust pthread mutex
 *   hand-over      the same buffers, one producer, no lock: shows the cost of moving cache lines to another core
 *   fill           appends to many partitions in turn (-x), into memory that is not drained
 *   fill-floor     the same encoding and CRC, written into as many private buffers in turn
 *   floor          the same encoding and CRC, written into private memory of one process
 *   no-lock        the same, but each producer writes into memory for all of its records: the latencies without a lock
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "arena/attach.h"
#include "format/crc32c.h"
#include "format/record.h"
#include "format/record_summed.h"
#include "producer/appender.h"
#include "sender/sender.h"
#include "workload.h"

enum { BATCH_SIZE = 16384, BUFFER_MEMORY = 32 << 20, RUN_MAX = 256, IDLE_SPINS = 500, DRAIN_MAX = 64 };
enum { ALONE_TURN = 1000 }; /* records between two rounds of the sender, a few batches */

static uint8_t value[1 << 20];

/* Fills the caller's struct field by field. If the struct were built here and then copied, each record would take 5 ns
 * more, because the wide loads of the copy wait for the narrow stores before them. */
static void record_build(struct record *record, const struct workload *workload, uint64_t number)
{
    record->key = NULL;
    record->key_size = -1;
    record->value = value;
    record->value_size = (int32_t)workload->value_size;
    record->headers = NULL;
    record->header_count = 0;
    record->timestamp_ms = INT64_C(1700000000000) + (int64_t)(number / 1000);
}

static uint32_t spread_of(const struct workload *workload)
{
    return workload->spread > 0 ? workload->spread : 1;
}

/* Returns the order in which partitions get records. Each partition occurs once in a round, and each round has a new
 * random order, as random keys have. With a fixed distance, the processor would prefetch the next partition, and would
 * do so more for private buffers than after a lock. */
static uint32_t *turns_new(uint64_t count, uint32_t spread)
{
    uint32_t *turns = malloc((count + spread) * sizeof *turns);
    uint64_t random = 88172645463325252;
    if (turns == NULL) {
        workload_fail("no memory");
    }
    for (uint64_t at = 0; at < count + spread; at++) {
        uint32_t place = (uint32_t)(at % spread);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        uint32_t *round = turns + (at - place);
        uint32_t other = (uint32_t)(random % (place + 1));
        round[place] = round[other];
        round[other] = place;
    }
    return turns;
}

/* Touches all buffers, so that no page fault is measured. */
static void slots_populate(const struct arena *arena)
{
    size_t size = (size_t)arena->geometry.slot_stride * arena->geometry.slot_count;
    if (madvise(arena->slot_data, size, MADV_POPULATE_WRITE) != 0) {
        workload_fail("madvise");
    }
}

static void idle(void)
{
    for (int i = 0; i < IDLE_SPINS; i++) {
        spin_pause();
    }
}

/* ---- shmaccum ---- */

/* If latencies are measured, there is memory for every record, because a latency must not include a wait for memory. */
static uint32_t slot_count_of(const struct workload *workload)
{
    if (workload->mebibytes != 0) {
        return workload->mebibytes * ((1u << 20) / BATCH_SIZE);
    }
    uint64_t records_size = workload->record_count * (workload->value_size + 16u);
    bool is_larger = workload->is_timed && records_size > BUFFER_MEMORY;
    return (uint32_t)((is_larger ? records_size + records_size / 8 : BUFFER_MEMORY) / BATCH_SIZE);
}

static uint32_t partition_count_of(const struct workload *workload)
{
    uint32_t wanted = workload->spread > workload->partition_count ? workload->spread : workload->partition_count;
    return wanted > workload->producer_count ? wanted : workload->producer_count + 1;
}

static int arena_file;

static int arena_open(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", arena_file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static void shmaccum_prepare(const struct workload *workload, struct scoreboard *board)
{
    (void)board;
    uint32_t slot_count = slot_count_of(workload);
    const struct geometry geometry = {.buffer_memory = (uint64_t)slot_count * BATCH_SIZE,
                                      .batch_size = BATCH_SIZE,
                                      .slot_stride = BATCH_SIZE,
                                      .slot_count = slot_count,
                                      .process_count = 128,
                                      .waiter_count = 128,
                                      .topic_count = 16,
                                      .partition_count = partition_count_of(workload),
                                      .name_heap_size = 4096,
                                      .completion_count = 8192,
                                      .oversized_bytes_max = BUFFER_MEMORY / 2,
                                      .record_size_max = 1 << 20};
    struct error error;
    struct arena *arena;
    arena_file = memfd_create("shmaccum-bench", 0);
    if (arena_create(arena_open(), arena_open(), &geometry, NULL, 0, &arena, &error) != STATUS_OK) {
        workload_fail(error.message);
    }
    arena_detach(arena);
}

static struct arena *arena_join(void)
{
    struct error error;
    struct arena *arena;
    if (arena_attach(arena_open(), arena_open(), &arena, &error) != STATUS_OK) {
        workload_fail(error.message);
    }
    return arena;
}

static struct appender *appender_join(struct arena *arena)
{
    struct error error;
    struct appender *appender;
    if (appender_open(arena, &appender, &error) != STATUS_OK) {
        workload_fail(error.message);
    }
    return appender;
}

/* Computes the sizes of the records for each call, because a caller of append must do it, too. */
static void run_append(struct appender *appender, const struct workload *workload, uint32_t partition_index,
                       uint64_t number, uint32_t count)
{
    struct measured_record run[RUN_MAX];
    for (uint32_t i = 0; i < count; i++) {
        record_build(&run[i].record, workload, number + i);
        if (appender_measure(appender, &run[i].record, &run[i].size) != STATUS_OK) {
            workload_fail("measure");
        }
    }
    for (uint32_t done = 0; done < count;) {
        struct append_result result;
        const struct append_order order = {
            .partition_index = partition_index, .count = count - done, .records = run + done};
        enum status status = appender_append(appender, &order, &result);
        if (status == STATUS_OK) {
            done += result.appended;
        } else if (status == STATUS_EXHAUSTED) {
            idle(); /* wait for the slower draining process; this time is not measured */
        } else {
            workload_fail(status_name(status));
        }
    }
}

static void shmaccum_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    struct appender *appender = appender_join(arena_join());
    uint64_t share = workload_share(workload, producer_index);
    uint32_t partition_index = workload->is_one_partition ? 0 : producer_index;
    if (workload->mebibytes > 0) {
        slots_populate(appender->arena);
    }
    workload_start(board);
    for (uint64_t number = 0; number < share;) {
        uint64_t rest = share - number;
        uint32_t count = rest < workload->run_size ? (uint32_t)rest : workload->run_size;
        uint64_t begin_ns = workload->is_timed ? workload_now_ns() : 0;
        run_append(appender, workload, partition_index, number, count);
        if (workload->is_timed) {
            histogram_add(workload_now_ns() - begin_ns);
        }
        number += count;
    }
}

static uint64_t batches_complete(struct arena *arena, struct sender_half *half, const struct drained_batch *batches,
                                 uint32_t count)
{
    static struct wake_set wakes;
    uint64_t records = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *bytes = arena_slot_data(arena, batches[i].slot_index);
        const struct batch_outcome outcome = {.result = RESULT_SUCCEEDED, .log_append_time_ms = -1};
        if (crc32c_extend(0, bytes + 21, batches[i].size - 21) != batches[i].crc) {
            workload_fail("a batch's checksum is wrong");
        }
        if (sender_complete(half, batches[i].slot_index, batches[i].seq, &outcome, &wakes) != STATUS_OK) {
            workload_fail("complete");
        }
        records += batches[i].record_count;
    }
    return records;
}

/* Drains and frees ready batches. Returns the number of their records. */
static uint64_t sender_turn(struct arena *arena, struct sender_half *half, bool is_everything_ready)
{
    uint32_t partitions[DRAIN_MAX];
    struct drained_batch batches[DRAIN_MAX];
    uint64_t next_check_ns;
    uint32_t seen;
    const struct ready_options ready = {.now_ns = arena_now_ns(arena),
                                        .linger_ns = 5 * NS_PER_MS,
                                        .is_everything_ready = is_everything_ready};
    const struct drain_options drain = {.now_ns = ready.now_ns, .size_max = 1 << 20, .in_flight_max = 5};
    uint32_t count = sender_ready(half, &ready, partitions, DRAIN_MAX, &next_check_ns);
    count = sender_drain(half, &drain, partitions, count, batches, &seen);
    return batches_complete(arena, half, batches, count);
}

static struct sender_half *sender_join(struct arena *arena)
{
    struct error error;
    struct sender_half *half;
    const struct role_options options = {.sink_name = ""};
    if (sender_role_take(arena, &options, &half, &error) != STATUS_OK) {
        workload_fail(error.message);
    }
    return half;
}

static void shmaccum_drain(const struct workload *workload, struct scoreboard *board)
{
    (void)workload;
    struct arena *arena = arena_join();
    struct sender_half *half = sender_join(arena);
    workload_start(board);
    for (;;) {
        bool is_finished = board->is_finished;
        uint64_t drained = sender_turn(arena, half, is_finished);
        if (drained == 0 && is_finished) {
            return;
        }
        if (drained == 0) {
            idle();
        }
        board->drained_count += drained;
    }
}

/* ---- a private buffer ---- */

struct floor_buffer {
    uint8_t *bytes;
    uint32_t size;
    uint32_t count;
    uint32_t crc;
};

/* Returns false if the buffer is full. */
static bool floor_append(struct floor_buffer *buffer, const struct workload *workload, uint64_t number)
{
    struct record record;
    struct record_size size;
    record_build(&record, workload, number);
    if (record_measure(&record, &size) != STATUS_OK) {
        workload_fail("measure");
    }
    uint32_t length = record_encoded_size(&size, (int32_t)buffer->count, 0);
    if (buffer->size + length > BATCH_SIZE) {
        return false;
    }
    buffer->crc =
        record_write_summed(buffer->bytes + buffer->size, &record, &size, (int32_t)buffer->count, 0, buffer->crc);
    buffer->size += length;
    buffer->count++;
    return true;
}

/* One process appends and drains in turn. So no cache line moves between cores, and no other process competes. */
static void alone_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    struct arena *arena = arena_join();
    struct sender_half *half = sender_join(arena);
    struct appender *appender = appender_join(arena);
    uint64_t share = workload_share(workload, producer_index);
    workload_start(board);
    for (uint64_t number = 0; number < share; number++) {
        run_append(appender, workload, 0, number, 1);
        if (number % ALONE_TURN == 0) {
            while (sender_turn(arena, half, false) > 0) {
            }
        }
    }
}

/* Measures the cost of an append if many partitions have an open batch. The memory was touched before, and is not
 * drained. */
static void fill_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    struct appender *appender = appender_join(arena_join());
    uint64_t share = workload_share(workload, producer_index);
    uint32_t spread = spread_of(workload);
    const uint32_t *turns = turns_new(share / workload->run_size + 1, spread);
    slots_populate(appender->arena);
    workload_start(board);
    for (uint64_t number = 0; number < share; number += workload->run_size) {
        uint32_t partition_index = turns[number / workload->run_size];
        run_append(appender, workload, partition_index, number, workload->run_size);
    }
}

/* Writes the same records and checksums into as many private buffers in turn. This is the cost of the memory alone. */
static void fill_floor_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    uint64_t share = workload_share(workload, producer_index);
    uint32_t spread = spread_of(workload);
    uint32_t buffer_count = slot_count_of(workload);
    struct floor_buffer *buffers = calloc(spread, sizeof *buffers);
    uint8_t *memory = mmap(NULL, (size_t)buffer_count * BATCH_SIZE, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buffers == NULL || memory == MAP_FAILED) {
        workload_fail("no memory");
    }
    const uint32_t *turns = turns_new(share / workload->run_size + 1, spread);
    uint32_t next = 0;
    for (uint32_t i = 0; i < spread; i++) {
        buffers[i].bytes = memory + (size_t)(next++) * BATCH_SIZE;
    }
    workload_start(board);
    for (uint64_t number = 0; number < share; number++) {
        struct floor_buffer *buffer = &buffers[turns[number / workload->run_size]];
        if (!floor_append(buffer, workload, number)) {
            *buffer = (struct floor_buffer){.bytes = memory + (size_t)(next++ % buffer_count) * BATCH_SIZE};
            (void)floor_append(buffer, workload, number);
        }
    }
}

/* ---- the same under a robust mutex ---- */

struct mutex_buffer {
    atomic_bool is_full;
    uint32_t crc;
    uint32_t size;
    uint32_t count;
    uint8_t bytes[BATCH_SIZE];
};

static struct mutex_arena {
    pthread_mutex_t mutex;
    uint32_t current;
    uint32_t buffer_count;
    struct mutex_buffer buffers[];
} *mutex_arena;

static void mutex_prepare(const struct workload *workload, struct scoreboard *board)
{
    (void)board;
    pthread_mutexattr_t attributes;
    bool has_room = workload->is_timed || workload->mebibytes > 0;
    uint32_t count = has_room ? slot_count_of(workload) : 64; /* few buffers stay in the caches: the best case */
    size_t size = sizeof *mutex_arena + count * sizeof(struct mutex_buffer);
    mutex_arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (mutex_arena == MAP_FAILED) {
        workload_fail("mmap");
    }
    mutex_arena->buffer_count = count;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&mutex_arena->mutex, &attributes);
}

static void mutex_lock(void)
{
    if (pthread_mutex_lock(&mutex_arena->mutex) == EOWNERDEAD) {
        pthread_mutex_consistent(&mutex_arena->mutex);
    }
}

/* Returns false if the next buffer is not drained yet. Until then, its other fields belong to the draining process. */
static bool locked_mutex_append(const struct record *record, const struct record_size *size)
{
    struct mutex_buffer *buffer = &mutex_arena->buffers[mutex_arena->current];
    if (buffer->is_full) {
        return false;
    }
    uint32_t length = record_encoded_size(size, (int32_t)buffer->count, 0);
    if (buffer->size + length > BATCH_SIZE) {
        buffer->is_full = true;
        mutex_arena->current = (mutex_arena->current + 1) % mutex_arena->buffer_count;
        return false;
    }
    buffer->crc =
        record_write_summed(buffer->bytes + buffer->size, record, size, (int32_t)buffer->count, 0, buffer->crc);
    buffer->size += length;
    buffer->count++;
    return true;
}

static void mutex_append(const struct record *record)
{
    struct record_size size;
    if (record_measure(record, &size) != STATUS_OK) {
        workload_fail("measure");
    }
    for (;;) {
        mutex_lock();
        bool is_appended = locked_mutex_append(record, &size);
        bool is_blocked = mutex_arena->buffers[mutex_arena->current].is_full;
        pthread_mutex_unlock(&mutex_arena->mutex);
        if (is_appended) {
            return;
        }
        if (is_blocked) {
            idle();
        }
    }
}

static void mutex_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    uint64_t share = workload_share(workload, producer_index);
    workload_start(board);
    for (uint64_t number = 0; number < share; number++) {
        uint64_t begin_ns = workload->is_timed ? workload_now_ns() : 0;
        struct record record;
        record_build(&record, workload, number);
        mutex_append(&record);
        if (workload->is_timed) {
            histogram_add(workload_now_ns() - begin_ns);
        }
    }
}

static void mutex_buffer_drain(struct mutex_buffer *buffer, struct scoreboard *board)
{
    if (crc32c_extend(0, buffer->bytes, buffer->size) != buffer->crc) {
        workload_fail("a buffer's checksum is wrong");
    }
    board->drained_count += buffer->count;
    buffer->crc = 0;
    buffer->size = 0;
    buffer->count = 0;
    buffer->is_full = false;
}

static void mutex_drain(const struct workload *workload, struct scoreboard *board)
{
    (void)workload;
    uint32_t next = 0;
    workload_start(board);
    for (;;) {
        bool is_finished = board->is_finished;
        struct mutex_buffer *buffer = &mutex_arena->buffers[next];
        if (buffer->is_full || (is_finished && buffer->count > 0)) {
            mutex_buffer_drain(buffer, board);
            next = (next + 1) % mutex_arena->buffer_count;
        } else if (is_finished) {
            return;
        } else {
            idle();
        }
    }
}

/* ---- the same without a lock: one producer, one store per full buffer ---- */

static void hand_over_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    uint64_t share = workload_share(workload, producer_index);
    if (workload->producer_count != 1) {
        workload_fail("hand-over has no lock: one producer");
    }
    workload_start(board);
    for (uint64_t number = 0; number < share; number++) {
        struct record record;
        struct record_size size;
        record_build(&record, workload, number);
        if (record_measure(&record, &size) != STATUS_OK) {
            workload_fail("measure");
        }
        while (!locked_mutex_append(&record, &size)) {
            if (mutex_arena->buffers[mutex_arena->current].is_full) {
                idle();
            }
        }
    }
}

/* ---- the floor ---- */

static void floor_prepare(const struct workload *workload, struct scoreboard *board)
{
    (void)workload;
    (void)board;
}

static void floor_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    static uint8_t buffer[BATCH_SIZE];
    uint64_t share = workload_share(workload, producer_index);
    uint32_t position = 0;
    uint32_t crc = 0;
    workload_start(board);
    for (uint64_t number = 0; number < share; number++) {
        uint64_t begin_ns = workload->is_timed ? workload_now_ns() : 0;
        struct record record;
        record_build(&record, workload, number);
        struct record_size size;
        if (record_measure(&record, &size) != STATUS_OK) {
            workload_fail("measure");
        }
        uint32_t length = record_encoded_size(&size, (int32_t)(number % 150), 0);
        position = position + length > BATCH_SIZE ? 0 : position;
        crc = record_write_summed(buffer + position, &record, &size, (int32_t)(number % 150), 0, crc);
        position += length;
        if (workload->is_timed) {
            histogram_add(workload_now_ns() - begin_ns);
        }
    }
    if (crc == 1) { /* uses the checksum, so that the compiler keeps it */
        printf(" ");
    }
}

static void no_lock_produce(const struct workload *workload, struct scoreboard *board, uint32_t producer_index)
{
    uint64_t share = workload_share(workload, producer_index);
    size_t size = share * (workload->value_size + 16u) + BATCH_SIZE;
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
        workload_fail("mmap");
    }
    struct floor_buffer buffer = {.bytes = memory};
    workload_start(board);
    for (uint64_t number = 0; number < share; number++) {
        uint64_t begin_ns = workload->is_timed ? workload_now_ns() : 0;
        if (!floor_append(&buffer, workload, number)) {
            buffer = (struct floor_buffer){.bytes = buffer.bytes + BATCH_SIZE};
            (void)floor_append(&buffer, workload, number);
        }
        if (workload->is_timed) {
            histogram_add(workload_now_ns() - begin_ns);
        }
    }
}

int main(int argc, char **argv)
{
    static const struct contender contenders[] = {
        {"shmaccum", shmaccum_prepare, shmaccum_produce, shmaccum_drain},
        {"alone", shmaccum_prepare, alone_produce, NULL},
        {"fill", shmaccum_prepare, fill_produce, NULL},
        {"fill-floor", floor_prepare, fill_floor_produce, NULL},
        {"robust-mutex", mutex_prepare, mutex_produce, mutex_drain},
        {"hand-over", mutex_prepare, hand_over_produce, mutex_drain},
        {"floor", floor_prepare, floor_produce, NULL},
        {"no-lock", floor_prepare, no_lock_produce, NULL},
    };
    memset(value, 'v', sizeof value);
    return workload_main(argc, argv, contenders, sizeof contenders / sizeof contenders[0]);
}
