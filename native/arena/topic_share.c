/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/topic_share.h"

#include "arena/process.h"
#include "base/point.h"

/* ---- the look ---- */

/* From the word where free slots are likely: a lightly used arena is decided by the first one. */
bool free_count_reaches(const struct arena *arena, uint32_t count)
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

bool partition_is_stuck(const struct arena *arena, uint32_t partition_index)
{
    CHECK(partition_index < arena->geometry.partition_count);
    const struct globals *globals = arena->globals;
    return stuck_word_reason(load_relaxed_u64(&arena->partitions[partition_index].stuck)) != STUCK_NOT &&
           load_relaxed_u64(&globals->stuck_epoch) == load_relaxed_u64(&globals->sender_epoch) &&
           process_sender_is_alive(arena);
}

/* More than half: need more than floor(N / 2) - 1. */
static uint32_t stuck_free_needed(const struct arena *arena, uint32_t partition_index, uint32_t need)
{
    CHECK(need >= 1);
    uint32_t needed = arena->geometry.slot_count / 2 + need;
    bool is_marked = stuck_word_reason(load_relaxed_u64(&arena->partitions[partition_index].stuck)) != STUCK_NOT;
    if (LIKELY(!is_marked) || free_count_reaches(arena, needed)) { /* the kernel is asked only where it matters */
        return is_marked ? needed : 0;
    }
    return partition_is_stuck(arena, partition_index) ? needed : 0;
}

static bool topics_share(const struct arena *arena)
{
    return arena->geometry.topic_share_factor != 0 && arena->geometry.slot_count >= TOPIC_SHARE_SLOTS_MIN &&
           load_relaxed_u32(&arena->globals->topic_count) > 1;
}

/* How many slots have to be free so that a topic may hold `wanted` of them. */
static uint64_t free_needed_beside(const struct arena *arena, uint64_t wanted)
{
    CHECK(wanted <= arena->geometry.slot_count);
    uint32_t congested = load_relaxed_u32(&arena->globals->congested_topic_count);
    uint64_t scaled = wanted * (congested == 0 ? 1 : congested) * TOPIC_SHARE_ONE;
    return (scaled + arena->geometry.topic_share_factor - 1) / arena->geometry.topic_share_factor;
}

static uint32_t share_free_needed(const struct arena *arena, const struct topic_entry *topic, uint32_t need,
                                  uint32_t more)
{
    CHECK(need >= 1);
    uint64_t held = topic_held(topic) + more;
    if (held == 0) {
        return 0; /* its first batch */
    }
    uint64_t slots = arena->geometry.slot_count;
    uint64_t needed = free_needed_beside(arena, held + need < slots ? held + need : slots);
    return needed <= slots ? (uint32_t)needed : FREE_COUNT_NEVER;
}

uint32_t topic_share_free_needed(const struct arena *arena, uint32_t partition_index, uint32_t need, uint32_t more)
{
    const struct topic_entry *topic = topic_of_partition(arena, partition_index);
    if (UNLIKELY(topic == NULL) || arena->geometry.is_transactional) {
        return 0;
    }
    uint32_t stuck = stuck_free_needed(arena, partition_index, need);
    uint32_t share = topics_share(arena) ? share_free_needed(arena, topic, need, more) : 0;
    return stuck > share ? stuck : share;
}

/* ---- the head of a slot ---- */

/* The head of the batch whose slot this is; NO_SLOT when no topic holds it. */
static uint32_t holding_head(const struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t head_index = slot_index;
    if (slot_word_state(word) == SLOT_CONT) {
        head_index = slot_word_head_index(word);
        if (head_index >= arena->geometry.slot_count) {
            return NO_SLOT;
        }
        uint64_t head = load_acquire_u64(&arena->slots[head_index].word);
        if (slot_word_generation(head) != slot_word_head_generation(word)) {
            return NO_SLOT;
        }
        word = head;
    }
    enum slot_state state = slot_word_state(word);
    return state == SLOT_OPEN || state == SLOT_READY || state == SLOT_DONE ? head_index : NO_SLOT;
}

/* ---- records larger than a slot ---- */

/* The slots of a topic that belong to its records larger than a slot. A link may be changed meanwhile: a hint. */
static uint64_t oversized_held(const struct arena *arena, const struct topic_entry *topic)
{
    uint64_t held = 0;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word);
        uint32_t head_index = holding_head(arena, i, word);
        if (head_index != NO_SLOT && (slot_word_state(word) == SLOT_CONT || arena->slots[i].chain_next != 0)) {
            held += topic_of_partition(arena, load_relaxed_u32(&arena->slots[head_index].partition_index)) == topic;
        }
    }
    return held;
}

/* Behind a record of many slots, too, its share has to be free. */
static bool oversized_fits(const struct arena *arena, uint64_t held, uint64_t free, uint32_t need)
{
    CHECK(need > 1);
    return need <= free && held + need <= arena->geometry.slot_count &&
           free_needed_beside(arena, held + need) <= free - need;
}

/* As if the topic held everything that is charged, which costs two loads; then what it holds. */
static bool oversized_share_admits(const struct arena *arena, const struct topic_entry *topic, uint64_t charged,
                                   uint64_t free, uint32_t need)
{
    CHECK(need > 1);
    if (oversized_fits(arena, charged, free, need)) {
        return true;
    }
    uint64_t held = oversized_held(arena, topic);
    return held == 0 || oversized_fits(arena, held, free, need);
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
    bool is_marked = stuck_word_reason(load_relaxed_u64(&arena->partitions[partition_index].stuck)) != STUCK_NOT;
    if (is_marked && free < slots / 2 + need && partition_is_stuck(arena, partition_index)) {
        return false;
    }
    return !topics_share(arena) || oversized_share_admits(arena, topic, charged, free, need);
}

/* ---- the recount ---- */

enum { RECOUNTS_AT_ONCE = 8 };

static void holdings_count(const struct arena *arena, uint32_t *counts)
{
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint32_t head_index = holding_head(arena, i, load_acquire_u64(&arena->slots[i].word));
        if (head_index == NO_SLOT) {
            continue;
        }
        uint32_t partition_index = load_relaxed_u32(&arena->slots[head_index].partition_index);
        const struct topic_entry *topic = topic_of_partition(arena, partition_index);
        if (topic != NULL) {
            counts[topic - arena->topics]++;
        }
    }
}

/* True when the sums of all topics are true now. */
static bool recount_once(struct arena *arena, uint32_t *counts, uint64_t *opened_before)
{
    uint32_t topic_count = load_acquire_u32(&arena->globals->topic_count);
    topic_count = topic_count < arena->geometry.topic_count ? topic_count : arena->geometry.topic_count;
    bool has_stood_still = true;
    for (uint32_t i = 0; i < topic_count; i++) {
        counts[i] = 0;
        opened_before[i] = load_acquire_u64(&arena->topics[i].opened);
    }
    holdings_count(arena, counts);
    POINT(holdings_counted);
    for (uint32_t i = 0; i < topic_count; i++) {
        if (load_acquire_u64(&arena->topics[i].opened) == opened_before[i]) {
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
