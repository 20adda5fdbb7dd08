/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/transaction.h"

#include "arena/batch_seal.h"
#include "arena/completion.h"
#include "arena/counters.h"
#include "arena/process.h"
#include "base/point.h"

/* ---- the word ---- */

/* Stores the state and seals the batches, if the word is unchanged since it was read. */
static bool transaction_change(struct arena *arena, uint64_t word, enum transaction_state state,
                               enum transaction_why why)
{
    CHECK(!arena->is_read_only);
    uint64_t changed = transaction_word(transaction_word_number(word), state, why);
    if (!cas_u64(&arena->globals->transaction, &word, changed)) { /* T1 */
        return false;
    }
    barrier_store_load(); /* X1 */
    POINT(transaction_changed);
    batch_seal_all(arena);
    return true;
}

/* ---- the coordinator ---- */

bool transaction_has_coordinator(const struct arena *arena)
{
    uint32_t coordinator = load_acquire_u32(&arena->globals->transaction_coordinator); /* V2 */
    return coordinator != 0 && process_is_alive(arena, coordinator);
}

/* Takes the coordinator's role. If this process has it already, returns true unless its transaction is open or
 * abort-only. */
static bool coordinator_take(struct arena *arena)
{
    CHECK(arena->owner != 0);
    atomic_u32 *cell = &arena->globals->transaction_coordinator;
    uint32_t former = load_acquire_u32(cell); /* V2 */
    if (former == arena->owner) {
        uint32_t state = transaction_word_state(transaction_read(arena));
        return state != TRANSACTION_OPEN && state != TRANSACTION_ABORT_ONLY;
    }
    return (former == 0 || !process_is_alive(arena, former)) && cas_u32(cell, &former, arena->owner); /* V2 */
}

static uint64_t number_after(uint64_t number)
{
    return number == TRANSACTION_NUMBER_MAX ? 1 : number + 1;
}

enum status transaction_begin(struct arena *arena, uint64_t *number)
{
    if (!arena_is_transactional(arena)) {
        return STATUS_INVALID;
    }
    if (!coordinator_take(arena)) {
        return STATUS_BUSY;
    }
    POINT(coordinator_taken);
    uint64_t word = transaction_read(arena);
    if (transaction_word_state(word) != TRANSACTION_NONE) {
        enum status status = transaction_abort(arena, transaction_word_number(word), TRANSACTION_WHY_DEATH);
        (void)status; /* it fails if the commit has begun: the caller waits for the end in both cases */
        return STATUS_PENDING;
    }
    *number = number_after(transaction_word_number(word));
    store_relaxed_u64(&arena->globals->transaction_begun_ns, arena_now_ns(arena));
    POINT(transaction_begins);
    uint64_t opened = transaction_word(*number, TRANSACTION_OPEN, TRANSACTION_WHY_NOT);
    return cas_u64(&arena->globals->transaction, &word, opened) ? STATUS_OK : STATUS_PENDING; /* T1 */
}

static void transaction_count(struct arena *arena, enum transaction_why why)
{
    CHECK(why < TRANSACTION_WHY_COUNT);
    bool is_committed = why == TRANSACTION_WHY_NOT;
    counter_add(arena, is_committed ? COUNTER_TRANSACTIONS_COMMITTED : COUNTER_TRANSACTIONS_ABORTED, 1);
}

/* A transaction without batches has nothing in the arena or in a sink, so it needs no sender. */
static bool transaction_is_empty(uint64_t word)
{
    return transaction_word_state(word) == TRANSACTION_OPEN && (word & TRANSACTION_HAS_BATCHES) == 0;
}

static bool empty_transaction_end(struct arena *arena, uint64_t word, enum transaction_why why)
{
    CHECK(transaction_is_empty(word));
    uint64_t ended = transaction_word(transaction_word_number(word), TRANSACTION_NONE, why);
    POINT(empty_transaction_ends);
    if (!cas_u64(&arena->globals->transaction, &word, ended)) { /* T1 */
        return false;
    }
    transaction_count(arena, why);
    return true;
}

static bool transaction_commit_open(struct arena *arena, uint64_t word)
{
    CHECK(transaction_word_state(word) == TRANSACTION_OPEN);
    return transaction_is_empty(word)
               ? empty_transaction_end(arena, word, TRANSACTION_WHY_NOT)
               : transaction_change(arena, word, TRANSACTION_COMMITTING, TRANSACTION_WHY_NOT);
}

enum status transaction_commit(struct arena *arena, uint64_t number)
{
    uint64_t word = transaction_read(arena);
    while (transaction_word_number(word) == number) {
        switch (transaction_word_state(word)) {
        case TRANSACTION_OPEN:
            if (transaction_commit_open(arena, word)) {
                return STATUS_OK;
            }
            break;
        case TRANSACTION_COMMITTING:
        case TRANSACTION_DECIDED:
            return STATUS_OK;
        default:
            return STATUS_TRANSACTION_ENDED;
        }
        word = transaction_read(arena);
    }
    return STATUS_TRANSACTION_ENDED;
}

/* Returns a valid reason even for a corrupt word. */
static enum transaction_why reason_read(uint64_t word)
{
    uint32_t why = transaction_word_why(word);
    return why < TRANSACTION_WHY_COUNT ? (enum transaction_why)why : TRANSACTION_WHY_ASKED;
}

enum status transaction_abort(struct arena *arena, uint64_t number, enum transaction_why why)
{
    CHECK(why > TRANSACTION_WHY_NOT && why < TRANSACTION_WHY_COUNT);
    uint64_t word = transaction_read(arena);
    while (transaction_word_number(word) == number) {
        uint32_t state = transaction_word_state(word);
        if (state == TRANSACTION_ABORTING) {
            return STATUS_OK;
        }
        if (state == TRANSACTION_NONE || state == TRANSACTION_COMMITTING || state == TRANSACTION_DECIDED) {
            return STATUS_TRANSACTION_ENDED;
        }
        bool is_failed = state == TRANSACTION_ABORT_ONLY;
        bool is_done = transaction_is_empty(word)
                           ? empty_transaction_end(arena, word, why)
                           : transaction_change(arena, word, TRANSACTION_ABORTING, is_failed ? reason_read(word) : why);
        if (is_done) {
            return STATUS_OK;
        }
        word = transaction_read(arena);
    }
    return STATUS_TRANSACTION_ENDED;
}

/* The reason FENCED is in the word until the transaction is over. The bit FENCED is in the recovery state until the id
 * is taken back. */
static bool is_fenced(uint64_t recovery_state, uint64_t word)
{
    bool is_over = transaction_word_state(word) == TRANSACTION_NONE;
    return (recovery_state & TRANSACTION_RECOVERY_FENCED) != 0 ||
           (!is_over && transaction_word_why(word) == TRANSACTION_WHY_FENCED);
}

enum status transaction_unfence(struct arena *arena)
{
    uint64_t word = transaction_read(arena);
    uint64_t recovery_state = load_relaxed_u64(&arena->globals->transaction_recovery_state);
    if (!is_fenced(recovery_state, word)) {
        return STATUS_OK;
    }
    bool is_over = transaction_word_state(word) == TRANSACTION_NONE;
    bool is_taken = is_over && cas_u64(&arena->globals->transaction_recovery_state, &recovery_state, 0); /* V2 */
    return is_taken ? STATUS_OK : STATUS_PENDING;
}

void transaction_leave(struct arena *arena)
{
    uint32_t owner = arena->owner;
    if (owner != 0) {
        (void)cas_u32(&arena->globals->transaction_coordinator, &owner, 0); /* V2 */
    }
}

/* ---- appenders ---- */

enum status transaction_refusal(const struct arena *arena, uint64_t word, enum status otherwise)
{
    CHECK(arena_is_transactional(arena));
    uint64_t recovery_state = load_relaxed_u64(&arena->globals->transaction_recovery_state);
    return is_fenced(recovery_state, word) ? STATUS_FENCED : otherwise;
}

enum status transaction_admit_batch(struct arena *arena, uint64_t joined)
{
    if (!arena_is_transactional(arena)) {
        return STATUS_OK;
    }
    uint64_t word = transaction_read(arena);
    enum status status = transaction_word_admits(arena, word, joined);
    while (status == STATUS_OK && (word & TRANSACTION_HAS_BATCHES) == 0 &&
           !cas_u64(&arena->globals->transaction, &word, word | TRANSACTION_HAS_BATCHES)) { /* T1 */
        status = transaction_word_admits(arena, word, joined);
    }
    return status;
}

/* ---- the sender ---- */

void transaction_fail(struct arena *arena, enum transaction_why why)
{
    CHECK(arena->is_sender);
    CHECK(why > TRANSACTION_WHY_NOT && why < TRANSACTION_WHY_COUNT);
    if (!arena_is_transactional(arena)) {
        return;
    }
    uint64_t word = transaction_read(arena);
    while (transaction_word_state(word) == TRANSACTION_OPEN || transaction_word_state(word) == TRANSACTION_COMMITTING) {
        if (transaction_change(arena, word, TRANSACTION_ABORT_ONLY, why)) {
            completion_wake(arena);
            return;
        }
        word = transaction_read(arena);
    }
}

void transaction_decide(struct arena *arena, uint64_t word)
{
    CHECK(arena->is_sender);
    CHECK(transaction_word_state(word) == TRANSACTION_COMMITTING);
    uint64_t decided = transaction_word(transaction_word_number(word), TRANSACTION_DECIDED, TRANSACTION_WHY_NOT);
    (void)cas_u64(&arena->globals->transaction, &word, decided); /* T1 */
    POINT(transaction_decided);
}

/* In ABORTING the word has the reason for the sink. In NONE it has the reason for the coordinator. */
enum status transaction_end(struct arena *arena, uint64_t number, enum transaction_why why)
{
    CHECK(arena->is_sender);
    CHECK(why < TRANSACTION_WHY_COUNT);
    uint64_t word = transaction_read(arena);
    uint32_t state = transaction_word_state(word);
    bool is_ending = state == TRANSACTION_DECIDED || state == TRANSACTION_ABORTING;
    if (transaction_word_number(word) != number || !is_ending) {
        return STATUS_TRANSACTION_ENDED;
    }
    enum transaction_why kept = reason_read(word) == TRANSACTION_WHY_NOT ? why : reason_read(word);
    uint64_t ended = transaction_word(number, TRANSACTION_NONE, kept);
    POINT(transaction_ends);
    if (!cas_u64(&arena->globals->transaction, &word, ended)) { /* T1 */
        return STATUS_TRANSACTION_ENDED;
    }
    transaction_count(arena, kept);
    return STATUS_OK;
}

void transaction_store_recovery_state(struct arena *arena, uint64_t recovery_state)
{
    CHECK(arena->is_sender);
    store_relaxed_u64(&arena->globals->transaction_recovery_state, recovery_state);
}

/* ---- cold recovery ---- */

static bool arena_holds_records(const struct arena *arena)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        if (slot_word_state(load_relaxed_u64(&arena->slots[i].word)) == SLOT_READY) {
            return true;
        }
    }
    return false;
}

/* Sets LOST: the recovery state on disk may be older than the state of the sink. */
static void recovery_state_recover(struct arena *arena)
{
    if (load_relaxed_u64(&arena->globals->transaction_recovery_state) != 0) {
        store_relaxed_u64(&arena->globals->transaction_recovery_state, TRANSACTION_RECOVERY_LOST);
    }
}

/* After a crash of the host, the word on disk may be older than the batches, and not name their transaction. */
void transaction_recover(struct arena *arena, bool is_same_boot)
{
    if (!arena_is_transactional(arena)) {
        return;
    }
    store_relaxed_u32(&arena->globals->transaction_coordinator, 0);
    if (!is_same_boot) {
        recovery_state_recover(arena);
    }
    uint64_t word = transaction_read(arena);
    uint32_t state = transaction_word_state(word);
    bool is_possible = state <= TRANSACTION_ABORT_ONLY;
    if (is_possible && (is_same_boot || state == TRANSACTION_DECIDED)) {
        return;
    }
    if (state == TRANSACTION_NONE && !arena_holds_records(arena)) {
        return;
    }
    uint64_t number = transaction_word_number(word);
    number = state == TRANSACTION_NONE ? number_after(number) : number;
    store_release_u64(&arena->globals->transaction, /* V3 */
                      transaction_word(number, TRANSACTION_ABORTING, TRANSACTION_WHY_HOST_CRASH));
}

/* ---- names ---- */

const char *transaction_state_name(uint64_t word)
{
    static const char *const names[] = {
        [TRANSACTION_NONE] = "none",
        [TRANSACTION_OPEN] = "open",
        [TRANSACTION_COMMITTING] = "committing",
        [TRANSACTION_DECIDED] = "decided",
        [TRANSACTION_ABORTING] = "aborting",
        [TRANSACTION_ABORT_ONLY] = "abort only",
    };
    uint32_t state = transaction_word_state(word);
    return state <= TRANSACTION_ABORT_ONLY ? names[state] : "damaged";
}

const char *transaction_why_sentence(uint64_t word)
{
    static const char *const sentences[TRANSACTION_WHY_COUNT] = {
        [TRANSACTION_WHY_NOT] = "",
        [TRANSACTION_WHY_ASKED] = "its coordinator aborted it",
        [TRANSACTION_WHY_DEATH] = "its coordinator died",
        [TRANSACTION_WHY_TIMEOUT] = "it was open for longer than transaction_timeout_ms",
        [TRANSACTION_WHY_FAILED_BATCH] = "records of it could not be delivered",
        [TRANSACTION_WHY_HOST_CRASH] = "the host crashed",
        [TRANSACTION_WHY_FENCED] =
            "another producer has the transactional_id, or the brokers aborted the transaction after a timeout",
        [TRANSACTION_WHY_REFUSED] = "the sink rejected it",
        [TRANSACTION_WHY_UNKNOWN] = "the sink does not report its outcome",
    };
    uint32_t why = transaction_word_why(word);
    return why < TRANSACTION_WHY_COUNT ? sentences[why] : "its word was damaged";
}
