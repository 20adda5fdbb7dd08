/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/topic_share.h"

#include "arena/process.h"
#include "arena/registry.h"
#include "base/point.h"

/* ---- the check ---- */

/* Starts at the scan hint: in a lightly used arena, one word is enough. */
bool free_count_reaches(const struct arena *arena, uint64_t count)
{
    uint32_t word_count = arena->layout.bitmap_word_count;
    uint32_t start = load_relaxed_u32(&arena->globals->free_scan_hint) % word_count;
    uint32_t free_count = 0;
    if (count > arena->geometry.slot_count) {
        return false;
    }
    for (uint32_t i = 0; i < word_count && free_count < count; i++) {
        uint32_t word_index = start + i < word_count ? start + i : start + i - word_count;
        free_count += (uint32_t)__builtin_popcountll(load_relaxed_u64(&arena->free_hints[word_index]));
    }
    return free_count >= count;
}

uint32_t free_count(const struct arena *arena)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->layout.bitmap_word_count; i++) {
        count += (uint32_t)__builtin_popcountll(load_relaxed_u64(&arena->free_hints[i]));
    }
    return count;
}

bool stuck_marks_count(const struct arena *arena)
{
    const struct globals *globals = arena->globals;
    return load_relaxed_u64(&globals->stuck_epoch) == load_relaxed_u64(&globals->sender_epoch) &&
           process_sender_is_alive(arena);
}

bool partition_is_stuck(const struct arena *arena, uint32_t partition_index)
{
    CHECK(partition_index < arena->geometry.partition_count);
    return partition_is_marked(arena, partition_index) && stuck_marks_count(arena);
}

static bool topics_share(const struct arena *arena)
{
    return arena->geometry.topic_share_factor != 0 && arena->geometry.slot_count >= TOPIC_SHARE_SLOTS_MIN &&
           registry_topic_count(arena) > 1;
}

/* Returns the least number whose product with the factor is `sum` or more. */
static uint64_t divided_by_factor(uint64_t sum, uint32_t factor)
{
    CHECK(factor != 0);
    return (sum * TOPIC_SHARE_ONE + factor - 1) / factor;
}

/* With this number, more than half of the slots are still free when the last of the `need` slots is opened. */
static uint32_t stuck_free_needed(const struct arena *arena, uint32_t need)
{
    CHECK(need >= 1);
    return arena->geometry.slot_count / 2 + need;
}

/* Returns an upper bound of share_free_needed that needs no sum over the topics. It is the smaller of two bounds: each
 * topic counts for at most `wanted`, and all topics together hold at most the slots that are not free. */
static uint64_t share_free_enough(const struct arena *arena, uint64_t wanted, uint32_t need)
{
    CHECK(wanted >= need);
    uint32_t factor = arena->geometry.topic_share_factor;
    uint64_t for_topics = divided_by_factor(wanted * registry_topic_count(arena), factor);
    uint64_t for_all = divided_by_factor((uint64_t)arena->geometry.slot_count + need, factor + TOPIC_SHARE_ONE);
    return for_topics < for_all ? for_topics : for_all;
}

/* Returns how many slots have to be free so that a topic may hold `wanted` of them. */
static uint64_t share_free_needed(const struct arena *arena, const struct topic_entry *topic, uint64_t wanted)
{
    CHECK(topic >= arena->topics);
    uint64_t sum = wanted;
    uint32_t topic_count = registry_topic_count(arena);
    for (uint32_t i = 0; i < topic_count; i++) {
        uint64_t held = topic_held(&arena->topics[i]);
        if (&arena->topics[i] != topic) {
            sum += held < wanted ? held : wanted;
        }
    }
    return divided_by_factor(sum, arena->geometry.topic_share_factor);
}

uint32_t topic_share_free_needed_if(const struct arena *arena, uint32_t partition_index, bool is_stuck, uint32_t need,
                                    uint32_t more)
{
    const struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (UNLIKELY(topic == NULL) || arena->geometry.is_transactional) {
        return 0;
    }
    uint64_t stuck = is_stuck ? stuck_free_needed(arena, need) : 0;
    uint64_t held = topic_held(topic) + more; /* 0 before its first batch */
    uint64_t share = held != 0 && topics_share(arena) ? share_free_needed(arena, topic, held + need) : 0;
    uint64_t needed = stuck > share ? stuck : share;
    return needed <= arena->geometry.slot_count ? (uint32_t)needed : FREE_COUNT_NEVER;
}

uint32_t topic_share_free_needed(const struct arena *arena, uint32_t partition_index, uint32_t need, uint32_t more)
{
    bool is_stuck = partition_index < arena->geometry.partition_count && partition_is_stuck(arena, partition_index);
    return topic_share_free_needed_if(arena, partition_index, is_stuck, need, more);
}

bool topic_share_admits(const struct arena *arena, uint32_t partition_index, uint32_t need)
{
    const struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (UNLIKELY(topic == NULL) || arena->geometry.is_transactional) {
        return true;
    }
    uint64_t held = topic_held(topic);
    uint64_t enough = held != 0 && topics_share(arena) ? share_free_enough(arena, held + need, need) : 0;
    if (UNLIKELY(partition_is_marked(arena, partition_index)) && enough < stuck_free_needed(arena, need)) {
        enough = stuck_free_needed(arena, need);
    }
    return (free_count_reaches(arena, enough) ||
            free_count_reaches(arena, topic_share_free_needed(arena, partition_index, need, 0))) &&
           (LIKELY(need == 1) || topic_share_admits_oversized(arena, partition_index, need, 0));
}

/* ---- the head of a slot ---- */

uint32_t holding_partition(const struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t head_index = slot_index;
    if (slot_word_state(word) == SLOT_CONT) {
        head_index = slot_word_head_index(word);
        if (head_index >= arena->geometry.slot_count) {
            return NO_PARTITION;
        }
        uint64_t head = load_acquire_u64(&arena->slots[head_index].word); /* A3 */
        if (slot_word_generation(head) != slot_word_head_generation(word)) {
            return NO_PARTITION;
        }
        word = head;
    }
    enum slot_state state = slot_word_state(word);
    bool is_held = state == SLOT_OPEN || state == SLOT_READY || state == SLOT_DONE;
    return is_held ? load_relaxed_u32(&arena->slots[head_index].partition_index) : NO_PARTITION;
}

/* ---- records larger than a slot ---- */

/* Returns the topic's slots that belong to records larger than a slot. A hint, because links change. */
static uint64_t oversized_held(const struct arena *arena, const struct topic_entry *topic)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word); /* A3 */
        if (slot_word_state(word) == SLOT_CONT || arena->slots[i].chain_next != 0) {
            uint32_t partition_index = holding_partition(arena, i, word);
            held += topic_of_partition(arena, partition_index) == topic && !partition_is_marked(arena, partition_index);
        }
    }
    return held;
}

/* First checks whether the share is large enough for all oversized records together. If not, counts the slots of this
 * topic that belong to oversized records, but for each other topic counts all slots. `free` excludes the record's own
 * slots. */
static bool oversized_share_admits(const struct arena *arena, const struct topic_entry *topic, uint64_t charged,
                                   uint64_t free, uint32_t need)
{
    CHECK(need > 1);
    if (need <= free && divided_by_factor(charged + need, arena->geometry.topic_share_factor) <= free - need) {
        return true;
    }
    uint64_t held = oversized_held(arena, topic);
    return held == 0 || (need <= free && share_free_needed(arena, topic, held + need) <= free - need);
}

bool topic_share_admits_oversized(const struct arena *arena, uint32_t partition_index, uint32_t need, uint32_t more)
{
    const struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (topic == NULL || arena->geometry.is_transactional) {
        return true;
    }
    uint64_t slots = arena->geometry.oversized_bytes_max / arena->geometry.batch_size;
    uint64_t charged = load_relaxed_u64(&arena->globals->oversized_bytes) / arena->geometry.batch_size + more;
    uint64_t free = charged < slots ? slots - charged : 0;
    if (free < slots / 2 + need && partition_is_stuck(arena, partition_index)) {
        return false;
    }
    return !topics_share(arena) || oversized_share_admits(arena, topic, charged, free, need);
}

/* ---- the recount ---- */

enum { RECOUNTS_AT_ONCE = 8 };

static void holdings_count(const struct arena *arena, uint32_t *counts)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint32_t partition_index = holding_partition(arena, i, load_acquire_u64(&arena->slots[i].word)); /* A3 */
        const struct topic_entry *topic = topic_of_partition(arena, partition_index);
        if (topic != NULL && !partition_is_marked(arena, partition_index)) {
            counts[topic - arena->topics]++;
        }
    }
}

uint32_t topic_slot_count(const struct arena *arena, uint32_t topic_index)
{
    CHECK(topic_index < arena->geometry.topic_count);
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint32_t partition_index = holding_partition(arena, i, load_acquire_u64(&arena->slots[i].word)); /* A3 */
        count += topic_of_partition(arena, partition_index) == &arena->topics[topic_index];
    }
    return count;
}

/* Returns true if the sums of all topics are valid now. */
static bool recount_once(struct arena *arena, uint32_t *counts, uint64_t *opened_before)
{
    uint32_t count = registry_topic_count(arena);
    bool has_stood_still = true;
    for (uint32_t i = 0; i < count; i++) {
        counts[i] = 0;
        opened_before[i] = load_acquire_u64(&arena->topics[i].opened); /* A2 */
    }
    holdings_count(arena, counts);
    POINT(holdings_counted);
    for (uint32_t i = 0; i < count; i++) {
        if (load_acquire_u64(&arena->topics[i].opened) == opened_before[i]) { /* A2 */
            store_relaxed_u64(&arena->topics[i].released, opened_before[i] - counts[i]);
        } else {
            has_stood_still = false;
        }
    }
    return has_stood_still;
}

void topic_share_recount(struct arena *arena, uint32_t *counts, uint64_t *opened_before)
{
    CHECK(arena->is_sender);
    for (int i = 0; i < RECOUNTS_AT_ONCE && !recount_once(arena, counts, opened_before); i++) {
    }
}
