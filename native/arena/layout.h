/* SPDX-License-Identifier: Apache-2.0
 *
 * The map of the arena: every struct, offset and size. Functions that move bytes are elsewhere.
 *
 * Words: a *ref* is a byte distance from the arena's start. An *index* is the number of a cell of a region, from 0.
 * *offset* is Kafka's word for the place of a record in a partition, and has no other meaning here.
 *
 *   +----------------------------------------------------------------------------------------------+
 *   | superblock       4096   write-once; magic stored last (release); options blob of the creator   |
 *   | globals          4096   locks, tickets, counts, the sender's line, clean flag, sink's name     |
 *   | processes        128 x process_count      identity | hazard + what this process appended       |
 *   | waiters           64 x waiter_count       FIFO queue of the exhausted buffer pool               |
 *   | topics           128 x topic_count        name, partition count from the sink | buffers held    |
 *   | partitions       128 x partition_count    producer's line | sender's line                      |
 *   | names                 name_heap_size      append-only bytes of topic names                     |
 *   | free hints         8 x bitmap_word_count  bit set: this slot was FREE a moment ago  (cache)    |
 *   | ready hints        8 x bitmap_word_count  bit set: the sender has not seen this batch (cache)  |
 *   | ready groups       8 x ready_group_count  bit set: this word of ready hints has bits (cache)   |
 *   | slot headers     128 x slot_count         appender's line | sender's line                      |
 *   | completions       64 x completion_count   ring of results                                      |
 *   | counters          64 x COUNTER_COUNT      named counters of rare events                        |
 *   | error log        256 x ERROR_LOG_COUNT    distinct errors: first, last, how often              |
 *   | sync records    1024 x slot_count         two sectors per slot; only above DURABILITY_PROCESS   |
 *   | (padding to a page)                                                                            |
 *   | slot data  slot_stride x slot_count       page-aligned; byte 0..60 of a batch is its header,   |
 *   |                                           records start at 61: the sealed bytes are wire bytes |
 *   | extension regions                         as listed in the superblock (extension.h)            |
 *   +----------------------------------------------------------------------------------------------+
 *
 * Sums that always hold:
 *   FREE + GRANT + OWNED + OPEN + READY + DONE + CONT + BAD == slot_count
 *   waiting_count >= number of waiter words in WAIT          (equal while no process holds the pool lock)
 *   oversized_bytes == batch_size for each slot granted, owned or filled for an oversized record  (same condition)
 *
 * The writers (the rule of each field is next to it):
 *   creator   once, before the magic
 *   owner     the process that has the entry, while it holds the entry's byte lock
 *   holder    the process that holds the named lock
 *   appender  holder of the partition's lock, or a process that was passed: then only what producer_batch.h allows
 *   sender    the process that holds the sender role (a byte lock, never passed, never stolen from a living process)
 *   anyone    by a compare-and-swap from the value just read
 *
 * Shared memory is untrusted. The geometry is copied to private memory at attach, and every index, size and ref read
 * from the arena is checked against that copy when it is used.
 *
 * A cache line is 64 bytes. Fields that different writers often change never share one.
 *
 * FROZEN. Processes of different builds use an arena at the same time. So a field of a released layout never moves and
 * never changes its size or meaning, and strides are constants (layout_fields.h asserts each offset). A reserved word
 * is 0, and no build writes to it. A later build may use it only with a feature of the superblock (extension.h):
 *   0 has the meaning that older builds assume           a compatible feature, or none at all
 *   each process that appends or sends must maintain it  an incompatible feature
 * A slot header is full. Further words of a slot are in an extension region that is parallel to the slots.
 */
#ifndef ARENA_LAYOUT_H
#define ARENA_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena/slot_word.h"
#include "base/atomic.h"
#include "base/check.h"
#include "base/status.h"

enum {
    LAYOUT_VERSION = 3,
    PAGE_SIZE_BYTES = 4096,
    CACHE_LINE = 64,
    READY_GROUP_WORDS = 64, /* words of ready hints that have a bit in one word of ready groups */
    SECTOR_SIZE = 512, /* the unit that a disk writes atomically, in bytes */
    OPTIONS_SIZE_MAX = 2048,
    RECORDS_START = 61, /* RECORD_BATCH_HEADER_SIZE: records follow the header */
    TOPIC_NAME_SIZE_MAX = 249,
    COUNTER_COUNT = 64,
    COUNTER_LABEL_SIZE = 56,
    ERROR_LOG_COUNT = 64,
    ERROR_LOG_TEXT_SIZE = 208,
    PROCESS_NAME_SIZE = 16,
    SINK_NAME_SIZE = 256, /* including the terminating NUL */
    OUTAGE_SIZE = 256,    /* including the NUL */
    BUILD_SIZE = 64,      /* including the NUL */
    EXTENSION_COUNT_MAX = 16,
    TOPIC_SHARE_ONE = 256, /* a topic_share_factor of 1 */
};

#define PARTITION_UNAVAILABLE UINT32_MAX /* as queued_batch_count: no batch can be delivered there now */

/* The processes that have to wake the sender while it waits. */
enum sender_sleep {
    SENDER_AWAKE = 0,
    SENDER_ASLEEP = 1,  /* each process that has something to send */
    SENDER_SHORT_WAIT = 2, /* only a process that waits for the sender. The sender wakes by itself within about a
                         * millisecond. A longer wait adds its microseconds to the word: then a process whose
                         * batch is ready earlier (full, or with less linger) also wakes it */
};

/* The progress of a transaction (transaction.h). */
enum transaction_state {
    TRANSACTION_NONE = 0,
    TRANSACTION_OPEN = 1,
    TRANSACTION_COMMITTING = 2, /* no more records; the sender delivers the present ones */
    TRANSACTION_DECIDED = 3,    /* the sink has every record; only the commit itself is left */
    TRANSACTION_ABORTING = 4,   /* no more records; the sender discards the present ones */
    TRANSACTION_ABORT_ONLY = 5, /* no more records and no commit; the coordinator has to abort */
};

enum {
    TRANSACTION_WHY_BITS = 16,
    TRANSACTION_STATE_BITS = 7,
    TRANSACTION_FLAG_BITS = 1,
    TRANSACTION_NUMBER_BITS = 40,
};

/* The progress of closing an arena that lost its name (closing.h). */
enum closing {
    CLOSING_NOT = 0,
    CLOSING_BEGUN = 1, /* no more records; the sender delivers the present ones */
    CLOSING_DONE = 2,  /* the sender has left */
};

/* The part of an arena that survives a crash of the host (durability.h). */
enum durability { DURABILITY_PROCESS = 0, DURABILITY_INTERVAL = 1, DURABILITY_SYNC = 2 };

#define ARENA_MAGIC UINT64_C(0x31616e6572616d73) /* "smarena1" read as little-endian bytes */

/* The numbers that the creator chooses. They determine all regions. */
struct geometry {
    uint64_t buffer_memory; /* bytes of slot data promised to the user: slot_count * batch_size */
    uint64_t oversized_bytes_max; /* the largest oversized_bytes: option oversized_max_bytes */
    uint32_t batch_size;    /* bytes of one slot that a batch may use, including its header */
    uint32_t slot_stride;   /* batch_size rounded up to a page */
    uint32_t slot_count;
    uint32_t process_count;
    uint32_t waiter_count;
    uint32_t topic_count;
    uint32_t partition_count;
    uint32_t name_heap_size;
    uint32_t completion_count;      /* a power of two */
    uint32_t record_size_max;       /* max.request.size: the largest batch of one record, including its header */
    uint32_t process_slot_count_max; /* slots that one process may hold (process_share.h), or 0 for all */
    uint16_t durability;       /* enum durability */
    uint16_t is_transactional; /* 1: records are appended only inside transactions (transaction.h) */
    uint32_t sync_interval_ms; /* for DURABILITY_INTERVAL */
    uint32_t topic_share_factor; /* how much of the free buffers one topic may hold, in 1 / TOPIC_SHARE_ONE, or 0 */
    uint64_t reserved[7];
};

/* An array with an element for each slot, partition or process. Not every build knows it. */
struct extension {
    uint32_t kind; /* enum extension_kind, or 0 */
    uint32_t reserved;
    uint64_t ref;    /* a multiple of CACHE_LINE, after the slot data */
    uint32_t stride; /* bytes of an element, a multiple of 8 */
    uint32_t count;
    uint64_t reserved_2;
};

struct superblock {
    atomic_u64 magic;      /* creator, last */
    uint32_t layout_version;
    uint32_t superblock_crc; /* CRC-32C of the bytes from the next field to the end of the options */
    uint64_t layout_fingerprint;
    uint64_t arena_size;   /* bytes of the file */
    uint8_t uuid[16];
    int64_t created_ms;    /* wall clock */
    char build[BUILD_SIZE]; /* the creator's build, as text with a terminating NUL. At this place in every layout */
    uint64_t features_compatible;   /* extension.h has the rules of the features */
    uint64_t features_read_only;
    uint64_t features_incompatible;
    struct geometry geometry;
    uint32_t options_size; /* bytes used of options[] */
    uint32_t extension_count;
    struct extension extensions[EXTENSION_COUNT_MAX]; /* in the order of their refs (extension.h) */
    uint64_t reserved[29];
    uint8_t options[OPTIONS_SIZE_MAX]; /* msgpack, written and read by Python */
};

#define ALIGNED _Alignas(CACHE_LINE)

struct globals {
    ALIGNED atomic_u64 pool_lock; /* lock word; guards waiters, grants and oversized accounting */
    uint64_t reserved_pool[7];

    ALIGNED atomic_u64 registry_lock; /* lock word; guards creation of topics and partitions */
    uint64_t reserved_registry[7];

    /* Read by each process that opens a batch. */
    ALIGNED atomic_u32 waiting_count; /* holder of pool_lock; raised before a word is WAIT; 0 allows the fast path */
    atomic_u32 parked_count;          /* holder of pool_lock; raised before a word becomes PARKED. Cache, recounted
                                       * by repair */
    uint64_t reserved_waiting[7];

    ALIGNED atomic_u64 next_ticket;     /* holder of pool_lock; only grows */
    atomic_u64 oversized_bytes;         /* holder of pool_lock; bytes charged to records larger than a slot:
                                         * batch_size for each of their slots. Cache, recounted by repair */
    atomic_u32 waiter_count_used;       /* holder of pool_lock, only grows: later entries were never used */
    uint32_t reserved_ticket;
    uint64_t reserved_ticket_2[5];

    ALIGNED atomic_u32 free_scan_hint; /* anyone: bitmap word where free slots are likely */
    uint32_t reserved_scan;
    uint64_t reserved_scan_2[7];

    ALIGNED atomic_u32 topic_count; /* holder of registry_lock, release after the entry is complete */
    atomic_u32 partition_count;     /* same as topic_count */
    atomic_u32 name_heap_used;      /* same as topic_count */
    atomic_u32 process_count_used;  /* anyone, only grows: later entries were never taken */
    uint64_t reserved_counts[6];

    ALIGNED atomic_u64 sender_epoch;   /* sender: raised at every takeover */
    atomic_u64 sender_heartbeat_ns;    /* sender: the time of its last progress. An old heartbeat lets no process
                                        * take the role. If configured, a supervisor kills the sender
                                        * (decision 0021) */
    atomic_u32 sender_owner;           /* sender: the owner of sink_name, release; 0 while sink_name is written and
                                        * after the role was left. Otherwise display only: the byte lock decides */
    atomic_u32 sender_sleep;           /* sender: enum sender_sleep; the process that clears it wakes the sender */
    atomic_u64 producer_id;            /* sender: Kafka's idempotence pair of this arena, as int64; -1 none */
    atomic_u32 producer_epoch;         /* sender */
    uint8_t sink_identity[16];         /* sender, while producer_id is -1: the sink that assigned the producer id */
    uint32_t reserved_sender;
    atomic_u64 sender_left_epoch;      /* sender, before it leaves cleanly: its epoch. If it differs from
                                        * sender_epoch while the role is free, the last sender died */

    /* The next sender continues with these values. */
    ALIGNED atomic_u64 acked_ns;   /* sender: when a batch was last acknowledged on this boot; CLOCK_BOOTTIME, or 0 */
    atomic_u64 usual_delivery_ns;  /* sender: how long a batch takes to be acknowledged, smoothed, or 0 */
    atomic_u64 stuck_epoch;        /* sender: its epoch, after it has written the stuck word of each partition */
    uint64_t reserved_delivery[5];

    ALIGNED atomic_u64 completion_tail; /* sender, release: number of results ever recorded */
    atomic_u32 completion_wait;         /* a futex (completion.h). Waiters and event loops set flags; sender */
    uint32_t reserved_completion;
    uint64_t reserved_completion_2[6];

    ALIGNED atomic_u64 sync_wanted; /* anyone, add: tickets of processes that want their appends on disk */
    uint64_t reserved_sync_wanted[7];

    ALIGNED atomic_u64 sync_done;   /* sync leader, release: tickets up to here are on disk; the low half is a futex */
    atomic_u64 sync_done_ns;        /* sync leader: time of sync_done; CLOCK_BOOTTIME */
    atomic_u64 presence;            /* sender: the random number in the name of its presence socket, or 0
                                     * (shmaccum/arena/presence.py) */
    uint64_t reserved_sync_done[5];

    ALIGNED atomic_u64 arena_epoch; /* cold recovery: how often the arena was recovered */
    uint8_t boot_id[16];            /* creator, cold recovery: the boot whose page cache holds the arena */
    atomic_u32 is_clean;            /* 1 from the last clean detach until the next attach */
    atomic_u32 poisoned_status;     /* anyone, 0 -> enum status by cas */
    atomic_u32 closing;             /* anyone, enum closing by cas from the value read, upwards; cold recovery: 0 */
    uint32_t reserved_epoch;
    atomic_u64 transaction;         /* transaction word; anyone, by cas from the value read (transaction.h) */
    atomic_u64 transaction_begun_ns; /* coordinator, before OPEN: CLOCK_BOOTTIME */
    atomic_u32 transaction_coordinator; /* anyone: its owner number, by cas from 0 or a dead owner; coordinator: 0 */
    uint32_t reserved_transaction;

    /* sender: the place where it delivers, as text (sender/sinks/sink.py: Sink.name), padded with NULs to the end.
     * Written when the role is taken, before sender_epoch is raised and sender_owner published. A reader accepts the
     * text if both are unchanged after it and sender_owner is alive (process_sink_name). It may contain any bytes. */
    ALIGNED atomic_u64 sink_name[SINK_NAME_SIZE / 8];

    /* delivery_clock.h has the rules of these. */
    ALIGNED atomic_u64 delivery_clock_ns; /* sender, only grows: how long delivery was possible */
    uint64_t reserved_clock[7];

    ALIGNED atomic_u64 delivery_timeout_ns; /* sender: its delivery_timeout_ms; 0 before the first sender */
    atomic_u32 delivery_counts_always;      /* sender: 1: the age of a record is the time since it was appended */
    atomic_u32 outage_number;               /* sender: raised before and after each change below; odd during a change */
    atomic_u64 outage_since_ns;             /* sender: CLOCK_BOOTTIME, or 0 if its sink works */
    atomic_u64 outage[OUTAGE_SIZE / 8];     /* sender: why its sink does not work, as text with a terminating NUL. It
                                             * may contain any bytes */

    /* spilled.h has the rules. */
    atomic_u64 spilled_batch_count;  /* sender: batches in its overflow */
    atomic_u64 spilled_record_count; /* sender: their records */
    atomic_u64 spilled_size;         /* sender: bytes of the overflow on disk */
    atomic_u64 spilled_since_ns;     /* sender: CLOCK_BOOTTIME since when the overflow is not empty, or 0 */

    atomic_u64 transaction_recovery_state; /* sender; anyone, by cas from a fenced value to 0; cold recovery. 0 if no
                                            * state is stored. transaction.h has the rules */

    ALIGNED atomic_u64 extension_epoch[EXTENSION_COUNT_MAX]; /* users of an extension region, by its place in the
                                                              * superblock: extension.h has the rules */
    uint64_t reserved_end[320];
};

/* Entry i is alive while the byte lock PROCESS_LOCK_START + i is held and generation matches (process.h). */
struct process_entry {
    ALIGNED atomic_u32 generation; /* owner: raised immediately after the byte lock was obtained */
    atomic_u32 role;               /* owner: enum process_role, display only */
    atomic_u32 pid;                /* owner: in its own pid namespace, display only */
    atomic_u32 fallback;           /* owner: 1 while it sends without the arena; display only */
    atomic_u64 attached_ns;        /* owner, CLOCK_BOOTTIME */
    atomic_u64 start_time_ticks;   /* owner: field 22 of /proc/self/stat, so that display can recognise reused pids */
    char name[PROCESS_NAME_SIZE];  /* owner: comm */
    uint64_t reserved[2];          /* in a cache line that its owner seldom writes */

    ALIGNED atomic_u32 writing; /* owner: the hazard. slot index + 1 of the slot that it may be writing to; 0 none */
    atomic_u32 is_forcing;      /* owner: 1 while it forces the arena to disk for all; display only */
    atomic_u64 record_count;    /* owner: records appended by all processes that ever used this entry */
    atomic_u64 record_bytes;    /* owner: an upper bound of their bytes (record_size_upper_bound) */
    atomic_u64 passed_count;    /* owner: how often those processes were passed */
    atomic_u64 record_count_before; /* owner, before `role`: record_count when the process attached */
    atomic_u64 record_bytes_before; /* owner, before `role`: record_bytes when it attached */
    atomic_u64 passed_count_before; /* owner, before `role`: passed_count when it attached */
    uint64_t reserved_2;
};

struct waiter_entry {
    ALIGNED atomic_u64 word; /* holder of pool_lock; including its change to GOT */
    atomic_u32 owner;        /* holder of pool_lock: the process that waits */
    uint32_t granted_count;  /* holder of pool_lock: slots granted so far; cache, recounted by repair */
    uint32_t granted_first;  /* holder of pool_lock: first granted slot, index + 1, linked by chain_next; cache */
    atomic_u32 partition;    /* holder of pool_lock, before WAIT: index + 1 of the partition of its batch, or 0 */
    atomic_u64 granted_ns;   /* holder of pool_lock: when its last slot was granted; CLOCK_BOOTTIME, or 0 */
    atomic_u64 waiting_ns;   /* holder of pool_lock, before WAIT: when the wait began; CLOCK_BOOTTIME */
    uint64_t reserved[3];
};

/* The second cache line is for the sender, and for openers of batches, which read both of its numbers once per
 * batch. */
struct topic_entry {
    ALIGNED uint32_t name_index; /* holder of registry_lock, before topic_count: first byte in the name heap */
    uint32_t name_size;          /* holder of registry_lock, before topic_count */
    atomic_u32 partition_count;  /* sender: partitions that the sink reports; 0 unknown */
    atomic_u32 queued_batch_count_max; /* sender, a hint: largest queued_batch_count of its partitions; 0 no load */
    atomic_u64 sticky;           /* sticky word; anyone, by cas from the value read (partitioner.h) */
    atomic_u32 wanted_partition_count; /* a hint: raised by producers that wait for it, cleared by the sender; 0 none */
    uint32_t crc;                /* holder of registry_lock, before topic_count: CRC-32C of the name and its place */
    uint64_t reserved_2[4];

    ALIGNED atomic_u64 opened; /* opener, add, immediately after OPEN or READY: slots that its batches ever took */
    atomic_u64 released;       /* sender: slots of them that were freed. It holds opened - released, or 0 */
    atomic_u32 is_parked_for;  /* a parked waiter sets it, the sender clears it: it ends the linger of this topic */
    uint32_t reserved_3;
    uint64_t reserved_4[5];
};

/* Held by the process that `word` names, until `released` equals `word` (producer_lock.h). */
struct producer_lock {
    atomic_u64 word;     /* lock word; anyone, by cas from the value read */
    atomic_u64 released; /* a process that unlocks: the word with which it locked */
};

struct partition_entry {
    ALIGNED struct producer_lock lock;
    atomic_u64 open;            /* open word; appender, by cas from the value read under the lock */
    atomic_u64 next_seq;        /* appender, by cas from the value read: number of the next batch of this partition */
    uint32_t topic_index;       /* holder of registry_lock, before partition_count */
    int32_t partition;          /* holder of registry_lock, before partition_count: Kafka's partition number */
    atomic_u64 stuck;           /* stuck word; sender, when it changes. In this cache line, because an opener of
                                 * a batch loads this line in any case */
    uint32_t crc;               /* holder of registry_lock, before partition_count: CRC-32C of the topic's crc and the
                                 * partition number */
    uint32_t reserved[3];

    ALIGNED atomic_u64 producer_id;        /* sender: producer id that next_base_sequence belongs to */
    atomic_u32 producer_epoch;             /* sender: the producer epoch of that id; 0 if none was ever assigned */
    atomic_u32 next_base_sequence;         /* sender: int32 */
    atomic_u32 queued_batch_count;         /* sender, a hint: batches not in flight, or PARTITION_UNAVAILABLE */
    uint32_t reserved_2;
    atomic_u64 spilled_first_seq;          /* sender: number of the partition's first batch in the overflow */
    atomic_u64 spilled_end_seq;            /* sender: number past its last batch there (spilled.h) */
    uint64_t reserved_3[3];
};

/* The values for the first n records of a batch. meta[n & 1] belongs to count n, so a store for n + 1 keeps those of
 * n. */
struct batch_meta {
    int64_t max_timestamp_ms;
    uint32_t records_crc; /* CRC-32C of the record bytes [RECORDS_START, size) */
    uint32_t reserved;
};

struct slot_header {
    ALIGNED atomic_u64 word;
    atomic_u32 partition_index; /* appender, before OPEN or READY */
    atomic_u32 written_end;    /* appender, before it writes bytes: no byte at or beyond it was ever touched */
    atomic_u64 seq;            /* appender, before OPEN or READY: orders the batches of a partition; never reused */
    int64_t base_timestamp_ms; /* appender, before the first commit */
    struct batch_meta meta[2];

    ALIGNED uint64_t created_ns;      /* appender, before OPEN or READY; CLOCK_BOOTTIME */
    uint32_t chain_next;              /* next slot index + 1 of an oversized batch, 0 ends: owner, before CONT. While
                                       * GRANT, next slot of the same waiter: holder of pool_lock */
    atomic_u32 result;                /* sender, before a later transmission is possible: the decided enum
                                       * batch_result, and the error code (int16) in the upper half */
    atomic_u64 producer_id;           /* sender, before the first transmission */
    atomic_u32 base_sequence;         /* sender, before the first transmission: int32 */
    atomic_u32 producer_epoch;        /* sender, before the first transmission, release: bit 16: it has a sequence */
    atomic_u32 attempt_count;         /* sender: transmissions begun */
    atomic_u32 acked_record_count;    /* sender: records of a split batch whose results are recorded */
    atomic_u64 last_completion;       /* sender: number + 1 of the newest result recorded for this slot */
    atomic_u64 linger;                /* appender, before OPEN or READY: its linger in ns + 1, or 0 */
    atomic_u32 opener;                /* owner, while OWNED: its own number, which stays until the slot is free */
    uint32_t delivery_stamp_ms;       /* appender, before OPEN: the reading of the delivery clock, in ms, modulo 2^32 */
};

/* One result. `number` is the number of the result + 1. It is stored last (release), and first set to 0. */
struct completion_entry {
    ALIGNED atomic_u64 number;
    atomic_u64 previous;        /* last_completion of the slot before this one */
    atomic_u64 seq;
    atomic_u32 slot_index;
    atomic_u32 partition_index;
    atomic_u64 base_offset;     /* int64; -1 unknown */
    atomic_u64 log_append_time_ms; /* int64; -1 if the records' own timestamps are valid */
    atomic_u32 first_record;    /* this result is for records [first_record, first_record + record_count) */
    atomic_u32 record_count;
    atomic_u32 result;          /* enum batch_result */
    atomic_u32 error_code;      /* the sink's error number (for Kafka: the error code); 0 none */
};

struct counter_entry {
    ALIGNED char label[COUNTER_LABEL_SIZE]; /* creator */
    atomic_u64 value;                       /* anyone, add */
};

struct error_entry {
    ALIGNED atomic_u64 key; /* anyone, 0 -> hash of code and text by cas */
    atomic_u64 first_ns;
    atomic_u64 last_ns;
    atomic_u64 count;
    atomic_u32 is_readable; /* release, after text */
    uint32_t code;          /* enum status, and the note of the reporter (counters.h) */
    char text[ERROR_LOG_TEXT_SIZE];
    uint64_t reserved;
};

/* The first `count` records of an open batch, as they were forced to disk (durability.h). Written by the sync leader.
 */
struct sync_record {
    _Alignas(SECTOR_SIZE) uint32_t own_crc; /* CRC-32C of the following fields, up to `end` */
    uint32_t partition_index;
    uint64_t number; /* the number of the force for which it was written; 0 if it was never used */
    uint64_t seq;
    uint32_t generation;
    uint32_t count;
    uint32_t size;
    uint32_t records_crc;
    int64_t max_timestamp_ms;
    int64_t base_timestamp_ms;
    uint32_t end; /* not used */
    uint32_t reserved;
    uint64_t reserved_2[56];
};

/* Where each region starts; computed from the geometry alone. */
struct layout {
    uint64_t processes;
    uint64_t waiters;
    uint64_t topics;
    uint64_t partitions;
    uint64_t names;
    uint64_t free_hints;
    uint64_t ready_hints;
    uint64_t ready_groups;
    uint64_t slot_headers;
    uint64_t completions;
    uint64_t counters;
    uint64_t error_log;
    uint64_t sync_records; /* 0 if there are none */
    uint64_t slot_data;
    uint64_t arena_size;
    uint32_t bitmap_word_count;
    uint32_t ready_group_count;
};

#define SUPERBLOCK_REF UINT64_C(0)
#define GLOBALS_REF UINT64_C(4096)
#define PROCESSES_REF UINT64_C(8192)

/* Byte locks, taken on a descriptor that is never mapped. They may be past the end of the file. */
enum {
    ATTACH_LOCK_BYTE = 0,    /* shared by all attached processes; exclusive for creation and cold recovery */
    SENDER_LOCK_BYTE = 1,    /* exclusive: the sender role */
    SYNC_LOCK_BYTE = 2,      /* exclusive: the process that forces the arena to disk for all */
    PROCESS_LOCK_START = 64, /* + entry index, exclusive for the life of the entry */
};

STATIC_CHECK(SLOT_GENERATION_BITS + SLOT_COUNT_BITS + SLOT_SIZE_BITS == 61);
STATIC_CHECK(SLOT_INDEX_BITS + SLOT_GENERATION_BITS <= 43);
STATIC_CHECK(WAITER_INDEX_BITS + GRANT_TICKET_BITS == 43);
STATIC_CHECK(OWNER_INDEX_BITS + OWNER_GENERATION_BITS == 31);

/* Returns a number that depends on every struct, offset and constant above, but not on extension regions. */
uint64_t layout_fingerprint(void);

/* One field of a struct above, or the struct itself: then `field` is empty, and its offset 0. */
struct layout_field {
    const char *type;
    const char *field;
    uint32_t offset;
    uint32_t size;
};

/* Returns all fields, struct by struct, in the order of their offsets. */
const struct layout_field *layout_fields(size_t *count);

/* Returns the rows of layout_fields that are the numbers of struct geometry, in their order. */
const struct layout_field *geometry_fields(size_t *count);

/* Get and set one of these numbers. A number that is set must fit into its field. */
uint64_t geometry_number(const struct geometry *geometry, const struct layout_field *field);
void geometry_set_number(struct geometry *geometry, const struct layout_field *field, uint64_t number);

/* Checks that every number of a geometry fits into its bits in the words. Writes a sentence to `error`. */
enum status geometry_validate(const struct geometry *geometry, struct error *error) MUST_USE;

/* Requires a valid geometry. */
void layout_compute(const struct geometry *geometry, struct layout *layout);

enum { REGION_COUNT = 16 };

struct region {
    const char *name;
    uint64_t ref;
    uint64_t size; /* bytes; 0 for the sync records of an arena without them */
};

/* Lists the regions in their order. */
void layout_regions(const struct geometry *geometry, const struct layout *layout, struct region regions[REGION_COUNT]);

#endif
