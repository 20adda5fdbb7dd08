/* SPDX-License-Identifier: Apache-2.0
 *
 * Process entries: the attached processes, and which of them are alive.
 *
 *   entry i is alive  <=>  the kernel holds the byte lock PROCESS_LOCK_START + i  and  generation is the owner's
 *
 * The byte lock belongs to an open file description (OFD lock), so the kernel frees it when the last descriptor of its
 * process is gone: after exit_mm(), that is, after the last store of any of its threads. It works across pid
 * namespaces, knows no zombies, and needs no heartbeat. The lock *is* the allocation of the entry: nothing else has
 * to be undone.
 *
 * register    try the byte locks from 0 up; the first that is granted is ours. Raise the generation: from here on every
 *             word that names (i, old generation) names somebody proven dead. Clear the old hazard. If the last holder
 *             did not leave in order, the caller repairs what it left (attach.c).
 * a process dies before the generation is raised: the kernel frees the byte, the next one starts over.
 *             after it: the same, the entry just looks like one more dead owner.
 * stopped     a process stopped between taking the byte and raising the generation makes the dead holder before it look
 *             alive until it goes on. Only repair of what that dead one left is delayed, nothing is damaged.
 */
#ifndef ARENA_PROCESS_H
#define ARENA_PROCESS_H

#include "arena/arena.h"

/* Fills arena->owner, entry_index and me. When the entry was not left in order, the caller repairs what its last holder
 * left. STATUS_NO_ENTRY when all entries are taken. */
enum status process_register(struct arena *arena, enum process_role role, bool *was_left_in_order,
                             struct error *error) MUST_USE;

/* Marks the entry clean. The byte lock goes with the descriptor. */
void process_unregister(struct arena *arena);

/* Costs a system call (0.5 us). An owner that cannot exist (index or generation) is dead. */
bool process_is_alive(const struct arena *arena, uint32_t owner);

/* Shows in the entry of this process whether it waits for the sender's role. A keeper leaves a free role to a standby
 * for a while; nothing rests on it. */
void process_stand_by(struct arena *arena, bool is_standby);

#define SENDER_SILENCE_NS (3 * NS_PER_S) /* an idle sender shows life once a second */

/* Tries to take the sender role of the arena: STATUS_BUSY while another process holds it. Freed by process death.
 * `sink_name`: the place where it will deliver. An empty name says nothing, and a name that is too long for the arena
 * is cut. */
enum status process_take_sender_role(struct arena *arena, const char *sink_name, struct error *error) MUST_USE;
void process_leave_sender_role(struct arena *arena);

/* Says that the sender leaves in order, before it does: nobody starts another one in its place. */
void process_sender_leaves_in_order(struct arena *arena);

/* True when the last sender died, or gave up the role for an error. While a sender lives, the answer is true, too. */
bool process_sender_died(const struct arena *arena);

/* True when the last sign of life of a sender is old: there may be no sender, and an opener of a batch looks. */
bool process_sender_is_silent(const struct arena *arena);

/* True while anybody holds the role, also through this handle: the kernel does not count a lock of our own, so that is
 * remembered. */
bool process_sender_is_alive(const struct arena *arena);

/* Where the living sender delivers, as it said itself; the last byte is always NUL. False while nobody has the role, or
 * somebody has it who has not said it yet: look again then. */
bool process_sink_name(const struct arena *arena, char sink_name[SINK_NAME_SIZE]) MUST_USE;

/* Which slots living processes may still be writing into (their hazards), collected in one pass.
 *
 *   H1  appender: writing = slot, then full barrier (its lock CAS), then load of the slot word      (producer_batch.c)
 *   H2  sender:   slot word = DONE, then full barrier, then load of every `writing`                 (here)
 *   Either the appender sees DONE and keeps its hands off, or the sender sees the hazard and keeps the slot.
 */
bool process_anyone_writes(const struct arena *arena, uint32_t slot_index);

#endif
