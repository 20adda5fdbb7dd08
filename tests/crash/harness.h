/* SPDX-License-Identifier: Apache-2.0
 *
 * The harness: an arena, a victim in it that dies or stops after any instruction, and a survivor that must not mind.
 *
 *   world      the arena in a memfd, the harness's own handle on it, the ledger (shared with the victim)
 *   victim     a forked process; attaches, gets ready, stops. Its operation is then stepped instruction by instruction.
 *   twin       a second memfd with a copy of the arena's bytes. A copy has no byte locks of the victim: it is exactly
 *              what the victim's death leaves, so one stepped victim gives every kill point.
 *   survivor   appends to the victim's partition, sends and completes everything, clears up; every single operation
 *              must end within DELAY_MAX_NS
 *
 * RULES at every instant: a free slot is all zeros. waiting_count is never below the number of waiters. Every record
 * whose append returned has its result, or is pending. Where sync_done says that an open batch was forced, a sync
 * record of it agrees with its bytes.
 *
 * RULES after a kill at any instruction
 *   verify (deep) finds only faults that the living repair.
 *   Every record whose append returned is delivered exactly once, in the order of its producer, byte for byte. The
 *   victim's unreturned record is delivered 0 or 1 times. Every returned record has its result. Sequences have no gap.
 *   Then every slot is FREE, and verify finds nothing.
 *
 *   sink       the broker of a victim that pumps (broker.h), or the log of one that appends to it (log_files.h). It has
 *              the batches that arrived before the death and those that the survivor sends, each batch once. Then every
 *              record has to be there once, also a record whose result is the victim's.
 *
 *   rival      a second appender that takes the lock over from the stopped victim, and is stopped in turn
 *
 * RULES in an arena with transactions
 *   No record of an aborted transaction is delivered behind its end, and no batch is left behind any end.
 *   A record that was accepted in a transaction was delivered before that one was over. A record that was refused is
 *   not delivered at all.
 *
 * RULES while the victim is stopped, and when it goes on
 *   Appends, drains, completions and allocations of free slots end within DELAY_MAX_NS. When the victim goes on its
 *   operation succeeds, and all of the above holds. These may wait for a stopped victim (exceptions, asked by name):
 *     victim_holds_pool_lock    allocation under exhaustion, and freeing while somebody waits or of a chain. The victim
 *                               must keep that lock: nothing is taken from it while it lives.
 *     scenario.is_sender        a stopped sender keeps its role
 *     scenario.is_alone         cold recovery: nobody attaches meanwhile
 *     scenario.is_durable       a stopped sync leader keeps its role: nobody is acknowledged
 *     (process.h: between taking its byte and raising the generation, the dead holder before it looks alive; only
 *     repair after that one waits, and nothing below asks for it before the victim went on)
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
enum { VICTIM_PARTITION = 0, OTHER_PARTITION = 1 };
#define DELAY_MAX_NS (UINT64_C(50) * NS_PER_MS)

struct delay {
    uint64_t ns;
    const char *operation;
};

/* Shared by the victim and the harness besides the arena. */
struct shared {
    struct ledger ledger;
    struct operation {
        enum status status; /* the answer of the operation */
        bool is_over;
    } victim, rival;
    uint64_t sent_size; /* bytes that a victim has pumped */
    struct log_numbers log_numbers; /* of a victim that appends to its log */
};

struct world {
    ALIGNED int descriptor; /* the arena's file. Aligned: how many instructions a copy takes depends on it */
    uint8_t *bytes;       /* it, mapped by the harness itself: also where it has no handle */
    uint64_t size;
    struct arena *arena;  /* NULL where only the victim attaches */
    struct accumulator *accumulator;
    struct shared *shared;

    /* prepared by the victim for its own operation */
    struct ledger_record record;
    struct ledger_record run[RUN_COUNT];
    struct buffer_wait wait;
    struct buffer_wait other_wait; /* a second one of the victim */
    uint32_t need; /* how many slots the last append that answered EXHAUSTED wanted */
    struct drained_batch drained[SLOT_COUNT];
    uint32_t drained_count;

    int64_t next_base_sequence[PARTITION_COUNT]; /* of the next batch; -1: any is right */
    uint32_t first_generations[SLOT_COUNT]; /* + 1, of the slots in use when the victim began; 0: it was free */
    uint32_t last_acquisition;              /* of the partition's lock, when the victim was told to go on */
    bool is_queued;                         /* the survivor waits in the pool's queue: world->wait */
    bool is_victim;                         /* this is the victim's copy of the world */
    bool is_durable;                        /* the arena has sync records */
    bool is_transactional;                  /* records are appended inside transactions alone */
    bool has_broker;                        /* the victim pumps */
    struct broker broker;
    bool has_log;                           /* the victim appends to a log */
    bool is_spilling;                       /* that log is an overflow: a record in it has no result yet */
    struct log_files log_files;
    struct arrived arrived;                 /* when the victim was dead */
    struct delay delay;
    uint32_t problem_count;
    const char *scenario_name;
    const char *mode_name;
    uint64_t instruction;
};

struct scenario {
    const char *name;
    void (*prepare)(struct world *world); /* in the harness, before the victim is born */
    void (*begin)(struct world *world);   /* in the victim, not stepped; may be NULL */
    enum status (*operate)(struct world *world); /* in the victim, stepped */
    bool is_sender;      /* the victim has the sender's role, or takes it: the survivor is no sender before its death */
    bool is_completing;  /* the victim may have delivered and completed records before it died */
    bool is_alone;       /* the victim attaches alone (cold recovery), and so does the survivor */
    bool is_attaching;   /* the operation begins before the victim is attached */
    bool has_rival;      /* the operation appends: a rival can take its lock over */
    bool may_be_exhausted; /* the operation may answer EXHAUSTED: nothing was appended */
    bool is_expiring;      /* records may have the result EXPIRED */
    bool is_durable;       /* the victim forces the arena to disk, and must record all that it published as forced */
    bool is_closing;       /* the victim closes the arena */
    bool is_transactional; /* the arena has transactions, and one is open when the victim is born */
    bool is_pumping;       /* the victim sends to a broker, which keeps what arrived */
    bool is_logging;       /* the victim appends to a log, which keeps what is whole in its file */
    bool is_spilling;      /* that log is an overflow, and the survivor ships what is there */
    bool is_joining;       /* the victim appends in the transaction that is open when it is born, and in no other */
    bool is_refusing;      /* records may have the result FAILED */
    bool is_shared;        /* one process may hold every slot, and is counted (process_share.h) */
    uint32_t slots_wanted; /* free slots that the operation may still need when it goes on */
};

extern const struct scenario scenarios[];
extern const uint32_t scenario_count;

/* ---- the world ---- */

void world_new(struct world *world, const struct scenario *scenario);
/* Notes how the arena is before the victim begins. */
void world_note_start(struct world *world);
void world_free(struct world *world);
void world_report(struct world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));
#define WORLD_EXPECT(world, condition, ...) ((condition) ? (void)0 : world_report(world, __VA_ARGS__))

/* Runs `act` in a child that attaches and then dies where it stands, without leaving in order. */
void world_let_die(struct world *world, void (*act)(struct world *world));

/* Opens the arena's file anew, as a process of its own would, and attaches. */
void world_attach(struct world *world);

/* ---- the twin ---- */

struct twin;
struct twin *twin_new(struct world *world);
void twin_free(struct twin *twin);
/* A world whose arena is the copy: as `before` when the survivor became what it is, and as the world is now. */
void twin_become(struct twin *twin, const struct scenario *scenario, const uint8_t *before, const struct world *world,
                 struct world *copy);
void twin_leave(struct twin *twin, struct world *copy);

/* ---- steps of producers and sender, for scenarios and survivors alike ---- */

/* Appends world->record, which ledger_begin filled in; never waits. */
enum status world_try_append(struct world *world, enum producer_name producer, uint32_t partition_index,
                             struct reservation *reservation);
/* The same, but waits in the pool's queue when it must, and sends what fills the pool if it is the sender. Answers
 * EXHAUSTED when nothing helped. */
enum status world_append(struct world *world, enum producer_name producer);
/* Begins and appends a record. */
enum status world_append_new(struct world *world, enum producer_name producer, uint32_t value_size);
/* Appends world->run, which ledger_begin filled in, several records by one commit; never waits. */
enum status world_append_run(struct world *world, enum producer_name producer);
void world_become_sender(struct world *world);
/* Everything appended so far is forced to disk, by us or by who is about it. PENDING: nobody came to an end. */
enum status world_sync(struct world *world);
/* Begins a transaction when none is open. An open transaction of this process is committed before, and so is one that
 * is being committed. The transaction of a dead process is aborted. */
void world_renew_transaction(struct world *world);
/* Drains what is there into world->drained. */
void world_drain(struct world *world);
void world_complete(struct world *world);

/* ---- rules ---- */

bool victim_holds_pool_lock(const struct world *world);
/* Checks the rules of every instant, also in the middle of an operation. */
void check_always(struct world *world);
uint32_t world_count_slots(const struct world *world, enum slot_state state);
/* Appends, sends, completes, clears up, and checks everything. */
void survivor_go_on(struct world *world, const struct scenario *scenario);
/* Work that must be possible beside a stopped victim. */
enum beside { BESIDE_APPEND = 1, BESIDE_SEND = 2 };
void survivor_work_beside(struct world *world, const struct scenario *scenario, unsigned beside);
/* The arena is closed, and its sender leaves, beside a stopped victim. */
void survivor_close_beside(struct world *world);
/* The open transaction is committed beside a stopped victim; with `is_followed` the next one is begun, too. False: it
 * is not over, because nothing is freed beside a victim that holds the pool lock. */
bool survivor_commit_beside(struct world *world, bool is_followed);
/* Records of the victim whose append returned were delivered before the sender left, or the transaction was over. */
void check_nothing_came_too_late(struct world *world);
/* It takes records again. */
void world_open_again(struct world *world);
/* Once the victim has gone on: no one waits beside a free slot, and the partition's lock was not set back. */
void check_after_going_on(struct world *world);

#endif
