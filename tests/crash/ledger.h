/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: records begun, appends that returned, and records delivered, stored outside the arena.
 *
 * A record is known by (producer, sequence). Its value says both and is filled with bytes that follow from them. So a
 * delivered record proves its producer and its number, and that no byte of it was lost or mixed.
 *
 *   value = producer 4 | sequence 4 | fill ...
 */
#ifndef CRASH_LEDGER_H
#define CRASH_LEDGER_H

#include "arena/completion.h"
#include "producer/producer_batch.h"

enum producer_name { SURVIVOR, TRACEE, PREDECESSOR, RIVAL, PRODUCER_COUNT };

enum { SEQUENCE_COUNT = 128, PARTITION_COUNT = 2, VALUE_SIZE_MAX = 2048, PROBLEM_SIZE = 200 };

/* An assertion on the harness itself, in every build. */
#define REQUIRE(condition) ((condition) ? (void)0 : require_failed(__FILE__, __LINE__, #condition))
_Noreturn void require_failed(const char *file, int line, const char *condition);

struct ledger {
    struct ledger_producer {
        uint32_t begun_count;    /* sequences 0 .. begun_count - 1 were handed to append */
        uint32_t returned_count; /* the number of these that returned OK */
        uint32_t aborted_count;  /* lower sequences were begun before a transaction was aborted, and may be discarded */
        struct record_token tokens[SEQUENCE_COUNT]; /* of the returned sequences */
        uint32_t delivered_counts[SEQUENCE_COUNT];
        uint32_t delivered_next[PARTITION_COUNT]; /* the lowest one that may be delivered next */
    } producers[PRODUCER_COUNT];
    uint64_t delivered_seqs[PARTITION_COUNT]; /* bit s: the batch with seq s was delivered */
};

/* A record to append, with its bytes. */
struct ledger_record {
    struct measured_record measured;
    uint8_t value[VALUE_SIZE_MAX];
};

/* Fills in the producer's next record, which counts as begun from now on. */
void ledger_begin(struct ledger *ledger, enum producer_name producer, uint32_t value_size,
                  struct ledger_record *record);

/* The append of the last begun record reported that nothing was appended. */
void ledger_withdraw(struct ledger *ledger, enum producer_name producer);

/* Records that the append of the next `count` begun records returned. They are adjacent. */
void ledger_return(struct ledger *ledger, enum producer_name producer, const struct record_token *first,
                   uint32_t count);

/* A transaction with all records that were begun so far, or some of them, was aborted. None of them is delivered. */
void ledger_abort(struct ledger *ledger);

/* Records a delivered batch and every record in its wire bytes. Returns false with a sentence if one is wrong. */
bool ledger_deliver(struct ledger *ledger, uint32_t partition_index, uint64_t seq, const uint8_t *bytes, uint32_t size,
                    char problem[PROBLEM_SIZE]);

/* Checks the deliveries after everything was sent. A returned record was delivered exactly once, an unreturned one at
 * most once. A record of an aborted transaction may be absent. With `may_be_completed`, a record may also be absent
 * because a dead sender delivered it. */
bool ledger_check(const struct ledger *ledger, bool may_be_completed, char problem[PROBLEM_SIZE]);

#endif
