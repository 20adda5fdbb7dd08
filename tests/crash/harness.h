/* SPDX-License-Identifier: Apache-2.0
 *
 * The harness: an arena, a tracee that is killed or stopped at any instruction, and a survivor that is neither.
 *
 *   world      the arena in a memfd, the harness's own handle of it, and the ledger, which the tracee shares
 *   tracee     a forked process. It attaches, prepares its operation and stops. Then the harness steps the operation
 *              instruction by instruction
 *   twin       a second memfd with a copy of the arena's bytes. The tracee holds no byte locks on the copy, so the copy
 *              is exactly what a death of the tracee would leave. So one tracee suffices for all kill points
 *   survivor   appends to the tracee's partition, sends and completes all batches, and repairs the arena. Each of its
 *              operations must end within DELAY_MAX_NS
 *   sink       the broker of a tracee that runs the pump (broker.h), or the log of a tracee that appends to one
 *              (log_files.h). It has the batches that arrived before the death, and those that the survivor sends
 *   rival      a second appender. It takes over the lock of the stopped tracee, and is then stopped, too
 *
 * RULES at any time
 *   A free slot is all zeros.
 *   waiting_count is never less than the number of waiters.
 *   Every record whose append returned has its result, or is pending.
 *   If sync_done says that an open batch was forced, the batch has a sync record that matches its bytes.
 *
 * RULES after a kill at any instruction
 *   verify (deep) finds only faults that living processes repair.
 *   Every record whose append returned is delivered exactly once, unchanged, and in the order of its producer. The
 *   record of the tracee's interrupted append is delivered at most once.
 *   If there is a sink, every returned record is in it exactly once, even if the tracee has recorded its result.
 *   Every returned record has its result. Sequences have no gap.
 *   At the end every slot is FREE, and verify finds nothing.
 *
 * RULES in an arena with transactions
 *   After the end of an aborted transaction, none of its records is delivered.
 *   After the end of any transaction, the arena has none of its batches.
 *   A record that was accepted in a transaction is delivered before the end of this transaction.
 *   A record that was rejected is not delivered.
 *
 * RULES while the tracee is stopped
 *   Appends, drains, completions and allocations of free slots end within DELAY_MAX_NS. When the tracee continues, its
 *   operation succeeds, and all rules above hold. There are four exceptions:
 *     tracee_holds_pool_lock    If no slot is free, an allocation may wait for the tracee. So may the freeing of a
 *                               chain, but not the call that frees it. The lock is not taken from the tracee
 *     scenario.is_sender        A stopped sender keeps its role
 *     scenario.is_alone         No other process attaches during a cold recovery
 *     scenario.is_durable       A stopped process that syncs for all others keeps this task. So no record is
 *                               acknowledged
 *   A fifth case delays no operation here. While a process attaches, the dead owner of its entry appears to be alive
 *   for a moment (process.h). Only the repair of that owner's death waits, and the survivor needs no such repair.
 */
#ifndef CRASH_HARNESS_H
#define CRASH_HARNESS_H

#include <sys/types.h>

#include "broker.h"
#include "core/accumulator.h"
#include "ledger.h"
#include "log_files.h"
#include "arena/closing.h"

enum { SLOT_COUNT = 6, BATCH_SIZE = 512, VALUE_SIZE = 100, CHAIN_VALUE_SIZE = 1200, RECORDS_PER_BATCH = 4 };
enum { RUN_COUNT = 5 }; /* records of one call: they fill an open batch and begin the next one */
enum { RECORDS_BEFORE_SYNC = 3, SYNC_STEPS_MAX = 4 };
enum { TRACEE_PARTITION = 0, OTHER_PARTITION = 1 };
#define DELAY_MAX_NS (UINT64_C(50) * NS_PER_MS)

struct delay {
    uint64_t ns;
    const char *operation;
};

/* The memory, besides the arena, that the tracee and the harness share. */
struct shared {
    struct ledger ledger;
    struct operation {
        enum status status; /* the operation's return value */
        bool is_over;
    } tracee, rival;
    uint64_t sent_size; /* bytes that the tracee's pump has sent */
    struct log_numbers log_numbers; /* of a tracee that appends to its log */
};

struct world {
    ALIGNED int descriptor; /* the arena's file; aligned, because memcpy's instructions depend on addresses */
    uint8_t *bytes;       /* the harness's own mapping of that file */
    uint64_t size;
    struct arena *arena;  /* NULL if only the tracee attaches */
    struct accumulator *accumulator;
    struct shared *shared;

    /* The tracee prepares these for its operation. */
    struct ledger_record record;
    struct ledger_record run[RUN_COUNT];
    struct buffer_wait wait;
    struct buffer_wait other_wait; /* the tracee's second wait */
    uint32_t need; /* slots that the last append needed, if it returned EXHAUSTED */
    struct drained_batch drained[SLOT_COUNT];
    uint32_t drained_count;

    int64_t next_base_sequence[PARTITION_COUNT]; /* of the next batch; -1 if unknown */
    uint32_t first_generations[SLOT_COUNT]; /* at the tracee's start: generation + 1, or 0 if free */
    uint32_t last_acquisition;              /* the partition lock's number when the tracee continued */
    bool is_queued;                         /* the survivor waits in the pool's queue by `wait` */
    bool is_tracee;                         /* this is the tracee's copy of the world */
    bool is_durable;                        /* the arena has sync records */
    bool is_transactional;                  /* records can be appended only in a transaction */
    bool has_broker;                        /* the tracee runs the pump */
    struct broker broker;
    bool has_log;                           /* the tracee appends to a log */
    bool is_spilling;                       /* the log is an overflow, so its records have no results yet */
    struct log_files log_files;
    struct arrived arrived;                 /* the batches in the sink after the tracee's death */
    struct delay delay;
    uint32_t problem_count;
    const char *scenario_name;
    const char *mode_name;
    uint64_t instruction;
};

struct scenario {
    const char *name;
    void (*prepare)(struct world *world); /* runs in the harness, before the tracee starts */
    void (*begin)(struct world *world);   /* runs in the tracee, not stepped; may be NULL */
    enum status (*operate)(struct world *world); /* runs in the tracee, stepped */
    bool is_sender;      /* the tracee has or takes the sender's role, and the survivor takes it afterwards */
    bool is_completing;  /* the tracee may deliver and complete records before its death */
    bool is_alone;       /* no other process is attached when the tracee attaches, or the survivor */
    bool is_attaching;   /* the tracee attaches during the operation */
    bool has_rival;      /* the operation is an append whose lock a rival can take over */
    bool may_be_exhausted; /* the operation may return EXHAUSTED and append nothing */
    bool is_expiring;      /* records may have the result EXPIRED */
    bool is_durable;       /* the tracee forces the arena to disk, and writes sync records */
    bool is_closing;       /* the tracee closes the arena */
    bool is_transactional; /* the arena has transactions, and one is open at the tracee's start */
    bool is_pumping;       /* the tracee sends to a broker, which stores the batches that arrived */
    bool is_logging;       /* the tracee appends to a log; complete batches have arrived */
    bool is_spilling;      /* the log is an overflow, and the survivor completes its batches */
    bool is_joining;       /* the tracee appends only in the transaction that is open at its start */
    bool is_refusing;      /* records may have the result FAILED */
    bool is_shared;        /* slots per process are counted, but one process may hold all */
    uint32_t slots_wanted; /* free slots that the operation may still need when it continues */
};

extern const struct scenario scenarios[];
extern const uint32_t scenario_count;

/* ---- the world ---- */

void world_new(struct world *world, const struct scenario *scenario);
/* Stores the generation of each slot before the tracee begins. */
void world_store_generations(struct world *world);
void world_free(struct world *world);
void world_report(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define WORLD_EXPECT(world, condition, ...) ((condition) ? (void)0 : world_report(world, __VA_ARGS__))

/* Runs `act` in a child that attaches, and exits without detaching. */
void world_run_and_die(struct world *world, void (*act)(struct world *world));

/* Opens the arena's file again and attaches, like another process. */
void world_attach(struct world *world);

/* ---- the twin ---- */

struct twin;
struct twin *twin_new(struct world *world);
void twin_free(struct twin *twin);
/* Makes `copy`, a world with the twin's bytes. The twin first has the bytes `before`, and the survivor takes the
 * sender's role on them. Then the bytes of `world` replace them. */
void twin_become(struct twin *twin, const struct scenario *scenario, const uint8_t *before, const struct world *world,
                 struct world *copy);
void twin_leave(struct twin *twin, struct world *copy);

/* ---- steps of producers and sender, for scenarios and survivors ---- */

/* Appends world->record, which ledger_begin filled in. It never waits. */
enum status world_try_append(struct world *world, enum producer_name producer, uint32_t partition_index,
                             struct reservation *reservation);
/* Appends world->record. If the pool is exhausted, it waits in the queue. If this process is the sender, it also sends
 * batches while it waits. Returns EXHAUSTED if no slot becomes free. */
enum status world_append(struct world *world, enum producer_name producer);
/* Begins and appends a record. */
enum status world_append_new(struct world *world, enum producer_name producer, uint32_t value_size);
/* Appends world->run, which ledger_begin filled in. One commit appends several records. It never waits. */
enum status world_append_run(struct world *world, enum producer_name producer);
void world_become_sender(struct world *world);
/* Waits until any process has forced all records appended so far to disk. Returns PENDING if none did. */
enum status world_sync(struct world *world);
/* Ends the current transaction and begins the next one. A transaction of this process is committed. One that is being
 * committed is completed. The transaction of a dead process is aborted. */
void world_renew_transaction(struct world *world);
/* Drains all batches into world->drained. */
void world_drain(struct world *world);
void world_complete(struct world *world);

/* ---- rules ---- */

bool tracee_holds_pool_lock(const struct world *world);
/* Checks the rules that hold at any time, even during an operation. */
void check_always(struct world *world);
uint32_t world_count_slots(const struct world *world, enum slot_state state);
/* As the survivor, appends, sends and completes until the arena is empty, and checks all rules. */
void survivor_finish(struct world *world, const struct scenario *scenario);
/* Appends and sends while the tracee is stopped. Both must succeed. */
enum beside { BESIDE_APPEND = 1, BESIDE_SEND = 2 };
void survivor_work_beside(struct world *world, const struct scenario *scenario, unsigned beside);
/* Closes the arena while the tracee is stopped, like a sender that leaves. */
void survivor_close_beside(struct world *world);
/* Commits the open transaction while the tracee is stopped. If `is_followed` is true, begins the next one. If the
 * tracee holds the pool lock, no slot can be freed, so the transaction does not end and it returns false. */
bool survivor_commit_beside(struct world *world, bool is_followed);
/* Checks that the tracee's returned records were delivered before the sender left or the transaction ended. */
void check_no_record_is_late(struct world *world);
/* Reopens the closed arena, so that it accepts records. */
void world_reopen(struct world *world);
/* Called after the tracee has continued. Checks that no process waits while a slot is free, and that the acquisition
 * number of the partition's lock has not decreased. */
void check_after_continuing(struct world *world);

#endif
