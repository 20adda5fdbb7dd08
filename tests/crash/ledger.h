/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger counts, outside of the arena, which records were begun, which appends returned, and which records were
 * delivered.
 *
 * A record is identified by its producer and its sequence. Its value contains both numbers, and all other bytes are
 * computed from them. So a delivered record shows its identity, and every wrong byte is detected.
 *
 *   value = producer 4 | sequence 4 | fill ...
 */
#ifndef CRASH_LEDGER_H
#define CRASH_LEDGER_H

#include "arena/completion.h"
#include "producer/producer_batch.h"

enum producer_name { SURVIVOR, TRACEE, PREDECESSOR, RIVAL, PRODUCER_COUNT };

enum { SEQUENCE_COUNT = 128, PARTITION_COUNT = 2, VALUE_SIZE_MAX = 2048, PROBLEM_SIZE = 200 };

/* An assertion about the harness itself. It is evaluated in every build. */
#define REQUIRE(condition) ((condition) ? (void)0 : require_failed(__FILE__, __LINE__, #condition))
_Noreturn void require_failed(const char *file, int line, const char *condition);

struct ledger {
    struct ledger_producer {
        uint32_t begun_count;    /* append was called for the sequences 0 .. begun_count - 1 */
        uint32_t returned_count; /* append returned OK for the sequences 0 .. returned_count - 1 */
        uint32_t aborted_count;  /* lower sequences were begun before an abort, and may be discarded */
        struct record_token tokens[SEQUENCE_COUNT]; /* of the sequences whose append returned */
        uint32_t delivered_counts[SEQUENCE_COUNT];
        uint32_t delivered_next[PARTITION_COUNT]; /* the lowest sequence that may be delivered next */
    } producers[PRODUCER_COUNT];
    uint64_t delivered_seqs[PARTITION_COUNT]; /* bit s is set if the batch with seq s was delivered */
};

/* A record to append, with its bytes. */
struct ledger_record {
    struct measured_record measured;
    uint8_t value[VALUE_SIZE_MAX];
};

/* Fills in the producer's next record, and counts it as begun. */
void ledger_begin(struct ledger *ledger, enum producer_name producer, uint32_t value_size,
                  struct ledger_record *record);

/* Removes the last begun record, because its append returned that it appended nothing. */
void ledger_withdraw(struct ledger *ledger, enum producer_name producer);

/* Counts the next `count` begun records as returned. They are adjacent in the batch. */
void ledger_return(struct ledger *ledger, enum producer_name producer, const struct record_token *first,
                   uint32_t count);

/* Marks all records begun so far as aborted. None of them may be delivered from now on. */
void ledger_abort(struct ledger *ledger);

/* Counts the records of a batch as delivered. If one is wrong, returns false and describes it in `problem`. */
bool ledger_deliver(struct ledger *ledger, uint32_t partition_index, uint64_t seq, const uint8_t *bytes, uint32_t size,
                    char problem[PROBLEM_SIZE]);

/* Checks the counts after all batches were sent. A record whose append returned must have been delivered exactly once,
 * and any other record at most once. A record of an aborted transaction may be missing. If `may_be_completed` is true,
 * any record may be missing, because a dead sender may have delivered it. */
bool ledger_check(const struct ledger *ledger, bool may_be_completed, char problem[PROBLEM_SIZE]);

#endif
