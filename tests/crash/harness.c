/* SPDX-License-Identifier: Apache-2.0 */
#include "harness.h"

#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arena/attach.h"
#include "arena/byte_lock.h"
#include "arena/counters.h"
#include "arena/durability.h"
#include "arena/lock.h"
#include "arena/process.h"
#include "arena/registry.h"
#include "arena/spilled.h"
#include "arena/transaction.h"
#include "arena/verify.h"
#include "run_queue.h"
#include "sender/sender_half.h"

enum { OTHER_SEQ_FIRST = 32, ARRIVED_SEQ_FIRST = 48 };
enum { TRANSACTION_ROUNDS_MAX = 12 };
enum { QUEUE_ROUNDS_MAX = 8, FINDINGS_MAX = 4, WIRE_SIZE_MAX = SLOT_COUNT * BATCH_SIZE };

static const struct geometry GEOMETRY = {
    .buffer_memory = SLOT_COUNT * BATCH_SIZE,
    .batch_size = BATCH_SIZE,
    .slot_stride = PAGE_SIZE_BYTES,
    .slot_count = SLOT_COUNT,
    .process_count = 6,
    .waiter_count = 4,
    .topic_count = 2,
    .partition_count = PARTITION_COUNT + 1,
    .name_heap_size = 256,
    .completion_count = 64,
    .oversized_bytes_max = 4 * BATCH_SIZE,
    .record_size_max = 4 * BATCH_SIZE,
};

void world_report(struct world *world, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "%s, %s, instruction %llu: ", world->scenario_name, world->mode_name,
            (unsigned long long)world->instruction);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    world->problem_count++;
}

/* ---- the time of each operation ---- */

static uint64_t now_ns(void)
{
    return clock_now_ns(&(struct clock){.is_manual = false});
}

struct beginning {
    uint64_t ns;
    uint64_t queued_ns;
};

static struct beginning begin(void)
{
    uint64_t queued = queued_ns();
    return (struct beginning){.ns = now_ns(), .queued_ns = queued};
}

/* Stores the duration, without the time in the run queue, if it is the longest. */
static void delay_store(struct world *world, const char *operation, struct beginning since)
{
    uint64_t elapsed_ns = now_ns() - since.ns;
    uint64_t waited_ns = queued_ns() - since.queued_ns;
    uint64_t ns = elapsed_ns > waited_ns ? elapsed_ns - waited_ns : 0;
    if (ns > world->delay.ns) {
        world->delay = (struct delay){.ns = ns, .operation = operation};
    }
}

/* The tracee must not read a clock: clock_gettime repeats its read if the time changes meanwhile, so its number of
 * instructions varies. */
#define TIMED(world, operation, call)                            \
    do {                                                         \
        if ((world)->is_tracee) {                                \
            call;                                                \
        } else {                                                 \
            struct beginning timed_since = begin();              \
            call;                                                \
            delay_store(world, operation, timed_since);           \
        }                                                        \
    } while (0)

/* ---- producers ---- */

static void world_measure(struct world *world, struct measured_record *measured)
{
    REQUIRE(accumulator_measure(world->accumulator, &measured->record, &measured->size) == STATUS_OK);
}

/* Appends the first records of the array, as many as fit into one batch. */
static enum status world_try_append_some(struct world *world, enum producer_name producer, uint32_t partition_index,
                                         const struct measured_record *records, uint32_t count,
                                         struct reservation *reservation, uint32_t *appended)
{
    struct append_result result;
    enum status status;
    TIMED(world, "append", status = accumulator_append(world->accumulator, partition_index, records, count,
                                                       reservation, &result));
    if (status == STATUS_OK) {
        struct record_token first = {.seq = result.first.seq,
                                     .partition_index = partition_index,
                                     .slot_index = result.first.slot_index,
                                     .record_index = result.first.record_index};
        ledger_return(&world->shared->ledger, producer, &first, result.appended);
    }
    *appended = result.appended;
    world->need = result.need;
    return status;
}

enum status world_try_append(struct world *world, enum producer_name producer, uint32_t partition_index,
                             struct reservation *reservation)
{
    uint32_t appended;
    world_measure(world, &world->record.measured);
    return world_try_append_some(world, producer, partition_index, &world->record.measured, 1, reservation, &appended);
}

enum status world_append_run(struct world *world, enum producer_name producer)
{
    struct measured_record records[RUN_COUNT];
    enum status status = STATUS_OK;
    uint32_t done = 0;
    for (uint32_t i = 0; i < RUN_COUNT; i++) {
        world_measure(world, &world->run[i].measured);
        records[i] = world->run[i].measured;
    }
    while (done < RUN_COUNT && status == STATUS_OK) {
        uint32_t appended;
        status = world_try_append_some(world, producer, TRACEE_PARTITION, records + done, RUN_COUNT - done, NULL,
                                       &appended);
        done += status == STATUS_OK ? appended : 0;
    }
    return status;
}

static void world_send_once(struct world *world);

/* Returns OK when this process owns `slots`. A process that is also the sender sends batches to free slots. */
static enum status world_wait_in_queue(struct world *world, uint32_t *slots)
{
    enum status status;
    for (int round = 0; round < QUEUE_ROUNDS_MAX; round++) {
        if (buffer_pool_poll(world->arena, &world->wait) == STATUS_OK) {
            break;
        }
        if (world->accumulator->sender != NULL) {
            world_send_once(world);
        }
        TIMED(world, "wait on", buffer_pool_wait_on(world->arena, &world->wait, NULL));
    }
    TIMED(world, "leave", status = buffer_pool_leave(world->arena, &world->wait, slots, NULL));
    return status;
}

/* If this process holds its whole share of the slots, it first sends batches. */
static enum status world_enqueue(struct world *world, uint32_t need)
{
    enum status status;
    TIMED(world, "enqueue", status = buffer_pool_enqueue(world->arena, NO_PARTITION, need, &world->wait, NULL));
    if (status == STATUS_SHARE_USED && world->accumulator->sender != NULL) {
        world_send_once(world);
        TIMED(world, "enqueue", status = buffer_pool_enqueue(world->arena, NO_PARTITION, need, &world->wait, NULL));
    }
    REQUIRE(status == STATUS_OK || status == STATUS_REMOVED);
    return status;
}

enum status world_append(struct world *world, enum producer_name producer)
{
    uint32_t slots[SLOT_COUNT];
    enum status status = world_try_append(world, producer, TRACEE_PARTITION, NULL);
    if (status == STATUS_EXHAUSTED) {
        uint32_t need = world->need;
        status = world_enqueue(world, need);
        status = status == STATUS_OK ? world_wait_in_queue(world, slots) : status;
        if (status == STATUS_OK) {
            struct reservation reservation = {.slots = slots, .count = need};
            status = world_try_append(world, producer, TRACEE_PARTITION, &reservation);
        }
    }
    bool is_outside = status == STATUS_NO_TRANSACTION || status == STATUS_TRANSACTION_ENDED;
    if (is_outside || (status == STATUS_EXHAUSTED && arena_closing(world->arena) != CLOSING_DONE)) {
        ledger_withdraw(&world->shared->ledger, producer); /* in all other cases, the record may be committed */
    }
    return status;
}

enum status world_append_new(struct world *world, enum producer_name producer, uint32_t value_size)
{
    ledger_begin(&world->shared->ledger, producer, value_size, &world->record);
    return world_append(world, producer);
}

/* ---- sender ---- */

void world_become_sender(struct world *world)
{
    struct error error = {0};
    enum status status;
    TIMED(world, "become sender", status = accumulator_become_sender(world->accumulator, &error));
    WORLD_EXPECT(world, status == STATUS_OK, "the survivor cannot become the sender: %s", error.message);
    REQUIRE(status == STATUS_OK);
}

/* Drains with a time after the sender's patience, so that it seals open batches at every instruction. */
void world_drain(struct world *world)
{
    uint32_t partitions[PARTITION_COUNT], ready_count, seen;
    uint64_t next_check_ns;
    const struct ready_options ready = {.now_ns = arena_now_ns(world->arena) + sender_patience_ns(world->arena),
                                        .is_everything_ready = true};
    struct sender_half *half = world->accumulator->sender;
    TIMED(world, "ready",
          ready_count = sender_ready(half, &ready, partitions, PARTITION_COUNT, &next_check_ns));
    const struct drain_options drain = {.now_ns = ready.now_ns, .size_max = 1 << 20, .in_flight_max = 5};
    TIMED(world, "drain",
          world->drained_count = sender_drain(half, &drain, partitions, ready_count, world->drained, &seen));
}

void world_complete(struct world *world)
{
    for (uint32_t i = 0; i < world->drained_count; i++) {
        const struct drained_batch *batch = &world->drained[i];
        const struct batch_outcome outcome = {.result = RESULT_SUCCEEDED, .base_offset = 7, .log_append_time_ms = -1};
        enum status status;
        TIMED(world, "complete", status = accumulator_complete(world->accumulator, batch->slot_index, batch->seq,
                                                               &outcome, NULL));
        WORLD_EXPECT(world, status == STATUS_OK, "a drained batch cannot be completed: %s", status_name(status));
    }
    world->drained_count = 0;
}

static uint32_t batch_wire_bytes(const struct world *world, const struct drained_batch *batch, uint8_t *bytes)
{
    uint32_t slots[SLOT_COUNT];
    uint32_t count = slot_chain_walk(world->arena, batch->slot_index, slots, SLOT_COUNT);
    uint32_t size = 0;
    for (uint32_t i = 0; i < count && size < batch->size; i++) {
        uint32_t rest = batch->size - size;
        uint32_t used = rest < BATCH_SIZE ? rest : BATCH_SIZE;
        memcpy(bytes + size, arena_slot_data(world->arena, slots[i]), used);
        size += used;
    }
    return size;
}

/* Counts the batches that arrived in the sink before the tracee's death as delivered. */
static void world_take_arrived(struct world *world)
{
    char problem[PROBLEM_SIZE];
    if (world->has_broker) {
        broker_read(&world->broker, &world->arrived);
    } else {
        WORLD_EXPECT(world, log_files_read(&world->log_files, &world->arrived, problem), "%s", problem);
    }
    for (uint32_t i = 0; i < world->arrived.count; i++) {
        const struct arrived_batch *batch = &world->arrived.batches[i];
        WORLD_EXPECT(world, ledger_deliver(&world->shared->ledger, TRACEE_PARTITION, ARRIVED_SEQ_FIRST + i,
                                           batch->bytes, batch->size, problem),
                     "%s", problem);
    }
}

/* Returns true if the batch is still in its slot. Such a batch is sent from the slot, and gets its result there. */
static bool row_is_in_slot(const struct world *world, const struct spill_row *row)
{
    const struct slot_header *slot = &world->arena->slots[row->slot_index];
    return slot_word_state(load_acquire_u64(&slot->word)) == SLOT_READY && load_relaxed_u64(&slot->seq) == row->seq;
}

/* Completes all batches that have rows in the overflow. Then it clears the partition's spilled range. */
static void world_ship(struct world *world)
{
    char problem[PROBLEM_SIZE];
    uint32_t count;
    struct spill_row rows[ARRIVED_MAX];
    bool is_right = log_files_read_rows(&world->log_files, &world->arrived, rows, &count, problem);
    WORLD_EXPECT(world, is_right, "%s", problem);
    for (uint32_t i = 0; i < count && is_right; i++) {
        const struct completion result = {.seq = rows[i].seq,
                                          .slot_index = rows[i].slot_index,
                                          .partition_index = TRACEE_PARTITION,
                                          .record_count = rows[i].record_count,
                                          .result = RESULT_SUCCEEDED,
                                          .base_offset = rows[i].base_offset,
                                          .log_append_time_ms = -1};
        if (!row_is_in_slot(world, &rows[i])) {
            REQUIRE(sender_complete_spilled(world->accumulator->sender, &result) == STATUS_OK);
        }
    }
    spilled_set(world->arena, TRACEE_PARTITION, 0, 0);
}

/* Returns true if the sink has the batch already. It recognizes the batch by its sequence, and drops it. */
static bool world_has_arrived(struct world *world, const struct drained_batch *batch, const uint8_t *bytes)
{
    const struct arrived_batch *known = arrived_find(&world->arrived, batch->base_sequence);
    if (known == NULL || batch->partition_index != TRACEE_PARTITION) {
        return false;
    }
    WORLD_EXPECT(world, known->size == batch->size && memcmp(known->bytes, bytes, known->size) == 0,
                 "a batch with sequence %d is sent again with different bytes", batch->base_sequence);
    return true;
}

/* Counts the drained records as delivered. */
static void world_deliver(struct world *world)
{
    uint8_t bytes[WIRE_SIZE_MAX];
    char problem[PROBLEM_SIZE];
    for (uint32_t i = 0; i < world->drained_count; i++) {
        const struct drained_batch *batch = &world->drained[i];
        int64_t *next_base_sequence = &world->next_base_sequence[batch->partition_index];
        uint32_t size = batch_wire_bytes(world, batch, bytes);
        WORLD_EXPECT(world, load_acquire_u32(&world->arena->slots[batch->slot_index].result) == RESULT_NONE,
                     "a batch is sent although it has a result");
        if (size != batch->size) {
            world_report(world, "a batch of %u bytes has a chain of %u bytes", batch->size, size);
        } else if (!world_has_arrived(world, batch, bytes) &&
                   !ledger_deliver(&world->shared->ledger, batch->partition_index, batch->seq, bytes, size,
                                   problem)) {
            world_report(world, "%s", problem);
        }
        WORLD_EXPECT(world, *next_base_sequence < 0 || batch->base_sequence == *next_base_sequence,
                     "a batch begins with sequence %d instead of %lld", batch->base_sequence,
                     (long long)*next_base_sequence);
        *next_base_sequence = batch->base_sequence + (int64_t)batch->record_count;
    }
}

static void world_send_once(struct world *world)
{
    world_drain(world);
    world_deliver(world);
    world_complete(world);
}

static void world_send_everything(struct world *world)
{
    do {
        world_drain(world);
        world_deliver(world);
        if (world->drained_count == 0) {
            return;
        }
        world_complete(world);
    } while (world->problem_count == 0);
}

/* ---- rules ---- */

bool tracee_holds_pool_lock(const struct world *world)
{
    uint32_t owner = lock_word_owner(load_acquire_u64(&world->arena->globals->pool_lock));
    return owner != 0 && owner != world->arena->owner && process_is_alive(world->arena, owner);
}

uint32_t world_count_slots(const struct world *world, enum slot_state state)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        count += slot_word_state(load_acquire_u64(&world->arena->slots[i].word)) == state;
    }
    return count;
}

static bool is_all_zeros(const uint8_t *bytes, uint32_t size)
{
    return bytes[0] == 0 && memcmp(bytes, bytes + 1, size - 1) == 0;
}

static uint32_t wait_word_count(const struct arena *arena)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->geometry.waiter_count; i++) {
        count += waiter_word_state(load_acquire_u64(&arena->waiters[i].word)) == WAITER_WAIT;
    }
    return count;
}

/* While sync_done is 1, only the tracee has drawn a ticket. So its first records are the forced ones. */
static void check_sync_records(struct world *world)
{
    const struct arena *arena = world->arena;
    uint32_t slot_index = open_word_slot(load_acquire_u64(&arena->partitions[TRACEE_PARTITION].open));
    if (load_acquire_u64(&arena->globals->sync_done) != 1 || slot_index >= SLOT_COUNT) {
        return;
    }
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word);
    if (slot_word_state(word) == SLOT_OPEN && slot_word_count(word) == RECORDS_BEFORE_SYNC) {
        struct sync_record found = {0};
        WORLD_EXPECT(world, sync_record_find(arena, slot_index, word, &found) && found.count == RECORDS_BEFORE_SYNC,
                     "%u of %u forced records are in a sync record", found.count, RECORDS_BEFORE_SYNC);
    }
}

/* Checks that every returned record has a result or is pending. A record whose result was overwritten is neither. */
static void check_no_result_is_lost(struct world *world)
{
    for (uint32_t producer = 0; producer < PRODUCER_COUNT; producer++) {
        const struct ledger_producer *entry = &world->shared->ledger.producers[producer];
        for (uint32_t sequence = 0; sequence < entry->returned_count; sequence++) {
            struct completion completion;
            enum status status = completion_find(world->arena, &entry->tokens[sequence], &completion);
            WORLD_EXPECT(world, status == STATUS_OK || status == STATUS_PENDING,
                         "record %u of producer %u has no result and is not pending: %s", sequence, producer,
                         status_name(status));
        }
    }
}

void check_always(struct world *world)
{
    const struct arena *arena = world->arena;
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        bool is_free = slot_word_state(load_acquire_u64(&arena->slots[i].word)) == SLOT_FREE;
        WORLD_EXPECT(world, !is_free || is_all_zeros(arena_slot_data(arena, i), arena->geometry.slot_stride),
                     "slot %u is free, but not all zeros", i);
    }
    uint32_t waiting_count = load_acquire_u32(&arena->globals->waiting_count);
    WORLD_EXPECT(world, waiting_count >= wait_word_count(arena), "%u processes wait, but waiting_count is %u",
                 wait_word_count(arena), waiting_count);
    check_no_result_is_lost(world);
    if (world->is_durable) {
        check_sync_records(world);
    }
}

static void check_results(struct world *world, const struct scenario *scenario)
{
    for (uint32_t producer = 0; producer < PRODUCER_COUNT; producer++) {
        const struct ledger_producer *entry = &world->shared->ledger.producers[producer];
        for (uint32_t sequence = 0; sequence < entry->returned_count; sequence++) {
            struct completion completion = {0};
            enum status status = completion_find(world->arena, &entry->tokens[sequence], &completion);
            bool is_right = completion.result == RESULT_SUCCEEDED ||
                            (completion.result == RESULT_EXPIRED && scenario->is_expiring) ||
                            (completion.result == RESULT_FAILED && scenario->is_refusing) ||
                            (completion.result == RESULT_ABORTED && sequence < entry->aborted_count);
            WORLD_EXPECT(world, status == STATUS_OK && is_right,
                         "the result of record %u of producer %u is %s, %d", sequence, producer, status_name(status),
                         (int)completion.result);
        }
    }
}

static void check_by_verify(struct world *world, bool is_idle)
{
    struct finding findings[FINDINGS_MAX];
    const struct verify_options options = {.depth = VERIFY_DEEP, .is_idle = is_idle};
    uint32_t count = verify(world->arena, &options, findings, FINDINGS_MAX);
    for (uint32_t i = 0; i < count && i < FINDINGS_MAX; i++) {
        world_report(world, "verify: slot %d: %s", (int)findings[i].slot_index, findings[i].text);
    }
}

static void check_arena(struct world *world)
{
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        uint64_t word = load_acquire_u64(&world->arena->slots[i].word);
        WORLD_EXPECT(world, slot_word_state(word) == SLOT_FREE, "slot %u was not freed: state %d", i,
                     (int)slot_word_state(word));
        WORLD_EXPECT(world, slot_word_generation(word) + 1 != world->first_generations[i],
                     "slot %u was freed, but its generation was not raised", i);
    }
    check_by_verify(world, true);
    WORLD_EXPECT(world, !arena_is_poisoned(world->arena), "the arena is poisoned");
}

static void survivor_append(struct world *world)
{
    enum status status = world_append_new(world, SURVIVOR, VALUE_SIZE);
    WORLD_EXPECT(world, status == STATUS_OK, "the survivor's append returned %s", status_name(status));
}

/* The survivor joined the queue before the tracee ran. Now it must get its slots. */
static void survivor_leave_queue(struct world *world)
{
    uint32_t slots[SLOT_COUNT];
    TIMED(world, "help", buffer_pool_help(world->arena, NULL));
    enum status status = buffer_pool_poll(world->arena, &world->wait);
    WORLD_EXPECT(world, status == STATUS_OK || world_count_slots(world, SLOT_GRANT) < world->wait.need,
                 "the survivor has its slots, but its poll returned %s", status_name(status));
    status = world_wait_in_queue(world, slots);
    WORLD_EXPECT(world, status == STATUS_OK, "the survivor's wait returned %s", status_name(status));
    if (status == STATUS_OK) {
        buffer_pool_return(world->arena, slots, world->wait.need, NULL);
    }
    world->is_queued = false;
}

enum status world_sync(struct world *world)
{
    uint64_t ticket = durability_ticket(world->arena);
    enum status status = STATUS_PENDING;
    for (uint32_t i = 0; i < SYNC_STEPS_MAX && status == STATUS_PENDING; i++) {
        TIMED(world, "sync", status = durability_step(world->arena, ticket));
    }
    return status;
}

/* Cold recovery does the same if the arena's file has a name again. */
void world_reopen(struct world *world)
{
    store_relaxed_u32(&world->arena->globals->closing, CLOSING_NOT);
}

/* Seals the batches that a dead process left open in the closing arena. Checks that no batch can be opened. */
static void survivor_finish_closing(struct world *world)
{
    TIMED(world, "close", closing_begin(world->arena));
    WORLD_EXPECT(world, world_count_slots(world, SLOT_OPEN) == 0, "%u batches are open in a closing arena",
                 world_count_slots(world, SLOT_OPEN));
    ledger_begin(&world->shared->ledger, SURVIVOR, VALUE_SIZE, &world->record);
    enum status status = world_append(world, SURVIVOR);
    WORLD_EXPECT(world, status == STATUS_REMOVED, "an append to a closing arena returned %s", status_name(status));
    ledger_withdraw(&world->shared->ledger, SURVIVOR);
    world_reopen(world);
}

/* Ends a transaction. After an abort, each partition continues at any sequence. */
static void survivor_end(struct world *world, enum transaction_task task, uint64_t number)
{
    REQUIRE(sender_end_transaction(world->accumulator->sender, number, TRANSACTION_WHY_NOT) == STATUS_OK);
    for (uint32_t i = 0; i < PARTITION_COUNT && task == TRANSACTION_TASK_ABORT; i++) {
        world->next_base_sequence[i] = -1;
    }
    if (task == TRANSACTION_TASK_ABORT) {
        ledger_abort(&world->shared->ledger);
    }
}

/* Takes the next step towards the end of the transaction. Only its coordinator may commit it or ask for its abort. */
static void survivor_advance_transaction(struct world *world)
{
    uint64_t number = transaction_word_number(transaction_read(world->arena));
    uint32_t state = transaction_word_state(transaction_read(world->arena));
    bool is_own = load_acquire_u32(&world->arena->globals->transaction_coordinator) == world->arena->owner;
    if (state == TRANSACTION_OPEN && is_own) {
        REQUIRE(transaction_commit(world->arena, number) == STATUS_OK);
        return;
    }
    if (state == TRANSACTION_ABORT_ONLY && is_own) {
        REQUIRE(transaction_abort(world->arena, number, TRANSACTION_WHY_ASKED) == STATUS_OK);
    }
    struct sender_half *half = world->accumulator->sender;
    enum transaction_task task = sender_next_transaction_task(half, UINT64_MAX, &number, NULL);
    if (task != TRANSACTION_TASK_NOTHING) {
        survivor_end(world, task, number);
    } else {
        world_send_everything(world);
    }
}

void world_renew_transaction(struct world *world)
{
    uint64_t number;
    for (int round = 0; round < TRANSACTION_ROUNDS_MAX; round++) {
        if (transaction_word_state(transaction_read(world->arena)) == TRANSACTION_NONE) {
            WORLD_EXPECT(world, world_count_slots(world, SLOT_READY) == 0,
                         "a batch is READY after the end of its transaction");
            transaction_leave(world->arena);
        }
        enum status status = transaction_begin(world->arena, &number);
        if (status == STATUS_OK) {
            return;
        }
        survivor_advance_transaction(world);
    }
    world_report(world, "the transaction has not ended: state %u",
                 transaction_word_state(transaction_read(world->arena)));
}

void survivor_finish(struct world *world, const struct scenario *scenario)
{
    char problem[PROBLEM_SIZE];
    check_by_verify(world, scenario->is_alone); /* before any repair; recovery leaves an idle arena */
    if (world->has_broker || world->has_log) {
        world_take_arrived(world);
    }
    if (scenario->is_closing) {
        survivor_finish_closing(world);
    }
    if (world->accumulator->sender == NULL) {
        world_become_sender(world);
    }
    if (world->is_spilling) {
        world_ship(world);
    }
    if (world->is_durable) {
        enum status status = world_sync(world);
        WORLD_EXPECT(world, status == STATUS_OK, "a sync returned %s", status_name(status));
    }
    world_complete(world);
    if (world->is_queued) {
        survivor_leave_queue(world);
    }
    if (world->is_transactional) {
        world_renew_transaction(world);
    }
    survivor_append(world);
    world_send_everything(world);
    survivor_append(world);
    world_send_everything(world);
    TIMED(world, "maintain", sender_maintain(world->accumulator->sender, NULL));
    world_send_everything(world);
    WORLD_EXPECT(world, ledger_check(&world->shared->ledger, scenario->is_completing, problem), "%s", problem);
    check_results(world, scenario);
    check_arena(world);
}

/* ---- while the tracee is stopped ---- */

/* Returns false if the tracee is the coordinator: its death would abort the survivor's records, too. */
static bool survivor_may_append(const struct world *world)
{
    uint32_t coordinator = load_acquire_u32(&world->arena->globals->transaction_coordinator);
    return !world->is_transactional || coordinator == world->arena->owner;
}

/* Tries once. The append may return EXHAUSTED, and in an arena with transactions also NO_TRANSACTION. */
static enum status survivor_try_append(struct world *world, uint32_t partition_index)
{
    if (!survivor_may_append(world)) {
        return STATUS_NO_TRANSACTION;
    }
    ledger_begin(&world->shared->ledger, SURVIVOR, VALUE_SIZE, &world->record);
    enum status status = world_try_append(world, SURVIVOR, partition_index, NULL);
    bool is_outside = status == STATUS_NO_TRANSACTION && world->is_transactional;
    WORLD_EXPECT(world, status == STATUS_OK || status == STATUS_EXHAUSTED || is_outside, "an append returned %s",
                 status_name(status));
    if (status != STATUS_OK) {
        ledger_withdraw(&world->shared->ledger, SURVIVOR);
    }
    return status;
}

/* Checks that a waiter does not take the pool lock from a living process. The waiter is a child, and is killed. */
static void check_pool_lock_is_kept(struct world *world)
{
    const struct timespec two_slices = {.tv_nsec = (long)(LOCK_SLICE_NS * 5 / 2)};
    uint32_t owner = lock_word_owner(load_acquire_u64(&world->arena->globals->pool_lock));
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        REQUIRE(arena_ensure_attached(world->arena, NULL) == STATUS_OK);
        buffer_pool_help(world->arena, NULL);
        _exit(0);
    }
    nanosleep(&two_slices, NULL);
    kill(pid, SIGKILL);
    REQUIRE(waitpid(pid, NULL, 0) == pid);
    WORLD_EXPECT(world, lock_word_owner(load_acquire_u64(&world->arena->globals->pool_lock)) == owner,
                 "the pool lock was taken from a living process");
}

static uint32_t partition_acquisition(const struct world *world)
{
    return lock_word_acquisition(load_acquire_u64(&world->arena->partitions[TRACEE_PARTITION].lock.word));
}

/* Slots that were freed without the pool lock are granted in the next slice of a waiter. */
void check_after_continuing(struct world *world)
{
    if (world->arena->pool_lock_refused != 0) {
        TIMED(world, "help", buffer_pool_help(world->arena, NULL));
    }
    uint32_t waiting = wait_word_count(world->arena);
    WORLD_EXPECT(world, waiting == 0 || world_count_slots(world, SLOT_FREE) == 0,
                 "%u processes wait while %u slots are free", waiting, world_count_slots(world, SLOT_FREE));
    WORLD_EXPECT(world, partition_acquisition(world) >= world->last_acquisition,
                 "the acquisition number of the partition's lock decreased");
}

static bool pool_has_free_slot(const struct world *world)
{
    return world_count_slots(world, SLOT_FREE) > 0 && load_acquire_u32(&world->arena->globals->waiting_count) == 0 &&
           arena_takes_records(world->arena);
}

/* Allocates a slot and frees it. If the process that freed the slot was stopped before it set the hint, an allocation
 * does not find the slot. A waiter in the queue does, because a helper counts the free slots again. If the survivor
 * is in the queue already, it keeps its place. */
static void survivor_allocate(struct world *world)
{
    const struct buffer_wait queued = world->wait;
    uint32_t slot_index;
    enum status status;
    TIMED(world, "allocate", status = buffer_pool_try_allocate(world->arena, &slot_index));
    if (status == STATUS_EXHAUSTED) {
        TIMED(world, "enqueue", status = buffer_pool_enqueue(world->arena, NO_PARTITION, 1, &world->wait, NULL));
        REQUIRE(status == STATUS_OK);
        status = world_wait_in_queue(world, &slot_index);
    }
    WORLD_EXPECT(world, status == STATUS_OK, "%u slots are free, but none can be allocated",
                 world_count_slots(world, SLOT_FREE));
    if (status == STATUS_OK) {
        TIMED(world, "give back", buffer_pool_return(world->arena, &slot_index, 1, NULL));
    }
    world->wait = queued;
}

static void survivor_append_beside(struct world *world)
{
    bool has_free_slot = !tracee_holds_pool_lock(world) && pool_has_free_slot(world);
    enum status status = survivor_try_append(world, TRACEE_PARTITION);
    if (status == STATUS_EXHAUSTED && has_free_slot) {
        survivor_allocate(world);
    }
}

/* The first call would wait LOCK_PATIENCE_NS for the pool lock of a stopped tracee. Here, it was refused already. */
static void survivor_was_refused(struct world *world)
{
    world->arena->pool_lock_refused = load_acquire_u64(&world->arena->globals->pool_lock) | LOCK_WAITERS;
}

/* Sends everything. While the tracee holds the pool lock, chains are not freed. */
static void survivor_send_beside(struct world *world)
{
    if (!tracee_holds_pool_lock(world)) {
        world_send_everything(world);
        return;
    }
    survivor_was_refused(world);
    world_drain(world);
    world_deliver(world);
    world_complete(world);
    TIMED(world, "maintain", sender_maintain(world->accumulator->sender, NULL));
}

void survivor_close_beside(struct world *world)
{
    check_always(world);
    TIMED(world, "close", closing_begin(world->arena));
    survivor_send_beside(world);
    closing_end(world->arena);
    survivor_send_beside(world); /* the sender's last drain */
    world->last_acquisition = partition_acquisition(world);
}

bool survivor_commit_beside(struct world *world, bool is_followed)
{
    uint64_t number = transaction_word_number(transaction_read(world->arena));
    check_always(world);
    REQUIRE(transaction_commit(world->arena, number) == STATUS_OK);
    bool may_free = !tracee_holds_pool_lock(world);
    if (may_free) {
        world_renew_transaction(world);
    }
    uint32_t rounds = 0;
    while (may_free && !is_followed && rounds++ < TRANSACTION_ROUNDS_MAX &&
           transaction_word_state(transaction_read(world->arena)) != TRANSACTION_NONE) {
        survivor_advance_transaction(world);
    }
    WORLD_EXPECT(world, rounds <= TRANSACTION_ROUNDS_MAX, "a transaction does not end while a process is stopped");
    world->last_acquisition = partition_acquisition(world);
    return may_free;
}

void check_no_record_is_late(struct world *world)
{
    const struct ledger_producer *tracee = &world->shared->ledger.producers[TRACEE];
    for (uint32_t i = 0; i < tracee->returned_count; i++) {
        WORLD_EXPECT(world, tracee->delivered_counts[i] == 1,
                     "record %u was accepted, but not delivered before its sender left or its transaction ended", i);
    }
    WORLD_EXPECT(world, tracee->delivered_counts[tracee->begun_count] == 0, "a rejected record was delivered");
}

/* Appends until only `slots_left` slots are free. A slot that has no hint is allocated through the queue. */
static void survivor_fill_pool(struct world *world, uint32_t slots_left)
{
    uint32_t tries = 0;
    while (pool_has_free_slot(world) && world_count_slots(world, SLOT_FREE) > slots_left && tries < 2) {
        enum status status = survivor_try_append(world, OTHER_PARTITION);
        if (status == STATUS_NO_TRANSACTION) {
            return;
        }
        if (status == STATUS_EXHAUSTED) {
            survivor_allocate(world);
            tries++;
        }
    }
    for (uint32_t i = 1; i < RECORDS_PER_BATCH; i++) {
        (void)survivor_try_append(world, OTHER_PARTITION);
    }
}

/* Fills the freed slots with records of another partition. So it is detected if the tracee still writes to such a slot,
 * or still relies on the bytes that it has read there. At first all slots are filled. Then as many are freed as the
 * tracee may still need. */
static void survivor_use_slots_again(struct world *world, uint32_t slots_wanted)
{
    if (tracee_holds_pool_lock(world) || !pool_has_free_slot(world)) {
        return;
    }
    world_send_everything(world);
    survivor_fill_pool(world, 0);
    if (slots_wanted > 0) {
        world_send_everything(world);
        survivor_fill_pool(world, slots_wanted);
    }
}

void survivor_work_beside(struct world *world, const struct scenario *scenario, unsigned beside)
{
    check_always(world);
    if (tracee_holds_pool_lock(world)) {
        check_pool_lock_is_kept(world);
    }
    if ((beside & BESIDE_APPEND) != 0) {
        survivor_append_beside(world);
    }
    if ((beside & BESIDE_SEND) != 0 && world->accumulator->sender != NULL) {
        survivor_send_beside(world);
    }
    if ((beside & BESIDE_APPEND) != 0) {
        survivor_append_beside(world);
    }
    if (!tracee_holds_pool_lock(world) && pool_has_free_slot(world)) {
        survivor_allocate(world);
    }
    if ((beside & BESIDE_SEND) != 0 && world->accumulator->sender != NULL) {
        survivor_use_slots_again(world, scenario->slots_wanted);
    }
    world->last_acquisition = partition_acquisition(world);
}

/* ---- the world ---- */

static int open_again(int descriptor)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
    int again = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(again >= 0);
    return again;
}

static void world_adopt(struct world *world, struct arena *arena)
{
    world->arena = arena;
    REQUIRE(accumulator_open(arena, &world->accumulator, NULL) == STATUS_OK);
}

void world_attach(struct world *world)
{
    struct error error = {0};
    struct arena *arena;
    enum status status = arena_attach(open_again(world->descriptor), open_again(world->descriptor), &arena, &error);
    if (status != STATUS_OK) {
        world_report(world, "the arena cannot be attached: %s", error.message);
        abort();
    }
    world_adopt(world, arena);
}

static void world_leave(struct world *world)
{
    if (world->accumulator != NULL) {
        accumulator_close(world->accumulator);
        arena_detach(world->arena);
    }
    world->accumulator = NULL;
    world->arena = NULL;
}

static void world_create_arena(struct world *world, const struct scenario *scenario)
{
    struct geometry geometry = GEOMETRY;
    geometry.durability = scenario->is_durable ? DURABILITY_SYNC : DURABILITY_PROCESS;
    geometry.is_transactional = scenario->is_transactional;
    geometry.process_slot_count_max = scenario->is_shared ? SLOT_COUNT : 0;
    struct error error = {0};
    struct arena *arena;
    struct registry *registry;
    uint32_t topic_index, partition_index;
    int map_descriptor = open_again(world->descriptor);
    int lock_descriptor = open_again(world->descriptor);
    enum status status = arena_create(map_descriptor, lock_descriptor, &geometry, NULL, 0, &arena, &error);
    REQUIRE(status == STATUS_OK);
    REQUIRE(registry_open(arena, &registry, &error) == STATUS_OK);
    REQUIRE(registry_topic(registry, "crash", 5, &topic_index) == STATUS_OK);
    for (int32_t i = 0; i < PARTITION_COUNT; i++) {
        REQUIRE(registry_partition(registry, topic_index, i, &partition_index) == STATUS_OK);
        REQUIRE(partition_index == (uint32_t)i);
    }
    registry_close(registry);
    /* The numbers of the two partitions differ, so that a batch of one partition is never mistaken for the other's. */
    store_relaxed_u64(&arena->partitions[OTHER_PARTITION].next_seq, OTHER_SEQ_FIRST);
    world_adopt(world, arena);
    accumulator_set_producer_id(world->accumulator, 1000, 3);
    if (scenario->is_transactional) {
        uint64_t number;
        REQUIRE(transaction_begin(arena, &number) == STATUS_OK);
    }
}

static void *map_shared(int descriptor, uint64_t size)
{
    void *bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | (descriptor < 0 ? MAP_ANONYMOUS : 0),
                       descriptor, 0);
    REQUIRE(bytes != MAP_FAILED);
    return bytes;
}

void world_new(struct world *world, const struct scenario *scenario)
{
    world->descriptor = memfd_create("crash", MFD_CLOEXEC);
    REQUIRE(world->descriptor >= 0);
    world->shared = map_shared(-1, sizeof *world->shared);
    world->scenario_name = scenario->name;
    for (uint32_t i = 0; i < PARTITION_COUNT; i++) {
        bool is_ending = scenario->is_completing || scenario->is_pumping || scenario->is_logging;
        world->next_base_sequence[i] = is_ending ? -1 : 0;
    }
    world->is_durable = scenario->is_durable;
    world->is_transactional = scenario->is_transactional;
    world->has_broker = scenario->is_pumping;
    if (world->has_broker) {
        broker_open(&world->broker, scenario->is_transactional);
    }
    world->has_log = scenario->is_logging;
    world->is_spilling = scenario->is_spilling;
    if (world->has_log) {
        log_files_open(&world->log_files);
    }
    world_create_arena(world, scenario);
    world->size = world->arena->size;
    world->bytes = map_shared(world->descriptor, world->size);
    scenario->prepare(world);
    if (scenario->is_alone) {
        world_leave(world);
    } else if (!scenario->is_sender && world->accumulator->sender == NULL) {
        world_become_sender(world);
    }
}

void world_store_generations(struct world *world)
{
    if (world->arena == NULL) {
        return;
    }
    for (uint32_t i = 0; i < SLOT_COUNT; i++) {
        uint64_t word = load_acquire_u64(&world->arena->slots[i].word);
        world->first_generations[i] = slot_word_state(word) == SLOT_FREE ? 0 : slot_word_generation(word) + 1;
    }
}

void world_free(struct world *world)
{
    world_leave(world);
    if (world->has_broker) {
        broker_close(&world->broker);
    }
    if (world->has_log) {
        log_files_close(&world->log_files);
    }
    munmap(world->bytes, world->size);
    munmap(world->shared, sizeof *world->shared);
    close(world->descriptor);
}

void world_run_and_die(struct world *world, void (*act)(struct world *world))
{
    pid_t pid = fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        REQUIRE(arena_ensure_attached(world->arena, NULL) == STATUS_OK);
        act(world);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- the twin ---- */

struct twin {
    int descriptor;
    uint8_t *bytes;
    struct arena *arena; /* the world's handle, with pointers into `bytes`; NULL if the survivor attaches again */
    struct shared *shared;
    uint64_t size;
};

static void *moved(const struct arena *arena, const void *pointer, uint8_t *base)
{
    return base + ((const uint8_t *)pointer - arena->base);
}

static void arena_move(struct arena *arena, uint8_t *base)
{
    arena->superblock = moved(arena, arena->superblock, base);
    arena->globals = moved(arena, arena->globals, base);
    arena->processes = moved(arena, arena->processes, base);
    arena->waiters = moved(arena, arena->waiters, base);
    arena->topics = moved(arena, arena->topics, base);
    arena->partitions = moved(arena, arena->partitions, base);
    arena->names = moved(arena, arena->names, base);
    arena->free_hints = moved(arena, arena->free_hints, base);
    arena->ready_hints = moved(arena, arena->ready_hints, base);
    arena->ready_groups = moved(arena, arena->ready_groups, base);
    arena->slots = moved(arena, arena->slots, base);
    arena->completions = moved(arena, arena->completions, base);
    arena->counters = moved(arena, arena->counters, base);
    arena->error_log = moved(arena, arena->error_log, base);
    arena->slot_data = moved(arena, arena->slot_data, base);
    if (arena->sync_records != NULL) {
        arena->sync_records = moved(arena, arena->sync_records, base);
    }
    arena->me = moved(arena, arena->me, base);
    arena->base = base;
}

/* Returns a handle of the copy that has the same process entry. It also locks the entry's byte in the copy. */
static struct arena *twin_arena(const struct world *world, struct twin *twin)
{
    struct arena *arena = malloc(sizeof *arena);
    REQUIRE(arena != NULL);
    *arena = *world->arena;
    arena_move(arena, twin->bytes);
    arena->map_descriptor = twin->descriptor;
    arena->lock_descriptor = open_again(twin->descriptor);
    arena->next_attached = NULL;
    arena->chain_scratch = calloc(arena->chain_slot_count_max, sizeof *arena->chain_scratch);
    int64_t own_byte = PROCESS_LOCK_START + (int64_t)arena->entry_index;
    REQUIRE(byte_lock_try(arena->lock_descriptor, ATTACH_LOCK_BYTE, BYTE_SHARED, NULL) == STATUS_OK);
    REQUIRE(byte_lock_try(arena->lock_descriptor, own_byte, BYTE_EXCLUSIVE, NULL) == STATUS_OK);
    return arena;
}

struct twin *twin_new(struct world *world)
{
    struct twin *twin = calloc(1, sizeof *twin);
    REQUIRE(twin != NULL);
    twin->size = world->size;
    twin->descriptor = memfd_create("twin", MFD_CLOEXEC);
    REQUIRE(twin->descriptor >= 0 && ftruncate(twin->descriptor, (off_t)world->size) == 0);
    twin->bytes = map_shared(twin->descriptor, world->size);
    twin->shared = malloc(sizeof *twin->shared);
    REQUIRE(twin->shared != NULL);
    twin->arena = world->arena == NULL ? NULL : twin_arena(world, twin);
    return twin;
}

void twin_free(struct twin *twin)
{
    if (twin->arena != NULL) {
        close(twin->arena->lock_descriptor);
        free(twin->arena->chain_scratch);
        free(twin->arena);
    }
    munmap(twin->bytes, twin->size);
    close(twin->descriptor);
    free(twin->shared);
    free(twin);
}

void twin_become(struct twin *twin, const struct scenario *scenario, const uint8_t *before, const struct world *world,
                 struct world *copy)
{
    *copy = *world;
    *twin->shared = *world->shared;
    copy->shared = twin->shared;
    copy->bytes = twin->bytes;
    copy->descriptor = twin->descriptor;
    copy->delay = (struct delay){0};
    copy->problem_count = 0;
    memcpy(twin->bytes, before, twin->size);
    if (twin->arena != NULL) {
        world_adopt(copy, twin->arena);
        if (!scenario->is_sender) {
            world_become_sender(copy);
        }
    }
    memcpy(twin->bytes, world->bytes, twin->size);
    if (twin->arena == NULL) {
        world_attach(copy);
    }
}

void twin_leave(struct twin *twin, struct world *copy)
{
    if (twin->arena == NULL) {
        world_leave(copy);
    } else {
        accumulator_close(copy->accumulator);
    }
}
