/* SPDX-License-Identifier: Apache-2.0
 *
 * The delivery clock measures the age of a record for delivery_timeout_ms. It runs only while delivery is possible.
 *
 *   boot clock       ----------------------------------------------------------------->
 *   delivery clock   0 ---- 40 s | no sender: stands | 40 s --- 70 s | no broker | 70 s --->
 *                         ^ a batch is opened: its stamp is 25 s
 *                                                          ^ it is 30 s old here: 55 s - 25 s
 *
 * RULES
 *   globals.delivery_clock_ns   sender only. Nanoseconds since the arena was created in which a sender had the role and
 *                               its sink worked. It never decreases.
 *   slot.delivery_stamp_ms      appender, while the slot is OWNED: the clock when the batch was opened, in milliseconds
 *                               modulo 2^32 (49 days).
 *   slot.created_ns             appender, while the slot is OWNED: the boot clock when the batch was opened.
 *
 * PROCEDURE
 *   A sender begins at the value that it finds. In each round it adds the time in which its sink has proved to work
 *   (shmaccum/sender/delivery_clock.py), and stores the sum. Time without a sender is never added.
 *   The age of a batch is the smaller of two: the time since created_ns, and the advance of the clock since the stamp.
 *   After a reboot, cold recovery gives every batch a new created_ns and a new stamp, so a new span begins.
 *
 * WHY IT IS SAFE
 *   A dead sender       leaves the value of its last round. The time after that is not counted, and makes no batch
 *                       older. Its successor continues from that value, and so do the spans.
 *   A late sender       cannot make a batch too old: the boot clock bounds its age from above.
 *   Hostile bytes       A corrupt word or stamp gives some number of milliseconds, which the boot clock bounds. A
 *                       created_ns in the future is invalid, and then only the clock counts. A living sender overwrites
 *                       the sum in the next round.
 *   Precision           Both ends are truncated to milliseconds: after an outage a batch may be 1 ms too old.
 *
 * OUTAGE. The sender publishes since when and why its sink does not work, so that monitoring shows why the clock stands
 * still. `outage_number` is odd while the text changes. A reader takes the text between two equal even numbers. If a
 * sender dies in between, the number stays odd, and no outage is shown while there is no sender. The next sender stores
 * the next even number, without an outage.
 */
#ifndef ARENA_DELIVERY_CLOCK_H
#define ARENA_DELIVERY_CLOCK_H

#include "arena/arena.h"

/* The largest lead of created_ns over the clock of a reader, which may have been read before the batch was opened. */
#define CREATED_AHEAD_NS_MAX NS_PER_S

static inline uint32_t delivery_stamp_of(uint64_t delivery_clock_ns)
{
    return (uint32_t)(delivery_clock_ns / NS_PER_MS);
}

static inline uint32_t delivery_stamp_now(const struct arena *arena)
{
    return delivery_stamp_of(load_relaxed_u64(&arena->globals->delivery_clock_ns));
}

/* Returns the nanoseconds since a batch was created, or UINT64_MAX for a time that the boot clock has not reached. */
static inline uint64_t time_since_created_ns(uint64_t created_ns, uint64_t now_ns)
{
    if (created_ns <= now_ns) {
        return now_ns - created_ns;
    }
    return created_ns - now_ns <= CREATED_AHEAD_NS_MAX ? 0 : UINT64_MAX;
}

/* Returns the age of a batch on the delivery clock. Requires the slot of a batch that was opened. */
static inline uint64_t delivery_age_ns(const struct slot_header *slot, uint64_t now_ns, uint64_t delivery_clock_ns)
{
    uint64_t boot_ns = time_since_created_ns(slot->created_ns, now_ns);
    uint64_t run_ns = NS_PER_MS * (uint64_t)(uint32_t)(delivery_stamp_of(delivery_clock_ns) - slot->delivery_stamp_ms);
    return boot_ns < run_ns ? boot_ns : run_ns;
}

/* Publishes the sender's timeout, and ends the outage of a dead sender. Requires the sender role. */
void delivery_clock_announce(struct arena *arena, uint64_t delivery_timeout_ns, bool counts_always);

/* Publishes why the sink does not work, and since when. If since_ns is 0, the sink works. Requires the sender role. A
 * longer text is truncated. */
void delivery_clock_publish_outage(struct arena *arena, uint64_t since_ns, const char *text);

/* Returns when the outage began that the living sender has published, and copies its text. Returns 0 if the sink works,
 * no sender lives, or the text changes too often. */
uint64_t delivery_clock_outage(const struct arena *arena, char text[OUTAGE_SIZE]);

/* Restarts the age of a batch at 0. Only for cold recovery: no other process may write to the slot. */
void delivery_span_begin(struct arena *arena, uint32_t slot_index);

#endif
