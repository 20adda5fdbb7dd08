/* SPDX-License-Identifier: Apache-2.0 */
#include "core/accumulator.h"

#include "core/delivery_fixture.h"

#include "sender/log_pass.h"

#include <sys/mman.h>
#include <unistd.h>

enum { BATCH_SIZE = 512, PARTITIONS = 2, NUMBERS = 40 };

/* A log in memory. */
struct files {
    struct segment_end segment;
    struct index_position position;
    struct index_file_end offset_index;
    struct index_file_end time_index;
    struct log_end log;
};

static void files_begin(struct files *files)
{
    *files = (struct files){
        .segment = {.descriptor = memfd_create("log", 0), .next_offset = 70},
        .position = {.base_offset = 70, .interval = 4096, .max_timestamp_ms = -1, .indexed_timestamp_ms = -1},
        .offset_index = {.descriptor = memfd_create("index", 0)},
        .time_index = {.descriptor = memfd_create("timeindex", 0)},
        .log = {.segment_bytes = 1 << 20, .segment_ms = INT64_MAX / 2},
    };
    files->log.segment = &files->segment;
    files->log.position = &files->position;
    files->log.offset_index = &files->offset_index;
    files->log.time_index = &files->time_index;
}

static void files_end(const struct files *files)
{
    close(files->segment.descriptor);
    close(files->offset_index.descriptor);
    close(files->time_index.descriptor);
}

/* Drain the ready batches, assign the log to the runs of partition 0, write these runs, and complete their batches. */
static uint32_t pass_run(struct log_pass *pass, struct accumulator *sender, struct files *files,
                         struct delivered *delivered)
{
    uint64_t next_check_ns;
    const uint64_t now_ns = arena_now_ns(sender->arena);
    const struct ready_options ready = {.now_ns = now_ns, .is_everything_ready = true};
    const struct drain_options drain = {.now_ns = now_ns, .size_max = UINT32_MAX, .in_flight_max = 5};
    uint32_t count = sender_ready(pass->half, &ready, pass->partitions, 64, &next_check_ns);
    log_pass_drain(pass, &drain, count);
    for (uint32_t i = 0; i < pass->run_count; i++) {
        struct log_run *run = &pass->runs[i].run;
        if (run->drained->partition_index == 0) {
            struct log_batch *batches = log_pass_batches(pass, run);
            run->log = &files->log;
            run->fit_count =
                segment_fit(&files->log, batches, log_run_describe(pass->half, run->drained, run->count, batches));
        }
    }
    log_pass_write(pass);
    for (uint32_t i = 0; i < pass->run_count; i++) {
        if (pass->runs[i].fit_count > 0) {
            log_pass_end(pass, i, NULL);
        }
    }
    return log_pass_tally(pass, delivered, now_ns);
}

TEST_IN_ARENA(geometry_of(16, BATCH_SIZE), a_pass_completes_the_batches_that_the_log_accepts_and_leaves_the_rest)
{
    struct accumulator *producer = accumulator_opened(arena);
    struct accumulator *sender = sender_opened(arena);
    struct files files;
    struct ledger ledger = {0};
    struct delivered delivered = {.linger_min_ns = -1};
    struct log_pass pass = {.half = sender->sender, .largest_record = UINT32_MAX};
    files_begin(&files);
    EXPECT(log_pass_make(&pass, 64));
    for (uint64_t i = 0; i < NUMBERS; i++) {
        EXPECT_STATUS(append_number(producer, (uint32_t)(i % PARTITIONS), i), STATUS_OK);
    }
    uint32_t ended_count = pass_run(&pass, sender, &files, &delivered);
    EXPECT_EQ_U64(pass.run_count, PARTITIONS);
    EXPECT(ended_count > 0 && ended_count < pass.drained_count);
    EXPECT_EQ_U64(delivered.batch_count, ended_count);
    EXPECT_EQ_U64((uint64_t)files.segment.next_offset, 70 + delivered.record_count);
    EXPECT_EQ_U64((uint64_t)files.segment.size, delivered.size);
    uint32_t left_count = log_pass_gather(&pass);
    EXPECT_EQ_U64(left_count, pass.drained_count - ended_count);
    for (uint32_t i = 0; i < left_count; i++) {
        EXPECT_EQ_U64(pass.drained[i].partition_index, 1);
        EXPECT(i == 0 || pass.drained[i].seq > pass.drained[i - 1].seq);
        EXPECT_STATUS(accumulator_requeue(sender, pass.drained[i].slot_index, pass.drained[i].seq, 0), STATUS_OK);
    }
    deliver_everything(sender, &ledger);
    EXPECT_EQ_U64(ledger.count, NUMBERS - delivered.record_count);
    log_pass_free(&pass);
    files_end(&files);
    accumulator_close(sender);
    accumulator_close(producer);
    expect_all_free(arena);
}

TEST_IN_ARENA(geometry_of(16, BATCH_SIZE), a_log_without_space_leaves_every_batch_in_flight)
{
    struct accumulator *producer = accumulator_opened(arena);
    struct accumulator *sender = sender_opened(arena);
    struct files files;
    struct ledger ledger = {0};
    struct delivered delivered = {.linger_min_ns = -1};
    struct log_pass pass = {.half = sender->sender};
    files_begin(&files);
    files.log.segment_bytes = 10;
    files.segment.size = 10; /* full */
    EXPECT(log_pass_make(&pass, 64));
    EXPECT_STATUS(append_number(producer, 0, 1), STATUS_OK);
    EXPECT_EQ_U64(pass_run(&pass, sender, &files, &delivered), 0);
    EXPECT_EQ_U64(log_pass_gather(&pass), 1);
    EXPECT(delivered.batch_count == 0 && files.segment.size == 10);
    EXPECT_STATUS(accumulator_requeue(sender, pass.drained[0].slot_index, pass.drained[0].seq, 0), STATUS_OK);
    deliver_everything(sender, &ledger);
    EXPECT_EQ_U64(ledger.count, 1);
    log_pass_free(&pass);
    files_end(&files);
    accumulator_close(sender);
    accumulator_close(producer);
}

RUN_ALL()
