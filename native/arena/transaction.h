/* SPDX-License-Identifier: Apache-2.0
 *
 * The transaction of an arena: all records that any process appends belong to it. One word stores its progress.
 *
 *            begin, by the coordinator          commit, by the coordinator        decide, by the sender
 *     NONE ───────────────────────────> OPEN ───────────────────────────> COMMITTING ──────────────────> DECIDED
 *      ^                                │  │ fail, by the sender            │ fail, by the sender           │
 *      │                                │  └───────────────> ABORT_ONLY <───┘                               │
 *      │                                │ abort, by anyone        │ abort, by anyone                        │
 *      │                                └──────> ABORTING <───────┘                                         │
 *      │              end, by the sender            │                   end, by the sender                  │
 *      └────────────────────────────────────────────┴───────────────────────────────────────────────────────┘
 *
 *     OPEN ──> NONE, if a transaction without batches is committed or aborted
 *
 *   word     63            24      23       22      16 15        0
 *           +----------------+-------------+----------+-----------+
 *           | number 40      | has batches | state 7  | reason 16 |
 *           +----------------+-------------+----------+-----------+
 *
 * RULES
 *   transaction              anyone, by cas from the value read, along an arrow above. NONE keeps the number of the
 *                            last transaction, and the reason of its abort, or 0 if it was committed. The first opener
 *                            of a batch sets `has batches` of OPEN, by cas.
 *   transaction_coordinator  owner by cas from 0 or from a dead owner; the coordinator stores 0 after it has read the
 *                            outcome, so that no process begins the next transaction before.
 *   transaction_begun_ns     coordinator, before OPEN
 *   transaction_recovery_state
 *                            sender: the transaction's progress in the sink, for the next sender. The sink encodes it,
 *                            except for two bits. FENCED: another producer has the transactional id. Anyone may store 0
 *                            by cas to take the id back, while the word is NONE. LOST: cold recovery sets it after a
 *                            crash of the host, because the sink may have a newer state. 0 if no state is stored
 *
 * BEGIN    take the coordinator's role; abort the transaction of a dead coordinator; if the word is NONE: OPEN with
 *          the next number
 * COMMIT   has batches: COMMITTING by cas, full barrier (X1), then each OPEN slot is sealed
 *          has none:    NONE by cas. The transaction is over without the sender
 * ABORT    the same, with ABORTING, or with NONE and the reason
 * FAIL     ABORT_ONLY by cas, then the same
 * OPEN A BATCH (producer_batch.h): slot word = OPEN, full barrier (X2), read the word. If it is OPEN without `has
 *          batches`, set that by cas, and read again if the cas fails. If it is not OPEN, the opener takes its empty
 *          slot back before `open` names it.
 * APPEND to an open batch does not read the word, except if the appender joined a transaction: then it reads the word
 *          after the slot word and before its commit, and continues only if the word is OPEN with its number.
 * OVERSIZED RECORD   its head is opened like a batch, empty, and then becomes READY with its record by cas, which
 *          fails if another process has sealed it.
 * DECIDE, in each tick of the sender: seal each OPEN slot; if no slot holds a record: DECIDED by cas
 * END      the sink ends the transaction; then NONE, by the sender
 *
 * WHY A RECORD IS IN THE TRANSACTION THAT ACCEPTED IT. A record is committed by a cas on an OPEN slot word. The opener
 * of that slot read the transaction word after its store (X2), and it was OPEN, number n. The process that ends
 * transaction n changes the word (X1) and then seals each OPEN slot. So the slot was sealed before n was over. So a
 * slot that is still OPEN belongs to the transaction that the word names, and so do its records: DECIDED and NONE
 * follow the seal. No batch needs a number.
 *
 * WHY A TRANSACTION WITHOUT BATCHES HAS NO RECORD. The opener of a slot has found `has batches`, or has set it by a cas
 * from OPEN. A commit or abort without batches changes OPEN to NONE by a cas on the same word. So one precedes the
 * other: after the opener, the end finds `has batches`; after the end, the opener finds NONE or another number. A slot
 * may be OPEN again while an old `open` still names it, and before its new opener has set the bit. No record is
 * committed to it then: the new opener has the partition's lock, an appender that was passed does not use the slot that
 * it has read, and a process that passes an opener seals the slot that `open` names and clears `open`.
 *
 * WHY A RECORD IS IN THE TRANSACTION THAT ITS APPENDER JOINED. The appender found the slot OPEN, then the word OPEN
 * with its number n. The opener read the word (X2) before it stored `open`, so it read n or an older number. With an
 * older number, the slot would be sealed. Once the slot is sealed, the commit of a record fails.
 *
 * WHY NO BATCH IS LEFT WHEN IT IS DECIDED. After the sender has sealed each slot no commit succeeds, and each opener
 * finds the word changed. So no slot gets a record any more, and one scan of the slots is enough.
 *
 * DEATHS
 *   coordinator before OPEN      the next process that begins takes the role.
 *   coordinator while OPEN       the sender aborts at its next check, or the next process that begins does.
 *   coordinator after NONE       its transaction had no batch, and is over.
 *   coordinator while COMMITTING batches may still be OPEN and accept records, which are in the transaction. The sender
 *                                seals, delivers and decides.
 *   appender                     its committed records are in the transaction. Its empty slot becomes DONE. `has
 *                                batches` stays, and the sender finds no record.
 *   sender while COMMITTING      the next one seals, delivers again what was not acknowledged, and decides.
 *   sender in DECIDED, ABORTING  the next one ends the transaction again: the sink or its recovery state shows that it
 *                                has ended.
 *   sender in FAIL               the word becomes ABORT_ONLY before the rejected batch gets its result. If the sender
 *                                dies in between, the batch is still there, so the transaction is not decided.
 *   host                         DECIDED stays. The sender forces NONE to disk before it sends the next batch, so the
 *                                sink has no record of a later transaction. In the other states, slot words and the
 *                                transaction word may be of different times: recovery stores ABORTING, and the sender
 *                                discards the records.
 * tests/model/transaction_model.py explores this exhaustively; tests/crash kills at every instruction.
 */
#ifndef ARENA_TRANSACTION_H
#define ARENA_TRANSACTION_H

#include "arena/arena.h"

#define TRANSACTION_NUMBER_MAX LOW_BITS(TRANSACTION_NUMBER_BITS)
#define TRANSACTION_NUMBER_SHIFT (TRANSACTION_FLAG_BITS + TRANSACTION_STATE_BITS + TRANSACTION_WHY_BITS)

/* Set in OPEN after a batch of the transaction was opened. Other states do not have this bit. */
#define TRANSACTION_HAS_BATCHES (UINT64_C(1) << (TRANSACTION_STATE_BITS + TRANSACTION_WHY_BITS))

/* The reason of an abort. */
enum transaction_why {
    TRANSACTION_WHY_NOT = 0,
    TRANSACTION_WHY_ASKED = 1,        /* its coordinator aborted it */
    TRANSACTION_WHY_DEATH = 2,        /* its coordinator died, or gave its role up */
    TRANSACTION_WHY_TIMEOUT = 3,      /* it was open for longer than transaction_timeout_ms */
    TRANSACTION_WHY_FAILED_BATCH = 4, /* some of its records expired, or were rejected or damaged */
    TRANSACTION_WHY_HOST_CRASH = 5,
    TRANSACTION_WHY_FENCED = 6,  /* another producer has its transactional id, or brokers aborted it at its timeout */
    TRANSACTION_WHY_REFUSED = 7, /* the sink rejected it */
    TRANSACTION_WHY_UNKNOWN = 8, /* the sink does not report its outcome: it may be committed */
    TRANSACTION_WHY_COUNT = 9,
};

/* Bits of the recovery state that the core knows. */
#define TRANSACTION_RECOVERY_FENCED (UINT64_C(1) << 63)
#define TRANSACTION_RECOVERY_LOST (UINT64_C(1) << 62)

static inline uint64_t transaction_word(uint64_t number, enum transaction_state state, enum transaction_why why)
{
    CHECK(number <= TRANSACTION_NUMBER_MAX);
    CHECK(state <= TRANSACTION_ABORT_ONLY);
    return number << TRANSACTION_NUMBER_SHIFT | (uint64_t)state << TRANSACTION_WHY_BITS | (uint64_t)why;
}

static inline uint64_t transaction_word_number(uint64_t word)
{
    return word >> TRANSACTION_NUMBER_SHIFT;
}

/* The state is untrusted, and may be none of the enumerators. */
static inline uint32_t transaction_word_state(uint64_t word)
{
    return (uint32_t)(word >> TRANSACTION_WHY_BITS & LOW_BITS(TRANSACTION_STATE_BITS));
}

static inline uint32_t transaction_word_why(uint64_t word)
{
    return (uint32_t)(word & LOW_BITS(TRANSACTION_WHY_BITS));
}

/* Return a readable name of the state, and of the reason. */
const char *transaction_state_name(uint64_t word);
const char *transaction_why_sentence(uint64_t word);

static inline bool arena_is_transactional(const struct arena *arena)
{
    return arena->geometry.is_transactional != 0;
}

static inline uint64_t transaction_read(const struct arena *arena)
{
    return load_acquire_u64(&arena->globals->transaction); /* T2 */
}

/* Returns STATUS_FENCED if another producer has the arena's transactional id, else `otherwise`. `word` is not OPEN. */
enum status transaction_refusal(const struct arena *arena, uint64_t word, enum status otherwise) MUST_USE;

static inline enum status transaction_word_admits(const struct arena *arena, uint64_t word, uint64_t joined)
{
    bool is_open = transaction_word_state(word) == TRANSACTION_OPEN;
    if (joined != 0) {
        bool is_joined = is_open && transaction_word_number(word) == joined;
        return is_joined ? STATUS_OK : transaction_refusal(arena, word, STATUS_TRANSACTION_ENDED);
    }
    return is_open ? STATUS_OK : transaction_refusal(arena, word, STATUS_NO_TRANSACTION);
}

/* Returns STATUS_OK if a record may be appended now. `joined` is the number of the transaction that the appender
 * joined, or 0. Returns STATUS_NO_TRANSACTION if none is open, STATUS_TRANSACTION_ENDED if the joined one is not open,
 * and STATUS_FENCED if none can be opened before the transactional id is taken back. */
static inline enum status transaction_admits(const struct arena *arena, uint64_t joined)
{
    return LIKELY(!arena_is_transactional(arena)) ? STATUS_OK
                                                  : transaction_word_admits(arena, transaction_read(arena), joined);
}

/* The same for the opener of a batch, after X2. It also sets `has batches`. */
enum status transaction_admit_batch(struct arena *arena, uint64_t joined) MUST_USE;

/* ---- the coordinator ---- */

/* Begins a transaction. `number` receives its number. Returns STATUS_INVALID if the arena is not transactional, and
 * STATUS_BUSY if a living process is the coordinator. Returns STATUS_PENDING while the sender still ends the last
 * transaction: this process has the coordinator's role, and calls again or gives it up (transaction_leave). */
enum status transaction_begin(struct arena *arena, uint64_t *number) MUST_USE;

/* A transaction without batches is over on return. Returns STATUS_TRANSACTION_ENDED if the word names another
 * transaction, or if this one is over, is aborted or may only be aborted. */
enum status transaction_commit(struct arena *arena, uint64_t number) MUST_USE;

/* A transaction without batches is over on return. Returns STATUS_TRANSACTION_ENDED if the transaction is being
 * committed, is decided, or is over. A word with an impossible state becomes ABORTING, too. */
enum status transaction_abort(struct arena *arena, uint64_t number, enum transaction_why why) MUST_USE;

/* Gives up the coordinator's role. The sender aborts a transaction that is still open. */
void transaction_leave(struct arena *arena);

/* Takes the transactional id back from the producer that fenced the arena, as soon as a sender runs. Returns STATUS_OK
 * if the arena is not fenced, and STATUS_PENDING if it is and its last transaction is not over. */
enum status transaction_unfence(struct arena *arena) MUST_USE;

/* Returns true while a living process has the coordinator's role. Costs a system call if there is one. */
bool transaction_has_coordinator(const struct arena *arena);

/* ---- the sender ---- */

/* OPEN or COMMITTING becomes ABORT_ONLY, because a batch failed. */
void transaction_fail(struct arena *arena, enum transaction_why why);

/* COMMITTING becomes DECIDED. Requires that each OPEN slot was sealed, and no slot holds a record. */
void transaction_decide(struct arena *arena, uint64_t word);

/* DECIDED or ABORTING becomes NONE. The sink has ended the transaction. `why` is the reason if a decided one was not
 * committed, or TRANSACTION_WHY_NOT if it ended according to the word. */
enum status transaction_end(struct arena *arena, uint64_t number, enum transaction_why why) MUST_USE;

void transaction_store_recovery_state(struct arena *arena, uint64_t recovery_state);

/* ---- cold recovery ---- */

/* Requires that no other process is attached. */
void transaction_recover(struct arena *arena, bool is_same_boot);

#endif
