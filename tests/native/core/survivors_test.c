/* SPDX-License-Identifier: Apache-2.0
 *
 * Real processes, stopped or killed at every point of an append while a sender and another producer continue. No other
 * process is delayed, no acknowledged record is lost, no record is delivered twice, and every slot is freed.
 */
#include "core/delivery_fixture.h"

#include <sched.h>

enum { BATCH_SIZE = 512, APPENDED_COUNT = 40, SURVIVOR_COUNT = 30, OVERSIZED_EVERY = 5, OVERSIZED_SIZE = 1200 };
enum { SURVIVOR_FIRST = 1000, SECOND_APPENDER_FIRST = 2000 };

/* The survivor is also the sender. If it finds no buffer, it delivers. */
struct scene {
    int file;
    struct arena *arena;
    struct accumulator *survivor;
    atomic_u32 *acknowledged; /* shared with the child: the number of its appends that returned OK */
    struct ledger ledger;
};

static struct scene *scene_new(void)
{
    struct scene *scene = calloc(1, sizeof *scene);
    scene->file = arena_file_new();
    scene->arena = arena_created(scene->file, geometry_of(8, BATCH_SIZE));
    scene->survivor = sender_opened(scene->arena);
    scene->acknowledged =
        mmap(NULL, PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return scene;
}

static void scene_end(struct scene *scene)
{
    deliver_everything(scene->survivor, &scene->ledger);
    accumulator_close(scene->survivor);
    expect_all_free(scene->arena);
    arena_end(scene->arena, scene->file);
    munmap(scene->acknowledged, PAGE_SIZE_BYTES);
    free(scene);
}

static void deliver_and_maintain(struct scene *scene)
{
    while (deliver_round(scene->survivor, &scene->ledger) > 0) {
    }
    sender_maintain(scene->survivor->sender, NULL);
}

/* ---- children ---- */

struct errand {
    struct scene *scene;
    uint64_t first;
    const char *point;
    uint32_t passes_before;
    int signal;
};

static void run_errand(struct arena *arena, void *argument)
{
    struct errand *errand = argument;
    struct accumulator *producer = accumulator_opened(arena);
    interrupt_at(errand->point, errand->passes_before, raise_signal, &errand->signal);
    for (uint32_t i = 0; i < APPENDED_COUNT; i++) {
        uint8_t value[OVERSIZED_SIZE] = {0};
        uint64_t number = errand->first + i;
        struct append_result result;
        memcpy(value, &number, sizeof number);
        append_waiting(producer, 0, record_of(value, i % OVERSIZED_EVERY == 1 ? OVERSIZED_SIZE : 50, 1000), &result);
        store_release_u32(errand->scene->acknowledged, i + 1);
    }
    accumulator_close(producer);
}

static pid_t appender_started(struct errand *errand)
{
    return child_started(errand->scene->file, run_errand, errand, NULL, 0);
}

/* Deliver until the child has ended, or stopped if `options` ask for that, too. Return waitpid's status. */
static int deliver_until(struct scene *scene, pid_t appender, int options)
{
    int status = 0;
    while (waitpid(appender, &status, WNOHANG | options) != appender) {
        deliver_and_maintain(scene);
        sched_yield();
    }
    deliver_and_maintain(scene);
    return status;
}

static void expect_stops(struct scene *scene, const struct errand *errand, pid_t appender)
{
    EXPECT_OR_SAY(WIFSTOPPED(deliver_until(scene, appender, WUNTRACED)), "no process reached %s", errand->point);
}

static void expect_ends(struct scene *scene, const struct errand *errand, pid_t appender)
{
    kill(appender, SIGCONT);
    int status = deliver_until(scene, appender, 0);
    EXPECT_OR_SAY(WIFEXITED(status) && WEXITSTATUS(status) == 0, "stopped at %s (%u)", errand->point,
                  errand->passes_before);
}

/* ---- survivors ---- */

static void survivor_appends(struct scene *scene)
{
    for (uint64_t number = SURVIVOR_FIRST; number < SURVIVOR_FIRST + SURVIVOR_COUNT; number++) {
        enum status status;
        while ((status = append_number(scene->survivor, 0, number)) == STATUS_EXHAUSTED) {
            deliver_and_maintain(scene);
        }
        EXPECT_STATUS(status, STATUS_OK);
    }
    deliver_and_maintain(scene);
    expect_delivered_once(&scene->ledger, SURVIVOR_FIRST, SURVIVOR_FIRST + SURVIVOR_COUNT);
}

/* ---- stopped ---- */

static void expect_nothing_lost_when_stopped_at(const char *point, uint32_t passes_before)
{
    struct scene *scene = scene_new();
    struct errand errand = {.scene = scene, .point = point, .passes_before = passes_before, .signal = SIGSTOP};
    pid_t appender = appender_started(&errand);
    expect_stops(scene, &errand, appender);
    survivor_appends(scene);
    expect_ends(scene, &errand, appender);
    expect_delivered_once(&scene->ledger, 0, APPENDED_COUNT);
    EXPECT_EQ_U64(scene->ledger.count, APPENDED_COUNT + SURVIVOR_COUNT);
    scene_end(scene);
}

TEST(a_process_stopped_at_any_point_of_an_append_delays_no_other_and_loses_nothing)
{
    static const char *const points[] = {"record_claimed", "seq_taken", "slot_opened", "chain_piece_linked",
                                         "chain_seq_taken"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        for (uint32_t passes_before = 0; passes_before < 3; passes_before++) {
            expect_nothing_lost_when_stopped_at(points[i], passes_before);
        }
    }
}

static void expect_nothing_lost_when_both_stop(const char *first_point, const char *second_point)
{
    struct scene *scene = scene_new();
    struct errand first = {.scene = scene, .point = first_point, .passes_before = 1, .signal = SIGSTOP};
    struct errand second = {
        .scene = scene, .first = SECOND_APPENDER_FIRST, .point = second_point, .signal = SIGSTOP};
    pid_t first_appender = appender_started(&first);
    expect_stops(scene, &first, first_appender);
    pid_t second_appender = appender_started(&second);
    expect_stops(scene, &second, second_appender);
    survivor_appends(scene);
    expect_ends(scene, &first, first_appender);
    expect_ends(scene, &second, second_appender);
    expect_delivered_once(&scene->ledger, 0, APPENDED_COUNT);
    expect_delivered_once(&scene->ledger, SECOND_APPENDER_FIRST, SECOND_APPENDER_FIRST + APPENDED_COUNT);
    EXPECT_EQ_U64(scene->ledger.count, 2 * APPENDED_COUNT + SURVIVOR_COUNT);
    scene_end(scene);
}

TEST(one_that_passed_a_stopped_process_may_be_stopped_and_passed_in_turn)
{
    static const char *const first_points[] = {"record_claimed", "slot_opened", "seq_taken", "chain_seq_taken"};
    static const char *const second_points[] = {"partition_taken_over", "partition_open_sealed"};
    for (uint32_t i = 0; i < COUNT_OF(first_points); i++) {
        for (uint32_t j = 0; j < COUNT_OF(second_points); j++) {
            expect_nothing_lost_when_both_stop(first_points[i], second_points[j]);
        }
    }
}

/* ---- killed ---- */

/* The child's last record may be there or not, because its append never returned. */
static void expect_nothing_lost_when_killed_at(const char *point, uint32_t passes_before)
{
    struct scene *scene = scene_new();
    struct errand errand = {.scene = scene, .point = point, .passes_before = passes_before, .signal = SIGKILL};
    int status = deliver_until(scene, appender_started(&errand), 0);
    EXPECT_OR_SAY(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "no process reached %s", point);
    survivor_appends(scene);
    uint32_t acknowledged = load_acquire_u32(scene->acknowledged);
    uint32_t unanswered = ledger_count_of(&scene->ledger, acknowledged);
    expect_delivered_once(&scene->ledger, 0, acknowledged);
    EXPECT_OR_SAY(unanswered <= 1, "killed at %s: record %u was delivered %u times", point, acknowledged, unanswered);
    EXPECT_EQ_U64(scene->ledger.count, acknowledged + unanswered + SURVIVOR_COUNT);
    scene_end(scene);
}

TEST(a_process_killed_at_any_point_of_an_append_loses_no_acknowledged_record_and_leaks_no_slot)
{
    static const char *const points[] = {"record_claimed",  "seq_taken",    "slot_opened", "chain_piece_linked",
                                         "chain_seq_taken", "slot_granted", "grant_taken", "waiting_count_raised"};
    for (uint32_t i = 0; i < COUNT_OF(points); i++) {
        for (uint32_t passes_before = 0; passes_before < 3; passes_before++) {
            expect_nothing_lost_when_killed_at(points[i], passes_before);
        }
    }
}

RUN_ALL()
