/* SPDX-License-Identifier: Apache-2.0
 *
 * Takes the sender's role, repairs the arena after deaths of other processes, and leaves the role.
 *
 * A process that takes the role has none of the last sender's private state, so it reads every slot once. A batch that
 * the last sender had sent and not completed is READY and is sent again, with the same sequence. A decision of the last
 * sender (expired, aborted, rejected) is in the slot's `result` and is only carried out. If the process is
 * killed, the kernel releases the role, and the next process starts from the beginning.
 */
#include "arena/delivery_clock.h"
#include "arena/process.h"
#include "arena/producer_id.h"
#include "base/point.h"
#include "sender/complete.h"
#include "sender/stuck_partitions.h"
#include "sender/topic_limits.h"

/* ---- taking it ---- */

/* Finishes the decisions of a dead sender: a batch that expired, was aborted or rejected is not sent again. */
static void result_repair(struct sender_half *half, uint32_t slot_index)
{
    CHECK(slot_index < half->arena->geometry.slot_count);
    const struct batch_outcome outcome = decision_of(&half->arena->slots[slot_index]);
    struct slot_note *note = &half->notes[slot_index];
    if (outcome.result != RESULT_NONE && note->is_queued) {
        if (dead_letter_inherit(half, slot_index, &outcome)) {
            return;
        }
        sender_mark_in_flight(half, slot_index);
        enum status status = sender_complete(half, slot_index, note->seq, &outcome, NULL);
        CHECK(status == STATUS_OK);
        (void)status;
    }
}

static void sender_scan_slots(struct sender_half *half)
{
    CHECK(half->queued_count == 0);
    CHECK(half->pass == 0);
    struct arena *arena = half->arena;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word); /* P2 */
        sender_update_note(half, i);
        if (slot_word_state(word) == SLOT_READY && half->notes[i].is_queued) {
            sequence_raise(arena, &arena->slots[i], half->notes[i].partition_index, word);
            result_repair(half, i);
        }
    }
}

enum status sender_role_take(struct arena *arena, const struct role_options *options, struct sender_half **result,
                             struct error *error)
{
    if (arena->owner == 0) {
        return error_set(error, STATUS_DETACHED, "%s", status_sentence(STATUS_DETACHED));
    }
    struct sender_half *half;
    RETURN_IF_FAILED(sender_half_new(arena, &half, error));
    enum status status = process_take_sender_role(arena, options->sink_name, error);
    if (status != STATUS_OK) {
        sender_half_free(half);
        return status;
    }
    POINT(sender_role_taken);
    half->owner = arena->owner;
    half->former_heartbeat_ns = load_relaxed_u64(&arena->globals->sender_heartbeat_ns);
    half->wants_dead_letters = options->wants_dead_letters;
    half->oldest_created_ns = UINT64_MAX;
    half->delivery_clock_ns = load_relaxed_u64(&arena->globals->delivery_clock_ns);
    delivery_clock_publish_outage(arena, 0, ""); /* a dead sender may have left one */
    completion_repair(arena);
    half->is_repair_due = !buffer_pool_repair(arena);
    stuck_partitions_begin(half);
    topic_limits_recount(half); /* before any slot is freed */
    sender_scan_slots(half);
    *result = half;
    return STATUS_OK;
}

/* ---- maintenance ---- */

/* Returns true once if an entry's process died without leaving cleanly. */
static bool entry_has_died(struct sender_half *half, uint32_t entry_index)
{
    CHECK(entry_index < half->arena->geometry.process_count);
    struct arena *arena = half->arena;
    const struct process_entry *entry = &arena->processes[entry_index];
    uint32_t generation = load_acquire_u32(&entry->generation); /* I2 */
    if (load_acquire_u32(&entry->role) == ROLE_NONE || /* V2 */
        half->noticed_generation[entry_index] == generation + 1 ||
        process_is_alive(arena, owner_of(entry_index, generation))) {
        return false;
    }
    half->noticed_generation[entry_index] = generation + 1;
    return true;
}

void sender_renew_heartbeat(struct sender_half *half)
{
    CHECK(half->arena->is_sender);
    store_relaxed_u64(&half->arena->globals->sender_heartbeat_ns, arena_now_ns(half->arena));
}

void sender_maintain(struct sender_half *half, struct wake_set *wakes)
{
    struct arena *arena = half->arena;
    uint32_t used = load_acquire_u32(&arena->globals->process_count_used); /* I4 */
    used = used < arena->geometry.process_count ? used : arena->geometry.process_count;
    for (uint32_t i = 0; i < used; i++) {
        half->is_repair_due |= entry_has_died(half, i);
    }
    if (half->is_repair_due && buffer_pool_help(arena, wakes)) {
        half->is_repair_due = false;
        topic_limits_recount(half);
    }
    sender_find_batches(half);
    sender_free_deferred(half, wakes);
    stuck_partitions_maintain(half);
    topic_limits_maintain(half, wakes);
    sender_renew_heartbeat(half);
}

/* ---- leaving it ---- */

static bool role_is_of_this_process(const struct sender_half *half)
{
    return half->arena->owner != 0 && half->owner == half->arena->owner;
}

void sender_role_drop(struct sender_half *half)
{
    struct arena *arena = half->arena;
    bool is_ours = role_is_of_this_process(half);
    sender_half_free(half);
    if (is_ours) {
        process_leave_sender_role(arena);
    }
}

void sender_role_leave(struct sender_half *half)
{
    if (role_is_of_this_process(half)) {
        process_sender_leaves_cleanly(half->arena);
    }
    sender_role_drop(half);
}
