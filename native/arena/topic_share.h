/* SPDX-License-Identifier: Apache-2.0
 *
 * The limits of topics and of stuck partitions: how many slots they may hold, so that none of them takes the memory of
 * the others.
 *
 *   R1  A stuck partition opens a batch only while more than half of the slots are free. So all stuck partitions
 *       together hold at most half of the slots.
 *   R2  A topic may always hold its first batch, and `wanted` slots while the sum over all topics of
 *       min(what the topic holds, wanted) is at most factor * free. These are dynamic thresholds, as in switches with
 *       shared buffers (Choudhury and Hahne 1998), with max-min fairness between the topics. All topics that want more
 *       together converge to factor / (1 + factor) of the slots, and a topic that holds few slots counts only these. An
 *       arena with one topic or with fewer than 9 slots has no shares, and a factor of 0 turns them off.
 *   All oversized records together may hold oversized_bytes_max, which is less than the arena. Both rules also apply to
 *   this part of it: stuck partitions hold at most half of it, and a topic may have its first record there, or a share.
 *   `free` excludes the record's own slots.
 *   The slots of a stuck partition do not count for its topic: R1 limits them, and the other partitions of the topic
 *   may use its share.
 *   A transactional arena has neither limit, because its transaction has one outcome for all its topics.
 *
 *   word of the layout      writer
 *   free hints              anyone: a set bit means that the slot was FREE a moment ago. A lost bit makes the count too
 *                           small until the next repair
 *   partition.stuck         sender, when it changes. It counts while stuck_epoch is the epoch of a living sender
 *   topic.opened            opener, by an addition immediately after its store of OPEN or READY: 1, or the length of a
 *                           chain. It subtracts the same when it takes its batch back
 *   topic.released          sender, before it stores FREE or BAD, except for a stuck partition; and the recount
 *   topic.is_parked_for     a parked waiter sets it at each check, the sender clears it every 100 ms
 *
 *   held = opened - released, at least 0.
 *
 * PROCEDURE
 *   check     (before a batch is opened, under the producer lock; before a waiter joins the queue, under the pool lock)
 *             count free slots until it is decided whether there are enough. While free >= slots / (1 + factor), there
 *             are, and the topics are not read. A chain is checked once, for all its slots, and against the part for
 *             oversized records. The slots of its topic in that part are counted only if their number decides. A slot
 *             that was granted is not checked again: its own grant has reduced `free`.
 *   recount   (sender, when it takes the role, after it repaired a death, once per second, and at the maintenance
 *             after a change of a stuck word) read `opened`, count the slots OPEN, READY, DONE, and their pieces,
 *             without those of stuck partitions; read `opened` again. If it is the same: released = opened - count.
 *             No topic holds quarantined slots.
 *
 * WHY THE SUMS ARE RELIABLE. `opened` is added after OPEN and `released` before FREE. So a topic's sum never exceeds
 *   what it holds, and a topic without a batch may always open its first one. An opener that dies between its store and
 *   its addition makes the difference one batch too small, until the recount after the repair of that death. A recount
 *   between the two of a living opener makes it one batch too large, until the next recount. A sender that dies between
 *   `released` and FREE leaves the slot DONE, and the next one recounts before it frees.
 *   Batches that a stuck partition opens are counted until the next recount. When a partition is no longer stuck, its
 *   batches are not counted until the next recount, but the sender subtracts those that it frees. So their topic may
 *   open as many more as were freed.
 * WHY ONE CHECK IS ENOUGH. If several processes check at the same time, all may open: at most one excess batch each,
 *   which the next check detects.
 * tests/model/topic_share_model.py explores this exhaustively.
 */
#ifndef ARENA_TOPIC_SHARE_H
#define ARENA_TOPIC_SHARE_H

#include "arena/arena.h"

#define NO_PARTITION UINT32_MAX /* a waiter for slots of no partition: it has no limit */

enum { TOPIC_SHARE_SLOTS_MIN = 9 };

/* More free slots than an arena can have, so the waiter never fits. */
#define FREE_COUNT_NEVER UINT32_MAX

/* Returns the topic of a partition, or NULL if there is none. The index is untrusted. */
static inline struct topic_entry *topic_of_partition(const struct arena *arena, uint32_t partition_index)
{
    if (UNLIKELY(partition_index >= arena->geometry.partition_count)) {
        return NULL;
    }
    uint32_t topic_index = arena->partitions[partition_index].topic_index;
    return LIKELY(topic_index < arena->geometry.topic_count) ? &arena->topics[topic_index] : NULL;
}

/* Returns the slots that a topic holds, without those of stuck partitions. */
static inline uint64_t topic_held(const struct topic_entry *topic)
{
    uint64_t released = load_relaxed_u64(&topic->released);
    uint64_t opened = load_relaxed_u64(&topic->opened);
    return (int64_t)(opened - released) > 0 ? opened - released : 0;
}

/* Called immediately after the store of OPEN or READY. */
static inline void topic_share_count_opened(struct arena *arena, uint32_t partition_index, uint32_t count)
{
    struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (LIKELY(topic != NULL)) {
        add_u64(&topic->opened, count); /* A1 */
    }
}

/* Called after its opener has taken the batch back. */
static inline void topic_share_count_taken_back(struct arena *arena, uint32_t partition_index, uint32_t count)
{
    struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (topic != NULL) {
        add_u64(&topic->opened, UINT64_C(0) - count); /* A1 */
    }
}

/* Returns true if a sender, which may be dead, has marked the partition as stuck. The index is untrusted, because it
 * comes from a slot or a waiter. */
static inline bool partition_is_marked(const struct arena *arena, uint32_t partition_index)
{
    return LIKELY(partition_index < arena->geometry.partition_count) &&
           stuck_word_reason(load_relaxed_u64(&arena->partitions[partition_index].stuck)) != STUCK_NOT;
}

/* Sender only: before the slots become FREE or BAD. */
static inline void topic_share_count_released(struct arena *arena, uint32_t partition_index, uint32_t count)
{
    struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (LIKELY(topic != NULL) && LIKELY(!partition_is_marked(arena, partition_index))) {
        store_relaxed_u64(&topic->released, load_relaxed_u64(&topic->released) + count);
    }
}

uint32_t free_count(const struct arena *arena);

/* Returns true if at least `count` slots are free. Stops counting there. */
bool free_count_reaches(const struct arena *arena, uint64_t count);

/* Returns true while stuck words are valid: a living sender has set them. Makes a system call. */
bool stuck_marks_count(const struct arena *arena);

/* Returns true while this partition is stuck, and the sender that stored it lives. */
bool partition_is_stuck(const struct arena *arena, uint32_t partition_index);

/* Returns how many slots have to be free before `need` of them may be opened for the partition, or 0 if it has no limit
 * now. `more` is the number of slots that others are about to open, for the same topic. Returns FREE_COUNT_NEVER if no
 * number is enough before topics release slots. Reads the entry of each topic. */
uint32_t topic_share_free_needed(const struct arena *arena, uint32_t partition_index, uint32_t need, uint32_t more);

/* The same for a caller that knows whether the partition is stuck. */
uint32_t topic_share_free_needed_if(const struct arena *arena, uint32_t partition_index, bool is_stuck, uint32_t need,
                                    uint32_t more);

/* Returns true if the part for oversized records can take a record of `need` slots. */
bool topic_share_admits_oversized(const struct arena *arena, uint32_t partition_index, uint32_t need, uint32_t more);

/* Performs `check` (PROCEDURE, above). Makes a few loads unless few slots are free. */
bool topic_share_admits(const struct arena *arena, uint32_t partition_index, uint32_t need);

/* Returns the partition of the batch in this slot, whose word is `word`, or NO_PARTITION if no topic holds the slot. */
uint32_t holding_partition(const struct arena *arena, uint32_t slot_index, uint64_t word);

/* Returns the number of slots that a topic holds, including those of stuck partitions. Reads the word of each slot. */
uint32_t topic_slot_count(const struct arena *arena, uint32_t topic_index);

/* Recounts all topics. `counts` and `opened_before` have the size topic_count. */
void topic_share_recount(struct arena *arena, uint32_t *counts, uint64_t *opened_before);

#endif
