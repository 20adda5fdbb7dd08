/* SPDX-License-Identifier: Apache-2.0 */
#include "sender/topic_limits.h"

#include "arena/parked_waiters.h"
#include "arena/registry.h"

/* ---- recount ---- */

void topic_limits_recount(struct sender_half *half)
{
    CHECK(half->arena->is_sender);
    half->limits.is_recount_due = false;
    half->limits.recounted_ns = arena_now_ns(half->arena);
    topic_share_recount(half->arena, half->limits.counts, half->limits.opened);
}

/* ---- parked waiters ---- */

static void parked_flags_take(struct arena *arena)
{
    CHECK(arena->is_sender);
    for (uint32_t i = 0; i < registry_topic_count(arena); i++) {
        if (load_relaxed_u32(&arena->topics[i].is_parked_for) != 0) {
            store_relaxed_u32(&arena->topics[i].is_parked_for, 0);
        }
    }
}

static void parked_check(struct sender_half *half, struct wake_set *wakes)
{
    CHECK(half->arena->is_sender);
    half->limits.freed_count = 0;
    if (wakes != NULL && load_relaxed_u32(&half->arena->globals->parked_count) != 0) { /* W2 */
        parked_waiters_post(half->arena, &half->limits.posted_end, wakes);
    }
}

void topic_limits_check(struct sender_half *half, struct wake_set *wakes)
{
    CHECK(half->arena->is_sender);
    if (half->limits.freed_count > half->arena->geometry.slot_count / FREE_MARGIN_SHARE) {
        parked_check(half, wakes);
    }
}

void topic_limits_maintain(struct sender_half *half, struct wake_set *wakes)
{
    CHECK(half->arena->is_sender);
    uint64_t now_ns = arena_now_ns(half->arena);
    parked_flags_take(half->arena);
    if (half->limits.is_recount_due || now_ns - half->limits.recounted_ns >= NS_PER_S) {
        topic_limits_recount(half);
    }
    parked_check(half, wakes);
}
