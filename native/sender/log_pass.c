/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/log_pass.h"

#include "sender/sender_half.h"

#include <stdlib.h>
#include <string.h>

bool log_pass_make(struct log_pass *pass, uint32_t partition_count)
{
    size_t count = (size_t)partition_count + 1;
    pass->partitions = calloc(count, sizeof *pass->partitions);
    pass->runs = calloc(count, sizeof *pass->runs);
    pass->drained = calloc(count, sizeof *pass->drained);
    pass->batches = calloc(count, sizeof *pass->batches);
    pass->completions = calloc(count, sizeof *pass->completions);
    return pass->partitions != NULL && pass->runs != NULL && pass->drained != NULL && pass->batches != NULL &&
           pass->completions != NULL;
}

void log_pass_free(struct log_pass *pass)
{
    free(pass->partitions);
    free(pass->runs);
    free(pass->drained);
    free(pass->batches);
    free(pass->completions);
}

struct log_batch *log_pass_batches(const struct log_pass *pass, const struct log_run *run)
{
    CHECK(run->drained >= pass->drained && run->drained < pass->drained + pass->drained_count);
    return &pass->batches[run->drained - pass->drained];
}

static void run_add(struct log_pass *pass, uint32_t first, uint32_t count)
{
    CHECK(count > 0);
    CHECK(first + count <= pass->drained_count);
    pass->runs[pass->run_count++] = (struct log_pass_run){
        .run = {.drained = &pass->drained[first], .batches = &pass->batches[first], .count = count}};
}

void log_pass_drain(struct log_pass *pass, const struct drain_options *options, uint32_t partition_count)
{
    uint32_t first = 0;
    pass->run_count = 0;
    pass->drained_count =
        sender_drain(pass->half, options, pass->partitions, partition_count, pass->drained, &pass->seen_count);
    for (uint32_t end = 1; end <= pass->drained_count; end++) {
        if (end == pass->drained_count ||
            pass->drained[end].partition_index != pass->drained[first].partition_index) {
            run_add(pass, first, end - first);
            first = end;
        }
    }
}

void log_pass_write(struct log_pass *pass)
{
    uint32_t largest_record = pass->largest_record;
    for (uint32_t i = 0; i < pass->run_count; i++) {
        struct log_run *run = &pass->runs[i].run;
        CHECK(run->fit_count <= run->count);
        pass->runs[i].fit_count = run->fit_count;
        if (run->fit_count > 0) {
            sender_renew_heartbeat(pass->half);
            log_run_write(run, largest_record);
            largest_record = run->largest_record;
        }
    }
}

void log_pass_end(struct log_pass *pass, uint32_t run_index, struct wake_set *wakes)
{
    struct log_pass_run *one = &pass->runs[run_index];
    CHECK(run_index < pass->run_count);
    CHECK(one->fit_count > 0);
    if (pass->spills) {
        log_run_spill(pass->half, &one->run, &one->spill, wakes);
    } else {
        log_run_complete(pass->half, &one->run, pass->completions, wakes);
    }
}

uint32_t log_pass_tally(const struct log_pass *pass, struct delivered *delivered, uint64_t begun_ns)
{
    uint32_t ended_count = 0;
    for (uint32_t i = 0; i < pass->run_count; i++) {
        const struct log_run *run = &pass->runs[i].run;
        CHECK(run->ended_count <= run->count);
        for (uint32_t j = 0; j < run->ended_count; j++) {
            delivered_add(delivered, &run->drained[j], begun_ns);
        }
        if (run->largest_record > pass->largest_record && run->largest_record > delivered->largest_record) {
            delivered->largest_record = run->largest_record;
        }
        ended_count += run->ended_count;
    }
    return ended_count;
}

uint32_t log_pass_gather(struct log_pass *pass)
{
    uint32_t left_count = 0;
    for (uint32_t i = 0; i < pass->run_count; i++) {
        const struct log_run *run = &pass->runs[i].run;
        uint32_t count = run->count - run->ended_count;
        CHECK(left_count + count <= pass->drained_count);
        memmove(&pass->drained[left_count], &run->drained[run->ended_count], count * sizeof *pass->drained);
        left_count += count;
    }
    return left_count;
}
