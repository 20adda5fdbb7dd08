/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/process.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "arena/byte_lock.h"
#include "base/point.h"

enum { SINK_NAME_READS = 8 }; /* if the role changes more often during a read, the arena is damaged */

/* ---- liveness ---- */

bool process_is_alive(const struct arena *arena, uint32_t owner)
{
    uint32_t index = owner_index(owner);
    if (owner == 0 || index >= arena->geometry.process_count) {
        return false;
    }
    uint32_t generation = load_acquire_u32(&arena->processes[index].generation); /* I2 */
    if ((generation & LOW_BITS(OWNER_GENERATION_BITS)) != owner_generation(owner)) {
        return false;
    }
    return owner == arena->owner || byte_is_locked(arena->lock_descriptor, PROCESS_LOCK_START + (int64_t)index);
}

/* ---- registration ---- */

static uint64_t process_start_time_ticks(void)
{
    char text[1024];
    FILE *file = fopen("/proc/self/stat", "re");
    if (file == NULL) {
        return 0;
    }
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = 0;
    const char *field = strrchr(text, ')'); /* comm may contain anything, but it ends at the last ')' */
    for (int i = 2; field != NULL && i < 22; i++) {
        field = strchr(field + 1, ' ');
    }
    unsigned long long ticks = 0;
    return field != NULL && sscanf(field, " %llu", &ticks) == 1 ? ticks : 0;
}

static void process_describe(struct process_entry *entry, enum process_role role, uint64_t now_ns)
{
    CHECK(role != ROLE_NONE);
    store_relaxed_u32(&entry->pid, (uint32_t)getpid());
    store_relaxed_u64(&entry->attached_ns, now_ns);
    store_relaxed_u64(&entry->start_time_ticks, process_start_time_ticks());
    store_relaxed_u64(&entry->record_count_before, load_relaxed_u64(&entry->record_count));
    store_relaxed_u64(&entry->record_bytes_before, load_relaxed_u64(&entry->record_bytes));
    store_relaxed_u64(&entry->passed_count_before, load_relaxed_u64(&entry->passed_count));
    memset(entry->name, 0, sizeof entry->name);
    prctl(PR_GET_NAME, entry->name, 0, 0, 0);
    store_release_u32(&entry->role, role); /* V2 */
}

static void process_count_used_raise(struct arena *arena, uint32_t used)
{
    CHECK(used >= 1 && used <= arena->geometry.process_count);
    uint32_t seen = load_relaxed_u32(&arena->globals->process_count_used);
    while (seen < used && !cas_u32(&arena->globals->process_count_used, &seen, used)) { /* I3 */
    }
}

/* Returns true if the entry's previous owner left cleanly. */
static bool process_take_entry(struct arena *arena, uint32_t index, enum process_role role)
{
    CHECK(arena->owner == 0);
    struct process_entry *entry = &arena->processes[index];
    uint32_t generation = (load_relaxed_u32(&entry->generation) + 1) & (uint32_t)LOW_BITS(OWNER_GENERATION_BITS);
    store_release_u32(&entry->generation, generation); /* I1; from here on the previous owner is proven dead */
    POINT(process_generation_raised);
    process_count_used_raise(arena, index + 1);
    store_seq_cst_u32(&entry->writing, 0); /* I1 */
    store_relaxed_u32(&entry->is_forcing, 0);
    store_relaxed_u32(&entry->fallback, 0);
    bool was_left_cleanly = load_relaxed_u32(&entry->role) == ROLE_NONE;
    arena->entry_index = index;
    arena->me = entry;
    arena->owner = owner_of(index, generation);
    process_describe(entry, role, arena_now_ns(arena));
    return was_left_cleanly;
}

enum status process_register(struct arena *arena, enum process_role role, bool *was_left_cleanly,
                             struct error *error)
{
    CHECK(arena->owner == 0);
    CHECK(role != ROLE_NONE);
    for (uint32_t index = 0; index < arena->geometry.process_count; index++) {
        enum status status =
            byte_lock_try(arena->lock_descriptor, PROCESS_LOCK_START + (int64_t)index, BYTE_EXCLUSIVE, error);
        if (status == STATUS_OK) {
            POINT(process_byte_locked);
            *was_left_cleanly = process_take_entry(arena, index, role);
            return STATUS_OK;
        }
        if (status != STATUS_BUSY) {
            return status;
        }
    }
    return error_set(error, STATUS_NO_ENTRY, "all %u process entries are taken: create the arena with a larger "
                     "process_count, or stop a process", arena->geometry.process_count);
}

void process_leave_for_repair(struct arena *arena)
{
    CHECK(arena->owner != 0);
    CHECK(arena->me == &arena->processes[arena->entry_index]);
    store_release_u32(&arena->me->writing, 0); /* H3 */
    arena->owner = 0;
    arena->me = NULL;
}

void process_unregister(struct arena *arena)
{
    struct process_entry *entry = arena->me;
    process_leave_for_repair(arena);
    store_release_u32(&entry->role, ROLE_NONE); /* V2 */
}

/* ---- sender role ---- */

/* Each store is a release, so a reader of any of these words also sees that sender_owner has changed. */
static void sink_name_write(struct globals *globals, const char *sink_name)
{
    char text[SINK_NAME_SIZE] = {0};
    memcpy(text, sink_name, strnlen(sink_name, SINK_NAME_SIZE - 1));
    for (size_t i = 0; i < SINK_NAME_SIZE / 8; i++) {
        uint64_t word;
        memcpy(&word, text + 8 * i, sizeof word);
        store_release_u64(&globals->sink_name[i], word); /* K3 */
        POINT(sink_name_word_written);
    }
}

static void sink_name_copy(const struct globals *globals, char *sink_name)
{
    for (size_t i = 0; i < SINK_NAME_SIZE / 8; i++) {
        uint64_t word = load_acquire_u64(&globals->sink_name[i]); /* K4 */
        memcpy(sink_name + 8 * i, &word, sizeof word);
        POINT(sink_name_word_copied);
    }
    sink_name[SINK_NAME_SIZE - 1] = '\0';
}

enum status process_take_sender_role(struct arena *arena, const char *sink_name, struct error *error)
{
    CHECK(arena->owner != 0);
    enum status status = byte_lock_try(arena->lock_descriptor, SENDER_LOCK_BYTE, BYTE_EXCLUSIVE, error);
    if (status == STATUS_BUSY) {
        return error_set(error, STATUS_BUSY, "the arena has a living sender already: stop that one, or start this one "
                                             "as its standby (standby=True, --standby)");
    }
    RETURN_IF_FAILED(status);
    store_relaxed_u32(&arena->globals->sender_owner, 0); /* a dead sender leaves its own value */
    sink_name_write(arena->globals, sink_name);
    store_release_u32(&arena->me->role, ROLE_SENDER); /* V2 */
    add_u64(&arena->globals->sender_epoch, 1); /* K9 */
    POINT(sender_epoch_raised);
    store_release_u32(&arena->globals->sender_owner, arena->owner); /* K1 */
    arena->is_sender = true;
    return STATUS_OK;
}

void process_stand_by(struct arena *arena, bool is_standby)
{
    CHECK(arena->owner != 0);
    CHECK(!arena->is_sender);
    store_release_u32(&arena->me->role, is_standby ? ROLE_STANDBY : ROLE_PRODUCER); /* V2 */
}

void process_leave_sender_role(struct arena *arena)
{
    CHECK(arena->is_sender);
    arena->is_sender = false;
    store_release_u32(&arena->me->role, ROLE_PRODUCER); /* V2 */
    store_relaxed_u32(&arena->globals->sender_owner, 0);
    enum status status = byte_lock_try(arena->lock_descriptor, SENDER_LOCK_BYTE, BYTE_UNLOCKED, NULL);
    CHECK(status == STATUS_OK);
    (void)status;
}

void process_sender_leaves_cleanly(struct arena *arena)
{
    CHECK(arena->is_sender);
    store_release_u64(&arena->globals->sender_left_epoch, load_relaxed_u64(&arena->globals->sender_epoch)); /* I6 */
}

bool process_sender_died(const struct arena *arena)
{
    uint64_t left_epoch = load_acquire_u64(&arena->globals->sender_left_epoch); /* I7 */
    return load_acquire_u64(&arena->globals->sender_epoch) != left_epoch; /* I7 */
}

bool process_sender_is_silent(const struct arena *arena)
{
    uint64_t shown_ns = load_relaxed_u64(&arena->globals->sender_heartbeat_ns);
    return shown_ns != 0 && arena_now_ns(arena) > shown_ns + SENDER_SILENCE_NS;
}

bool process_sender_is_alive(const struct arena *arena)
{
    return arena->is_sender || byte_is_locked(arena->lock_descriptor, SENDER_LOCK_BYTE);
}

/* Returns false between the death of a sender and the publication of the next one. */
static bool sender_is_named(const struct arena *arena, uint32_t owner)
{
    return process_is_alive(arena, owner) && process_sender_is_alive(arena);
}

bool process_sink_name(const struct arena *arena, char sink_name[SINK_NAME_SIZE])
{
    const struct globals *globals = arena->globals;
    for (int i = 0; i < SINK_NAME_READS; i++) {
        uint64_t epoch = load_acquire_u64(&globals->sender_epoch); /* K2 */
        uint32_t owner = load_acquire_u32(&globals->sender_owner); /* K2 */
        if (!sender_is_named(arena, owner)) {
            return false;
        }
        sink_name_copy(globals, sink_name);
        POINT(sink_name_copied);
        if (load_acquire_u32(&globals->sender_owner) == owner && /* K10 */
            load_acquire_u64(&globals->sender_epoch) == epoch) { /* K10 */
            return true;
        }
    }
    return false;
}

/* ---- hazards ---- */

bool process_anyone_writes(const struct arena *arena, uint32_t slot_index)
{
    CHECK(slot_index < arena->geometry.slot_count);
    uint32_t used = load_acquire_u32(&arena->globals->process_count_used); /* I4 */
    used = used < arena->geometry.process_count ? used : arena->geometry.process_count;
    for (uint32_t i = 0; i < used; i++) {
        const struct process_entry *entry = &arena->processes[i];
        if (load_acquire_u32(&entry->writing) == slot_index + 1 && /* H2, H4 */
            process_is_alive(arena, owner_of(i, load_acquire_u32(&entry->generation)))) { /* I2 */
            return true;
        }
    }
    return false;
}

void process_set_sender_sleep(struct arena *arena, uint32_t value)
{
    CHECK(!arena->is_read_only);
    store_seq_cst_u32(&arena->globals->sender_sleep, value); /* D4 */
    barrier_store_load(); /* D2 */
}

const char *process_role_name(uint32_t role)
{
    static const char *const names[] = {[ROLE_NONE] = "none",
                                        [ROLE_PRODUCER] = "producer",
                                        [ROLE_SENDER] = "sender",
                                        [ROLE_OBSERVER] = "observer",
                                        [ROLE_STANDBY] = "standby"};
    return role < sizeof names / sizeof names[0] ? names[role] : "unknown";
}
