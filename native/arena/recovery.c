/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/recovery.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "arena/buffer_pool.h"
#include "arena/closing.h"
#include "arena/completion.h"
#include "arena/counters.h"
#include "arena/delivery_clock.h"
#include "arena/durability.h"
#include "arena/transaction.h"
#include "arena/ready_hints.h"
#include "arena/registry.h"
#include "arena/producer_id.h"
#include "base/bytes.h"
#include "base/point.h"
#include "format/crc32c.h"
#include "format/record.h"
#include "format/record_batch.h"

/* ---- boot id ---- */

static int hex_digit(char character)
{
    if (character >= '0' && character <= '9') {
        return character - '0';
    }
    return character >= 'a' && character <= 'f' ? character - 'a' + 10 : -1;
}

/* Converts "xxxxxxxx-xxxx-..." to 16 bytes. Stores zeros if the kernel has no boot id; then every boot counts as
 * another boot (boot_is_same). */
void boot_id_read(uint8_t boot_id[16])
{
    char text[64] = {0};
    uint32_t digit_count = 0;
    memset(boot_id, 0, 16);
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return;
    }
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    for (ssize_t i = 0; i < size && digit_count < 32; i++) {
        int digit = hex_digit(text[i]);
        if (digit >= 0) {
            boot_id[digit_count / 2] = (uint8_t)(boot_id[digit_count / 2] << 4 | digit);
            digit_count++;
        }
    }
}

static bool boot_is_same(const struct arena *arena)
{
    static const uint8_t unknown[16];
    uint8_t boot_id[16];
    boot_id_read(boot_id);
    return memcmp(boot_id, unknown, sizeof boot_id) != 0 &&
           memcmp(boot_id, arena->globals->boot_id, sizeof boot_id) == 0;
}

/* ---- the verdict on one slot, without side effects ---- */

enum verdict {
    VERDICT_KEEP_FREE,
    VERDICT_FREE,
    VERDICT_KEEP,
    VERDICT_SEAL,
    VERDICT_CUT, /* cut back to the records that were forced to disk */
    VERDICT_QUARANTINE,
    VERDICT_KEEP_BAD
};

static uint32_t batch_size_max(const struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    return arena->slots[slot_index].chain_next == 0 ? arena->geometry.batch_size : arena->geometry.record_size_max;
}

/* Returns true if count, size, end and partition are possible, and a chain has as many pieces as its size needs. */
static bool batch_is_possible(const struct arena *arena, const struct recovery_report *report, uint32_t slot_index,
                              uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    const struct slot_header *slot = &arena->slots[slot_index];
    uint32_t size = slot_word_size(word);
    if (slot_word_count(word) == 0 || size <= RECORDS_START || size > batch_size_max(arena, slot_index) ||
        load_relaxed_u32(&slot->partition_index) >= report->partition_count ||
        load_relaxed_u64(&slot->seq) == UINT64_MAX) {
        return false;
    }
    uint32_t needed = (uint32_t)divide_rounded_up(size, arena->geometry.batch_size);
    uint32_t found = slot_chain_walk(arena, slot_index, arena->chain_scratch, arena->chain_slot_count_max);
    return needed == 1 || (slot_word_count(word) == 1 && found == needed);
}

/* Returns the CRC over all pieces. Requires batch_is_possible. */
static uint32_t batch_crc(const struct arena *arena, uint32_t slot_index, uint32_t size)
{
    CHECK(size > RECORDS_START);
    CHECK(arena->chain_scratch != NULL);
    uint32_t *slots = arena->chain_scratch;
    uint32_t count = slot_chain_walk(arena, slot_index, slots, arena->chain_slot_count_max);
    uint32_t crc = 0;
    uint32_t start = RECORDS_START;
    uint32_t rest = size - RECORDS_START;
    for (uint32_t i = 0; i < count && rest > 0; i++, start = 0) {
        uint32_t room = arena->geometry.batch_size - start;
        uint32_t used = rest < room ? rest : room;
        crc = crc32c_extend(crc, arena_slot_data(arena, slots[i]) + start, used);
        rest -= used;
    }
    return crc;
}

/* The checksum covers neither the count nor the times, so the records are walked. A chain has one record, which
 * batch_is_possible has checked. */
static bool batch_is_intact(const struct arena *arena, uint32_t slot_index, uint64_t word)
{
    const struct slot_header *slot = &arena->slots[slot_index];
    const struct batch_meta *meta = &slot->meta[slot_word_count(word) & 1];
    uint32_t size = slot_word_size(word);
    const uint8_t *bytes = arena_slot_data(arena, slot_index);
    return batch_crc(arena, slot_index, size) == meta->records_crc &&
           (size > arena->geometry.batch_size ||
            records_are_timed(bytes + RECORDS_START, bytes + size, slot_word_count(word), slot->base_timestamp_ms,
                              meta->max_timestamp_ms));
}

static enum verdict batch_verdict(const struct arena *arena, const struct recovery_report *report,
                                  uint32_t slot_index, uint64_t word, enum verdict sound)
{
    CHECK(sound == VERDICT_KEEP || sound == VERDICT_SEAL);
    if (!batch_is_possible(arena, report, slot_index, word)) {
        return VERDICT_QUARANTINE;
    }
    if (report->is_same_boot || batch_is_intact(arena, slot_index, word)) {
        return sound;
    }
    struct sync_record forced;
    return sync_record_find(arena, slot_index, word, &forced) ? VERDICT_CUT : VERDICT_QUARANTINE;
}

/* A piece stays or is freed with its head. The pieces of a quarantined head also stay, for inspection. */
static enum verdict piece_verdict(const struct arena *arena, uint64_t word)
{
    CHECK(slot_word_state(word) == SLOT_CONT);
    uint32_t head_index = slot_word_head_index(word);
    if (head_index >= arena->geometry.slot_count) {
        return VERDICT_FREE;
    }
    uint64_t head = load_acquire_u64(&arena->slots[head_index].word); /* V3 */
    enum slot_state state = slot_word_state(head);
    bool is_kept = state == SLOT_READY || state == SLOT_BAD || (state == SLOT_OPEN && slot_word_count(head) > 0);
    return is_kept && slot_word_generation(head) == slot_word_head_generation(word) ? VERDICT_KEEP : VERDICT_FREE;
}

static enum verdict free_verdict(const struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_word_state(word) == SLOT_FREE);
    bool is_linked = arena->slots[slot_index].chain_next != 0;
    bool is_empty = (word & LOW_BITS(SLOT_COUNT_BITS + SLOT_SIZE_BITS)) == 0 && !is_linked;
    return is_empty ? VERDICT_KEEP_FREE : VERDICT_FREE;
}

static enum verdict slot_verdict(const struct arena *arena, const struct recovery_report *report, uint32_t slot_index)
{
    uint64_t word = load_acquire_u64(&arena->slots[slot_index].word); /* V3 */
    switch (slot_word_state(word)) {
    case SLOT_FREE:
        return free_verdict(arena, slot_index, word);
    case SLOT_OPEN:
        return slot_word_count(word) == 0 ? VERDICT_FREE
                                          : batch_verdict(arena, report, slot_index, word, VERDICT_SEAL);
    case SLOT_READY:
        return batch_verdict(arena, report, slot_index, word, VERDICT_KEEP);
    case SLOT_CONT:
        return piece_verdict(arena, word);
    case SLOT_BAD:
        return VERDICT_KEEP_BAD;
    default: /* GRANT, OWNED, DONE: no living process needs it */
        return VERDICT_FREE;
    }
}

/* Counts only the records that were forced to disk, because a cut batch has no others. */
static void report_count_cut(const struct arena *arena, struct recovery_report *report, uint32_t slot_index,
                             uint64_t word)
{
    struct sync_record forced;
    if (sync_record_find(arena, slot_index, word, &forced)) {
        report->cut_count++;
        report->ready_count++;
        report->record_count += forced.count;
    }
}

static void report_count(struct recovery_report *report, enum verdict verdict, uint64_t word)
{
    CHECK(verdict <= VERDICT_KEEP_BAD);
    report->freed_count += verdict == VERDICT_FREE;
    report->sealed_count += verdict == VERDICT_SEAL;
    report->quarantined_count += verdict == VERDICT_QUARANTINE;
    if (verdict == VERDICT_SEAL || (verdict == VERDICT_KEEP && slot_word_state(word) == SLOT_READY)) {
        report->ready_count++;
        report->record_count += slot_word_count(word);
    }
}

/* ---- acting on the verdict ---- */

/* After a crash of the host, written_end is unreliable: it may be older than the data pages on disk. */
static void slot_scrub(struct arena *arena, uint32_t slot_index, bool is_same_boot)
{
    CHECK(slot_index < arena->geometry.slot_count);
    struct slot_header *slot = &arena->slots[slot_index];
    uint32_t end = load_relaxed_u32(&slot->written_end);
    uint32_t stride = arena->geometry.slot_stride;
    memset(arena_slot_data(arena, slot_index), 0, is_same_boot && end < stride ? end : stride);
    store_relaxed_u32(&slot->written_end, 0);
    slot->chain_next = 0;
    POINT(recovery_scrubbed);
}

/* The process that frees the batch scrubs up to written_end, so it must not be less than the size. */
static void slot_cover(struct arena *arena, uint32_t slot_index, bool is_same_boot)
{
    CHECK(slot_index < arena->geometry.slot_count);
    struct slot_header *slot = &arena->slots[slot_index];
    uint64_t word = load_relaxed_u64(&slot->word);
    uint32_t size = slot_word_state(word) == SLOT_CONT ? 0 : slot_word_size(word);
    uint32_t stride = arena->geometry.slot_stride;
    uint32_t end = is_same_boot && size < stride ? size : stride;
    if (load_relaxed_u32(&slot->written_end) < end) {
        store_relaxed_u32(&slot->written_end, end);
    }
}

/* The batch becomes one that was never drained, because a broker would reject or misread its old sequence with fewer
 * records. So its records may be sent again. */
static void batch_cut(struct arena *arena, uint32_t slot_index, uint64_t word)
{
    struct slot_header *slot = &arena->slots[slot_index];
    struct sync_record forced;
    if (!sync_record_find(arena, slot_index, word, &forced)) {
        return;
    }
    slot->meta[forced.count & 1] =
        (struct batch_meta){.max_timestamp_ms = forced.max_timestamp_ms, .records_crc = forced.records_crc};
    slot->base_timestamp_ms = forced.base_timestamp_ms;
    memset(arena_slot_data(arena, slot_index), 0, RECORDS_START);
    store_relaxed_u64(&slot->producer_id, UINT64_MAX);
    store_relaxed_u32(&slot->base_sequence, UINT32_MAX);
    store_relaxed_u32(&slot->producer_epoch, 0);
    store_relaxed_u32(&slot->written_end, arena->geometry.slot_stride);
    POINT(recovery_cut);
    uint64_t filled = slot_payload_filled(forced.count, forced.size);
    store_seq_cst_u64(&slot->word, slot_word(SLOT_READY, slot_word_generation(word), filled)); /* V3 */
    error_log_record(arena, STATUS_CORRUPT, "recovery: a batch was cut back to what had been forced to disk");
}

static void slot_apply_verdict(struct arena *arena, uint32_t slot_index, enum verdict verdict, bool is_same_boot)
{
    CHECK(verdict <= VERDICT_KEEP_BAD);
    atomic_u64 *cell = &arena->slots[slot_index].word;
    uint64_t word = load_relaxed_u64(cell);
    switch (verdict) {
    case VERDICT_KEEP_FREE:
        if (!is_same_boot) {
            slot_scrub(arena, slot_index, false);
        }
        break;
    case VERDICT_FREE:
        slot_scrub(arena, slot_index, is_same_boot);
        store_seq_cst_u64(cell, slot_word_freed(word)); /* V3 */
        break;
    case VERDICT_SEAL:
        slot_cover(arena, slot_index, is_same_boot);
        store_seq_cst_u64(cell, slot_word_with_state(word, SLOT_READY)); /* V3 */
        break;
    case VERDICT_KEEP:
        slot_cover(arena, slot_index, is_same_boot);
        break;
    case VERDICT_CUT:
        batch_cut(arena, slot_index, word);
        break;
    case VERDICT_QUARANTINE:
        store_seq_cst_u64(cell, slot_word_with_state(word, SLOT_BAD)); /* V3 */
        error_log_record(arena, STATUS_CORRUPT,
                         "recovery: quarantined a batch that contradicts itself, its checksum or the tables");
        break;
    default:
        break;
    }
}

/* Makes next_seq greater than the number of every batch that is or was in a slot, including freed and BAD ones: a
 * producer may have the number in a token. */
static void next_seq_raise(struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    const struct slot_header *slot = &arena->slots[slot_index];
    enum slot_state state = slot_word_state(word);
    bool has_seq = state == SLOT_OPEN || state == SLOT_READY || state == SLOT_DONE || state == SLOT_BAD;
    uint32_t partition_index = load_relaxed_u32(&slot->partition_index);
    uint64_t seq = load_relaxed_u64(&slot->seq);
    if (!has_seq || seq == UINT64_MAX || partition_index >= arena->geometry.partition_count) {
        return;
    }
    if (load_relaxed_u64(&arena->partitions[partition_index].next_seq) <= seq) {
        store_relaxed_u64(&arena->partitions[partition_index].next_seq, seq + 1);
    }
}

/* Returns true if a sender will deliver the batch. */
static bool batch_is_left(const struct arena *arena, uint32_t slot_index)
{
    return slot_word_state(load_relaxed_u64(&arena->slots[slot_index].word)) == SLOT_READY;
}

/* Heads precede pieces, because a piece's verdict depends on its head. */
static void slots_recover(struct arena *arena, struct recovery_report *report)
{
    CHECK(!arena->is_sender);
    for (int is_piece = 0; is_piece <= 1; is_piece++) {
        for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
            uint64_t word = load_relaxed_u64(&arena->slots[i].word);
            if ((slot_word_state(word) == SLOT_CONT) != is_piece) {
                continue;
            }
            enum verdict verdict = slot_verdict(arena, report, i);
            report_count(report, verdict, word);
            if (verdict == VERDICT_CUT) {
                report_count_cut(arena, report, i, word);
            }
            next_seq_raise(arena, i, word);
            slot_apply_verdict(arena, i, verdict, report->is_same_boot);
            if (!report->is_same_boot && batch_is_left(arena, i)) {
                delivery_span_begin(arena, i);
            }
            POINT(recovery_slot_done);
        }
    }
}

/* ---- locks, roles and entries, which only living processes hold ---- */

static void lock_clear(atomic_u64 *lock)
{
    store_relaxed_u64(lock, lock_word(lock_word_acquisition(load_relaxed_u64(lock)), 0));
}

static void holders_clear(struct arena *arena)
{
    CHECK(!arena->is_sender);
    lock_clear(&arena->globals->pool_lock);
    lock_clear(&arena->globals->registry_lock);
    store_relaxed_u32(&arena->globals->sender_owner, 0);
    store_relaxed_u32(&arena->globals->sender_sleep, 0);
    for (uint32_t i = 0; i < SINK_NAME_SIZE / 8; i++) {
        store_relaxed_u64(&arena->globals->sink_name[i], 0);
    }
    store_relaxed_u64(&arena->globals->outage_since_ns, 0);
    for (uint32_t i = 0; i < arena->geometry.process_count; i++) {
        store_relaxed_u32(&arena->processes[i].writing, 0);
        store_relaxed_u32(&arena->processes[i].role, 0);
        store_relaxed_u32(&arena->processes[i].fallback, 0);
    }
    for (uint32_t i = 0; i < arena->geometry.waiter_count; i++) {
        store_relaxed_u64(&arena->waiters[i].word, 0);
    }
    store_relaxed_u32(&arena->globals->waiting_count, 0);
    store_relaxed_u32(&arena->globals->parked_count, 0);
    store_relaxed_u64(&arena->globals->stuck_epoch, 0);
}

static void partitions_clear(struct arena *arena)
{
    for (uint32_t i = 0; i < arena->geometry.partition_count; i++) {
        struct partition_entry *partition = &arena->partitions[i];
        const uint64_t last = load_relaxed_u64(&partition->lock.word);
        store_relaxed_u64(&partition->lock.released, last);
        store_relaxed_u64(&partition->open, open_word(lock_word_acquisition(last), NO_SLOT));
        store_relaxed_u64(&partition->stuck, 0);
    }
}

/* ---- caches ---- */

static void topics_clear(struct arena *arena)
{
    CHECK(!arena->is_sender);
    for (uint32_t i = 0; i < arena->geometry.topic_count; i++) {
        store_relaxed_u64(&arena->topics[i].opened, 0);
        store_relaxed_u64(&arena->topics[i].released, 0);
        store_relaxed_u32(&arena->topics[i].is_parked_for, 0);
    }
}

/* Counts the slot of a remaining batch, or of its piece, for its topic. */
static void topic_count_slot(struct arena *arena, uint32_t slot_index, uint64_t word)
{
    CHECK(slot_index < arena->geometry.slot_count);
    enum slot_state state = slot_word_state(word);
    uint32_t head_index = state == SLOT_CONT ? slot_word_head_index(word) : slot_index;
    if ((state != SLOT_READY && state != SLOT_CONT && state != SLOT_BAD) || head_index >= arena->geometry.slot_count) {
        return;
    }
    uint32_t partition_index = load_relaxed_u32(&arena->slots[head_index].partition_index);
    if (partition_index < registry_partition_count(arena)) {
        uint32_t topic_index = arena->partitions[partition_index].topic_index;
        if (topic_index < arena->geometry.topic_count) {
            add_u64(&arena->topics[topic_index].opened, 1); /* V3 */
        }
    }
}

static void caches_rebuild(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    uint64_t oversized_count = 0;
    topics_clear(arena);
    for (uint32_t i = 0; i < arena->layout.bitmap_word_count; i++) {
        store_relaxed_u64(&arena->free_hints[i], 0);
        store_relaxed_u64(&arena->ready_hints[i], 0);
    }
    for (uint32_t i = 0; i < arena->layout.ready_group_count; i++) {
        store_relaxed_u64(&arena->ready_groups[i], 0);
    }
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_relaxed_u64(&arena->slots[i].word);
        enum slot_state state = slot_word_state(word);
        if (state == SLOT_FREE) {
            or_bits_u64(&arena->free_hints[i / 64], UINT64_C(1) << (i % 64)); /* V3 */
        } else if (state == SLOT_READY) {
            ready_hint_set(arena, i);
            const struct slot_header *slot = &arena->slots[i];
            sequence_raise(arena, slot, load_relaxed_u32(&slot->partition_index), word);
        }
        bool is_head = (state == SLOT_READY || state == SLOT_BAD) && arena->slots[i].chain_next != 0;
        oversized_count += state == SLOT_CONT || is_head;
        topic_count_slot(arena, i, word);
    }
    store_relaxed_u64(&arena->globals->oversized_bytes, oversized_count * arena->geometry.batch_size);
    store_relaxed_u32(&arena->globals->free_scan_hint, 0);
}

/* ---- the public steps ---- */

/* Entries past the end of a table cannot be counted, so recovery rejects such an arena. */
static enum status tables_check(const struct arena *arena, struct error *error)
{
    return arena_tables_fit(arena)
               ? STATUS_OK
               : error_set(error, STATUS_CORRUPT, "the count of a table of the arena exceeds its size: remove the "
                                                "arena and create it again");
}

/* Sets `intact` only after another boot. In the same boot, memory has all entries that a batch names. */
static struct recovery_report report_begin(const struct arena *arena, struct registry_extent *intact)
{
    struct recovery_report report = {.is_same_boot = boot_is_same(arena),
                                     .partition_count = arena->geometry.partition_count};
    if (!report.is_same_boot) {
        *intact = registry_intact(arena);
        report.partition_count = intact->partition_count;
    }
    return report;
}

/* Logs an error if a count had reached the disk and an entry had not. */
static void registry_recover(struct arena *arena, const struct registry_extent *intact)
{
    bool is_whole = intact->topic_count == registry_topic_count(arena) &&
                    intact->partition_count == registry_partition_count(arena);
    registry_cut(arena, intact);
    if (!is_whole) {
        error_log_record(arena, STATUS_CORRUPT, "recovery: topics and partitions were cut back to what had reached the "
                                                "disk");
    }
}

enum status recovery_plan(struct arena *arena, struct recovery_report *report, struct error *error)
{
    struct registry_extent intact = {0};
    RETURN_IF_FAILED(tables_check(arena, error));
    *report = report_begin(arena, &intact);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word); /* V3 */
        enum verdict verdict = slot_verdict(arena, report, i);
        report_count(report, verdict, word);
        if (verdict == VERDICT_CUT) {
            report_count_cut(arena, report, i, word);
        }
    }
    return STATUS_OK;
}

enum status recovery_run(struct arena *arena, struct recovery_report *report, struct error *error)
{
    CHECK(!arena->is_read_only);
    struct registry_extent intact = {0};
    RETURN_IF_FAILED(tables_check(arena, error));
    *report = report_begin(arena, &intact);
    holders_clear(arena);
    partitions_clear(arena);
    if (!report->is_same_boot) {
        registry_recover(arena, &intact);
    }
    POINT(recovery_cleared);
    slots_recover(arena, report);
    caches_rebuild(arena);
    completion_repair(arena);
    if (!report->is_same_boot) {
        durability_recover(arena);
        sequences_doubt(arena);
        store_relaxed_u64(&arena->globals->acked_ns, 0); /* a time of the previous boot */
    }
    transaction_recover(arena, report->is_same_boot);
    POINT(recovery_rebuilt);
    if (!arena_lost_its_name(arena)) {
        store_relaxed_u32(&arena->globals->closing, CLOSING_NOT);
    }
    add_u64(&arena->globals->arena_epoch, 1); /* V3 */
    if (!report->is_same_boot && arena->force(arena->map_descriptor) < 0) {
        return error_set_os(error, "the recovered arena could not be forced to disk: check the disk, and attach again");
    }
    boot_id_read(arena->globals->boot_id);
    return STATUS_OK;
}
