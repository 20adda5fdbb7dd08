/* SPDX-License-Identifier: Apache-2.0
 *
 * Named counters of rare events and a de-duplicated error log. Both are in the arena, so that any tool can read them
 * while the arena is in use or after a crash. Nothing depends on them: a death between two stores only makes a number
 * too small.
 */
#ifndef ARENA_COUNTERS_H
#define ARENA_COUNTERS_H

#include "arena/arena.h"

#define COUNTER_TABLE(X)                                            \
    X(LOCKS_STOLEN, "locks stolen from dead processes")             \
    X(LOCKS_PASSED, "locks passed by waiting processes")            \
    X(WAITS, "allocations that waited for a buffer")                \
    X(WAIT_NS, "nanoseconds spent waiting for a buffer")            \
    X(EXHAUSTED, "allocations that gave up waiting")                \
    X(SLOTS_REPAIRED, "buffers taken back from dead processes")     \
    X(BATCHES_OPENED, "batches opened")                             \
    X(BATCHES_SEALED_FULL, "batches sealed because they were full") \
    X(BATCHES_SEALED_LINGER, "batches sealed by the sender")        \
    X(BATCHES_SEALED_FLUSH, "batches sealed by flush or close")     \
    X(BATCHES_SEALED_REPAIR, "batches sealed by a partition repair") \
    X(BATCHES_OVERSIZED, "batches larger than one buffer")          \
    X(BATCHES_COMPLETED, "batches completed")                       \
    X(RECORDS_COMPLETED, "records completed")                       \
    X(BATCHES_FAILED, "batches failed")                             \
    X(BATCHES_EXPIRED, "batches expired")                           \
    X(BATCHES_REQUEUED, "batches requeued")                         \
    X(BATCHES_SPLIT, "batches split")                               \
    X(BATCHES_QUARANTINED, "batches quarantined")                   \
    X(ARENA_RECOVERIES, "cold recoveries of the arena")             \
    X(FREES_DEFERRED, "frees deferred by a hazard")                 \
    X(SHARES_USED, "allocations that found their share used up") \
    X(SYNCS, "times the arena was forced to disk") \
    X(TRANSACTIONS_COMMITTED, "transactions committed") \
    X(TRANSACTIONS_ABORTED, "transactions aborted") \
    X(TRANSACTION_INIT_NS, "nanoseconds spent initializing transactions") \
    X(TRANSACTION_BEGIN_NS, "nanoseconds spent beginning transactions") \
    X(TRANSACTION_SEND_OFFSETS_NS, "nanoseconds spent sending offsets to transactions") \
    X(TRANSACTION_COMMIT_NS, "nanoseconds spent committing transactions") \
    X(TRANSACTION_ABORT_NS, "nanoseconds spent aborting transactions") \
    X(GRANTS_REVOKED, "grants of stopped processes that were revoked") \
    X(LOCKS_REFUSED, "locks that stopped processes kept from others")

enum counter {
#define COUNTER_ENUM(name, label) COUNTER_##name,
    COUNTER_TABLE(COUNTER_ENUM)
#undef COUNTER_ENUM
        COUNTERS_USED
};
STATIC_CHECK((int)COUNTERS_USED <= (int)COUNTER_COUNT);

/* Returns the label of this build. The label in the arena may be corrupt, because any attached process can write it. */
const char *counter_label(uint32_t counter);

/* Writes the labels; creator only. */
void counters_init(struct arena *arena);

static inline void counter_add(struct arena *arena, enum counter counter, uint64_t amount)
{
    CHECK(counter < COUNTERS_USED);
    CHECK(!arena->is_read_only);
    add_u64(&arena->counters[counter].value, amount); /* V1 */
}

/* The code of an entry of the error log has the status in its low 8 bits, and a note of the reporter in 24 bits. The
 * note is 0 for the core; shmaccum/arena/reports.py defines the notes of Python. */
#define ERROR_NOTE_MAX ((uint32_t)LOW_BITS(24))

static inline enum status error_code_status(uint32_t code)
{
    return (enum status)(code & LOW_BITS(8));
}

static inline uint32_t error_code_note(uint32_t code)
{
    return code >> 8;
}

/* Counts one occurrence of (status, note, text) in the error log. A full log ignores new errors. `text` is truncated at
 * ERROR_LOG_TEXT_SIZE. */
void error_log_note(struct arena *arena, enum status status, uint32_t note, const char *text);

void error_log_record(struct arena *arena, enum status status, const char *text);

/* ---- poison ----
 *
 * A poisoned arena takes no more work: its bytes contradict each other and no process can determine which of them are
 * true, or the disk rejected them. `inspect` and `recover` can still read them, and a cold recovery clears the word. */

/* The first failure is stored; later work returns STATUS_POISONED. */
void arena_poison(struct arena *arena, enum status status, const char *what);

static inline bool arena_is_poisoned(const struct arena *arena)
{
    return load_relaxed_u32(&arena->globals->poisoned_status) != 0;
}

#endif
