/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/counters.h"

#include <string.h>

static const char *const counter_labels[COUNTERS_USED] = {
#define COUNTER_LABEL(name, label) [COUNTER_##name] = label,
    COUNTER_TABLE(COUNTER_LABEL)
#undef COUNTER_LABEL
};

const char *counter_label(uint32_t counter)
{
    CHECK(counter < COUNTERS_USED);
    return counter_labels[counter];
}

void counters_init(struct arena *arena)
{
    for (uint32_t i = 0; i < COUNTERS_USED; i++) {
        CHECK(strlen(counter_labels[i]) < COUNTER_LABEL_SIZE);
        strncpy(arena->counters[i].label, counter_labels[i], COUNTER_LABEL_SIZE - 1);
    }
}

static uint64_t error_key(uint32_t code, const char *text)
{
    uint64_t key = UINT64_C(0xcbf29ce484222325) ^ code;
    for (uint32_t i = 0; i < ERROR_LOG_TEXT_SIZE - 1 && text[i] != 0; i++) {
        key = (key ^ (uint8_t)text[i]) * UINT64_C(0x100000001b3);
    }
    return key | 1; /* 0 marks an unused cell */
}

/* If the process dies before it stores is_readable, the cell still counts, and is shown without a text. */
static void error_entry_write_text(struct error_entry *entry, uint32_t code, const char *text, uint64_t now_ns)
{
    entry->code = code;
    strncpy(entry->text, text, ERROR_LOG_TEXT_SIZE - 1);
    store_relaxed_u64(&entry->first_ns, now_ns);
    store_release_u32(&entry->is_readable, 1); /* E1 */
}

void error_log_note(struct arena *arena, enum status status, uint32_t note, const char *text)
{
    CHECK(!arena->is_read_only);
    CHECK(status < STATUS_COUNT);
    CHECK(note <= ERROR_NOTE_MAX);
    uint32_t code = (uint32_t)status | note << 8;
    uint64_t key = error_key(code, text);
    uint64_t now_ns = arena_now_ns(arena);
    for (uint32_t i = 0; i < ERROR_LOG_COUNT; i++) {
        struct error_entry *entry = &arena->error_log[i];
        uint64_t found = 0;
        if (cas_u64(&entry->key, &found, key)) { /* V2 */
            error_entry_write_text(entry, code, text, now_ns);
            found = key;
        }
        if (found == key) {
            store_relaxed_u64(&entry->last_ns, now_ns);
            add_u64(&entry->count, 1); /* V1 */
            return;
        }
    }
}

void error_log_record(struct arena *arena, enum status status, const char *text)
{
    error_log_note(arena, status, 0, text);
}

/* ---- poison ---- */

void arena_poison(struct arena *arena, enum status status, const char *what)
{
    CHECK(status != STATUS_OK && status < STATUS_COUNT);
    CHECK(!arena->is_read_only);
    uint32_t none = 0;
    cas_u32(&arena->globals->poisoned_status, &none, (uint32_t)status); /* V2 */
    error_log_record(arena, status, what);
}
