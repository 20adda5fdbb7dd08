/* SPDX-License-Identifier: Apache-2.0
 *
 * The common parts of C benchmarks: processes that start together, a shared histogram of latencies, and a line of JSON
 * at the end.
 */
#ifndef BENCH_WORKLOAD_H
#define BENCH_WORKLOAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PRODUCERS_MAX = 64, HISTOGRAM_SUB_BITS = 4, HISTOGRAM_CELLS = 64 << HISTOGRAM_SUB_BITS };

struct workload {
    const char *peer;
    uint32_t producer_count;
    uint32_t value_size;
    uint64_t record_count; /* of all producers together */
    uint32_t run_size;     /* records per call */
    bool is_one_partition; /* otherwise each producer has its own */
    uint32_t spread;       /* the number of partitions that get runs in turn; 0 means one for each producer */
    uint32_t partition_count; /* the minimum number of partitions in the arena; most of them may be unused */
    uint32_t mebibytes;    /* of buffers; 0 means the contender's default */
    bool is_timed;         /* measure the latency of each append, which costs two reads of the clock */
};

/* In memory that all processes of a benchmark share. */
struct scoreboard {
    atomic_uint ready_count;
    atomic_bool is_started;
    atomic_bool is_finished; /* the producers are done: drain the rest and exit */
    atomic_ullong drained_count;
    atomic_ullong producer_cpu_ns; /* of all producers together, each from the start to its end */
    atomic_ullong histogram[HISTOGRAM_CELLS]; /* log-linear, 16 cells per power of two of nanoseconds */
};

/* One contender. Each function runs in its own process, and calls `workload_start` when it is ready. */
struct contender {
    const char *name;
    void (*prepare)(const struct workload *workload, struct scoreboard *board);
    void (*produce)(const struct workload *workload, struct scoreboard *board, uint32_t producer_index);
    void (*drain)(const struct workload *workload, struct scoreboard *board); /* NULL if no process drains */
};

/* Blocks until every process of the benchmark has called it. */
void workload_start(struct scoreboard *board);

uint64_t workload_share(const struct workload *workload, uint32_t producer_index);
uint64_t workload_now_ns(void);
void histogram_add(uint64_t ns);

_Noreturn void workload_fail(const char *what);

/* Parses the command line, runs its contender, and prints the JSON line. Returns the exit code of main. */
int workload_main(int argc, char **argv, const struct contender *contenders, uint32_t contender_count);

#endif
