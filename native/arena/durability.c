/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/durability.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "arena/byte_lock.h"
#include "arena/counters.h"
#include "arena/process.h"
#include "base/point.h"
#include "format/crc32c.h"
#include "format/record.h"

enum { SYNC_SLICE_NS = 20000000 };

/* ---- the place ---- */

enum status durability_check_place(int descriptor, uint32_t level, struct error *error)
{
    CHECK(level <= DURABILITY_SYNC);
    struct statfs found;
    if (level == DURABILITY_PROCESS) {
        return STATUS_OK;
    }
    if (fstatfs(descriptor, &found) < 0) {
        return error_set_os(error, "cannot determine the file system of the arena");
    }
    if (found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC || found.f_type == HUGETLBFS_MAGIC) {
        return error_set(error, STATUS_INVALID,
                         "the arena is in memory (tmpfs), which does not survive a crash of the host: give it a path "
                         "on a disk, or use durability=process");
    }
    return STATUS_OK;
}

/* ---- sync records ---- */

static struct sync_record *sync_pair(const struct arena *arena, uint32_t slot_index)
{
    CHECK(arena->sync_records != NULL);
    CHECK(slot_index < arena->geometry.slot_count);
    return &arena->sync_records[(size_t)slot_index * 2];
}

static uint32_t sync_record_crc(const struct sync_record *record)
{
    size_t start = offsetof(struct sync_record, partition_index);
    size_t end = offsetof(struct sync_record, end);
    return crc32c_extend(0, (const uint8_t *)record + start, end - start);
}

static bool sync_record_is_whole(const struct sync_record *record)
{
    return record->number != 0 && record->own_crc == sync_record_crc(record);
}

static bool sync_record_has(const struct sync_record *record, const struct sync_record *state)
{
    return sync_record_is_whole(record) && record->seq == state->seq && record->generation == state->generation &&
           record->count == state->count && record->size == state->size && record->records_crc == state->records_crc;
}

static struct sync_record *sync_record_to_replace(struct sync_record *pair, uint64_t done)
{
    for (int i = 0; i < 2; i++) {
        if (!sync_record_is_whole(&pair[i]) || pair[i].number > done) {
            return &pair[i];
        }
    }
    return pair[0].number < pair[1].number ? &pair[0] : &pair[1];
}

static void state_fill(const struct slot_header *slot, uint64_t word, struct sync_record *state)
{
    const struct batch_meta *meta = &slot->meta[slot_word_count(word) & 1];
    *state = (struct sync_record){.partition_index = load_relaxed_u32(&slot->partition_index),
                                  .seq = load_relaxed_u64(&slot->seq),
                                  .generation = slot_word_generation(word),
                                  .count = slot_word_count(word),
                                  .size = slot_word_size(word),
                                  .records_crc = meta->records_crc,
                                  .max_timestamp_ms = meta->max_timestamp_ms,
                                  .base_timestamp_ms = slot->base_timestamp_ms};
}

/* Reads a consistent state of an open batch. An appender changes the word (P1) before it writes to the meta cell that
 * belonged to the old word. Returns false if there is no open batch with records. */
static bool state_read(const struct slot_header *slot, struct sync_record *state)
{
    for (;;) {
        uint64_t word = load_acquire_u64(&slot->word); /* P4 */
        if (slot_word_state(word) != SLOT_OPEN || slot_word_count(word) == 0) {
            return false;
        }
        state_fill(slot, word, state);
        POINT(sync_state_read);
        barrier_store_load(); /* P4: the fields are read before the word is read again */
        if (load_acquire_u64(&slot->word) == word) { /* P4 */
            return true;
        }
    }
}

static void sync_record_store(struct arena *arena, uint32_t slot_index, uint64_t number, uint64_t done)
{
    struct sync_record *pair = sync_pair(arena, slot_index);
    struct sync_record state;
    if (!state_read(&arena->slots[slot_index], &state) || sync_record_has(&pair[0], &state) ||
        sync_record_has(&pair[1], &state)) {
        return;
    }
    state.number = number;
    state.own_crc = sync_record_crc(&state);
    memcpy(sync_record_to_replace(pair, done), &state, sizeof state);
    POINT(sync_record_stored);
}

/* ---- group commit ---- */

/* The futex is the low half, which is first on a little-endian machine. */
static uint32_t *done_futex(struct arena *arena)
{
    CHECK(!arena->is_read_only);
    return (uint32_t *)(void *)&arena->globals->sync_done;
}

static int force_without_interpreter_lock(struct arena *arena)
{
    CHECK(arena->is_leading);
    CHECK(arena->force != NULL);
    void *state = arena->blocking.begin != NULL ? arena->blocking.begin() : NULL;
    int result;
    do {
        result = arena->force(arena->map_descriptor);
    } while (result < 0 && errno == EINTR);
    int os_error = errno;
    if (arena->blocking.end != NULL) {
        arena->blocking.end(state);
    }
    errno = os_error;
    return result;
}

static enum status poison_for_disk(struct arena *arena)
{
    CHECK(arena->is_leading);
    struct error error;
    error_set_os(&error, "forcing the arena to disk failed; a crash of the host may lose records that are not "
                         "acknowledged by now");
    arena_poison(arena, STATUS_SYNC_FAILED, error.message);
    return STATUS_POISONED;
}

static enum status leader_commit(struct arena *arena)
{
    CHECK(arena->is_leading);
    CHECK(arena->sync_records != NULL);
    struct globals *globals = arena->globals;
    uint64_t wanted = load_acquire_u64(&globals->sync_wanted); /* S1 */
    uint64_t done = load_relaxed_u64(&globals->sync_done);
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        sync_record_store(arena, i, wanted, done);
    }
    POINT(sync_recorded);
    if (force_without_interpreter_lock(arena) < 0) {
        return poison_for_disk(arena);
    }
    POINT(sync_forced);
    store_relaxed_u64(&globals->sync_done_ns, arena_now_ns(arena));
    store_release_u64(&globals->sync_done, wanted); /* S2 */
    counter_add(arena, COUNTER_SYNCS, 1);
    return STATUS_OK;
}

/* Unlocks before waking all followers, so that one of them can lead. The byte lock does not exclude another thread of
 * this process, so is_leading does. */
static enum status leader_try_force(struct arena *arena, uint64_t ticket)
{
    CHECK(arena->owner != 0);
    if (arena->is_leading) {
        return STATUS_BUSY;
    }
    RETURN_IF_FAILED(byte_lock_try(arena->lock_descriptor, SYNC_LOCK_BYTE, BYTE_EXCLUSIVE, NULL));
    arena->is_leading = true;
    store_relaxed_u32(&arena->me->is_forcing, 1);
    enum status status = STATUS_OK;
    if (load_acquire_u64(&arena->globals->sync_done) < ticket) { /* S2 */
        status = leader_commit(arena);
    }
    arena->is_leading = false;
    store_relaxed_u32(&arena->me->is_forcing, 0);
    (void)!byte_lock_try(arena->lock_descriptor, SYNC_LOCK_BYTE, BYTE_UNLOCKED, NULL); /* a close unlocks it, too */
    syscall(SYS_futex, done_futex(arena), FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return status;
}

static void leader_wait_slice(struct arena *arena, uint64_t done)
{
    struct timespec slice = {.tv_nsec = SYNC_SLICE_NS};
    void *state = arena->blocking.begin != NULL ? arena->blocking.begin() : NULL;
    syscall(SYS_futex, done_futex(arena), FUTEX_WAIT, (uint32_t)done, &slice, NULL, 0);
    if (arena->blocking.end != NULL) {
        arena->blocking.end(state);
    }
}

uint64_t durability_ticket(struct arena *arena)
{
    CHECK(arena->geometry.durability != DURABILITY_PROCESS);
    return add_u64(&arena->globals->sync_wanted, 1) + 1; /* S1 */
}

enum status durability_step(struct arena *arena, uint64_t ticket)
{
    CHECK(arena->geometry.durability != DURABILITY_PROCESS);
    uint64_t done = load_acquire_u64(&arena->globals->sync_done); /* S2 */
    if (done >= ticket) {
        return STATUS_OK;
    }
    if (arena_is_poisoned(arena)) {
        return STATUS_POISONED;
    }
    POINT(sync_needed);
    enum status status = leader_try_force(arena, ticket);
    if (status == STATUS_BUSY) {
        leader_wait_slice(arena, done);
        return STATUS_PENDING;
    }
    return status;
}

enum status durability_force_if_due(struct arena *arena, uint64_t interval_ns)
{
    CHECK(arena->geometry.durability != DURABILITY_PROCESS);
    uint64_t now_ns = arena_now_ns(arena);
    uint64_t last_ns = load_relaxed_u64(&arena->globals->sync_done_ns);
    if (arena_is_poisoned(arena)) {
        return STATUS_POISONED;
    }
    if (last_ns != 0 && now_ns >= last_ns && now_ns - last_ns < interval_ns) {
        return STATUS_OK;
    }
    enum status status = leader_try_force(arena, durability_ticket(arena));
    return status == STATUS_BUSY ? STATUS_OK : status;
}

/* ---- recovery ---- */

static bool sync_record_is_of(const struct arena *arena, const struct sync_record *record, uint32_t slot_index,
                              uint64_t word)
{
    const struct slot_header *slot = &arena->slots[slot_index];
    return sync_record_is_whole(record) && record->generation == slot_word_generation(word) &&
           record->seq == load_relaxed_u64(&slot->seq) &&
           record->partition_index == load_relaxed_u32(&slot->partition_index);
}

static bool sync_record_agrees(const struct arena *arena, const struct sync_record *record, uint32_t slot_index)
{
    const uint8_t *bytes = arena_slot_data(arena, slot_index);
    bool is_possible = record->count > 0 && record->count <= BATCH_RECORD_COUNT_MAX && record->size > RECORDS_START &&
                       record->size <= arena->geometry.batch_size;
    return is_possible &&
           crc32c_extend(0, bytes + RECORDS_START, record->size - RECORDS_START) == record->records_crc &&
           records_walk(bytes + RECORDS_START, bytes + record->size, record->count) == STATUS_OK;
}

bool sync_record_find(const struct arena *arena, uint32_t slot_index, uint64_t word, struct sync_record *found)
{
    CHECK(slot_index < arena->geometry.slot_count);
    bool is_found = false;
    if (arena->sync_records == NULL) {
        return false;
    }
    const struct sync_record *pair = sync_pair(arena, slot_index);
    for (int i = 0; i < 2; i++) {
        bool is_newer = !is_found || pair[i].count > found->count;
        if (is_newer && sync_record_is_of(arena, &pair[i], slot_index, word) &&
            sync_record_agrees(arena, &pair[i], slot_index)) {
            *found = pair[i];
            is_found = true;
        }
    }
    return is_found;
}

void durability_recover(struct arena *arena)
{
    CHECK(!arena->is_leading);
    struct globals *globals = arena->globals;
    uint64_t last = load_relaxed_u64(&globals->sync_wanted);
    for (uint32_t i = 0; arena->sync_records != NULL && i < arena->geometry.slot_count * 2; i++) {
        const struct sync_record *record = &arena->sync_records[i];
        last = sync_record_is_whole(record) && record->number > last ? record->number : last;
    }
    store_relaxed_u64(&globals->sync_wanted, last);
    store_relaxed_u64(&globals->sync_done, last);
    store_relaxed_u64(&globals->sync_done_ns, 0);
}
