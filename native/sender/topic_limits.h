/* SPDX-License-Identifier: Apache-2.0
 *
 * The sender's part in the limits of topics (topic_share.h): it counts the slots of topics, and posts parked waiters.
 *
 *   slots freed        parked waiters are checked once 1/64 of the slots was freed, and at each maintenance
 *   each maintenance   the flags of topics with parked waiters are cleared (a waiter sets them at each check)
 *                      the recount, once per second and after a change of a stuck word
 *   at takeover, after a repaired death: the recount
 *
 * DEATHS. The words are hints until the recount of the next sender. Parked waiters also check without a sender, one
 * after another (parked_waiters.h).
 */
#ifndef SENDER_TOPIC_LIMITS_H
#define SENDER_TOPIC_LIMITS_H

#include "sender/sender_half.h"

void topic_limits_recount(struct sender_half *half);

/* Called after batches were freed. */
void topic_limits_check(struct sender_half *half, struct wake_set *wakes);

void topic_limits_maintain(struct sender_half *half, struct wake_set *wakes);

#endif
