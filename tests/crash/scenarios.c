/* SPDX-License-Identifier: Apache-2.0
 *
 * The scenarios: operations during which a process is killed or stopped, with their preparations.
 */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "arena/attach.h"
#include "arena/lock.h"
#include "arena/parked_waiters.h"
#include "arena/registry.h"
#include "arena/transaction.h"
#include "arena/waiter_semaphores.h"
#include "arena/waiter_sleep.h"
#include "base/point.h"
#include "sender/log_run.h"
#include "sender/pump.h"
#include "sender/spill_row.h"

/* ---- preparations ---- */

static void prepare_nothing(struct world *world)
{
    (void)world;
}

static void append_many(struct world *world, enum producer_name producer, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        REQUIRE(world_append_new(world, producer, VALUE_SIZE) == STATUS_OK);
    }
}

static void prepare_open_batch(struct world *world)
{
    append_many(world, SURVIVOR, 1);
}

/* The free space of the batch is an even number of records, and a run has an odd one (producer_batch.c, claim_run). */
static void prepare_half_batch(struct world *world)
{
    append_many(world, SURVIVOR, RECORDS_PER_BATCH / 2);
}

static void prepare_full_batch(struct world *world)
{
    append_many(world, SURVIVOR, RECORDS_PER_BATCH);
}

static void prepare_two_batches(struct world *world)
{
    append_many(world, SURVIVOR, RECORDS_PER_BATCH + 1);
}

/* Three sealed batches and an open one. */
static void prepare_four_batches(struct world *world)
{
    append_many(world, SURVIVOR, 3 * RECORDS_PER_BATCH + 1);
}

/* All slots are full, and no process has the sender's role yet. */
static void prepare_exhausted(struct world *world)
{
    append_many(world, SURVIVOR, SLOT_COUNT * RECORDS_PER_BATCH);
}

static void prepare_queued_survivor(struct world *world)
{
    prepare_exhausted(world);
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL) == STATUS_OK);
    world->is_queued = true;
}

/* The pool has too few free slots for a chain. */
static void prepare_nearly_exhausted(struct world *world)
{
    append_many(world, SURVIVOR, (SLOT_COUNT - 1) * RECORDS_PER_BATCH);
}

static void prepare_chain(struct world *world)
{
    append_many(world, SURVIVOR, 1);
    REQUIRE(world_append_new(world, SURVIVOR, CHAIN_VALUE_SIZE) == STATUS_OK);
}

/* ---- transactions ---- */

/* The first transaction has no batch, so it ends with its commit. */
static void prepare_no_transaction(struct world *world)
{
    world_become_sender(world);
    uint64_t number = transaction_word_number(transaction_read(world->arena));
    REQUIRE(transaction_commit(world->arena, number) == STATUS_OK);
    REQUIRE(transaction_word_state(transaction_read(world->arena)) == TRANSACTION_NONE);
    transaction_leave(world->arena);
}

static void prepare_abort(struct world *world)
{
    prepare_two_batches(world);
    uint64_t number = transaction_word_number(transaction_read(world->arena));
    REQUIRE(transaction_abort(world->arena, number, TRANSACTION_WHY_ASKED) == STATUS_OK);
}

static void begin_and_append(struct world *world)
{
    uint64_t number;
    REQUIRE(transaction_begin(world->arena, &number) == STATUS_OK);
    REQUIRE(world_append_new(world, PREDECESSOR, VALUE_SIZE) == STATUS_OK);
}

static void prepare_dead_coordinator(struct world *world)
{
    prepare_no_transaction(world);
    world_run_and_die(world, begin_and_append);
}

static void prepare_commit(struct world *world)
{
    prepare_two_batches(world);
    REQUIRE(transaction_commit(world->arena, transaction_word_number(transaction_read(world->arena))) == STATUS_OK);
}

/* ---- dead predecessors ---- */

static void die_here(const char *name)
{
    if (strcmp(name, "record_claimed") == 0) {
        _exit(0);
    }
}

static void append_half(struct world *world)
{
    point_hook = die_here;
    (void)world_append_new(world, PREDECESSOR, VALUE_SIZE);
    _exit(1); /* the point was not reached */
}

static void prepare_dead_holder(struct world *world)
{
    append_many(world, SURVIVOR, 1);
    world_become_sender(world); /* before the death, because a new sender would repair it */
    world_run_and_die(world, append_half);
}

static void allocate_and_keep(struct world *world)
{
    uint32_t slot_index;
    REQUIRE(buffer_pool_try_allocate(world->arena, &slot_index) == STATUS_OK);
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 2, &world->wait, NULL) == STATUS_OK);
}

/* The dead process leaves an OWNED slot, a waiter and two GRANT slots. */
static void prepare_dead_owner(struct world *world)
{
    append_many(world, SURVIVOR, 1);
    world_become_sender(world);
    world_run_and_die(world, allocate_and_keep);
}

static void send_and_die(struct world *world)
{
    world_become_sender(world);
    world_drain(world);
}

/* Takes the pool lock, owns a slot, and waits for more slots than are free. */
static void hold_pool(struct world *world)
{
    uint32_t slot_index;
    uint64_t held;
    REQUIRE(buffer_pool_try_allocate(world->arena, &slot_index) == STATUS_OK);
    append_many(world, PREDECESSOR, (SLOT_COUNT - 2) * RECORDS_PER_BATCH);
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 3, &world->wait, NULL) == STATUS_OK);
    REQUIRE(lock_acquire(world->arena, &world->arena->globals->pool_lock, &held) == LOCK_ACQUIRED);
}

static void begin_beside_dead_in_pool(struct world *world)
{
    world_run_and_die(world, hold_pool);
}

/* There are two batches, and only the first one has a sequence. */
static void prepare_dead_sender(struct world *world)
{
    prepare_two_batches(world);
    world_run_and_die(world, send_and_die);
}

/* The slots have different states: one READY in flight, a chain of three, one OPEN with half a record, one OWNED. A
 * thread waits. */
static void prepare_mixed_states(struct world *world)
{
    prepare_chain(world);
    world_run_and_die(world, send_and_die);
    world_run_and_die(world, append_half);
    world_run_and_die(world, allocate_and_keep);
    REQUIRE(world_count_slots(world, SLOT_FREE) == 0);
}

/* The slots have the same states, and then the host crashes. Recovery accepts only batches with a correct checksum. */
static void prepare_host_crash(struct world *world)
{
    prepare_mixed_states(world);
    world->arena->globals->boot_id[0] ^= 1;
}

/* The slots have the same states, in a transaction that is being committed. Its coordinator leaves. */
static void prepare_mixed_states_in_commit(struct world *world)
{
    prepare_mixed_states(world);
    REQUIRE(transaction_commit(world->arena, transaction_word_number(transaction_read(world->arena))) == STATUS_OK);
}

/* The slots have the same states, in an open transaction. */
static void prepare_mixed_states_in_transaction(struct world *world)
{
    prepare_mixed_states(world);
    REQUIRE(transaction_word_state(transaction_read(world->arena)) == TRANSACTION_OPEN);
}

/* There are two batches of a transaction that is being committed. The first one is in flight. */
static void prepare_dead_sender_inside(struct world *world)
{
    prepare_commit(world);
    world_run_and_die(world, send_and_die);
}

/* ---- preparation of a tracee ---- */

enum { PUMP_ROUNDS = 6 };
enum { LOG_SIZE_MAX = 2 * BATCH_SIZE + BATCH_SIZE / 8 };
enum { SPILL_ARENA = 99 };

static void begin_record(struct world *world)
{
    ledger_begin(&world->shared->ledger, TRACEE, VALUE_SIZE, &world->record);
}

static void begin_second_record(struct world *world)
{
    append_many(world, TRACEE, 1);
    begin_record(world);
}

/* The tracee appends only in the transaction that is open now. */
static void join(struct world *world)
{
    world->accumulator->appender->joined = transaction_word_number(transaction_read(world->arena));
}

static void begin_joined_record(struct world *world)
{
    join(world);
    begin_record(world);
}

static void begin_chain_record(struct world *world)
{
    ledger_begin(&world->shared->ledger, TRACEE, CHAIN_VALUE_SIZE, &world->record);
}

static void begin_joined_chain(struct world *world)
{
    join(world);
    begin_chain_record(world);
}

static void send_one_batch(struct world *world)
{
    send_and_die(world);
    world_complete(world);
}

static void begin_run(struct world *world)
{
    for (uint32_t i = 0; i < RUN_COUNT; i++) {
        ledger_begin(&world->shared->ledger, TRACEE, VALUE_SIZE, &world->run[i]);
    }
}

/* The tracee waits in the queue and gets a slot. The sender that freed the slot is dead. */
static void begin_granted(struct world *world)
{
    begin_record(world);
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL) == STATUS_OK);
    world_run_and_die(world, send_one_batch);
    REQUIRE(buffer_pool_poll(world->arena, &world->wait) == STATUS_OK);
}

static void begin_waiting(struct world *world)
{
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL) == STATUS_OK);
}

/* The tracee's partition is stuck. Only a sender can mark it as stuck, so the tracee takes the sender's role. */
static void begin_parked(struct world *world)
{
    world_become_sender(world);
    sender_set_available(world->accumulator->sender, TRACEE_PARTITION, false);
    REQUIRE(buffer_pool_enqueue(world->arena, TRACEE_PARTITION, 1, &world->wait, NULL) == STATUS_OK);
    REQUIRE(buffer_pool_is_parked(world->arena, &world->wait));
}

/* The tracee is parked. Its next check finds that it may open a batch. */
static void begin_parked_with_free_slot(struct world *world)
{
    begin_parked(world);
    sender_set_available(world->accumulator->sender, TRACEE_PARTITION, true);
}

/* The tracee got a slot. A helper whose clock is a minute ahead takes the slot back. */
static void begin_revoked(struct world *world)
{
    begin_granted(world);
    struct buffer_wait other;
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &other, NULL) == STATUS_OK);
    world->arena->clock = (struct clock){.is_manual = true, .manual_ns = arena_now_ns(world->arena) + 60 * NS_PER_S};
    buffer_pool_wait_on(world->arena, &other, NULL);
    uint32_t slot_index;
    REQUIRE(buffer_pool_leave(world->arena, &other, &slot_index, NULL) == STATUS_OK);
    buffer_pool_return(world->arena, &slot_index, 1, NULL);
    REQUIRE(buffer_pool_is_parked(world->arena, &world->wait));
}

/* Another waiter has not used its GRANT slot for a minute. The tracee waits for that slot. */
static void begin_after_stale_grant(struct world *world)
{
    struct buffer_wait granted;
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 3, &granted, NULL) == STATUS_OK);
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL) == STATUS_OK);
    world->arena->clock = (struct clock){.is_manual = true, .manual_ns = arena_now_ns(world->arena) + 60 * NS_PER_S};
}

/* Opens the first waiter's semaphore. Its name is unlinked immediately, so that no name outlives the tracee. */
static void begin_with_semaphore(struct world *world)
{
    const uint8_t *uuid = world->arena->uuid;
    char name[64];
    snprintf(name, sizeof name, "/shmaccum-%02x%02x%02x%02x%02x%02x.w0", uuid[0], uuid[1], uuid[2], uuid[3], uuid[4],
             uuid[5]);
    sem_t *semaphore = sem_open(name, O_CREAT | O_EXCL, 0600, 0);
    REQUIRE(semaphore != SEM_FAILED);
    REQUIRE(waiter_semaphore_open(world->arena, 0));
    REQUIRE(sem_close(semaphore) == 0 && sem_unlink(name) == 0);
}

/* Two waiters of the tracee may open a batch. The second one is due, and posts the semaphore of the first one. */
static void begin_parked_for_all(struct world *world)
{
    begin_with_semaphore(world);
    begin_parked(world);
    world->other_wait = world->wait;
    REQUIRE(buffer_pool_enqueue(world->arena, TRACEE_PARTITION, 1, &world->wait, NULL) == STATUS_OK);
    REQUIRE(buffer_pool_is_parked(world->arena, &world->wait));
    sender_set_available(world->accumulator->sender, TRACEE_PARTITION, true);
    world->wait.turn_ns = 1;
}

/* The tracee waits for more slots than are free. So the free slots become GRANT. */
static void begin_waiting_for_chain(struct world *world)
{
    REQUIRE(buffer_pool_enqueue(world->arena, NO_PARTITION, 3, &world->wait, NULL) == STATUS_OK);
}

static void begin_owning(struct world *world)
{
    REQUIRE(buffer_pool_try_allocate(world->arena, &world->drained[0].slot_index) == STATUS_OK);
}

static void begin_touching(struct world *world)
{
    append_many(world, TRACEE, 2);
}

/* The tracee has an open batch in the other partition. The survivor has one in the tracee's partition. */
static void begin_touching_other(struct world *world)
{
    begin_record(world);
    REQUIRE(world_try_append(world, TRACEE, OTHER_PARTITION, NULL) == STATUS_OK);
}

/* The tracee holds all slots, and the batch in the last slot is open. */
static void begin_holding_share(struct world *world)
{
    append_many(world, TRACEE, SLOT_COUNT * RECORDS_PER_BATCH - 1);
}

static void begin_sending(struct world *world)
{
    world_become_sender(world);
}

static void begin_sending_beside_dead(struct world *world)
{
    world_become_sender(world);
    world_run_and_die(world, allocate_and_keep);
}

static void begin_completing(struct world *world)
{
    world_become_sender(world);
    world_drain(world);
    REQUIRE(world->drained_count == 1);
}

static void begin_completing_chain(struct world *world)
{
    begin_completing(world);
    world_complete(world);
    world_drain(world);
    REQUIRE(world->drained_count == 1);
}

/* The pump of the tracee. Its broker is the leader of TRACEE_PARTITION. */
static struct pump_place pump_places[PARTITION_COUNT + 1];
static const struct produce_topic pump_topic = {.name = BROKER_TOPIC, .name_size = sizeof BROKER_TOPIC - 1};
static struct pump_link pump_link;
static struct pump pump;

static void begin_pumping(struct world *world)
{
    int wake_fds[2];
    world_become_sender(world);
    REQUIRE(pipe2(wake_fds, O_NONBLOCK) == 0);
    pump_places[TRACEE_PARTITION].link = 1;
    pump_link = (struct pump_link){.place_count = 1,
                                   .broker = {.socket = world->broker.client,
                                              .requests_max = 5,
                                              .form = {.client = BROKER_CLIENT,
                                                       .client_size = sizeof BROKER_CLIENT - 1,
                                                       .version = PRODUCE_VERSION_MIN,
                                                       .acks = -1}}};
    if (world->is_transactional) {
        pump_link.broker.form.transactional_id = BROKER_TRANSACTIONAL_ID;
        pump_link.broker.form.transactional_id_size = sizeof BROKER_TRANSACTIONAL_ID - 1;
    }
    pump = (struct pump){.half = world->accumulator->sender,
                         .links = &pump_link,
                         .link_count = 1,
                         .topics = &pump_topic,
                         .places = pump_places,
                         .place_count = world->arena->geometry.partition_count,
                         .size_max = 1 << 20,
                         .in_flight_max = 5,
                         .short_wait_flag = SENDER_SHORT_WAIT,
                         .due_ns = UINT64_MAX,
                         .foreign_ns = UINT64_MAX,
                         .wake_fd = wake_fds[0]};
    REQUIRE(pump_make(&pump, sizeof BROKER_TOPIC));
}

/* The log of the tracee. It has one partition, TRACEE_PARTITION. */
static struct log_end log_end;
static struct log_batch log_batches[SLOT_COUNT];
static struct batch_completion log_completions[SLOT_COUNT];
static struct log_run_spill_file spill_file;

/* Drains at most two batches of the tracee's partition. */
static void drain_two(struct world *world)
{
    static const uint32_t partitions[] = {TRACEE_PARTITION, TRACEE_PARTITION};
    uint32_t ready[PARTITION_COUNT], seen;
    uint64_t next_check_ns;
    struct sender_half *half = world->accumulator->sender;
    const struct ready_options options = {.now_ns = arena_now_ns(world->arena), .is_everything_ready = true};
    (void)sender_ready(half, &options, ready, PARTITION_COUNT, &next_check_ns);
    const struct drain_options drain = {.now_ns = options.now_ns, .size_max = 1 << 20, .in_flight_max = 5};
    world->drained_count = sender_drain(half, &drain, partitions, 2, world->drained, &seen);
}

/* Drains and writes batches like SenderHalf.append_to_log. */
static struct log_run log_write(struct world *world, const struct log_run_spill_file *spill)
{
    struct sender_half *half = world->accumulator->sender;
    drain_two(world);
    struct log_run run = {
        .log = &log_end, .drained = world->drained, .batches = log_batches, .count = world->drained_count};
    uint32_t fit_count = spill == NULL ? run.count : log_run_fit_spill(&run, spill);
    uint32_t ordinary_count = log_run_describe(half, run.drained, fit_count, log_batches);
    run.fit_count = segment_fit(&log_end, log_batches, ordinary_count);
    log_run_write(&run, 0);
    return run;
}

/* Writes batches and stores their results, like SenderHalf.append_to_log. */
static struct log_run append_to_log(struct world *world)
{
    struct wake_set wakes = {0};
    struct log_run run = log_write(world, NULL);
    log_run_complete(world->accumulator->sender, &run, log_completions, &wakes);
    return run;
}

/* Writes batches and rows to an overflow, and frees the slots. */
static struct log_run spill_to_log(struct world *world)
{
    struct wake_set wakes = {0};
    struct log_run run = log_write(world, &spill_file);
    log_run_spill(world->accumulator->sender, &run, &spill_file, &wakes);
    return run;
}

static void begin_logging(struct world *world)
{
    world_become_sender(world);
    log_end = log_files_end(&world->log_files, &world->shared->log_numbers);
}

/* The first batch of a partition is written alone. */
static void begin_logging_second(struct world *world)
{
    begin_logging(world);
    REQUIRE(append_to_log(world).ended_count == 1);
}

/* Limits the size of the tracee's files. SIGXFSZ is blocked, so a write past the limit fails with EFBIG. */
static void file_size_limit(rlim_t size)
{
    sigset_t beyond;
    const struct rlimit limit = {.rlim_cur = size, .rlim_max = size};
    sigemptyset(&beyond);
    sigaddset(&beyond, SIGXFSZ);
    REQUIRE(sigprocmask(SIG_BLOCK, &beyond, NULL) == 0);
    REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* The size limit of the log permits one more batch and a part of the next one. */
static void begin_logging_with_size_limit(struct world *world)
{
    begin_logging_second(world);
    file_size_limit(LOG_SIZE_MAX);
}

static void begin_spilling(struct world *world)
{
    begin_logging(world);
    spill_file = (struct log_run_spill_file){.file = world->log_files.rows, .arena = SPILL_ARENA};
}

/* The first batch of a partition is written alone. */
static void begin_spilling_second(struct world *world)
{
    begin_spilling(world);
    REQUIRE(spill_to_log(world).ended_count == 1);
    spill_file.row_count = 1;
    spill_file.end_seq = world->drained[0].seq + 1;
}

/* The size limit permits one more row of the spill file and a part of the next one. The log stays below the limit. */
static void begin_spilling_with_size_limit(struct world *world)
{
    begin_spilling_second(world);
    file_size_limit((rlim_t)spill_row_place(2) + SPILL_ROW_SIZE / 2);
}

/* The sender has to discard the records. */
static void begin_aborting(struct world *world)
{
    world_become_sender(world);
    ledger_abort(&world->shared->ledger);
}

/* All batches are delivered. Only the end of the transaction is left. */
static void begin_ending(struct world *world)
{
    world_become_sender(world);
    do {
        world_drain(world);
        world_complete(world);
    } while (world_count_slots(world, SLOT_READY) > 0);
}

/* ---- operations ---- */

static enum status operate_append(struct world *world)
{
    return world_append(world, TRACEE);
}

static enum status operate_append_many(struct world *world)
{
    return world_append_run(world, TRACEE);
}

static enum status operate_append_granted(struct world *world)
{
    uint32_t slot_index;
    RETURN_IF_FAILED(buffer_pool_take(world->arena, &world->wait, &slot_index));
    struct reservation reservation = {.slots = &slot_index, .count = 1};
    enum status status = world_try_append(world, TRACEE, TRACEE_PARTITION, &reservation);
    if (status == STATUS_EXHAUSTED) { /* its empty batch was sealed while the tracee was stopped */
        ledger_withdraw(&world->shared->ledger, TRACEE);
    }
    return status;
}

static enum status operate_allocate(struct world *world)
{
    uint32_t slot_index;
    RETURN_IF_FAILED(buffer_pool_try_allocate(world->arena, &slot_index));
    buffer_pool_return(world->arena, &slot_index, 1, NULL);
    return STATUS_OK;
}

static enum status operate_enqueue(struct world *world)
{
    return buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL);
}

static enum status operate_enqueue_chain(struct world *world)
{
    return buffer_pool_enqueue(world->arena, NO_PARTITION, 3, &world->wait, NULL);
}

static enum status operate_cancel(struct world *world)
{
    uint32_t slot_index;
    RETURN_IF_FAILED(buffer_pool_leave(world->arena, &world->wait, &slot_index, NULL));
    buffer_pool_return(world->arena, &slot_index, 1, NULL);
    return STATUS_OK;
}

/* Joins the queue, sleeps with a timeout of 0, and leaves the queue. If the tracee is stopped before it leaves, it may
 * get a slot that the sender freed. */
static enum status operate_wait(struct world *world)
{
    uint32_t slot_index;
    struct wake_set wakes = {0};
    RETURN_IF_FAILED(buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, &wakes));
    enum status status = waiter_sleep(world->arena, &world->wait, 0);
    if (status == STATUS_OK) {
        status = buffer_pool_take(world->arena, &world->wait, &slot_index);
    }
    if (status == STATUS_EXHAUSTED) { /* no slot was granted, or it was taken back */
        status = buffer_pool_leave(world->arena, &world->wait, &slot_index, &wakes);
    }
    RETURN_IF_FAILED(status);
    buffer_pool_return(world->arena, &slot_index, 1, &wakes);
    waiters_wake(world->arena, &wakes);
    return STATUS_OK;
}

/* Waits once more, and leaves the queue. */
static enum status operate_wait_on(struct world *world)
{
    uint32_t slot_index;
    buffer_pool_wait_on(world->arena, &world->wait, NULL);
    enum status status = buffer_pool_leave(world->arena, &world->wait, &slot_index, NULL);
    if (status == STATUS_OK) {
        buffer_pool_return(world->arena, &slot_index, 1, NULL);
    }
    return status;
}

/* Does the check of a parked waiter, and ends both waits. */
static enum status operate_parked_turn(struct world *world)
{
    struct wake_set wakes = {0};
    uint32_t slot_index;
    parked_waiter_take_turn(world->arena, &world->wait, &wakes);
    buffer_pool_wait_on(world->arena, &world->wait, &wakes);
    wake_set_remove(&wakes, world->wait.waiter_index);
    waiters_wake(world->arena, &wakes);
    enum status status = buffer_pool_leave(world->arena, &world->other_wait, &slot_index, NULL);
    if (status == STATUS_OK) {
        buffer_pool_return(world->arena, &slot_index, 1, NULL);
    }
    return operate_wait_on(world);
}

static enum status operate_enqueue_stuck(struct world *world)
{
    uint32_t slot_index;
    RETURN_IF_FAILED(buffer_pool_enqueue(world->arena, TRACEE_PARTITION, 1, &world->wait, NULL));
    return buffer_pool_leave(world->arena, &world->wait, &slot_index, NULL);
}

static enum status operate_give_back(struct world *world)
{
    buffer_pool_return(world->arena, &world->drained[0].slot_index, 1, NULL);
    return STATUS_OK;
}

static enum status operate_help(struct world *world)
{
    buffer_pool_help(world->arena, NULL);
    return STATUS_OK;
}

static enum status operate_sync(struct world *world)
{
    return world_sync(world);
}

/* Expects SHARE_USED. If the tracee was stopped before the check, its slots may have become free. */
static enum status operate_use_share(struct world *world)
{
    uint32_t slot_index;
    enum status status = buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL);
    if (status == STATUS_SHARE_USED) {
        return STATUS_OK;
    }
    RETURN_IF_FAILED(status);
    status = buffer_pool_leave(world->arena, &world->wait, &slot_index, NULL);
    if (status == STATUS_EXHAUSTED) {
        return STATUS_OK;
    }
    RETURN_IF_FAILED(status);
    buffer_pool_return(world->arena, &slot_index, 1, NULL);
    return STATUS_OK;
}

static enum status operate_flush(struct world *world)
{
    struct flush_ticket ticket;
    RETURN_IF_FAILED(accumulator_flush_begin(world->accumulator, &ticket));
    accumulator_flush_end(&ticket);
    return STATUS_OK;
}

static enum status operate_register_names(struct world *world)
{
    struct registry *registry;
    uint32_t topic_index, partition_index;
    RETURN_IF_FAILED(registry_open(world->arena, &registry, NULL));
    RETURN_IF_FAILED(registry_topic(registry, "other", 5, &topic_index));
    return registry_partition(registry, topic_index, 0, &partition_index);
}

static enum status operate_attach(struct world *world)
{
    world_attach(world);
    return STATUS_OK;
}

static enum status operate_detach(struct world *world)
{
    arena_detach(world->arena);
    return STATUS_OK;
}

static enum status operate_become_sender(struct world *world)
{
    return accumulator_become_sender(world->accumulator, NULL);
}

static enum status operate_drain(struct world *world)
{
    world_drain(world);
    return world->drained_count > 0 ? STATUS_OK : STATUS_STALE;
}

static enum status operate_complete(struct world *world)
{
    world_complete(world);
    return STATUS_OK;
}

/* Sends two batches by the pump to a broker that responds immediately. In a transaction that is being committed, the
 * pump ends when no batch is left. */
static enum status operate_pump(struct world *world)
{
    uint32_t answered = 0;
    struct wake_set wakes = {0};
    for (uint32_t i = 0; i < PUMP_ROUNDS && pump_round(&pump, &wakes); i++) {
        pump_exchange(&pump);
        /* this store is a change, so the harness also kills the tracee after each sendmsg */
        world->shared->sent_size = pump_link.broker.sent_size;
        while (answered < pump_link.broker.end) {
            broker_respond(&world->broker, answered++);
        }
    }
    bool is_over = pump.is_over || !world->is_transactional;
    return pump.delivered.batch_count >= 2 && is_over ? STATUS_OK : STATUS_STALE;
}

static enum status operate_append_one_to_log(struct world *world)
{
    return append_to_log(world).ended_count == 1 ? STATUS_OK : STATUS_STALE;
}

static enum status operate_append_two_to_log(struct world *world)
{
    return append_to_log(world).ended_count == 2 ? STATUS_OK : STATUS_STALE;
}

/* After the failed write, the file is truncated to the end of its last complete batch. */
static enum status operate_append_past_size_limit(struct world *world)
{
    struct log_run run = append_to_log(world);
    bool is_cut = !world->shared->log_numbers.segment.is_torn;
    return run.ended_count == 1 && run.append.error == EFBIG && is_cut ? STATUS_OK : STATUS_STALE;
}

static enum status operate_spill_one(struct world *world)
{
    return spill_to_log(world).ended_count == 1 ? STATUS_OK : STATUS_STALE;
}

static enum status operate_spill_two(struct world *world)
{
    return spill_to_log(world).ended_count == 2 ? STATUS_OK : STATUS_STALE;
}

/* The log has both batches, but the spill file has no row of them. So no slot is freed. */
static enum status operate_spill_past_size_limit(struct world *world)
{
    struct log_run run = spill_to_log(world);
    return run.ended_count == 0 && run.append.batch_count == 2 ? STATUS_OK : STATUS_STALE;
}

/* Completes a split batch in two parts. The first part has one record. */
static enum status operate_complete_parts(struct world *world)
{
    static const struct batch_outcome good = {.result = RESULT_SUCCEEDED, .base_offset = 7, .log_append_time_ms = -1};
    const struct drained_batch *batch = &world->drained[0];
    RETURN_IF_FAILED(
        accumulator_complete_part(world->accumulator, batch->slot_index, batch->seq, 1, &good, NULL));
    return accumulator_complete_part(world->accumulator, batch->slot_index, batch->seq, batch->record_count - 1, &good,
                                     NULL);
}

/* Expires a batch that is in flight, and one that is queued. */
static enum status operate_expire(struct world *world)
{
    uint64_t next_expiry_ns;
    struct wake_set wakes = {0};
    uint64_t now_ns = arena_now_ns(world->arena);
    sender_publish_delivery_timeout(world->accumulator->sender, 0, true);
    uint32_t expired = sender_expire(world->accumulator->sender, now_ns, 0, &next_expiry_ns, &wakes);
    return expired >= 2 ? STATUS_OK : STATUS_STALE;
}

static enum status operate_requeue(struct world *world)
{
    const struct drained_batch *batch = &world->drained[0];
    return accumulator_requeue(world->accumulator, batch->slot_index, batch->seq, 0);
}

static enum status operate_close(struct world *world)
{
    closing_begin(world->arena);
    return STATUS_OK;
}

static enum status operate_begin(struct world *world)
{
    uint64_t number;
    return transaction_begin(world->arena, &number);
}

static enum status operate_commit(struct world *world)
{
    return transaction_commit(world->arena, transaction_word_number(transaction_read(world->arena)));
}

static enum status operate_begin_after_dead(struct world *world)
{
    uint64_t number;
    enum status status = transaction_begin(world->arena, &number);
    return status == STATUS_PENDING ? STATUS_OK : status;
}

static enum status operate_abort(struct world *world)
{
    uint64_t number = transaction_word_number(transaction_read(world->arena));
    return transaction_abort(world->arena, number, TRANSACTION_WHY_ASKED);
}

static enum status operate_end_abort(struct world *world)
{
    uint64_t number;
    struct sender_half *half = world->accumulator->sender;
    bool is_over = sender_next_transaction_task(half, UINT64_MAX, &number, NULL) == TRANSACTION_TASK_ABORT;
    return is_over ? sender_end_transaction(half, number, TRANSACTION_WHY_NOT) : STATUS_STALE;
}

/* Completes a batch as failed. Then its transaction can only be aborted. */
static enum status operate_reject(struct world *world)
{
    static const struct batch_outcome bad = {.result = RESULT_FAILED, .error_code = 2, .base_offset = -1,
                                             .log_append_time_ms = -1};
    const struct drained_batch *batch = &world->drained[0];
    return accumulator_complete(world->accumulator, batch->slot_index, batch->seq, &bad, NULL);
}

static enum status operate_end(struct world *world)
{
    uint64_t number;
    struct sender_half *half = world->accumulator->sender;
    bool is_decided = sender_next_transaction_task(half, UINT64_MAX, &number, NULL) == TRANSACTION_TASK_COMMIT;
    return is_decided ? sender_end_transaction(half, number, TRANSACTION_WHY_NOT) : STATUS_STALE;
}

static enum status operate_maintain(struct world *world)
{
    sender_maintain(world->accumulator->sender, NULL);
    return STATUS_OK;
}

const struct scenario scenarios[] = {
    {.name = "append-first",
     .prepare = prepare_nothing,
     .begin = begin_record,
     .operate = operate_append,
     .slots_wanted = 1,
     .has_rival = true},
    {.name = "append-plain",
     .prepare = prepare_open_batch,
     .begin = begin_second_record,
     .operate = operate_append,
     .slots_wanted = 1,
     .has_rival = true},
    {.name = "append-roll-over",
     .prepare = prepare_full_batch,
     .begin = begin_record,
     .operate = operate_append,
     .slots_wanted = 1,
     .has_rival = true},
    {.name = "append-many",
     .prepare = prepare_half_batch,
     .begin = begin_run,
     .operate = operate_append_many,
     .slots_wanted = 2,
     .has_rival = true},
    {.name = "append-chain",
     .prepare = prepare_open_batch,
     .begin = begin_chain_record,
     .operate = operate_append,
     .slots_wanted = 3,
     .has_rival = true,
     .may_be_exhausted = true},
    {.name = "append-steals",
     .prepare = prepare_dead_holder,
     .begin = begin_record,
     .operate = operate_append,
     .slots_wanted = 1},
    {.name = "allocate", .prepare = prepare_open_batch, .operate = operate_allocate, .may_be_exhausted = true},
    {.name = "append-exhausted",
     .prepare = prepare_exhausted,
     .begin = begin_record,
     .operate = operate_append,
     .may_be_exhausted = true},
    {.name = "append-granted",
     .prepare = prepare_exhausted,
     .begin = begin_granted,
     .operate = operate_append_granted,
     .may_be_exhausted = true,
     .is_sender = true,
     .is_completing = true},
    {.name = "enqueue", .prepare = prepare_exhausted, .operate = operate_enqueue},
    {.name = "wait",
     .prepare = prepare_exhausted,
     .begin = begin_with_semaphore,
     .operate = operate_wait,
     .may_be_exhausted = true},
    {.name = "cancel",
     .prepare = prepare_exhausted,
     .begin = begin_waiting,
     .operate = operate_cancel,
     .may_be_exhausted = true},
    {.name = "enqueue-chain", .prepare = prepare_nearly_exhausted, .operate = operate_enqueue_chain},
    {.name = "cancel-chain",
     .prepare = prepare_nearly_exhausted,
     .begin = begin_waiting_for_chain,
     .operate = operate_cancel,
     .may_be_exhausted = true},
    {.name = "wait-parked",
     .prepare = prepare_four_batches,
     .begin = begin_parked,
     .operate = operate_wait_on,
     .is_sender = true,
     .may_be_exhausted = true},
    {.name = "wait-parked-beside-room",
     .prepare = prepare_four_batches,
     .begin = begin_parked_with_free_slot,
     .operate = operate_wait_on,
     .is_sender = true,
     .may_be_exhausted = true},
    {.name = "wait-parked-for-all",
     .prepare = prepare_four_batches,
     .begin = begin_parked_for_all,
     .operate = operate_parked_turn,
     .is_sender = true,
     .may_be_exhausted = true},
    {.name = "enqueue-stuck",
     .prepare = prepare_four_batches,
     .begin = begin_parked,
     .operate = operate_enqueue_stuck,
     .is_sender = true,
     .may_be_exhausted = true},
    {.name = "wait-revoked",
     .prepare = prepare_exhausted,
     .begin = begin_revoked,
     .operate = operate_wait_on,
     .is_sender = true,
     .is_completing = true,
     .may_be_exhausted = true},
    {.name = "revoke",
     .prepare = prepare_nearly_exhausted,
     .begin = begin_after_stale_grant,
     .operate = operate_wait_on,
     .may_be_exhausted = true},
    {.name = "give-back", .prepare = prepare_open_batch, .begin = begin_owning, .operate = operate_give_back},
    {.name = "help-beside-dead",
     .prepare = prepare_open_batch,
     .begin = begin_beside_dead_in_pool,
     .operate = operate_help},
    {.name = "flush", .prepare = prepare_open_batch, .begin = begin_touching, .operate = operate_flush},
    {.name = "close",
     .prepare = prepare_half_batch,
     .begin = begin_touching_other,
     .operate = operate_close,
     .is_closing = true},
    {.name = "append-first-inside",
     .prepare = prepare_nothing,
     .begin = begin_record,
     .operate = operate_append,
     .slots_wanted = 1,
     .has_rival = true,
     .is_transactional = true},
    {.name = "append-chain-inside",
     .prepare = prepare_open_batch,
     .begin = begin_chain_record,
     .operate = operate_append,
     .slots_wanted = 3,
     .has_rival = true,
     .may_be_exhausted = true,
     .is_transactional = true},
    {.name = "append-inside",
     .prepare = prepare_open_batch,
     .begin = begin_record,
     .operate = operate_append,
     .slots_wanted = 1,
     .has_rival = true,
     .is_transactional = true},
    {.name = "append-joined",
     .prepare = prepare_full_batch,
     .begin = begin_joined_record,
     .operate = operate_append,
     .slots_wanted = 1,
     .has_rival = true,
     .is_transactional = true,
     .is_joining = true},
    {.name = "append-chain-joined",
     .prepare = prepare_open_batch,
     .begin = begin_joined_chain,
     .operate = operate_append,
     .slots_wanted = 3,
     .has_rival = true,
     .may_be_exhausted = true,
     .is_transactional = true,
     .is_joining = true},
    {.name = "begin-over-dead",
     .prepare = prepare_dead_coordinator,
     .operate = operate_begin_after_dead,
     .is_transactional = true},
    {.name = "abort",
     .prepare = prepare_half_batch,
     .begin = begin_touching_other,
     .operate = operate_abort,
     .is_transactional = true},
    {.name = "end-abort",
     .prepare = prepare_abort,
     .begin = begin_aborting,
     .operate = operate_end_abort,
     .is_sender = true,
     .is_completing = true,
     .is_transactional = true},
    {.name = "refuse",
     .prepare = prepare_two_batches,
     .begin = begin_completing,
     .operate = operate_reject,
     .is_sender = true,
     .is_completing = true,
     .is_transactional = true,
     .is_refusing = true},
    {.name = "begin",
     .prepare = prepare_no_transaction,
     .operate = operate_begin,
     .is_transactional = true},
    {.name = "commit",
     .prepare = prepare_half_batch,
     .begin = begin_touching_other,
     .operate = operate_commit,
     .is_transactional = true},
    {.name = "commit-nothing",
     .prepare = prepare_nothing,
     .operate = operate_commit,
     .is_transactional = true},
    {.name = "end",
     .prepare = prepare_commit,
     .begin = begin_ending,
     .operate = operate_end,
     .is_sender = true,
     .is_completing = true,
     .is_transactional = true},
    {.name = "sync",
     .prepare = prepare_open_batch,
     .begin = begin_touching,
     .operate = operate_sync,
     .is_durable = true},
    {.name = "share-used",
     .prepare = prepare_nothing,
     .begin = begin_holding_share,
     .operate = operate_use_share,
     .is_shared = true},
    {.name = "registry", .prepare = prepare_nothing, .operate = operate_register_names},
    {.name = "attach", .prepare = prepare_open_batch, .operate = operate_attach, .is_attaching = true},
    {.name = "attach-over-dead", .prepare = prepare_dead_owner, .operate = operate_attach, .is_attaching = true},
    {.name = "detach", .prepare = prepare_open_batch, .begin = begin_second_record, .operate = operate_detach},
    {.name = "take-sender-role",
     .prepare = prepare_dead_sender,
     .operate = operate_become_sender,
     .is_sender = true},
    {.name = "take-sender-role-inside",
     .prepare = prepare_dead_sender_inside,
     .operate = operate_become_sender,
     .is_sender = true,
     .is_transactional = true},
    {.name = "drain", .prepare = prepare_two_batches, .begin = begin_sending, .operate = operate_drain,
     .is_sender = true},
    {.name = "complete",
     .prepare = prepare_two_batches,
     .begin = begin_completing,
     .operate = operate_complete,
     .is_sender = true,
     .is_completing = true},
    {.name = "complete-chain",
     .prepare = prepare_chain,
     .begin = begin_completing_chain,
     .operate = operate_complete,
     .is_sender = true,
     .is_completing = true},
    {.name = "complete-for-a-waiter",
     .prepare = prepare_queued_survivor,
     .begin = begin_completing,
     .operate = operate_complete,
     .is_sender = true,
     .is_completing = true},
    {.name = "complete-parts",
     .prepare = prepare_two_batches,
     .begin = begin_completing,
     .operate = operate_complete_parts,
     .is_sender = true,
     .is_completing = true},
    {.name = "pump",
     .prepare = prepare_two_batches,
     .begin = begin_pumping,
     .operate = operate_pump,
     .is_sender = true,
     .is_pumping = true},
    {.name = "pump-for-a-waiter",
     .prepare = prepare_queued_survivor,
     .begin = begin_pumping,
     .operate = operate_pump,
     .is_sender = true,
     .is_pumping = true},
    {.name = "pump-commit",
     .prepare = prepare_commit,
     .begin = begin_pumping,
     .operate = operate_pump,
     .is_sender = true,
     .is_pumping = true,
     .is_transactional = true},
    {.name = "log",
     .prepare = prepare_four_batches,
     .begin = begin_logging_second,
     .operate = operate_append_two_to_log,
     .is_sender = true,
     .is_logging = true},
    {.name = "log-for-a-waiter",
     .prepare = prepare_queued_survivor,
     .begin = begin_logging,
     .operate = operate_append_one_to_log,
     .is_sender = true,
     .is_logging = true},
    {.name = "log-where-space-ends",
     .prepare = prepare_four_batches,
     .begin = begin_logging_with_size_limit,
     .operate = operate_append_past_size_limit,
     .is_sender = true,
     .is_logging = true},
    {.name = "spill",
     .prepare = prepare_four_batches,
     .begin = begin_spilling_second,
     .operate = operate_spill_two,
     .is_sender = true,
     .is_logging = true,
     .is_spilling = true},
    {.name = "spill-for-a-waiter",
     .prepare = prepare_queued_survivor,
     .begin = begin_spilling,
     .operate = operate_spill_one,
     .is_sender = true,
     .is_logging = true,
     .is_spilling = true},
    {.name = "spill-where-space-ends",
     .prepare = prepare_four_batches,
     .begin = begin_spilling_with_size_limit,
     .operate = operate_spill_past_size_limit,
     .is_sender = true,
     .is_logging = true,
     .is_spilling = true},
    {.name = "expire",
     .prepare = prepare_two_batches,
     .begin = begin_completing,
     .operate = operate_expire,
     .is_sender = true,
     .is_completing = true,
     .is_expiring = true},
    {.name = "requeue",
     .prepare = prepare_two_batches,
     .begin = begin_completing,
     .operate = operate_requeue,
     .is_sender = true},
    {.name = "maintain",
     .prepare = prepare_open_batch,
     .begin = begin_sending_beside_dead,
     .operate = operate_maintain,
     .is_sender = true},
    {.name = "cold-recovery",
     .prepare = prepare_mixed_states,
     .operate = operate_attach,
     .is_attaching = true,
     .is_alone = true},
    {.name = "cold-recovery-inside",
     .prepare = prepare_mixed_states_in_commit,
     .operate = operate_attach,
     .is_attaching = true,
     .is_alone = true,
     .is_transactional = true},
    {.name = "cold-recovery-of-open",
     .prepare = prepare_mixed_states_in_transaction,
     .operate = operate_attach,
     .is_attaching = true,
     .is_alone = true,
     .is_transactional = true},
    {.name = "host-recovery",
     .prepare = prepare_host_crash,
     .operate = operate_attach,
     .is_attaching = true,
     .is_alone = true},
};

const uint32_t scenario_count = sizeof scenarios / sizeof scenarios[0];
