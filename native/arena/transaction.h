/* SPDX-License-Identifier: Apache-2.0
 *
 * The transaction of an arena: all processes that append take part in it. One word says how far it has come.
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
 *     OPEN ──> NONE, where a transaction without batches is committed or aborted
 *
 *   word     63            24      23       22      16 15        0
 *           +----------------+-------------+----------+-----------+
 *           | number 40      | has batches | state 7  | why 16    |
 *           +----------------+-------------+----------+-----------+
 *
 * RULES
 *   transaction              anyone, by cas from the value read, along an arrow above. NONE keeps the number of the
 *                            last transaction, and why it was aborted; `why` 0: it was committed. The first opener
 *                            of a batch raises `has batches` of OPEN, by cas.
 *   transaction_coordinator  owner by cas from 0 or from a dead owner; the coordinator stores 0 when it has read the
 *                            outcome. So nobody begins before it has.
 *   transaction_begun_ns     coordinator, before OPEN
 *   transaction_standing     sender: how far the transaction has come in the sink, as the next sender has to know it.
 *                            The sink packs it, but for two bits. FENCED: another producer has the transactional id,
 *                            and anyone may store 0 by cas to take the id back, when the word says NONE. LOST: cold
 *                            recovery, because the host crashed and the sink may have come further. 0: nothing is kept
 *
 * BEGIN    take the coordinator's role; abort what a dead coordinator left; when the word says NONE: OPEN, number + 1
 * COMMIT   has batches: COMMITTING by cas, full barrier (X1), then each OPEN slot is sealed
 *          has none:    NONE by cas. The transaction is over, and no sender hears of it
 * ABORT    likewise, with ABORTING, or with NONE and the reason
 * FAIL     ABORT_ONLY by cas, then likewise
 * OPEN A BATCH (producer_batch.h): slot word = OPEN, full barrier (X2), read the word. When it says OPEN without
 *          `has batches`, raise that by cas, and read again if it fails. When it does not say OPEN, the opener takes
 *          its empty slot back before `open` names it.
 * APPEND to an open batch reads nothing here. An appender that joined a transaction reads the word behind the slot word
 *          and before its commit: it goes on only if the word says OPEN with its number.
 * OVERSIZED RECORD   its head is opened like a batch, empty, and then made READY with its record by cas. It fails if
 *          somebody has sealed it.
 * DECIDE, in each tick of the sender: seal each OPEN slot; if no slot holds a record: DECIDED by cas
 * END      the sink ends the transaction; then NONE, by the sender
 *
 * WHY A RECORD IS IN THE TRANSACTION IT WAS ACCEPTED IN. A record exists by a cas on a word that says OPEN. The opener
 * of that slot read the transaction word behind its store (X2), and it said OPEN, number n. The process that ends
 * transaction n changes the word (X1) and then seals each OPEN slot. So the slot was sealed before n was over. A slot
 * that is still OPEN therefore belongs to the transaction that the word names, and a record that gets into it is in n:
 * DECIDED and NONE come behind the seal. No batch needs a number.
 *
 * WHY NOTHING IS LOST WHEN A COMMIT FINDS NO BATCH, and nothing is left when an abort finds none. A record exists by a
 * cas on a slot whose opener found `has batches`, or raised it by a cas from OPEN. The end goes from OPEN without it to
 * NONE by a cas on the same word. So one of the two comes first: behind the opener the end finds `has batches`, and
 * behind the end the opener finds NONE or another number. A slot may be open again under an old `open` that names it,
 * before its opener has raised the bit. No record gets in there: the opener has the partition's lock until it names its
 * slot, an appender that was passed does not use the slot that it has read, and the process that passes an opener seals
 * what `open` names and forgets it.
 *
 * WHY A RECORD IS IN THE TRANSACTION THAT WAS JOINED. The appender saw the slot OPEN, then the word OPEN with its
 * number n. The opener's X2 stands before the store of `open` that led the appender to the slot, so it read n or an
 * older number, and with an older one the slot would be sealed. The commit fails once the slot is sealed.
 *
 * WHY NO BATCH IS LEFT WHEN IT IS DECIDED. After the sender has sealed each slot no commit succeeds, and each opener
 * finds the word changed. So no slot gets a record any more, and one look at each slot is enough.
 *
 * DEATHS
 *   coordinator before OPEN      leaves its role to the next process that begins.
 *   coordinator while OPEN       the sender aborts at its next look, or the next process that begins does.
 *   coordinator behind NONE      its transaction had no batch, and is over.
 *   coordinator while COMMITTING batches may be OPEN still, and records go on being accepted there: they are in the
 *                                transaction. The sender seals them itself, delivers and decides.
 *   appender                     its committed records are in the transaction. Its empty slot becomes DONE. `has
 *                                batches` stays, and the sender finds no record.
 *   sender while COMMITTING      the next one seals, delivers again what was not acknowledged, and decides.
 *   sender in DECIDED, ABORTING  the next one ends the transaction again: the sink, or the standing, knows that it is
 *                                ended.
 *   sender in FAIL               the word says ABORT_ONLY before the refused batch gets its result, so the batch is
 *                                still there, and the transaction is never decided.
 *   host                         DECIDED stays. The sender forces NONE to disk before the next batch goes, so the sink
 *                                has none of a later transaction. Otherwise the words of slots and transaction may be
 *                                of different times: recovery stores ABORTING, and the sender throws away what is
 *                                there.
 * tests/model/transaction_model.py explores this exhaustively; tests/crash kills at every instruction.
 */
#ifndef ARENA_TRANSACTION_H
#define ARENA_TRANSACTION_H

#include "arena/arena.h"

#define TRANSACTION_NUMBER_MAX LOW_BITS(TRANSACTION_NUMBER_BITS)
#define TRANSACTION_NUMBER_SHIFT (TRANSACTION_FLAG_BITS + TRANSACTION_STATE_BITS + TRANSACTION_WHY_BITS)

/* Of OPEN: a batch of the transaction was opened. Other states do not say it. */
#define TRANSACTION_HAS_BATCHES (UINT64_C(1) << (TRANSACTION_STATE_BITS + TRANSACTION_WHY_BITS))

/* Why a transaction is aborted. */
enum transaction_why {
    TRANSACTION_WHY_NOT = 0,
    TRANSACTION_WHY_ASKED = 1,        /* its coordinator aborted it */
    TRANSACTION_WHY_DEATH = 2,        /* its coordinator died, or gave its role up */
    TRANSACTION_WHY_TIMEOUT = 3,      /* it was open for longer than transaction_timeout_ms */
    TRANSACTION_WHY_FAILED_BATCH = 4, /* records of it expired, or were refused or damaged */
    TRANSACTION_WHY_HOST_CRASH = 5,
    TRANSACTION_WHY_FENCED = 6,  /* another producer has its transactional id, or the sink aborted it for its time */
    TRANSACTION_WHY_REFUSED = 7, /* the sink refused it */
    TRANSACTION_WHY_UNKNOWN = 8, /* it is not aborted for sure: the sink does not tell how it ended */
    TRANSACTION_WHY_COUNT = 9,
};

/* Bits of the standing that the core knows. */
#define TRANSACTION_STANDING_FENCED (UINT64_C(1) << 63)
#define TRANSACTION_STANDING_LOST (UINT64_C(1) << 62)

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

/* The word is input: the state may be none of the enumerators. */
static inline uint32_t transaction_word_state(uint64_t word)
{
    return (uint32_t)(word >> TRANSACTION_WHY_BITS & LOW_BITS(TRANSACTION_STATE_BITS));
}

static inline uint32_t transaction_word_why(uint64_t word)
{
    return (uint32_t)(word & LOW_BITS(TRANSACTION_WHY_BITS));
}

static inline bool arena_is_transactional(const struct arena *arena)
{
    return arena->geometry.is_transactional != 0;
}

static inline uint64_t transaction_read(const struct arena *arena)
{
    return load_acquire_u64(&arena->globals->transaction); /* T2 */
}

/* STATUS_FENCED in an arena whose transactional id another producer has, `otherwise` in any other. `word` is that of a
 * transaction that takes no record. */
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

/* Whether a record may be appended now. `joined` is the number of the transaction that the appender joined; 0: none.
 * STATUS_NO_TRANSACTION: none is open. STATUS_TRANSACTION_ENDED: the joined one is not. STATUS_FENCED: the same, and
 * none can be open before the transactional id is taken back. */
static inline enum status transaction_admits(const struct arena *arena, uint64_t joined)
{
    return LIKELY(!arena_is_transactional(arena)) ? STATUS_OK
                                                  : transaction_word_admits(arena, transaction_read(arena), joined);
}

/* Behind X2: as transaction_admits, and the word says from then on that the transaction has batches. */
enum status transaction_admit_batch(struct arena *arena, uint64_t joined) MUST_USE;

/* ---- the coordinator ---- */

/* `number` receives the number of the transaction, which is open. STATUS_INVALID: the arena is not transactional.
 * STATUS_BUSY: a living process is the coordinator. STATUS_PENDING: the last transaction is still being ended by the
 * sender. This process has the coordinator's role then: call again, or give the role up (transaction_leave). */
enum status transaction_begin(struct arena *arena, uint64_t *number) MUST_USE;

/* A transaction without batches is over when this comes back. STATUS_TRANSACTION_ENDED: the word names another
 * transaction, or says that this one is over, is aborted or may only be aborted. */
enum status transaction_commit(struct arena *arena, uint64_t number) MUST_USE;

/* A transaction without batches is over when this comes back. STATUS_TRANSACTION_ENDED: the transaction is being
 * committed, is decided, or is over. A word with an impossible state becomes ABORTING, too. */
enum status transaction_abort(struct arena *arena, uint64_t number, enum transaction_why why) MUST_USE;

/* The coordinator has read the outcome, or gives up. The sender aborts a transaction that is still open. */
void transaction_leave(struct arena *arena);

/* Takes the transactional id back from the producer that fenced the arena, as soon as a sender runs. STATUS_OK: the
 * arena is not fenced. STATUS_PENDING: it is, and its last transaction is not over. */
enum status transaction_unfence(struct arena *arena) MUST_USE;

/* True while a living process has the coordinator's role. Costs a system call if there is one. */
bool transaction_has_coordinator(const struct arena *arena);

/* ---- the sender ---- */

/* An open or committing transaction may only be aborted from now on. */
void transaction_fail(struct arena *arena, enum transaction_why why);

/* COMMITTING becomes DECIDED. Requires that each OPEN slot was sealed, and no slot holds a record. */
void transaction_decide(struct arena *arena, uint64_t word);

/* DECIDED or ABORTING becomes NONE. The sink has ended the transaction. `why`: a decided one was not committed;
 * TRANSACTION_WHY_NOT: it ended as the word says. */
enum status transaction_end(struct arena *arena, uint64_t number, enum transaction_why why) MUST_USE;

/* Keeps the standing for the next sender. */
void transaction_standing_keep(struct arena *arena, uint64_t standing);

/* ---- cold recovery ---- */

/* Requires that the process is alone. */
void transaction_recover(struct arena *arena, bool is_same_boot);

#endif
