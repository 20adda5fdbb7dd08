/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/delivery_clock.h"

#include <string.h>

#include "arena/process.h"
#include "base/point.h"

enum { OUTAGE_READS = 8 }; /* if the text changes more often during a read, the arena is damaged */

void delivery_clock_announce(struct arena *arena, uint64_t delivery_timeout_ns, bool counts_always)
{
    CHECK(arena->is_sender);
    store_relaxed_u64(&arena->globals->delivery_timeout_ns, delivery_timeout_ns);
    store_relaxed_u32(&arena->globals->delivery_counts_always, counts_always);
    delivery_clock_publish_outage(arena, 0, "");
}

/* ---- outage ---- */

static void outage_write(struct globals *globals, const char *text)
{
    char bytes[OUTAGE_SIZE] = {0};
    memcpy(bytes, text, strnlen(text, OUTAGE_SIZE - 1));
    for (size_t i = 0; i < OUTAGE_SIZE / 8; i++) {
        uint64_t word;
        memcpy(&word, bytes + 8 * i, sizeof word);
        store_release_u64(&globals->outage[i], word); /* K7 */
        POINT(outage_word_written);
    }
}

void delivery_clock_publish_outage(struct arena *arena, uint64_t since_ns, const char *text)
{
    struct globals *globals = arena->globals;
    uint32_t odd = load_relaxed_u32(&globals->outage_number) | 1;
    CHECK(arena->is_sender);
    store_relaxed_u32(&globals->outage_number, odd);
    store_release_u64(&globals->outage_since_ns, since_ns); /* K7 */
    outage_write(globals, text);
    store_release_u32(&globals->outage_number, odd + 1); /* K5 */
}

static uint64_t outage_copy(const struct globals *globals, char text[OUTAGE_SIZE])
{
    uint64_t since_ns = load_acquire_u64(&globals->outage_since_ns); /* K8 */
    for (size_t i = 0; i < OUTAGE_SIZE / 8; i++) {
        uint64_t word = load_acquire_u64(&globals->outage[i]); /* K8 */
        memcpy(text + 8 * i, &word, sizeof word);
        POINT(outage_word_copied);
    }
    text[OUTAGE_SIZE - 1] = '\0';
    return since_ns;
}

uint64_t delivery_clock_outage(const struct arena *arena, char text[OUTAGE_SIZE])
{
    const struct globals *globals = arena->globals;
    for (int i = 0; i < OUTAGE_READS && process_sender_is_alive(arena); i++) {
        uint32_t number = load_acquire_u32(&globals->outage_number); /* K6 */
        uint64_t since_ns = outage_copy(globals, text);
        if (number % 2 == 0 && load_acquire_u32(&globals->outage_number) == number) { /* K11 */
            return since_ns;
        }
    }
    return 0;
}

/* ---- recovery ---- */

void delivery_span_begin(struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    arena->slots[slot_index].created_ns = arena_now_ns(arena);
    arena->slots[slot_index].delivery_stamp_ms = delivery_stamp_now(arena);
}
