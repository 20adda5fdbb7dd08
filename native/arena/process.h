/* SPDX-License-Identifier: Apache-2.0
 *
 * Process entries: the attached processes, and which of them are alive.
 *
 *   entry i is alive  <=>  the kernel holds the byte lock PROCESS_LOCK_START + i  and  generation is the owner's
 *
 * The byte lock belongs to an open file description (OFD lock). The kernel releases it when the last descriptor of its
 * process is gone: after exit_mm(), that is, after the last store of any of its threads. It works across pid namespaces
 * and needs no heartbeat, and a zombie does not count as alive. The lock is the allocation of the entry, so there is
 * nothing to undo.
 *
 * register    try the byte locks from 0 up and take the first that is granted. Raise the generation: from here on every
 *             word that names (i, old generation) names a dead process. Clear the old hazard. If the previous owner did
 *             not leave cleanly, the caller repairs what it left (attach.c).
 * death       the kernel releases the byte, and the next process that takes it registers as above. If the dead process
 *             had already raised the generation, the generation that it raised names a dead process, too.
 * stop        a process that is stopped between taking the byte and raising the generation makes the previous owner
 *             appear alive until it is continued. This only delays the repair of what the previous owner left.
 */
#ifndef ARENA_PROCESS_H
#define ARENA_PROCESS_H

#include "arena/arena.h"

/* Sets arena->owner, entry_index and me. If the entry was not left cleanly, the caller repairs what its previous owner
 * left. Returns STATUS_NO_ENTRY if all entries are taken. */
enum status process_register(struct arena *arena, enum process_role role, bool *was_left_cleanly,
                             struct error *error) MUST_USE;

/* Marks the entry clean. The byte lock is released with the descriptor. */
void process_unregister(struct arena *arena);

/* The same, but others repair what this process leaves, as after a death. */
void process_leave_for_repair(struct arena *arena);

/* Costs a system call (0.5 us). An owner with an impossible index or generation is dead. */
bool process_is_alive(const struct arena *arena, uint32_t owner);

/* Stores in this process's entry whether it waits for the sender role. A supervisor lets a standby take a free role
 * first, for a while. Correctness does not depend on it. */
void process_stand_by(struct arena *arena, bool is_standby);

#define SENDER_SILENCE_NS (3 * NS_PER_S) /* an idle sender renews its heartbeat once a second */

/* Tries to take the sender role of the arena. Returns STATUS_BUSY while another process has it. The kernel releases it
 * when the process dies. `sink_name` is the place where it will deliver. It may be empty, and it is truncated if it is
 * too long for the arena. */
enum status process_take_sender_role(struct arena *arena, const char *sink_name, struct error *error) MUST_USE;
void process_leave_sender_role(struct arena *arena);

/* Call before the sender leaves cleanly. Then no supervisor starts another sender in its place. */
void process_sender_leaves_cleanly(struct arena *arena);

/* Returns true if the last sender died or gave up the role because of an error, and also while a sender lives. */
bool process_sender_died(const struct arena *arena);

/* Returns true if the last heartbeat is old. Then an opener of a batch checks whether a sender lives. */
bool process_sender_is_silent(const struct arena *arena);

/* Returns true while any process has the role. If this process has the role, reads is_sender, because the kernel does
 * not report a lock to its own process. */
bool process_sender_is_alive(const struct arena *arena);

/* Copies the name of the living sender's sink; the last byte is always NUL. Returns false if no process has the role,
 * or if its holder has not published the name yet: call again later. */
bool process_sink_name(const struct arena *arena, char sink_name[SINK_NAME_SIZE]) MUST_USE;

/* Returns true if a living process may still write to the slot (its hazard).
 *
 *   H1  appender: writing = slot, then full barrier (its lock CAS), then load of the slot word      (producer_batch.c)
 *   H2  sender:   slot word = DONE, then full barrier, then load of every `writing`                 (here)
 *   Either the appender sees DONE and does not write, or the sender sees the hazard and does not free the slot. */
bool process_anyone_writes(const struct arena *arena, uint32_t slot_index);

/* Sets `sender_sleep`, for the sender. D2: after the store and a full barrier, it scans the ready hints once more, then
 * sleeps (D1 in appender.c). */
void process_set_sender_sleep(struct arena *arena, uint32_t value);

/* Returns a readable name of an entry's role. The role is untrusted. */
const char *process_role_name(uint32_t role);

#endif
