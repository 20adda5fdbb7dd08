/* SPDX-License-Identifier: Apache-2.0
 *
 * chaos SECONDS SEED [pump]
 *
 * Producers and a sender use one arena. For the given time, they are killed and stopped at random. A ledger shows
 * whether a record was lost (chaos.h).
 *
 * A producer appends records with its number and a sequence. When an append returns, the producer marks the sequence as
 * *acknowledged* in the ledger. The sender checks every batch and marks its records as *delivered*. A killed producer
 * is replaced by one that continues after the last acknowledged sequence. So a record that was committed, but not
 * acknowledged, is appended and delivered twice.
 *
 * CHECKS
 *   All acknowledged records are delivered. The sequences of a producer arrive in order. Every batch is valid. At the
 *   end every slot is free, and verify (deep, idle) finds nothing.
 *   An append that does not wait for memory takes at most BLOCKED_MS_MAX. This is the time of two slices of a lock, and
 *   of a few delays on a busy machine. The time that the process spends in the run queue is not counted. The holder of
 *   the lock may also be in the run queue. So the limit is raised by the longest such wait of any process.
 *
 * DUPLICATES. If a sender is killed after it delivered a batch and before the slot is DONE, the next sender delivers
 * the batch again. With `pump`, the sender sends batches to a broker (chaos_pump.h), which drops such a batch. So with
 * `pump`, there are at most as many duplicate records as killed producers.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arena/attach.h"
#include "arena/process.h"
#include "arena/verify.h"
#include "chaos.h"
#include "chaos_broker.h"
#include "chaos_pump.h"
#include "run_queue.h"

enum {
    SLOT_COUNT = 64,
    BLOCKED_MS_MAX = 250,
    DRAIN_MAX = 16,
    OVERSIZED_EVERY = 997,
    IN_FLIGHT_CHECKS_MAX = 500,
    IN_FLIGHT_US_MAX = 2000,
};

struct ledger *ledger;
pid_t parent;

static int arena_file;
static struct broker_address broker;
static bool is_pumping;

static int arena_open(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", arena_file);
    return open(path, O_RDWR | O_CLOEXEC);
}

static struct accumulator *attach(void)
{
    struct error error;
    struct arena *arena;
    struct accumulator *accumulator;
    if (arena_attach(arena_open(), arena_open(), &arena, &error) != STATUS_OK ||
        accumulator_open(arena, &accumulator, &error) != STATUS_OK) {
        FAIL("attach: %s", error.message);
    }
    return accumulator;
}

static void detach(struct accumulator *accumulator)
{
    struct arena *arena = accumulator->arena;
    accumulator_close(accumulator);
    arena_detach(arena);
}

/* ---- producer ---- */

struct payload {
    uint64_t producer;
    uint64_t sequence;
    uint8_t filler[2 * BATCH_SIZE];
};

/* True if this process was stopped during the current append. The time of such an append is not counted. */
static volatile sig_atomic_t was_stopped;

static void on_continue(int signal)
{
    (void)signal;
    was_stopped = 1;
}

/* Returns EXHAUSTED, without taking the pool lock, if no slots were granted. */
static enum status slots_poll(struct arena *arena, const struct buffer_wait *wait, uint32_t *slots)
{
    RETURN_IF_FAILED(buffer_pool_poll(arena, wait));
    return buffer_pool_take(arena, wait, slots);
}

static uint32_t slots_wait(struct accumulator *accumulator, uint32_t need, uint32_t *slots)
{
    struct buffer_wait wait;
    struct wake_set wakes = {0};
    enum status status = buffer_pool_enqueue(accumulator->arena, NO_PARTITION, need, &wait, &wakes);
    if (status != STATUS_OK) {
        FAIL("enqueue: %s", status_name(status));
    }
    for (int tries = 0; (status = slots_poll(accumulator->arena, &wait, slots)) == STATUS_EXHAUSTED; tries++) {
        usleep(500);
        if (tries % 20 == 19) {
            buffer_pool_wait_on(accumulator->arena, &wait, &wakes);
        }
    }
    if (status != STATUS_OK) {
        FAIL("take: %s", status_name(status));
    }
    return need;
}

static void max_raise(atomic_ullong *max, uint64_t ns)
{
    unsigned long long seen = *max;
    while (ns > seen && !atomic_compare_exchange_weak(max, &seen, ns)) {
    }
}

/* The last reading of the time in the run queue. It is read once a millisecond, because reading it is slow. */
static struct {
    uint64_t ns;
    uint64_t queued_ns;
} last_reading;

static void run_queue_read(uint64_t now_ns)
{
    if (now_ns - last_reading.ns > NS_PER_MS) {
        uint64_t queued = queued_ns();
        if (last_reading.ns != 0) {
            max_raise(&ledger->turn_ns_max, queued - last_reading.queued_ns);
        }
        last_reading.ns = now_ns;
        last_reading.queued_ns = queued;
    }
}

static void blocked_store(uint64_t ns)
{
    if (was_stopped || ns <= ledger->blocked_ns_max) {
        return;
    }
    uint64_t waited_ns = queued_ns() - last_reading.queued_ns;
    max_raise(&ledger->blocked_ns_max, ns > waited_ns ? ns - waited_ns : 0);
}

static void append_one(struct accumulator *accumulator, uint32_t partition_index, const struct payload *payload,
                       int32_t size)
{
    struct measured_record measured = {
        .record = {.key_size = -1, .value = payload, .value_size = size, .timestamp_ms = 1}};
    uint32_t slots[4];
    struct reservation reservation = {.slots = slots, .count = 0};
    struct append_result result;
    enum status status = accumulator_measure(accumulator, &measured.record, &measured.size);
    if (status != STATUS_OK) {
        FAIL("measure: %s", status_name(status));
    }
    for (;;) {
        was_stopped = 0;
        run_queue_read(arena_now_ns(accumulator->arena));
        uint64_t begin_ns = arena_now_ns(accumulator->arena);
        status = accumulator_append(accumulator, partition_index, &measured, 1, &reservation, &result);
        blocked_store(arena_now_ns(accumulator->arena) - begin_ns);
        if (status == STATUS_OK) {
            break;
        }
        if (status != STATUS_EXHAUSTED) {
            FAIL("append: %s", status_name(status));
        }
        reservation = (struct reservation){.slots = slots, .count = slots_wait(accumulator, result.need, slots)};
    }
    buffer_pool_return(accumulator->arena, reservation.slots, reservation.count, &accumulator->appender->wakes);
}

static void producer_run(uint32_t producer)
{
    static struct payload payload;
    signal(SIGCONT, on_continue);
    struct accumulator *accumulator = attach();
    payload.producer = producer;
    memset(payload.filler, (int)producer, sizeof payload.filler);
    while (ledger->is_finished == 0) {
        uint64_t sequence = ledger->acknowledged[producer] + 1;
        int32_t filler_size = sequence % OVERSIZED_EVERY == 0 ? BATCH_SIZE + 100 : (int32_t)(sequence * 37 % 100);
        payload.sequence = sequence;
        append_one(accumulator, producer % PARTITION_COUNT, &payload, 16 + filler_size);
        ledger->acknowledged[producer] = sequence;
    }
    detach(accumulator);
}

/* ---- sender ---- */

static void batch_deliver(struct accumulator *accumulator, const struct drained_batch *batch)
{
    static uint8_t bytes[CHAIN_SIZE_MAX];
    batch_copy(accumulator->arena, batch, bytes);
    ledger_deliver(bytes, batch->size);
}

static uint32_t sender_scan_hints(struct accumulator *accumulator, bool is_last)
{
    static struct wake_set wakes;
    uint32_t partitions[DRAIN_MAX];
    struct drained_batch batches[DRAIN_MAX];
    uint64_t next_check_ns;
    uint32_t seen;
    const uint64_t patience_ns = is_last ? sender_patience_ns(accumulator->arena) : 0; /* no more open batches */
    const struct ready_options ready = {.now_ns = arena_now_ns(accumulator->arena) + patience_ns,
                                        .linger_ns = NS_PER_MS,
                                        .is_everything_ready = is_last};
    const struct drain_options drain = {.now_ns = ready.now_ns, .size_max = 1 << 20, .in_flight_max = 5};
    uint32_t count = sender_ready(accumulator->sender, &ready, partitions, DRAIN_MAX, &next_check_ns);
    count = sender_drain(accumulator->sender, &drain, partitions, count, batches, &seen);
    for (uint32_t i = 0; i < count; i++) {
        const struct batch_outcome outcome = {.result = RESULT_SUCCEEDED, .log_append_time_ms = -1};
        batch_deliver(accumulator, &batches[i]);
        enum status status =
            accumulator_complete(accumulator, batches[i].slot_index, batches[i].seq, &outcome, &wakes);
        if (status != STATUS_OK) {
            FAIL("complete: %s", status_name(status));
        }
    }
    return count;
}

static void sender_deliver(struct accumulator *accumulator)
{
    struct wake_set wakes = {0};
    uint64_t maintained_ns = 0;
    for (;;) {
        bool is_last = ledger->is_finished == 2;
        uint32_t count = sender_scan_hints(accumulator, is_last);
        if (arena_now_ns(accumulator->arena) - maintained_ns > 20 * NS_PER_MS || is_last) {
            sender_maintain(accumulator->sender, &wakes);
            maintained_ns = arena_now_ns(accumulator->arena);
        }
        if (count == 0 && is_last) {
            break;
        }
        if (count == 0) {
            usleep(100);
        }
    }
}

static void sender_run(void)
{
    struct error error;
    struct accumulator *accumulator = attach();
    while (accumulator_become_sender(accumulator, &error) == STATUS_BUSY) {
        usleep(200);
    }
    if (is_pumping) {
        chaos_pump(accumulator, &broker);
    } else {
        sender_deliver(accumulator);
    }
    detach(accumulator);
}

/* ---- the machine ---- */

/* Measures how long the machine delays a process: it sleeps for 1 ms, repeatedly, and compares the time. */
static void meter_run(void)
{
    const struct clock clock = {.is_manual = false};
    while (ledger->is_finished != 2) {
        uint64_t begin_ns = clock_now_ns(&clock);
        usleep(1000);
        max_raise(&ledger->turn_ns_max, clock_now_ns(&clock) - begin_ns - NS_PER_MS);
    }
}

/* ---- the parent ---- */

static pid_t process_start(uint32_t role)
{
    pid_t child = fork();
    if (child == 0) {
        if (role < PRODUCER_COUNT) {
            producer_run(role);
        } else if (role == SENDER) {
            sender_run();
        } else if (role == METER) {
            meter_run();
        } else if (is_pumping) {
            broker_run(&broker);
        }
        _exit(0);
    }
    return child;
}

static void arena_make(void)
{
    const struct geometry geometry = {.buffer_memory = SLOT_COUNT * BATCH_SIZE,
                                      .batch_size = BATCH_SIZE,
                                      .slot_stride = BATCH_SIZE,
                                      .slot_count = SLOT_COUNT,
                                      .process_count = 32,
                                      .waiter_count = 32,
                                      .topic_count = 4,
                                      .partition_count = 4,
                                      .name_heap_size = 512,
                                      .completion_count = 256,
                                      .oversized_bytes_max = SLOT_COUNT / 2 * BATCH_SIZE,
                                      .record_size_max = 4 * BATCH_SIZE};
    struct error error;
    struct arena *arena;
    arena_file = memfd_create("shmaccum-chaos", 0);
    if (arena_create(arena_open(), arena_open(), &geometry, NULL, 0, &arena, &error) != STATUS_OK) {
        FAIL("create: %s", error.message);
    }
    arena_detach(arena);
}

struct tally {
    uint64_t kill_count;
    uint64_t sender_kill_count;
    uint64_t in_flight_kill_count; /* of the killed senders, those that had a request in flight */
    uint64_t stop_count;
};

/* Waits until the sender has a request in flight, so that most kills occur at such a time. */
static void in_flight_await(unsigned *random)
{
    for (int checks = 0; checks < IN_FLIGHT_CHECKS_MAX && !ledger->has_in_flight; checks++) {
        usleep(100);
    }
    usleep((useconds_t)(rand_r(random) % IN_FLIGHT_US_MAX));
}

static uint32_t target_choose(unsigned *random)
{
    return is_pumping && rand_r(random) % 2 == 0 ? SENDER : (uint32_t)rand_r(random) % METER;
}

/* Stops the sender before it kills it, so that `has_in_flight` cannot change in between. */
static void sender_kill(pid_t sender, struct tally *tally, unsigned *random)
{
    if (is_pumping) {
        in_flight_await(random);
    }
    kill(sender, SIGSTOP);
    waitpid(sender, NULL, WUNTRACED);
    tally->sender_kill_count++;
    tally->in_flight_kill_count += ledger->has_in_flight;
    ledger->has_in_flight = false;
    kill(sender, SIGKILL);
    waitpid(sender, NULL, 0);
}

static void process_disturb(pid_t *processes, struct tally *tally, unsigned *random)
{
    uint32_t target = target_choose(random);
    if (target < PRODUCER_COUNT && rand_r(random) % 4 == 0) {
        kill(processes[target], SIGSTOP);
        usleep((useconds_t)(rand_r(random) % 80000));
        kill(processes[target], SIGCONT);
        tally->stop_count++;
        return;
    }
    if (target == SENDER) {
        sender_kill(processes[target], tally, random);
    } else {
        kill(processes[target], SIGKILL);
        waitpid(processes[target], NULL, 0);
        tally->kill_count++;
    }
    processes[target] = process_start(target);
}

static void join(pid_t child, const char *what)
{
    for (int i = 0; i < 10000; i++) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) {
            if (status != 0) {
                FAIL("%s exited with status %x", what, (unsigned)status);
            }
            return;
        }
        usleep(1000);
    }
    FAIL("%s does not exit", what);
}

static void check_nothing_left(void)
{
    struct accumulator *accumulator = attach();
    struct finding findings[8];
    const struct verify_options options = {.depth = VERIFY_DEEP, .is_idle = true};
    uint32_t counts[SLOT_BAD + 1];
    buffer_pool_repair(accumulator->arena);
    verify_count_states(accumulator->arena, counts);
    if (counts[SLOT_FREE] != SLOT_COUNT) {
        FAIL("%u of %d slots are free at the end", counts[SLOT_FREE], SLOT_COUNT);
    }
    uint32_t count = verify(accumulator->arena, &options, findings, 8);
    if (count > 0) {
        FAIL("verify: slot %u: %s", findings[0].slot_index, findings[0].text);
    }
    for (int i = 0; i < PRODUCER_COUNT; i++) {
        if (ledger->delivered[i] < ledger->acknowledged[i]) {
            FAIL("producer %d: %llu acknowledged, %llu delivered", i, (unsigned long long)ledger->acknowledged[i],
                 (unsigned long long)ledger->delivered[i]);
        }
    }
    detach(accumulator);
}

/* If a producer is killed after its commit and before its store in the ledger, its successor appends the record again.
 * No other record may be delivered twice. */
static void check_repeats(const struct tally *tally)
{
    if (ledger->repeat_count > tally->kill_count) {
        FAIL("%llu records were delivered twice, but only %llu producers were killed",
             (unsigned long long)ledger->repeat_count, (unsigned long long)tally->kill_count);
    }
}

/* Ends all processes of the group. Runs whenever the parent exits. */
static void group_kill(void)
{
    signal(SIGTERM, SIG_IGN);
    kill(0, SIGTERM);
    kill(0, SIGCONT);
}

static void report(const struct tally *tally)
{
    printf("chaos: %llu producers killed, %llu senders killed, %llu producers stopped; %llu records, %llu repeated; "
           "longest append %llu us, longest wait for a processor %llu us\n",
           (unsigned long long)tally->kill_count, (unsigned long long)tally->sender_kill_count,
           (unsigned long long)tally->stop_count, (unsigned long long)ledger->record_count,
           (unsigned long long)ledger->repeat_count, (unsigned long long)(ledger->blocked_ns_max / 1000),
           (unsigned long long)(ledger->turn_ns_max / 1000));
    if (is_pumping) {
        printf("chaos: %llu senders killed with a request in flight; %llu batches pumped, %llu others, "
               "%llu sent again; %llu faults of the broker\n",
               (unsigned long long)tally->in_flight_kill_count, (unsigned long long)ledger->pumped_count,
               (unsigned long long)ledger->alone_count, (unsigned long long)ledger->again_count,
               (unsigned long long)ledger->fault_count);
    }
}

int main(int argc, char **argv)
{
    uint64_t seconds = argc > 1 ? strtoull(argv[1], NULL, 10) : 5;
    unsigned random = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : (unsigned)getpid();
    parent = getpid();
    setpgid(0, 0);
    atexit(group_kill);
    is_pumping = argc > 3 && strcmp(argv[3], "pump") == 0;
    printf("chaos: seed %u, %llu s%s\n", random, (unsigned long long)seconds, is_pumping ? ", pump" : "");
    fflush(stdout);
    ledger = mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    arena_make();
    broker_listen(&broker);
    broker.seed = random;
    pid_t processes[ROLE_COUNT];
    struct tally tally = {0};
    struct accumulator *attached = attach(); /* stays attached, so that no other attach does a cold recovery */
    for (uint32_t i = 0; i < ROLE_COUNT; i++) {
        processes[i] = process_start(i);
    }
    uint64_t end_ns = arena_now_ns(attached->arena) + seconds * NS_PER_S;
    while (arena_now_ns(attached->arena) < end_ns && !ledger->is_failed) {
        usleep((useconds_t)(500 + rand_r(&random) % 4000));
        process_disturb(processes, &tally, &random);
    }
    ledger->is_finished = 1;
    for (uint32_t i = 0; i < PRODUCER_COUNT; i++) {
        join(processes[i], "a producer");
    }
    ledger->is_finished = 2;
    join(processes[SENDER], "the sender");
    join(processes[METER], "the meter");
    ledger->is_finished = 3;
    join(processes[BROKER], "the broker");
    detach(attached);
    check_nothing_left();
    if (is_pumping) {
        check_repeats(&tally);
    }
    if (ledger->blocked_ns_max > BLOCKED_MS_MAX * NS_PER_MS + ledger->turn_ns_max) {
        FAIL("an append took %llu ms, although no process waited longer than %llu ms for a processor",
             (unsigned long long)(ledger->blocked_ns_max / NS_PER_MS),
             (unsigned long long)(ledger->turn_ns_max / NS_PER_MS));
    }
    report(&tally);
    return ledger->is_failed;
}
