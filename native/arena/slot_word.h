/* SPDX-License-Identifier: Apache-2.0
 *
 * The bits of the 64-bit words from which the whole state of the arena follows.
 *
 * SLOT WORD: it alone determines the state of a slot. Lists, hints, bitmaps and counters are caches.
 *
 *    63  61 60          43 42            26 25                        0
 *   +------+--------------+----------------+---------------------------+
 *   | state| generation   | count          | size                      |   OPEN READY DONE BAD
 *   |   3  |     18       |      17        |            26             |
 *   +------+--------------+----------------+---------------------------+
 *   | GRANT| generation   |  waiter index 12 | ticket (low 31 bits)    |   43 bits below the generation
 *   | OWNED| generation   |  0          | chain 1 | owner 31             |
 *   | CONT | generation   |  head index 24        | head generation 18 |
 *   | FREE | generation   |  0                                         |
 *   +------+--------------+--------------------------------------------+
 *
 *   FREE   all zeros inside; any process may take it
 *   GRANT  granted to the waiter with this ticket
 *   OWNED  a process owns it; it has no valid record yet
 *   OPEN   accepts records of one partition: `count` are valid and end at byte `size` (they start at RECORDS_START)
 *   READY  sealed: `count` and `size` are final
 *   DONE   its result is recorded; the sender has to scrub and free it
 *   CONT   continues the oversized record of the slot `head index`
 *   BAD    quarantined: its bytes contradicted their checksum; it stays for inspection
 *
 *   `generation` is raised at each DONE/OWNED/GRANT/CONT -> FREE, so that an old word never equals a new one while a
 *   process with a hazard on the slot may compare them.
 *
 * OWNER (31 bits): a process: entry index + 1 (12 bits) | entry generation (19 bits); 0 is no process.
 *
 * LOCK WORD: acquisition number 32 | waiters 1 | owner 31. The futex is the low half.
 *   In a producer lock `waiters` is 0, because no process sleeps on it.
 *
 * WAITER WORD: state 2 | need 22 | ticket 40.
 *   IDLE    not in use
 *   WAIT    in the queue
 *   GOT     all the slots that it needs were granted
 *   PARKED  it keeps its ticket and is granted nothing, because its topic or its partition may hold no more slots now
 *
 * STUCK WORD of a partition: reason 8 (0: it is not stuck) | the broker's error code, int16 16 | since when, in ms of
 *   CLOCK_BOOTTIME 40.
 *
 * OPEN WORD of a partition: acquisition number that stored it 32 | slot index + 1 (0: none) 32.
 *
 * STICKY WORD of a topic: how often it changed 32 | partition + 1 (0: not chosen yet) 32.
 */
#ifndef ARENA_SLOT_WORD_H
#define ARENA_SLOT_WORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/check.h"

enum slot_state {
    SLOT_FREE = 0,
    SLOT_GRANT = 1,
    SLOT_OWNED = 2,
    SLOT_OPEN = 3,
    SLOT_READY = 4,
    SLOT_DONE = 5,
    SLOT_CONT = 6,
    SLOT_BAD = 7,
};

enum {
    SLOT_GENERATION_BITS = 18,
    SLOT_COUNT_BITS = 17,
    SLOT_SIZE_BITS = 26,
    SLOT_INDEX_BITS = 24,
    OWNER_GENERATION_BITS = 19,
    OWNER_INDEX_BITS = 12,
    WAITER_INDEX_BITS = 12,
    GRANT_TICKET_BITS = 31,
    WAITER_NEED_BITS = 22,
    WAITER_TICKET_BITS = 40,
    STUCK_ERROR_BITS = 16,
    STUCK_SINCE_BITS = 40,
};

#define LOW_BITS(count) ((UINT64_C(1) << (count)) - 1)

#define BATCH_RECORD_COUNT_MAX ((uint32_t)LOW_BITS(SLOT_COUNT_BITS))
#define BATCH_SIZE_MAX ((uint32_t)LOW_BITS(SLOT_SIZE_BITS))
#define SLOT_COUNT_MAX ((uint32_t)LOW_BITS(SLOT_INDEX_BITS))
#define PROCESS_COUNT_MAX ((uint32_t)LOW_BITS(OWNER_INDEX_BITS))
#define WAITER_COUNT_MAX ((uint32_t)1 << WAITER_INDEX_BITS)

/* ---- slot word ---- */

static inline uint64_t slot_word(enum slot_state state, uint32_t generation, uint64_t payload)
{
    CHECK(state <= SLOT_BAD);
    CHECK(payload <= LOW_BITS(43));
    return (uint64_t)state << 61 | (generation & LOW_BITS(SLOT_GENERATION_BITS)) << 43 | payload;
}

static inline enum slot_state slot_word_state(uint64_t word)
{
    return (enum slot_state)(word >> 61);
}

static inline uint32_t slot_word_generation(uint64_t word)
{
    return (uint32_t)(word >> 43 & LOW_BITS(SLOT_GENERATION_BITS));
}

static inline uint32_t slot_word_count(uint64_t word)
{
    return (uint32_t)(word >> SLOT_SIZE_BITS & LOW_BITS(SLOT_COUNT_BITS));
}

static inline uint32_t slot_word_size(uint64_t word)
{
    return (uint32_t)(word & LOW_BITS(SLOT_SIZE_BITS));
}

static inline uint64_t slot_payload_filled(uint32_t count, uint32_t size)
{
    CHECK(count <= BATCH_RECORD_COUNT_MAX);
    CHECK(size <= BATCH_SIZE_MAX);
    return (uint64_t)count << SLOT_SIZE_BITS | size;
}

/* Returns the word with another count and size, for a commit. */
static inline uint64_t slot_word_filled(uint64_t word, uint32_t count, uint32_t size)
{
    return (word & ~LOW_BITS(43)) | slot_payload_filled(count, size);
}

/* Returns the word with another state, for a seal or a completion. */
static inline uint64_t slot_word_with_state(uint64_t word, enum slot_state state)
{
    CHECK(state <= SLOT_BAD);
    return (word & LOW_BITS(61)) | (uint64_t)state << 61;
}

static inline uint64_t slot_word_freed(uint64_t word)
{
    return slot_word(SLOT_FREE, slot_word_generation(word) + 1, 0);
}

static inline uint64_t slot_payload_owned(uint32_t owner, bool is_chain)
{
    CHECK(owner <= LOW_BITS(31));
    return (uint64_t)is_chain << 31 | owner;
}

static inline uint32_t slot_word_owner(uint64_t word)
{
    return (uint32_t)(word & LOW_BITS(31));
}

static inline bool slot_word_is_chain(uint64_t word)
{
    return (word >> 31 & 1) != 0;
}

static inline uint64_t slot_payload_grant(uint32_t waiter_index, uint64_t ticket)
{
    CHECK(waiter_index < WAITER_COUNT_MAX);
    return (uint64_t)waiter_index << GRANT_TICKET_BITS | (ticket & LOW_BITS(GRANT_TICKET_BITS));
}

static inline uint32_t slot_word_waiter(uint64_t word)
{
    return (uint32_t)(word >> GRANT_TICKET_BITS & LOW_BITS(WAITER_INDEX_BITS));
}

static inline uint64_t slot_payload_cont(uint32_t head_index, uint32_t head_generation)
{
    CHECK(head_index <= LOW_BITS(SLOT_INDEX_BITS));
    return (uint64_t)head_index << SLOT_GENERATION_BITS | (head_generation & LOW_BITS(SLOT_GENERATION_BITS));
}

static inline uint32_t slot_word_head_index(uint64_t word)
{
    return (uint32_t)(word >> SLOT_GENERATION_BITS & LOW_BITS(SLOT_INDEX_BITS));
}

static inline uint32_t slot_word_head_generation(uint64_t word)
{
    return (uint32_t)(word & LOW_BITS(SLOT_GENERATION_BITS));
}

/* ---- owner ---- */

static inline uint32_t owner_of(uint32_t entry_index, uint32_t entry_generation)
{
    CHECK(entry_index < PROCESS_COUNT_MAX);
    return (uint32_t)((entry_generation & LOW_BITS(OWNER_GENERATION_BITS)) << OWNER_INDEX_BITS) | (entry_index + 1);
}

/* Requires an owner other than 0. The index is untrusted: check it against the geometry. */
static inline uint32_t owner_index(uint32_t owner)
{
    return (uint32_t)(owner & LOW_BITS(OWNER_INDEX_BITS)) - 1;
}

static inline uint32_t owner_generation(uint32_t owner)
{
    return (uint32_t)(owner >> OWNER_INDEX_BITS & LOW_BITS(OWNER_GENERATION_BITS));
}

/* ---- lock word ---- */

#define LOCK_WAITERS (UINT64_C(1) << 31)

static inline uint64_t lock_word(uint32_t acquisition, uint32_t owner)
{
    CHECK(owner <= LOW_BITS(31));
    return (uint64_t)acquisition << 32 | owner;
}

static inline uint32_t lock_word_acquisition(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint32_t lock_word_owner(uint64_t word)
{
    return (uint32_t)(word & LOW_BITS(31));
}

/* ---- waiter word ---- */

enum waiter_state { WAITER_IDLE = 0, WAITER_WAIT = 1, WAITER_GOT = 2, WAITER_PARKED = 3 };

static inline uint64_t waiter_word(enum waiter_state state, uint32_t need, uint64_t ticket)
{
    CHECK(state <= WAITER_PARKED);
    CHECK(need <= LOW_BITS(WAITER_NEED_BITS));
    return (uint64_t)state << 62 | (uint64_t)need << WAITER_TICKET_BITS | (ticket & LOW_BITS(WAITER_TICKET_BITS));
}

static inline enum waiter_state waiter_word_state(uint64_t word)
{
    return (enum waiter_state)(word >> 62);
}

static inline uint32_t waiter_word_need(uint64_t word)
{
    return (uint32_t)(word >> WAITER_TICKET_BITS & LOW_BITS(WAITER_NEED_BITS));
}

static inline uint64_t waiter_word_ticket(uint64_t word)
{
    return word & LOW_BITS(WAITER_TICKET_BITS);
}

/* ---- stuck word ---- */

enum stuck_reason {
    STUCK_NOT = 0,
    STUCK_NO_LEADER = 1, /* the partition has no leader */
    STUCK_REFUSED = 2,   /* its broker returns the error code, and the batch is sent again */
    STUCK_SILENT = 3,    /* its broker does not respond, while brokers of other partitions do */
};

static inline uint64_t stuck_word(enum stuck_reason reason, int16_t error_code, uint64_t since_ms)
{
    CHECK(reason <= STUCK_SILENT);
    return (uint64_t)reason << (STUCK_ERROR_BITS + STUCK_SINCE_BITS) |
           (uint64_t)(uint16_t)error_code << STUCK_SINCE_BITS | (since_ms & LOW_BITS(STUCK_SINCE_BITS));
}

/* The reason is untrusted, and this build may not know it. */
static inline uint32_t stuck_word_reason(uint64_t word)
{
    return (uint32_t)(word >> (STUCK_ERROR_BITS + STUCK_SINCE_BITS));
}

static inline int16_t stuck_word_error_code(uint64_t word)
{
    return (int16_t)(uint16_t)(word >> STUCK_SINCE_BITS);
}

static inline uint64_t stuck_word_since_ms(uint64_t word)
{
    return word & LOW_BITS(STUCK_SINCE_BITS);
}

/* ---- open word ---- */

#define NO_SLOT UINT32_MAX

static inline uint64_t open_word(uint32_t acquisition, uint32_t slot_index)
{
    CHECK(slot_index == NO_SLOT || slot_index <= SLOT_COUNT_MAX);
    return (uint64_t)acquisition << 32 | (uint32_t)(slot_index + 1);
}

static inline uint32_t open_word_slot(uint64_t word)
{
    return (uint32_t)word - 1;
}

/* ---- sticky word ---- */

#define NO_STICKY UINT32_MAX

static inline uint64_t sticky_word(uint32_t move_count, uint32_t partition)
{
    CHECK(partition == NO_STICKY || partition <= INT32_MAX);
    return (uint64_t)move_count << 32 | (uint32_t)(partition + 1);
}

static inline uint32_t sticky_word_move_count(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

static inline uint32_t sticky_word_partition(uint64_t word)
{
    return (uint32_t)word - 1;
}

#endif
