/* SPDX-License-Identifier: Apache-2.0 */
#include "workload.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

uint64_t workload_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void workload_fail(const char *what)
{
    fprintf(stderr, "benchmark failed: %s\n", what);
    exit(1);
}

uint64_t workload_share(const struct workload *workload, uint32_t producer_index)
{
    uint64_t share = workload->record_count / workload->producer_count;
    return producer_index == 0 ? workload->record_count - share * (workload->producer_count - 1) : share;
}

static uint64_t cpu_started_ns;

static uint64_t cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

void workload_start(struct scoreboard *board)
{
    atomic_fetch_add(&board->ready_count, 1);
    while (!atomic_load(&board->is_started)) {
        usleep(50);
    }
    cpu_started_ns = cpu_ns();
}

/* ---- histogram ---- */

static uint32_t histogram_cell(uint64_t ns)
{
    if (ns < (1u << HISTOGRAM_SUB_BITS)) {
        return (uint32_t)ns;
    }
    uint32_t power = 63u - (uint32_t)__builtin_clzll(ns);
    uint32_t sub = (uint32_t)(ns >> (power - HISTOGRAM_SUB_BITS)) & ((1u << HISTOGRAM_SUB_BITS) - 1);
    return (power << HISTOGRAM_SUB_BITS) + sub;
}

static uint64_t histogram_value(uint32_t cell)
{
    uint32_t power = cell >> HISTOGRAM_SUB_BITS;
    uint32_t sub = cell & ((1u << HISTOGRAM_SUB_BITS) - 1);
    if (power == 0) {
        return cell;
    }
    return ((uint64_t)1 << power) + ((uint64_t)sub << (power - HISTOGRAM_SUB_BITS));
}

/* Each process has its own counts, because a shared counter would be most of the cost of an append. */
static uint64_t histogram_private[HISTOGRAM_CELLS];

void histogram_add(uint64_t ns)
{
    histogram_private[histogram_cell(ns)]++;
}

static void histogram_publish(struct scoreboard *board)
{
    for (uint32_t i = 0; i < HISTOGRAM_CELLS; i++) {
        atomic_fetch_add_explicit(&board->histogram[i], histogram_private[i], memory_order_relaxed);
    }
}

static uint64_t histogram_percentile(struct scoreboard *board, double share)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < HISTOGRAM_CELLS; i++) {
        total += board->histogram[i];
    }
    uint64_t wanted = (uint64_t)((double)total * share);
    uint64_t seen = 0;
    for (uint32_t i = 0; i < HISTOGRAM_CELLS; i++) {
        seen += board->histogram[i];
        if (seen > wanted) {
            return histogram_value(i);
        }
    }
    return 0;
}

/* ---- running ---- */

static pid_t process_start(void (*body)(const struct workload *, struct scoreboard *, uint32_t),
                           const struct workload *workload, struct scoreboard *board, uint32_t index)
{
    pid_t child = fork();
    if (child < 0) {
        workload_fail("fork");
    }
    if (child == 0) {
        body(workload, board, index);
        histogram_publish(board);
        _exit(0);
    }
    return child;
}

static void process_join(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) {
        workload_fail("a process of the benchmark died");
    }
}

static const struct contender *running;

static void produce_body(const struct workload *workload, struct scoreboard *board, uint32_t index)
{
    running->produce(workload, board, index);
    atomic_fetch_add(&board->producer_cpu_ns, cpu_ns() - cpu_started_ns);
}

static void drain_body(const struct workload *workload, struct scoreboard *board, uint32_t index)
{
    (void)index;
    running->drain(workload, board);
}

static double seconds_run(const struct workload *workload, struct scoreboard *board)
{
    pid_t producers[PRODUCERS_MAX];
    uint32_t waiting_for = workload->producer_count + (running->drain != NULL);
    pid_t drainer = running->drain != NULL ? process_start(drain_body, workload, board, 0) : 0;
    for (uint32_t i = 0; i < workload->producer_count; i++) {
        producers[i] = process_start(produce_body, workload, board, i);
    }
    while (atomic_load(&board->ready_count) < waiting_for) {
        usleep(100);
    }
    uint64_t begin_ns = workload_now_ns();
    atomic_store(&board->is_started, true);
    for (uint32_t i = 0; i < workload->producer_count; i++) {
        process_join(producers[i]);
    }
    uint64_t end_ns = workload_now_ns();
    atomic_store(&board->is_finished, true);
    if (drainer != 0) {
        process_join(drainer);
        if (board->drained_count != workload->record_count) {
            workload_fail("not every record was drained");
        }
    }
    return (double)(end_ns - begin_ns) * 1e-9;
}

static struct scoreboard *scoreboard_new(void)
{
    void *memory = mmap(NULL, sizeof(struct scoreboard), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        workload_fail("mmap");
    }
    return memory;
}

static void report(const struct workload *workload, struct scoreboard *board, double seconds)
{
    printf("{\"peer\": \"%s\", \"producers\": %u, \"value_size\": %u, \"records\": %llu, \"run_size\": %u, "
           "\"seconds\": %.6f, \"records_per_s\": %.1f, \"cpu_ns_per_record\": %.3f",
           workload->peer, workload->producer_count, workload->value_size, (unsigned long long)workload->record_count,
           workload->run_size, seconds, (double)workload->record_count / seconds,
           (double)board->producer_cpu_ns / (double)workload->record_count);
    if (workload->is_timed) {
        printf(", \"p50_ns\": %llu, \"p99_ns\": %llu, \"p999_ns\": %llu, \"p9999_ns\": %llu",
               (unsigned long long)histogram_percentile(board, 0.5),
               (unsigned long long)histogram_percentile(board, 0.99),
               (unsigned long long)histogram_percentile(board, 0.999),
               (unsigned long long)histogram_percentile(board, 0.9999));
    }
    printf("}\n");
}

static void options_read(int argc, char **argv, struct workload *workload)
{
    int option;
    while ((option = getopt(argc, argv, "c:p:s:n:r:x:e:b:ot")) != -1) {
        switch (option) {
        case 'c': workload->peer = optarg; break;
        case 'p': workload->producer_count = (uint32_t)atoi(optarg); break;
        case 's': workload->value_size = (uint32_t)atoi(optarg); break;
        case 'n': workload->record_count = (uint64_t)atoll(optarg); break;
        case 'r': workload->run_size = (uint32_t)atoi(optarg); break;
        case 'x': workload->spread = (uint32_t)atoi(optarg); break;
        case 'e': workload->partition_count = (uint32_t)atoi(optarg); break;
        case 'b': workload->mebibytes = (uint32_t)atoi(optarg); break;
        case 'o': workload->is_one_partition = true; break;
        case 't': workload->is_timed = true; break;
        default:
            workload_fail("usage: -c CONTENDER -p PRODUCERS -s VALUE_SIZE -n RECORDS [-r RUN] [-x SPREAD] "
                          "[-e PARTITIONS] [-b MEBIBYTES] [-o] [-t]");
        }
    }
    if (workload->producer_count == 0 || workload->producer_count > PRODUCERS_MAX || workload->run_size == 0) {
        workload_fail("-p must be 1 to 64 and -r at least 1");
    }
}

int workload_main(int argc, char **argv, const struct contender *contenders, uint32_t contender_count)
{
    struct workload workload = {
        .peer = "", .producer_count = 1, .value_size = 100, .record_count = 4000000, .run_size = 1};
    options_read(argc, argv, &workload);
    for (uint32_t i = 0; i < contender_count; i++) {
        if (strcmp(contenders[i].name, workload.peer) == 0) {
            struct scoreboard *board = scoreboard_new();
            running = &contenders[i];
            running->prepare(&workload, board);
            report(&workload, board, seconds_run(&workload, board));
            return 0;
        }
    }
    workload_fail("no contender of that name");
}
