/* SPDX-License-Identifier: Apache-2.0
 *
 * How long does the first opener need to recover an arena full of sealed batches?
 *
 *   recovery MEBIBYTES REBOOTED     if REBOOTED is 1, as after a host crash: every checksum is computed
 *
 * The peer, in the same process, reads the same bytes once and computes a CRC-32C over them.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "arena/attach.h"
#include "arena/recovery.h"
#include "arena/registry.h"
#include "format/crc32c.h"
#include "producer/appender.h"

enum { BATCH_SIZE = 16384, VALUE_SIZE = 1000, RUN = 15, PARTITIONS = 64 };

static int arena_file;

static _Noreturn void fail(const char *what)
{
    fprintf(stderr, "benchmark failed: %s\n", what);
    exit(1);
}

static int arena_open(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", arena_file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static struct arena *arena_make(uint32_t mebibytes)
{
    uint32_t slot_count = mebibytes * ((1u << 20) / BATCH_SIZE);
    const struct geometry geometry = {.buffer_memory = (uint64_t)mebibytes << 20,
                                      .batch_size = BATCH_SIZE,
                                      .slot_stride = BATCH_SIZE,
                                      .slot_count = slot_count,
                                      .process_count = 64,
                                      .waiter_count = 64,
                                      .topic_count = 16,
                                      .partition_count = PARTITIONS,
                                      .name_heap_size = 4096,
                                      .completion_count = 65536,
                                      .oversized_bytes_max = (uint64_t)slot_count / 2 * BATCH_SIZE,
                                      .record_size_max = 1 << 20};
    struct error error;
    struct arena *arena;
    arena_file = memfd_create("shmaccum-bench", 0);
    if (arena_create(arena_open(), arena_open(), &geometry, NULL, 0, &arena, &error) != STATUS_OK) {
        fail(error.message);
    }
    return arena;
}

/* Recovery after a crash of the host rejects a batch whose partition has no entry. */
static void partitions_register(struct arena *arena)
{
    struct error error;
    struct registry *registry;
    uint32_t topic_index, partition_index;
    if (registry_open(arena, &registry, &error) != STATUS_OK ||
        registry_topic(registry, "topic", 5, &topic_index) != STATUS_OK) {
        fail("registry");
    }
    for (int32_t i = 0; i < PARTITIONS; i++) {
        if (registry_partition(registry, topic_index, i, &partition_index) != STATUS_OK) {
            fail("partition");
        }
    }
    registry_close(registry);
}

static void arena_fill(struct arena *arena)
{
    static uint8_t value[VALUE_SIZE];
    struct error error;
    struct appender *appender;
    struct measured_record run[RUN];
    if (appender_open(arena, &appender, &error) != STATUS_OK) {
        fail(error.message);
    }
    for (int i = 0; i < RUN; i++) {
        run[i].record = (struct record){.key_size = -1, .value = value, .value_size = VALUE_SIZE, .timestamp_ms = 1};
        if (appender_measure(appender, &run[i].record, &run[i].size) != STATUS_OK) {
            fail("measure");
        }
    }
    struct append_result result;
    struct append_order order = {.count = RUN, .records = run};
    while (appender_append(appender, &order, &result) == STATUS_OK) {
        order.partition_index = (order.partition_index + 1) % PARTITIONS;
    }
    appender_close(appender);
}

static double floor_seconds(const struct arena *arena)
{
    double begin = now_s();
    uint32_t crc = crc32c_extend(0, arena->slot_data, (size_t)arena->geometry.slot_stride * arena->geometry.slot_count);
    double seconds = now_s() - begin;
    return crc == 1 ? seconds + 1e-9 : seconds; /* uses the checksum, so that the compiler keeps it */
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fail("usage: recovery MEBIBYTES REBOOTED");
    }
    struct arena *arena = arena_make((uint32_t)atoi(argv[1]));
    partitions_register(arena);
    arena_fill(arena);
    double floor = floor_seconds(arena);
    if (atoi(argv[2]) != 0) {
        memset(arena->globals->boot_id, 0xff, sizeof arena->globals->boot_id);
    }
    struct recovery_report report;
    struct error error;
    double begin = now_s();
    if (recovery_run(arena, &report, &error) != STATUS_OK) {
        fail(error.message);
    }
    printf("{\"peer\": \"shmaccum\", \"seconds\": %.6f, \"floor_seconds\": %.6f, \"batches\": %u, \"records\": %llu, "
           "\"quarantined\": %u}\n",
           now_s() - begin, floor, report.ready_count, (unsigned long long)report.record_count,
           report.quarantined_count);
    arena_detach(arena);
    return report.quarantined_count != 0;
}
