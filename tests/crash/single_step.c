/* SPDX-License-Identifier: Apache-2.0
 *
 * single_step MODE POINT_COUNT PHASE [SCENARIO ...]
 *
 * Runs scenarios in one mode. Without SCENARIO, it runs all of them. If POINT_COUNT is 0, it tests every point.
 *
 *   copy    One tracee is stepped through its operation. After each instruction that changed the shared memory, the
 *           survivor works on a copy.
 *   kill    The tracee is killed (SIGKILL) after the instruction. The survivor works in the same arena.
 *   stop    The tracee is stopped after the instruction. The survivor appends and sends. Then the tracee continues
 *           until its operation returns.
 *   pass    Like stop, but the survivor only appends while the tracee is stopped.
 *   seal    Like stop, but the survivor only sends while the tracee is stopped. So batches are sealed, and no lock is
 *           taken over.
 *   close   While the tracee is stopped, the arena is closed and its sender leaves.
 *   commit  While the tracee is stopped, the transaction is committed.
 *   renew   Like commit, and the next transaction is begun before the tracee continues.
 *   duel    While the tracee is stopped, a rival takes over the lock of its partition, and is stopped at some later
 *           instruction of its append. Then the tracee continues until it returns, and after it the rival.
 *
 * A dead process leaves only the shared memory. So copy and kill test only the instructions that change it. A stopped
 * process also has the words that it has read. So the other modes test every instruction.
 *
 * A run with a POINT_COUNT tests every n-th change, from the PHASE-th on. It stops after the change or immediately
 * before it. Long operations get fewer points, because the tracee of each point must first reach it.
 *
 * The program prints one line per scenario: the number of points, at how many of them the tracee's record was
 * delivered, and the longest delay of the survivor. It exits with 1 if a rule was broken, and with 77 if the system
 * does not permit ptrace.
 */
#include "harness.h"

#include "arena/attach.h"
#include "base/point.h"
#include "path.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WATCHDOG_S = 20,
    TRIES_MAX = 4,
    EXIT_UNTRACEABLE = 77,
    PROBLEMS_MAX = 20,
    CHANGES_MAX = 4096,
    INSTRUCTIONS_PER_POINT = 2000,
    STRAYED_MAX = 64,
};

enum { RIVAL_INSTRUCTIONS_MAX = 1500, RIVAL_STOPS = 24 };

enum mode { MODE_COPY, MODE_KILL, MODE_STOP, MODE_PASS, MODE_SEAL, MODE_CLOSE, MODE_COMMIT, MODE_RENEW, MODE_DUEL,
            MODE_COUNT };
static const char *const mode_names[MODE_COUNT] = {"copy",  "kill",   "stop",  "pass", "seal",
                                                   "close", "commit", "renew", "duel"};

/* ---- the tracee ---- */

enum step { STEP_MADE, STEP_OVER, STEP_DIED };

_Noreturn static void operation_end(struct operation *operation, enum status status)
{
    *operation = (struct operation){.status = status, .is_over = true};
    kill(getpid(), SIGSTOP);
    _exit(0);
}

_Noreturn static void tracee_run(struct world *world, const struct scenario *scenario)
{
    if (!scenario->is_attaching) {
        REQUIRE(arena_ensure_attached(world->arena, NULL) == STATUS_OK);
    }
    if (scenario->begin != NULL) {
        scenario->begin(world);
    }
    world->is_tracee = true;
    if (world->arena != NULL) {
        world->arena->clock = (struct clock){.is_manual = true, .manual_ns = arena_now_ns(world->arena)};
    }
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0) {
        _exit(EXIT_UNTRACEABLE);
    }
    kill(getpid(), SIGSTOP); /* the harness steps the process from here on */
    operation_end(&world->shared->tracee, scenario->operate(world));
}

static void stop_when_taken_over(const char *point)
{
    if (strcmp(point, "partition_taken_over") == 0) {
        kill(getpid(), SIGSTOP);
    }
}

_Noreturn static void rival_run(struct world *world)
{
    REQUIRE(arena_ensure_attached(world->arena, NULL) == STATUS_OK);
    ledger_begin(&world->shared->ledger, RIVAL, VALUE_SIZE, &world->record);
    point_hook = stop_when_taken_over;
    REQUIRE(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0);
    operation_end(&world->shared->rival, world_append(world, RIVAL));
}

static enum step tracee_wait(struct world *world, pid_t pid)
{
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXIT_UNTRACEABLE) {
        exit(EXIT_UNTRACEABLE);
    }
    if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGTRAP) {
        return STEP_MADE;
    }
    if (WIFSTOPPED(status) && WSTOPSIG(status) == SIGSTOP) {
        return STEP_OVER;
    }
    world_report(world, "the tracee ended unexpectedly: wait status %x", (unsigned)status);
    return STEP_DIED;
}

static pid_t tracee_start(struct world *world, const struct scenario *scenario)
{
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        tracee_run(world, scenario);
    }
    REQUIRE(tracee_wait(world, pid) == STEP_OVER);
    REQUIRE(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_EXITKILL) == 0);
    world_store_generations(world);
    return pid;
}

/* The rival stops after it has taken over the lock. If it need not take it over, it stops after its append. */
static pid_t rival_start(struct world *world)
{
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        rival_run(world);
    }
    (void)tracee_wait(world, pid);
    return pid;
}

static enum step tracee_step(struct world *world, pid_t pid)
{
    REQUIRE(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
    world->instruction++;
    return tracee_wait(world, pid);
}

static enum step tracee_step_many(struct world *world, pid_t pid, uint64_t count)
{
    enum step step = STEP_MADE;
    while (count-- > 0 && step == STEP_MADE) {
        step = tracee_step(world, pid);
    }
    return step;
}

static enum step tracee_run_to_anchor(struct world *world, pid_t pid, const struct path_point *anchor)
{
    enum step step = STEP_MADE;
    REQUIRE(breakpoint_set(pid, anchor->address));
    for (uint32_t i = 0; i < anchor->visits && step == STEP_MADE; i++) {
        REQUIRE(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
        step = tracee_wait(world, pid);
    }
    REQUIRE(step != STEP_MADE || breakpoint_set(pid, 0));
    return step;
}

/* Runs a tracee to a point. Its number of instructions may differ from that of the first tracee: a loop may have more
 * repetitions (a copy, a timed wait), or `free` may take another path. Then it is stepped until it reaches the address
 * of the point, for at most STRAYED_MAX steps. */
static void tracee_run_to(struct world *world, pid_t pid, const struct path *path, uint32_t index)
{
    uint32_t anchor = path->points[index].anchor;
    uint64_t wanted = path->points[index].address;
    enum step step = anchor == 0 ? STEP_MADE : tracee_run_to_anchor(world, pid, &path->points[anchor]);
    world->instruction = anchor;
    if (step == STEP_MADE) {
        step = tracee_step_many(world, pid, index - anchor);
    }
    for (int i = 0; i < STRAYED_MAX && step == STEP_MADE && instruction_address(pid) != wanted; i++) {
        step = tracee_step(world, pid);
    }
}

static void tracee_kill(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
    }
}

/* ---- the summary of a scenario's run ---- */

struct summary {
    uint32_t point_count;
    uint32_t present_count; /* points at which the tracee's last record was delivered */
    uint32_t problem_count;
    struct delay delay;
};

static void summary_add(struct summary *summary, const struct world *world)
{
    const struct ledger_producer *tracee = &world->shared->ledger.producers[TRACEE];
    summary->point_count++;
    summary->problem_count += world->problem_count;
    if (tracee->begun_count > 0 && tracee->delivered_counts[tracee->begun_count - 1] > 0) {
        summary->present_count++;
    }
    if (world->delay.ns > summary->delay.ns) {
        summary->delay = world->delay;
    }
}

static void summary_print(const struct scenario *scenario, enum mode mode, uint64_t instruction_count,
                          const struct summary *summary)
{
    printf("%-30s %-4s  instructions %7llu  points %6u  present %6u  absent %6u  longest delay %6.2f ms in %s  %s\n",
           scenario->name, mode_names[mode], (unsigned long long)instruction_count, summary->point_count,
           summary->present_count, summary->point_count - summary->present_count, (double)summary->delay.ns / 1e6,
           summary->delay.operation == NULL ? "nothing" : summary->delay.operation,
           summary->problem_count == 0 ? "ok" : "FAILED");
    fflush(stdout);
}

/* A point is tried again if it was too slow. If the machine stalled, the next try is fast. */
static bool is_too_slow(const struct world *world)
{
    return world->delay.ns > DELAY_MAX_NS;
}

static void check_delay(struct world *world)
{
    WORLD_EXPECT(world, !is_too_slow(world), "%s took %.1f ms", world->delay.operation, (double)world->delay.ns / 1e6);
}

/* ---- mode copy ---- */

struct chosen {
    uint32_t point_count; /* if 0, all points */
    uint32_t phase;
};

static bool point_is_chosen(const struct chosen *chosen, uint32_t index, uint32_t count)
{
    uint32_t stride = chosen->point_count == 0 || count <= chosen->point_count ? 1 : count / chosen->point_count;
    return index % stride == chosen->phase % stride;
}

static void point_check_copy(struct twin *twin, const struct scenario *scenario, const uint8_t *before,
                             struct world *world, struct summary *summary)
{
    struct world copy;
    for (int tries = 0; tries < TRIES_MAX; tries++) {
        alarm(WATCHDOG_S);
        twin_become(twin, scenario, before, world, &copy);
        if (!scenario->is_alone) {
            check_always(&copy);
        }
        survivor_finish(&copy, scenario);
        twin_leave(twin, &copy);
        if (!is_too_slow(&copy)) {
            break;
        }
    }
    check_delay(&copy);
    summary_add(summary, &copy);
}

static uint8_t *bytes_copy(const void *bytes, uint64_t size)
{
    uint8_t *copy = memory_new(size);
    memcpy(copy, bytes, size);
    return copy;
}

/* Returns true if the bytes differ from those of the last call, and stores them. */
static bool has_changed(uint8_t *remembered, const void *bytes, uint64_t size)
{
    if (memcmp(remembered, bytes, size) == 0) {
        return false;
    }
    memcpy(remembered, bytes, size);
    return true;
}

typedef void visit_change(struct world *world, void *context);

/* Calls `visit` before the first instruction, and after each instruction that changed the shared memory. */
static void walk_changes(struct world *world, pid_t pid, struct path *path, visit_change *visit, void *context)
{
    uint8_t *arena = bytes_copy(world->bytes, world->size);
    uint8_t *shared = bytes_copy(world->shared, sizeof *world->shared);
    enum step step = STEP_MADE;
    world->instruction = 0;
    visit(world, context);
    while (step == STEP_MADE && world->problem_count == 0) {
        alarm(WATCHDOG_S);
        path_add(path, pid);
        step = tracee_step(world, pid);
        bool arena_changed = has_changed(arena, world->bytes, world->size);
        bool shared_changed = has_changed(shared, world->shared, sizeof *world->shared);
        if (arena_changed || shared_changed) {
            visit(world, context);
        }
    }
    memory_free(arena, world->size);
    memory_free(shared, sizeof *world->shared);
}

struct changes {
    uint32_t instructions[CHANGES_MAX];
    uint32_t count;
};

static void change_remember(struct world *world, void *context)
{
    struct changes *changes = context;
    REQUIRE(changes->count < CHANGES_MAX);
    changes->instructions[changes->count++] = (uint32_t)world->instruction;
}

static void world_begin(struct world *world, const struct scenario *scenario, enum mode mode)
{
    memset(world, 0, sizeof *world);
    world->mode_name = mode_names[mode];
    world_new(world, scenario);
}

/* Finds the path of a scenario and its changes. Returns the number of instructions. */
static uint64_t changes_find(const struct scenario *scenario, struct path *path, struct changes *changes)
{
    struct world world;
    world_begin(&world, scenario, MODE_COPY);
    pid_t pid = tracee_start(&world, scenario);
    walk_changes(&world, pid, path, change_remember, changes);
    REQUIRE(world.problem_count == 0);
    path_plan(path, pid);
    tracee_kill(pid);
    world_free(&world);
    return world.instruction;
}

struct copy_run {
    const struct scenario *scenario;
    const struct chosen *chosen;
    struct twin *twin;
    uint8_t *before;
    struct summary *summary;
    uint32_t change_index;
    uint32_t change_count;
};

static void change_check(struct world *world, void *context)
{
    struct copy_run *run = context;
    if (point_is_chosen(run->chosen, run->change_index++, run->change_count) &&
        run->summary->problem_count < PROBLEMS_MAX) {
        point_check_copy(run->twin, run->scenario, run->before, world, run->summary);
    }
}

static void run_copy(const struct scenario *scenario, const struct chosen *chosen, uint32_t change_count,
                     struct summary *summary)
{
    struct world world;
    world_begin(&world, scenario, MODE_COPY);
    pid_t pid = tracee_start(&world, scenario);
    struct path path = {0};
    struct copy_run run = {.scenario = scenario,
                           .chosen = chosen,
                           .twin = twin_new(&world),
                           .before = bytes_copy(world.bytes, world.size),
                           .summary = summary,
                           .change_count = change_count};
    walk_changes(&world, pid, &path, change_check, &run);
    summary->problem_count += world.problem_count;
    tracee_kill(pid);
    twin_free(run.twin);
    path_free(&path);
    memory_free(run.before, world.size);
    world_free(&world);
}

/* ---- modes kill and stop: a separate tracee for each instruction ---- */

static void point_kill(struct world *world, const struct scenario *scenario, pid_t pid)
{
    tracee_kill(pid);
    if (scenario->is_alone) {
        world_attach(world);
    }
    survivor_finish(world, scenario);
}

static void operation_continue(struct world *world, const struct scenario *scenario, pid_t pid,
                            const struct operation *operation)
{
    if (!operation->is_over) {
        REQUIRE(ptrace(PTRACE_CONT, pid, NULL, NULL) == 0);
        (void)tracee_wait(world, pid);
    }
    bool is_outside = operation->status == STATUS_NO_TRANSACTION || operation->status == STATUS_TRANSACTION_ENDED;
    bool is_well = operation->status == STATUS_OK ||
                   (operation->status == STATUS_EXHAUSTED && scenario->may_be_exhausted) ||
                   (is_outside && scenario->is_transactional) || !arena_takes_records(world->arena);
    WORLD_EXPECT(world, operation->is_over && is_well, "the stopped process continued, and its operation returned %s",
                 status_name(operation->status));
}

static void point_stop(struct world *world, const struct scenario *scenario, unsigned beside, pid_t pid)
{
    if (!scenario->is_alone) {
        survivor_work_beside(world, scenario, beside);
    }
    operation_continue(world, scenario, pid, &world->shared->tracee);
    if (!scenario->is_alone) {
        check_after_continuing(world);
    }
    point_kill(world, scenario, pid);
}

static void point_close(struct world *world, const struct scenario *scenario, pid_t pid)
{
    survivor_close_beside(world);
    operation_continue(world, scenario, pid, &world->shared->tracee);
    check_no_record_is_late(world);
    check_after_continuing(world);
    world_reopen(world);
    point_kill(world, scenario, pid);
}

/* If the tracee has joined no transaction, its record may also be in the next one. */
static void point_commit(struct world *world, const struct scenario *scenario, bool is_followed, pid_t pid)
{
    bool is_over = survivor_commit_beside(world, is_followed);
    operation_continue(world, scenario, pid, &world->shared->tracee);
    if (is_over && (!is_followed || scenario->is_joining)) {
        check_no_record_is_late(world);
    }
    check_after_continuing(world);
    point_kill(world, scenario, pid);
}

static void point_duel(struct world *world, const struct scenario *scenario, uint64_t rival_instruction, pid_t pid)
{
    uint64_t tracee_instruction = world->instruction;
    pid_t rival = rival_start(world);
    if (!world->shared->rival.is_over) {
        (void)tracee_step_many(world, rival, rival_instruction);
    }
    world->instruction = tracee_instruction;
    operation_continue(world, scenario, pid, &world->shared->tracee);
    operation_continue(world, scenario, rival, &world->shared->rival);
    tracee_kill(rival);
    point_kill(world, scenario, pid);
    WORLD_EXPECT(world, world->problem_count == 0, "the rival was stopped after %llu instructions",
                 (unsigned long long)rival_instruction);
}

/* The place where the tracee stops: a point of its path, or a number of instructions after a change. Two tracees may
 * need different numbers of instructions to reach the same change, because those of memcpy depend on addresses. So the
 * tracee is stepped until it has made as many changes. */
struct place {
    const struct path *path; /* NULL if the place is relative to a change */
    uint32_t index;          /* of the point on the path */
    uint32_t change_index;
    uint64_t offset;         /* instructions after the change */
    uint64_t instruction;    /* the number of instructions that the first tracee needed */
    uint64_t rival_instruction; /* the place where the rival stops in a duel */
};

static struct place place_at(const struct changes *changes, uint64_t instruction)
{
    uint32_t i = changes->count - 1;
    while (changes->instructions[i] > instruction) {
        i--;
    }
    return (struct place){
        .change_index = i, .offset = instruction - changes->instructions[i], .instruction = instruction};
}

static void tracee_step_to(struct world *world, pid_t pid, const struct place *place)
{
    uint8_t *arena = bytes_copy(world->bytes, world->size);
    uint8_t *shared = bytes_copy(world->shared, sizeof *world->shared);
    enum step step = STEP_MADE;
    for (uint32_t seen = 0; seen < place->change_index && step == STEP_MADE;) {
        step = tracee_step(world, pid);
        bool arena_changed = has_changed(arena, world->bytes, world->size);
        bool shared_changed = has_changed(shared, world->shared, sizeof *world->shared);
        bool is_change = arena_changed || shared_changed;
        seen += is_change;
        if (is_change || world->instruction < place->instruction) {
            alarm(WATCHDOG_S); /* the tracee makes progress, so it is not stuck */
        }
    }
    if (step == STEP_MADE) {
        (void)tracee_step_many(world, pid, place->offset);
    }
    memory_free(arena, world->size);
    memory_free(shared, sizeof *world->shared);
}

static void point_check(struct world *world, const struct scenario *scenario, enum mode mode,
                        const struct place *place, pid_t pid)
{
    switch (mode) {
    case MODE_KILL:
        point_kill(world, scenario, pid);
        break;
    case MODE_DUEL:
        point_duel(world, scenario, place->rival_instruction, pid);
        break;
    case MODE_CLOSE:
        point_close(world, scenario, pid);
        break;
    case MODE_COMMIT:
    case MODE_RENEW:
        point_commit(world, scenario, mode == MODE_RENEW, pid);
        break;
    case MODE_PASS:
        point_stop(world, scenario, BESIDE_APPEND, pid);
        break;
    case MODE_SEAL:
        point_stop(world, scenario, BESIDE_SEND, pid);
        break;
    default:
        point_stop(world, scenario, BESIDE_APPEND | BESIDE_SEND, pid);
        break;
    }
}

static void point_check_own(const struct scenario *scenario, enum mode mode, const struct place *place,
                            struct summary *summary)
{
    struct world world;
    for (int tries = 1;; tries++) {
        alarm(WATCHDOG_S);
        world_begin(&world, scenario, mode);
        pid_t pid = tracee_start(&world, scenario);
        if (place->path != NULL) {
            tracee_run_to(&world, pid, place->path, place->index);
        } else {
            tracee_step_to(&world, pid, place);
        }
        point_check(&world, scenario, mode, place, pid);
        if (!is_too_slow(&world) || tries == TRIES_MAX) {
            break;
        }
        world_free(&world);
    }
    check_delay(&world);
    summary_add(summary, &world);
    world_free(&world);
}

/* Reduces the number of points of long operations, because the tracee of each point must first reach it. */
static struct chosen chosen_within_budget(const struct chosen *chosen, uint64_t instruction_count)
{
    struct chosen fewer = *chosen;
    uint64_t affordable = 1 + (uint64_t)chosen->point_count * INSTRUCTIONS_PER_POINT / (instruction_count + 1);
    if (fewer.point_count > affordable) {
        fewer.point_count = (uint32_t)affordable;
    }
    return fewer;
}

static void run_instructions(const struct scenario *scenario, enum mode mode, const struct path *path,
                             struct summary *summary)
{
    for (uint32_t i = 0; i < path->count && summary->problem_count < PROBLEMS_MAX; i++) {
        struct place place = {.path = path, .index = i};
        point_check_own(scenario, mode, &place, summary);
    }
}

/* Stops a tracee after each chosen change, or immediately before it. */
static void run_changes(const struct scenario *scenario, enum mode mode, const struct chosen *chosen,
                        const struct changes *changes, struct summary *summary)
{
    for (uint32_t i = 0; i < changes->count && summary->problem_count < PROBLEMS_MAX; i++) {
        uint64_t instruction = changes->instructions[i];
        bool is_before = mode != MODE_KILL && chosen->point_count != 0 && instruction > 0 &&
                         (i / 2 + chosen->phase) % 2 == 0;
        if (point_is_chosen(chosen, i, changes->count)) {
            struct place place = place_at(changes, instruction - is_before);
            point_check_own(scenario, mode, &place, summary);
        }
    }
}

/* Stops the tracee after each chosen change, and the rival at places that differ for each change. */
static void run_duels(const struct scenario *scenario, const struct chosen *chosen, const struct changes *changes,
                      const struct path *path, struct summary *summary)
{
    uint32_t stops = chosen->point_count == 0 ? RIVAL_STOPS : 2;
    for (uint32_t i = 0; i < changes->count * stops && summary->problem_count < PROBLEMS_MAX; i++) {
        uint32_t stop = (i % stops * (RIVAL_INSTRUCTIONS_MAX / stops) + i * 37 + chosen->phase * 61) %
                        RIVAL_INSTRUCTIONS_MAX;
        if (point_is_chosen(chosen, i / stops, changes->count)) {
            struct place place = {
                .path = path, .index = changes->instructions[i / stops], .rival_instruction = stop};
            point_check_own(scenario, MODE_DUEL, &place, summary);
        }
    }
}

static void run_own(const struct scenario *scenario, enum mode mode, const struct chosen *chosen,
                    const struct changes *changes, const struct path *path, struct summary *summary)
{
    struct chosen fewer = chosen_within_budget(chosen, path->count);
    if (mode == MODE_DUEL) {
        run_duels(scenario, &fewer, changes, path, summary);
        return;
    }
    run_changes(scenario, mode, &fewer, changes, summary);
    if (mode != MODE_KILL && chosen->point_count == 0) {
        run_instructions(scenario, mode, path, summary);
    }
}

/* ---- main ---- */

/* Runs the scenario once. The first call of a library function binds its symbol, and no tracee may do this later. */
static void warm_up(const struct scenario *scenario)
{
    struct world world;
    world_begin(&world, scenario, MODE_KILL);
    point_kill(&world, scenario, tracee_start(&world, scenario));
    world_free(&world);
}

static uint32_t run_scenario(const struct scenario *scenario, enum mode mode, const struct chosen *chosen)
{
    static struct changes changes;
    struct path path = {0};
    struct summary summary = {0};
    warm_up(scenario);
    changes.count = 0;
    uint64_t instruction_count = changes_find(scenario, &path, &changes);
    if (mode == MODE_COPY) {
        run_copy(scenario, chosen, changes.count, &summary);
    } else {
        run_own(scenario, mode, chosen, &changes, &path, &summary);
    }
    path_free(&path);
    summary_print(scenario, mode, instruction_count, &summary);
    return summary.problem_count;
}

/* Returns false if the mode does not apply to the scenario, or does the same as mode stop. */
static bool has_meaning(const struct scenario *scenario, enum mode mode)
{
    switch (mode) {
    case MODE_PASS:
    case MODE_SEAL:
        return !scenario->is_sender && !scenario->is_attaching;
    case MODE_CLOSE:
    case MODE_DUEL:
        return scenario->has_rival;
    case MODE_COMMIT:
    case MODE_RENEW:
        return scenario->has_rival && scenario->is_transactional;
    default:
        return true;
    }
}

static bool is_wanted(const struct scenario *scenario, enum mode mode, int name_count, char **names)
{
    if (!has_meaning(scenario, mode)) {
        return false;
    }
    for (int i = 0; i < name_count; i++) {
        if (strcmp(scenario->name, names[i]) == 0) {
            return true;
        }
    }
    return name_count == 0;
}

static enum mode mode_named(const char *name)
{
    for (uint32_t mode = MODE_COPY; mode < MODE_COUNT; mode++) {
        if (strcmp(name, mode_names[mode]) == 0) {
            return (enum mode)mode;
        }
    }
    fprintf(stderr, "no such mode: %s\n", name);
    exit(2);
}

/* A step switches twice between two processes. If both use one CPU, this takes a third of the time of two CPUs. */
static void stay_on_one_cpu(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "single_step copy|kill|stop|pass|seal|close|commit|renew|duel POINT_COUNT PHASE "
                        "[SCENARIO ...]\n");
        return 2;
    }
    enum mode mode = mode_named(argv[1]);
    struct chosen chosen = {.point_count = (uint32_t)strtoul(argv[2], NULL, 10),
                            .phase = (uint32_t)strtoul(argv[3], NULL, 10)};
    uint32_t problem_count = 0;
    uint32_t run_count = 0;
    stay_on_one_cpu();
    for (uint32_t i = 0; i < scenario_count; i++) {
        if (is_wanted(&scenarios[i], mode, argc - 4, argv + 4)) {
            problem_count += run_scenario(&scenarios[i], mode, &chosen);
            run_count++;
        }
    }
    return run_count == 0 ? 2 : problem_count != 0;
}
