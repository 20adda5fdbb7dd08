/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "arena/buffer_pool.h"
#include "arena/counters.h"
#include "arena/registry.h"
#include "arena/superblock.h"
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/record.h"
#include "format/record_batch.h"

/* ---- findings ---- */

struct inspection {
    const struct arena *arena;
    struct verify_options options;
    struct finding *findings;
    uint32_t findings_max;
    uint32_t count;
    uint32_t *chain; /* space for the longest chain; another thread may use arena->chain_scratch */
};

__attribute__((format(printf, 3, 4))) static void finding_add(struct inspection *inspection, uint32_t slot_index,
                                                              const char *format, ...)
{
    CHECK(slot_index == NO_SLOT || slot_index < inspection->arena->geometry.slot_count);
    if (inspection->count < inspection->findings_max) {
        struct finding *finding = &inspection->findings[inspection->count];
        va_list arguments;
        va_start(arguments, format);
        finding->slot_index = slot_index;
        vsnprintf(finding->text, sizeof finding->text, format, arguments);
        va_end(arguments);
    }
    inspection->count++;
}

/* ---- the bytes of a batch ---- */

/* Returns the number of pieces, or 0 if the chain is too short for the size. Requires a size within the geometry. */
static uint32_t batch_pieces(const struct inspection *inspection, uint32_t slot_index, uint32_t size,
                             struct piece *pieces)
{
    CHECK(slot_index < inspection->arena->geometry.slot_count);
    CHECK(size > RECORDS_START);
    const struct arena *arena = inspection->arena;
    uint32_t needed = (uint32_t)divide_rounded_up(size, arena->geometry.batch_size);
    if (needed > arena->chain_slot_count_max ||
        slot_chain_walk(arena, slot_index, inspection->chain, needed) != needed) {
        return 0;
    }
    for (uint32_t i = 0; i < needed; i++) {
        uint32_t used = size < arena->geometry.batch_size ? size : arena->geometry.batch_size;
        pieces[i] = (struct piece){.start = arena_slot_data(arena, inspection->chain[i]), .size = used};
        size -= used;
    }
    return needed;
}

static const char *pieces_problem(const struct inspection *inspection, uint32_t slot_index, uint64_t word,
                                  struct piece *pieces, uint32_t count)
{
    const struct batch_meta *meta = &inspection->arena->slots[slot_index].meta[slot_word_count(word) & 1];
    struct piece first = pieces[0];
    bool has_header = first.size >= RECORDS_START && first.start[RECORD_BATCH_MAGIC] == RECORD_BATCH_MAGIC_VALUE;
    if (inspection->options.is_idle && has_header && slot_word_state(word) == SLOT_READY &&
        record_batch_validate_pieces(pieces, count, NULL) != STATUS_OK) {
        return "a batch that was drained is not a valid record batch";
    }
    pieces[0].start += RECORDS_START;
    pieces[0].size -= RECORDS_START;
    if (pieces_crc32c(0, pieces, count) != meta->records_crc) {
        return "its bytes contradict the running checksum";
    }
    const uint8_t *records = pieces[0].start;
    if (count > 1) {
        return NULL;
    }
    if (records_walk(records, records + pieces[0].size, slot_word_count(word)) != STATUS_OK) {
        return "its records differ from the count in its word";
    }
    bool is_timed = records_are_timed(records, records + pieces[0].size, slot_word_count(word),
                                      inspection->arena->slots[slot_index].base_timestamp_ms, meta->max_timestamp_ms);
    return is_timed ? NULL : "its times differ from those of its records";
}

static const char *bytes_problem(const struct inspection *inspection, uint32_t slot_index, uint64_t word)
{
    CHECK(inspection->chain != NULL);
    CHECK(inspection->options.depth >= VERIFY_DEEP);
    uint32_t count_max = inspection->arena->chain_slot_count_max;
    struct piece *pieces = calloc(count_max, sizeof *pieces);
    if (pieces == NULL) {
        return "no memory to check its bytes";
    }
    uint32_t count = batch_pieces(inspection, slot_index, slot_word_size(word), pieces);
    const char *problem = count == 0 ? "its chain is too short for its size"
                                     : pieces_problem(inspection, slot_index, word, pieces, count);
    free(pieces);
    return problem;
}

/* ---- one slot ---- */

/* Only an open batch may be empty, and a batch that is larger than a slot has one record. */
static bool count_fits_size(const struct arena *arena, uint64_t word)
{
    uint32_t size = slot_word_size(word);
    if (slot_word_count(word) == 0) {
        return size == RECORDS_START && slot_word_state(word) == SLOT_OPEN;
    }
    return size > RECORDS_START && (size <= arena->geometry.batch_size || slot_word_count(word) == 1);
}

static const char *filled_problem(const struct inspection *inspection, uint32_t slot_index, uint64_t word)
{
    const struct arena *arena = inspection->arena;
    const struct slot_header *slot = &arena->slots[slot_index];
    uint32_t size = slot_word_size(word);
    uint32_t partition_index = load_relaxed_u32(&slot->partition_index);
    bool is_chain = slot->chain_next != 0;
    if (size < RECORDS_START || size > (is_chain ? arena->geometry.record_size_max : arena->geometry.batch_size)) {
        return "its size is impossible";
    }
    if (!count_fits_size(inspection->arena, word)) {
        return "its record count contradicts its size";
    }
    if (partition_index >= arena->geometry.partition_count) {
        return "it names a partition that does not exist";
    }
    if (load_relaxed_u64(&slot->seq) >= load_relaxed_u64(&arena->partitions[partition_index].next_seq)) {
        return "its number in the partition was never assigned";
    }
    if (!is_chain && load_relaxed_u32(&slot->written_end) < size) {
        return "it has records past the written bytes";
    }
    bool is_deep = inspection->options.depth >= VERIFY_DEEP && slot_word_count(word) > 0;
    return is_deep ? bytes_problem(inspection, slot_index, word) : NULL;
}

static bool slot_is_zero(const struct arena *arena, uint32_t slot_index)
{
    CHECK(arena->geometry.slot_stride % 8 == 0);
    const uint8_t *bytes = arena_slot_data(arena, slot_index);
    for (uint32_t i = 0; i < arena->geometry.slot_stride; i += 8) {
        uint64_t chunk;
        memcpy(&chunk, bytes + i, sizeof chunk);
        if (chunk != 0) {
            return false;
        }
    }
    return true;
}

static const char *free_problem(const struct inspection *inspection, uint32_t slot_index, uint64_t word)
{
    const struct arena *arena = inspection->arena;
    if ((word & LOW_BITS(SLOT_COUNT_BITS + SLOT_SIZE_BITS)) != 0) {
        return "a free slot's word is not empty";
    }
    if (arena->slots[slot_index].chain_next != 0) {
        return "a free slot is linked";
    }
    uint64_t hints = load_relaxed_u64(&arena->free_hints[slot_index / 64]);
    if (inspection->options.is_idle && (hints >> (slot_index % 64) & 1) == 0) {
        return "a free slot has no hint";
    }
    bool is_deep = inspection->options.depth >= VERIFY_DEEP;
    return is_deep && !slot_is_zero(arena, slot_index) ? "a free slot is not all zeros" : NULL;
}

static const char *grant_problem(const struct inspection *inspection, uint64_t word)
{
    CHECK(slot_word_state(word) == SLOT_GRANT);
    uint32_t waiter_index = slot_word_waiter(word);
    if (waiter_index >= inspection->arena->geometry.waiter_count) {
        return "it is granted to a waiter that does not exist";
    }
    uint64_t waiter = load_acquire_u64(&inspection->arena->waiters[waiter_index].word); /* V4 */
    bool is_wanted = waiter_word_state(waiter) != WAITER_IDLE &&
                     ((waiter_word_ticket(waiter) ^ word) & LOW_BITS(GRANT_TICKET_BITS)) == 0;
    return inspection->options.is_idle && !is_wanted ? "it is granted to a waiter that no longer waits" : NULL;
}

static const char *cont_problem(const struct inspection *inspection, uint64_t word)
{
    CHECK(slot_word_state(word) == SLOT_CONT);
    uint32_t head_index = slot_word_head_index(word);
    if (head_index >= inspection->arena->geometry.slot_count) {
        return "it continues a slot that does not exist";
    }
    uint64_t head = load_acquire_u64(&inspection->arena->slots[head_index].word); /* V4 */
    bool is_headed = slot_word_generation(head) == slot_word_head_generation(word) &&
                     slot_word_state(head) != SLOT_FREE && slot_word_state(head) != SLOT_GRANT;
    return inspection->options.is_idle && !is_headed ? "it continues a batch that no longer exists" : NULL;
}

static const char *slot_problem(const struct inspection *inspection, uint32_t slot_index, uint64_t word)
{
    switch (slot_word_state(word)) {
    case SLOT_FREE:
        return free_problem(inspection, slot_index, word);
    case SLOT_GRANT:
        return grant_problem(inspection, word);
    case SLOT_OWNED:
        return owner_index(slot_word_owner(word)) >= inspection->arena->geometry.process_count
                   ? "its owner does not exist"
               : inspection->options.is_idle ? "it is still owned"
                                             : NULL;
    case SLOT_OPEN:
    case SLOT_READY:
        return filled_problem(inspection, slot_index, word);
    case SLOT_DONE:
        return inspection->options.is_idle ? "it is done and was never freed" : NULL;
    case SLOT_CONT:
        return cont_problem(inspection, word);
    default:
        return NULL; /* BAD: known to be damaged */
    }
}

/* Reports a problem only if two checks find it and the word is the same before, between and after them. */
static void slot_check(struct inspection *inspection, uint32_t slot_index)
{
    CHECK(slot_index < inspection->arena->geometry.slot_count);
    const atomic_u64 *cell = &inspection->arena->slots[slot_index].word;
    uint64_t word = load_acquire_u64(cell); /* V4 */
    if (slot_problem(inspection, slot_index, word) == NULL || load_acquire_u64(cell) != word) { /* V4 */
        return;
    }
    const char *problem = slot_problem(inspection, slot_index, word);
    if (problem != NULL && load_acquire_u64(cell) == word) { /* V4 */
        finding_add(inspection, slot_index, "%s", problem);
    }
}

/* ---- tables ---- */

static void partition_check(struct inspection *inspection, uint32_t partition_index)
{
    CHECK(partition_index < inspection->arena->geometry.partition_count);
    const struct arena *arena = inspection->arena;
    const struct partition_entry *partition = &arena->partitions[partition_index];
    uint32_t slot_index = open_word_slot(load_acquire_u64(&partition->open)); /* V4 */
    if (slot_index != NO_SLOT && slot_index >= arena->geometry.slot_count) {
        finding_add(inspection, NO_SLOT, "partition %u: its open batch does not exist", partition_index);
    }
    if (partition_index < registry_partition_count(arena) && partition->topic_index >= registry_topic_count(arena)) {
        finding_add(inspection, NO_SLOT, "partition %u: its topic does not exist", partition_index);
    }
}

static void topics_check(struct inspection *inspection)
{
    for (uint32_t i = 0; i < registry_topic_count(inspection->arena); i++) {
        const char *name;
        uint32_t size;
        if (registry_topic_name(inspection->arena, i, &name, &size) != STATUS_OK) {
            finding_add(inspection, NO_SLOT, "topic %u: its name lies outside the name heap", i);
        }
    }
}

static void processes_check(struct inspection *inspection)
{
    const struct arena *arena = inspection->arena;
    for (uint32_t i = 0; i < arena->geometry.process_count; i++) {
        if (load_relaxed_u32(&arena->processes[i].writing) > arena->geometry.slot_count) {
            finding_add(inspection, NO_SLOT, "process entry %u: its hazard names a slot that does not exist", i);
        }
    }
}

struct pool_count {
    uint32_t waiting;
    uint32_t parked;
    uint64_t oversized_bytes;
};

static bool grant_counts_as_oversized(const struct arena *arena, uint64_t word)
{
    uint32_t waiter_index = slot_word_waiter(word);
    return waiter_index < arena->geometry.waiter_count &&
           waiter_word_need(load_relaxed_u64(&arena->waiters[waiter_index].word)) > 1;
}

static bool slot_counts_as_oversized(const struct arena *arena, uint32_t slot_index)
{
    uint64_t word = load_relaxed_u64(&arena->slots[slot_index].word);
    enum slot_state state = slot_word_state(word);
    if (state == SLOT_GRANT) {
        return grant_counts_as_oversized(arena, word);
    }
    bool is_head = state == SLOT_OPEN || state == SLOT_READY || state == SLOT_DONE || state == SLOT_BAD;
    return state == SLOT_CONT || (state == SLOT_OWNED && slot_word_is_chain(word)) ||
           (is_head && arena->slots[slot_index].chain_next != 0);
}

/* Checks, on an idle arena, that the caches of the pool agree with the words. */
static void pool_check(struct inspection *inspection)
{
    CHECK(inspection->options.is_idle);
    const struct arena *arena = inspection->arena;
    struct pool_count count = {0};
    for (uint32_t i = 0; i < arena->geometry.waiter_count; i++) {
        enum waiter_state state = waiter_word_state(load_relaxed_u64(&arena->waiters[i].word));
        count.waiting += state == WAITER_WAIT;
        count.parked += state == WAITER_PARKED;
    }
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        count.oversized_bytes += slot_counts_as_oversized(arena, i) ? arena->geometry.batch_size : 0;
    }
    if (count.waiting != load_relaxed_u32(&arena->globals->waiting_count)) {
        finding_add(inspection, NO_SLOT, "waiting_count is %u, but %u waiters wait",
                    load_relaxed_u32(&arena->globals->waiting_count), count.waiting);
    }
    if (count.parked != load_relaxed_u32(&arena->globals->parked_count)) {
        finding_add(inspection, NO_SLOT, "parked_count is %u, but %u waiters are parked",
                    load_relaxed_u32(&arena->globals->parked_count), count.parked);
    }
    if (count.oversized_bytes != load_relaxed_u64(&arena->globals->oversized_bytes)) {
        finding_add(inspection, NO_SLOT, "oversized_bytes is %" PRIu64 ", the slots of oversized records have %" PRIu64,
                    load_relaxed_u64(&arena->globals->oversized_bytes), count.oversized_bytes);
    }
}

static void globals_check(struct inspection *inspection)
{
    const struct arena *arena = inspection->arena;
    const struct globals *globals = arena->globals;
    if (!superblock_is_sound(arena)) {
        finding_add(inspection, NO_SLOT, "the superblock was overwritten");
    }
    if (arena_is_poisoned(arena)) {
        finding_add(inspection, NO_SLOT, "the arena is poisoned: %s",
                    status_sentence((enum status)load_relaxed_u32(&globals->poisoned_status)));
    }
    if (load_relaxed_u32(&globals->closing) > CLOSING_DONE) {
        finding_add(inspection, NO_SLOT, "the closing word of the arena was overwritten");
    }
    if (!arena_tables_fit(arena)) {
        finding_add(inspection, NO_SLOT, "the count of a table exceeds its size");
    }
    uint64_t last_word = load_relaxed_u64(&globals->sink_name[SINK_NAME_SIZE / 8 - 1]);
    if (((const char *)&last_word)[sizeof last_word - 1] != '\0') {
        finding_add(inspection, NO_SLOT, "the name of the sender's sink has no terminating NUL");
    }
}

/* ---- the public steps ---- */

static void arena_check_all(struct inspection *inspection)
{
    CHECK(inspection->chain != NULL);
    topics_check(inspection);
    processes_check(inspection);
    for (uint32_t i = 0; i < inspection->arena->geometry.partition_count; i++) {
        partition_check(inspection, i);
    }
    for (uint32_t i = 0; i < inspection->arena->geometry.slot_count; i++) {
        slot_check(inspection, i);
    }
    if (inspection->options.is_idle) {
        pool_check(inspection);
    }
}

uint32_t verify(const struct arena *arena, const struct verify_options *options, struct finding *findings,
                uint32_t findings_max)
{
    struct inspection inspection = {
        .arena = arena, .options = *options, .findings = findings, .findings_max = findings_max};
    globals_check(&inspection);
    if (options->depth == VERIFY_QUICK) {
        return inspection.count;
    }
    inspection.chain = calloc(arena->chain_slot_count_max, sizeof *inspection.chain);
    if (inspection.chain == NULL) {
        finding_add(&inspection, NO_SLOT, "no memory to check the batches");
        return inspection.count;
    }
    arena_check_all(&inspection);
    free(inspection.chain);
    return inspection.count;
}

void verify_count_states(const struct arena *arena, uint32_t counts[SLOT_BAD + 1])
{
    memset(counts, 0, (SLOT_BAD + 1) * sizeof *counts);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        counts[slot_word_state(load_relaxed_u64(&arena->slots[i].word))]++;
    }
}

const char *slot_state_name(uint32_t state)
{
    static const char *const names[SLOT_BAD + 1] = {
        [SLOT_FREE] = "FREE", [SLOT_GRANT] = "GRANT", [SLOT_OWNED] = "OWNED", [SLOT_OPEN] = "OPEN",
        [SLOT_READY] = "READY", [SLOT_DONE] = "DONE", [SLOT_CONT] = "CONT", [SLOT_BAD] = "BAD"};
    CHECK(state <= SLOT_BAD);
    return names[state];
}
