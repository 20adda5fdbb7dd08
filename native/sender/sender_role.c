/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's half: taking the role, clearing up after the dead while it is held, leaving it.
 *
 * Whoever takes the role knows nothing of what the last sender knew: it looks at every slot once. What that one had
 * sent and not completed is READY and is sent again, with the sequence it had; what it had decided (expired, aborted,
 * refused) is in the slot's `result` and is only carried out. Killed anywhere here: the kernel frees the role, and the
 * next one begins at the beginning.
 */
#include "arena/delivery_clock.h"
#include "arena/process.h"
#include "arena/producer_id.h"
#include "base/point.h"
#include "producer/accumulator.h"
#include "sender/dead_letter.h"
#include "sender/result.h"
#include "sender/sender_half.h"

/* ---- taking it ---- */

/* What a dead sender had decided but not finished: a batch that expired, was aborted or refused is not sent again. */
static void result_repair(struct accumulator *accumulator, uint32_t slot_index)
{
    const struct batch_outcome outcome = decision_of(&accumulator->arena->slots[slot_index]);
    struct slot_note *note = &accumulator->sender->notes[slot_index];
    if (outcome.result != RESULT_NONE && note->is_queued) {
        if (dead_letter_inherit(accumulator, slot_index, &outcome)) {
            return;
        }
        sender_launch(accumulator, slot_index);
        enum status status = accumulator_complete(accumulator, slot_index, note->seq, &outcome, NULL);
        CHECK(status == STATUS_OK);
        (void)status;
    }
}

static void sender_look_at_everything(struct accumulator *accumulator)
{
    struct arena *arena = accumulator->arena;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        uint64_t word = load_acquire_u64(&arena->slots[i].word);
        sender_note_slot(accumulator, i);
        if (slot_word_state(word) == SLOT_READY && accumulator->sender->notes[i].is_queued) {
            sequence_raise(arena, &arena->slots[i], accumulator->sender->notes[i].partition_index, word);
            result_repair(accumulator, i);
        }
    }
}

enum status accumulator_become_sender(struct accumulator *accumulator, struct error *error)
{
    struct arena *arena = accumulator->arena;
    if (arena->owner == 0) {
        return error_set(error, STATUS_DETACHED, "%s", status_sentence(STATUS_DETACHED));
    }
    struct sender_half *half;
    RETURN_IF_FAILED(sender_half_new(arena, &half, error));
    enum status status = process_take_sender_role(arena, accumulator->sink_name, error);
    if (status != STATUS_OK) {
        sender_half_free(half);
        return status;
    }
    POINT(sender_role_taken);
    accumulator->owner = arena->owner;
    accumulator->sender = half;
    half->oldest_created_ns = UINT64_MAX;
    half->delivery_clock_ns = load_relaxed_u64(&arena->globals->delivery_clock_ns);
    delivery_clock_publish_outage(arena, 0, ""); /* a dead sender has left its own */
    completion_repair(arena);
    buffer_pool_repair(arena);
    sender_look_at_everything(accumulator);
    return STATUS_OK;
}

/* ---- keeping house ---- */

/* True when an entry's process died without leaving in order, and nobody has repaired after it yet. */
static bool entry_needs_repair(struct accumulator *accumulator, uint32_t entry_index)
{
    struct arena *arena = accumulator->arena;
    const struct process_entry *entry = &arena->processes[entry_index];
    uint32_t generation = load_acquire_u32(&entry->generation);
    if (load_acquire_u32(&entry->role) == ROLE_NONE ||
        accumulator->sender->repaired_generation[entry_index] == generation + 1 ||
        process_is_alive(arena, owner_of(entry_index, generation))) {
        return false;
    }
    accumulator->sender->repaired_generation[entry_index] = generation + 1;
    return true;
}

void accumulator_show_life(struct accumulator *accumulator)
{
    store_relaxed_u64(&accumulator->arena->globals->sender_heartbeat_ns, arena_now_ns(accumulator->arena));
}

void accumulator_maintain(struct accumulator *accumulator, struct wake_set *wakes)
{
    struct arena *arena = accumulator->arena;
    uint32_t used = load_acquire_u32(&arena->globals->process_count_used);
    used = used < arena->geometry.process_count ? used : arena->geometry.process_count;
    bool somebody_died = false;
    for (uint32_t i = 0; i < used; i++) {
        somebody_died |= entry_needs_repair(accumulator, i);
    }
    if (somebody_died) {
        buffer_pool_help(arena, wakes);
    }
    sender_collect_news(accumulator);
    sender_free_deferred(accumulator, wakes);
    accumulator_show_life(accumulator);
}

/* ---- leaving it ---- */

static bool sender_is_this_process(const struct accumulator *accumulator)
{
    return accumulator->arena->owner != 0 && accumulator->owner == accumulator->arena->owner;
}

void accumulator_drop_sender(struct accumulator *accumulator)
{
    if (accumulator->sender == NULL) {
        return;
    }
    sender_half_free(accumulator->sender);
    accumulator->sender = NULL;
    if (sender_is_this_process(accumulator)) {
        process_leave_sender_role(accumulator->arena);
    }
}

void accumulator_resign_sender(struct accumulator *accumulator)
{
    if (accumulator->sender != NULL && sender_is_this_process(accumulator)) {
        process_sender_leaves_in_order(accumulator->arena);
    }
    accumulator_drop_sender(accumulator);
}
