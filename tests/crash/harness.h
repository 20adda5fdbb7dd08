/* SPDX-License-Identifier: Apache-2.0
 *
 * The harness: an arena, a tracee that dies or stops after any instruction, and an unaffected survivor.
 *
 *   world      the arena in a memfd, the harness's own handle on it, the ledger (shared with the tracee)
 *   tracee     a forked process; attaches, gets ready, stops. Its operation is then stepped instruction by instruction.
 *   twin       a second memfd with a copy of the arena's bytes. A copy has no byte locks of the tracee: it is exactly
 *              what the tracee's death leaves, so one stepped tracee gives every kill point.
 *   survivor   appends to the tracee's partition, sends and completes everything, clears up; every single operation
 *              must end within DELAY_MAX_NS
 *
 * RULES at every instant: a free slot is all zeros. waiting_count is never below the number of waiters. Every record
 * whose append returned has its result, or is pending. Where sync_done says that an open batch was forced, a sync
 * record of it agrees with its bytes.
 *
 * RULES after a kill at any instruction
 *   verify (deep) finds only faults that the living repair.
 *   Every record whose append returned is delivered exactly once, in the order of its producer, byte for byte. The
 *   tracee's unreturned record is delivered 0 or 1 times. Every returned record has its result. Sequences have no gap.
 *   Then every slot is FREE, and verify finds nothing.
 *
 *   sink       the broker of a tracee that pumps (broker.h), or the log of one that appends to it (log_files.h). It has
 *              the batches that arrived before the death and those that the survivor sends, each batch once. Then every
 *              record has to be there once, also a record whose result is the tracee's.
 *
 *   rival      a second appender that takes the lock over from the stopped tracee, and is stopped in turn
 *
 * RULES in an arena with transactions
 *   No record of an aborted transaction is delivered after its end, and no batch remains after any end.
 *   A record that was accepted in a transaction was delivered before that one was over. A record that was refused is
 *   not delivered at all.
 *
 * RULES while the tracee is stopped, and when it continues
 *   Appends, drains, completions and allocations of free slots end within DELAY_MAX_NS. When the tracee continues, its
 *   operation succeeds, and all of the above holds. These may wait for a stopped tracee (exceptions, asked by name):
 *     tracee_holds_pool_lock    allocation under exhaustion, and freeing of a chain or while a process waits. The
 *                               tracee must keep that lock: nothing is taken from it while it lives.
 *     scenario.is_sender        a stopped sender keeps its role
 *     scenario.is_alone         cold recovery: no process attaches meanwhile
 *     scenario.is_durable       a stopped sync leader keeps its role: no record is acknowledged
 *     (process.h: between taking its byte and raising the generation, the dead holder before it looks alive; only
 *     repair after that one waits, and nothing below asks for it before the tracee continues)
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
enum { RUN_COUNT = 5 }; /* records that one call appends: they fill an open batch and begin the next */
enum { RECORDS_BEFORE_SYNC = 3, SYNC_STEPS_MAX = 4 };
enum { TRACEE_PARTITION = 0, OTHER_PARTITION = 1 };
#define DELAY_MAX_NS (UINT64_C(50) * NS_PER_MS)

struct delay {
    uint64_t ns;
    const char *operation;
};

/* Shared by the tracee and the harness besides the arena. */
struct shared {
    struct ledger ledger;
    struct operation {
        enum status status; /* what the operation returned */
        bool is_over;
    } tracee, rival;
    uint64_t sent_size; /* bytes that a tracee has pumped */
    struct log_numbers log_numbers; /* of a tracee that appends to its log */
};

struct world {
    ALIGNED int descriptor; /* the arena's file; aligned, because a copy's instruction count depends on addresses */
    uint8_t *bytes;       /* the harness's own mapping of that file */
    uint64_t size;
    struct arena *arena;  /* NULL where only the tracee attaches */
    struct accumulator *accumulator;
    struct shared *shared;

    /* prepared by the tracee for its own operation */
    struct ledger_record record;
    struct ledger_record run[RUN_COUNT];
    struct buffer_wait wait;
    struct buffer_wait other_wait; /* a second one of the tracee */
    uint32_t need; /* how many slots the last append that returned EXHAUSTED wanted */
    struct drained_batch drained[SLOT_COUNT];
    uint32_t drained_count;

    int64_t next_base_sequence[PARTITION_COUNT]; /* of the next batch; -1 if unknown */
    uint32_t first_generations[SLOT_COUNT]; /* before the tracee: generation + 1, or 0 if free */
    uint32_t last_acquisition;              /* the partition lock's number when the tracee continued */
    bool is_queued;                         /* the survivor waits in the pool's queue: world->wait */
    bool is_tracee;                         /* this is the tracee's copy of the world */
    bool is_durable;                        /* the arena has sync records */
    bool is_transactional;                  /* records are appended inside transactions alone */
    bool has_broker;                        /* the tracee pumps */
    struct broker broker;
    bool has_log;                           /* the tracee appends to a log */
    bool is_spilling;                       /* the log is an overflow: its records have no result yet */
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
    void (*prepare)(struct world *world); /* in the harness, before the tracee starts */
    void (*begin)(struct world *world);   /* in the tracee, not stepped; may be NULL */
    enum status (*operate)(struct world *world); /* in the tracee, stepped */
    bool is_sender;      /* the tracee has or takes the sender's role; the survivor takes it after its death */
    bool is_completing;  /* the tracee may have delivered and completed records before it died */
    bool is_alone;       /* the tracee attaches alone (cold recovery), and so does the survivor */
    bool is_attaching;   /* the operation begins before the tracee is attached */
    bool has_rival;      /* a rival can take over the lock of this append */
    bool may_be_exhausted; /* the operation may return EXHAUSTED and append nothing */
    bool is_expiring;      /* records may have the result EXPIRED */
    bool is_durable;       /* the tracee forces the arena to disk, and records how far */
    bool is_closing;       /* the tracee closes the arena */
    bool is_transactional; /* the arena has transactions, and one is open at the tracee's start */
    bool is_pumping;       /* the tracee sends to a broker, which stores what arrived */
    bool is_logging;       /* the tracee appends to a log; the whole batches in its file count */
    bool is_spilling;      /* the log is an overflow, and the survivor completes its batches */
    bool is_joining;       /* the tracee appends only in the transaction that is open at its start */
    bool is_refusing;      /* records may have the result FAILED */
    bool is_shared;        /* process_share.h counts slots; one process may hold all of them */
    uint32_t slots_wanted; /* free slots that the operation may still need when it continues */
};

extern const struct scenario scenarios[];
extern const uint32_t scenario_count;

/* ---- the world ---- */

void world_new(struct world *world, const struct scenario *scenario);
/* Records the generation of each slot before the tracee begins. */
void world_note_start(struct world *world);
void world_free(struct world *world);
void world_report(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define WORLD_EXPECT(world, condition, ...) ((condition) ? (void)0 : world_report(world, __VA_ARGS__))

/* Runs `act` in a child that attaches and then dies at once, without detaching. */
void world_let_die(struct world *world, void (*act)(struct world *world));

/* Open the arena's file again, as another process would, and attach. */
void world_attach(struct world *world);

/* ---- the twin ---- */

struct twin;
struct twin *twin_new(struct world *world);
void twin_free(struct twin *twin);
/* Makes `copy`, a world on the twin's bytes. The survivor takes its role on the bytes `before`. Then the bytes of
 * `world` replace them. */
void twin_become(struct twin *twin, const struct scenario *scenario, const uint8_t *before, const struct world *world,
                 struct world *copy);
void twin_leave(struct twin *twin, struct world *copy);

/* ---- steps of producers and sender, for scenarios and survivors ---- */

/* Appends world->record, which ledger_begin filled in; never waits. */
enum status world_try_append(struct world *world, enum producer_name producer, uint32_t partition_index,
                             struct reservation *reservation);
/* Appends world->record. If the pool is exhausted, it waits in the queue, and a sender sends batches meanwhile.
 * Returns EXHAUSTED if no slot becomes free. */
enum status world_append(struct world *world, enum producer_name producer);
/* Begins and appends a record. */
enum status world_append_new(struct world *world, enum producer_name producer, uint32_t value_size);
/* Appends world->run, which ledger_begin filled in, several records by one commit; never waits. */
enum status world_append_run(struct world *world, enum producer_name producer);
void world_become_sender(struct world *world);
/* Wait until everything appended so far is forced to disk, by any process. Return PENDING if no force completed. */
enum status world_sync(struct world *world);
/* Begins a transaction after the current one has ended. It first commits a transaction of this process, completes
 * one that is being committed, and aborts the transaction of a dead process. */
void world_renew_transaction(struct world *world);
/* Drains all batches into world->drained. */
void world_drain(struct world *world);
void world_complete(struct world *world);

/* ---- rules ---- */

bool tracee_holds_pool_lock(const struct world *world);
/* Checks the rules of every instant, also in the middle of an operation. */
void check_always(struct world *world);
uint32_t world_count_slots(const struct world *world, enum slot_state state);
/* Appends, sends and completes as the survivor, recovers what is left, and checks everything. */
void survivor_go_on(struct world *world, const struct scenario *scenario);
/* Appends and sends beside a stopped tracee, which must be possible. */
enum beside { BESIDE_APPEND = 1, BESIDE_SEND = 2 };
void survivor_work_beside(struct world *world, const struct scenario *scenario, unsigned beside);
/* Closes the arena beside a stopped tracee, as a sender that leaves does. */
void survivor_close_beside(struct world *world);
/* Commits the open transaction beside a stopped tracee; if `is_followed`, begins the next one, too. Returns false if
 * the tracee holds the pool lock: then no slot can be freed, and the transaction does not end. */
bool survivor_commit_beside(struct world *world, bool is_followed);
/* Checks that the tracee's returned records were delivered before the sender left or the transaction ended. */
void check_nothing_came_too_late(struct world *world);
/* Makes the closed arena accept records again. */
void world_open_again(struct world *world);
/* Checks, after the tracee has continued, that no process waits while a slot is free, and that the number of the
 * partition's lock did not decrease. */
void check_after_going_on(struct world *world);

#endif
