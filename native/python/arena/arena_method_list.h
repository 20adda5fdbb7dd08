/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of Arena, by file (python/common/methods.h).
 */
#define TYPE arena
#define SELF struct arena_object
#define STATE(self) ((self)->state)
#define ENTER(object) ALONE_BEGIN(object)
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

/* ---- arena_type.c ---- */

RESULT(any, attach, arena_object_attach(self) ? Py_NewRef(Py_None) : NULL,
       "Attach again in a forked child; otherwise do nothing.")
NO_ARGUMENTS(any, close, "Detach from the arena. Raise ArenaInUseError while an object or a buffer of it is in use.")
VALUE(arena_open, arena_epoch,
      PyLong_FromUnsignedLongLong(load_acquire_u64(&self->core->globals->arena_epoch)) /* V2 */,
      "The number of recoveries of the arena.")
VALUE(any, closed, PyBool_FromLong(self->core == NULL), "True after close().")
VALUE(arena_open, completion_tail,
      PyLong_FromUnsignedLongLong(load_acquire_u64(&self->core->globals->completion_tail)) /* C7 */,
      "The number of results ever recorded.")
VALUE(arena_open, created_ms, PyLong_FromLongLong(self->core->superblock->created_ms),
      "The time of the arena's creation, on the wall clock.")
VALUE(arena_own, entry_index,
      self->core->owner == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(self->core->entry_index),
      "The index of this process's entry. None if it is not attached.")
VALUE(arena_own, has_manual_clock, PyBool_FromLong(self->core->clock.is_manual),
      "True if the clock shows the time that it was set to.")
VALUE(any, is_attached, PyBool_FromLong(self->core != NULL && self->core->owner != 0),
      "False if it is closed, read-only, or not used since a fork.")
VALUE(arena_open, is_clean, PyBool_FromLong(load_acquire_u32(&self->core->globals->is_clean) != 0) /* V2 */,
      "True if the last process detached cleanly.")
VALUE(any, is_lost, PyBool_FromLong(self->core != NULL && arena_is_lost(self->core)),
      "True if the memory is lost to this process (arena/lost_memory.h). Every other call raises.")
VALUE(arena_own, is_read_only, PyBool_FromLong(self->core->is_read_only),
      "True if the arena is mapped without write permission.")
PROPERTY(arena_own, opened_semaphores, "The waiter entries whose semaphores this handle has opened.")
PROPERTY(arena_open, options, "The creator's options, as msgpack.")
VALUE(arena_open, oversized_bytes, PyLong_FromUnsignedLongLong(load_relaxed_u64(&self->core->globals->oversized_bytes)),
      "Bytes of the buffers of oversized records.")
VALUE(arena_own, owner, PyLong_FromUnsignedLong(self->core->owner),
      "The number that names this process in the arena's words. 0 if it is not attached.")
PROPERTY(arena_open, poisoned, "The name of the status that poisoned the arena, or None.")
PROPERTY(arena_locks, pool_lock_keeper,
         "The entry of the process that keeps the pool lock, if this process was refused the lock. Otherwise None.")
PROPERTY(arena_open, producer_identity, "(producer id, epoch, identity of the sink that assigned them). -1 for no id.")
VALUE(arena_open, registered_topic_count, PyLong_FromUnsignedLong(registry_topic_count(self->core)),
      "The number of topics of the arena.")
VALUE(arena_locks, sender_died,
      PyBool_FromLong(!process_sender_is_alive(self->core) && process_sender_died(self->core)),
      "True if the last sender did not exit cleanly.")
VALUE(arena_locks, sender_is_alive, PyBool_FromLong(process_sender_is_alive(self->core)),
      "True while a process holds the sender role.")
VALUE(arena_open, sequences_are_in_doubt, PyBool_FromLong(sequences_are_in_doubt(self->core)),
      "True after a crash of the host, until the arena has another producer id or epoch.")
VALUE(arena_own, size, PyLong_FromUnsignedLongLong(self->core->size), "Bytes of the whole arena.")
VALUE(arena_own, uuid, PyBytes_FromStringAndSize((const char *)self->core->uuid, sizeof self->core->uuid),
      "16 random bytes, chosen at creation.")
VALUE(arena_own, was_recovered, PyBool_FromLong(self->core->was_recovered), "True if this attach ran a cold recovery.")
METHOD(arena_open, available_partitions, OBJECT(topic), "The available partitions of a topic, in ascending order.")
RESULT_OF(arena_attached, count_wait, INTEGER(waited_ns, 0, INT64_MAX) FLAG(is_exhausted),
          NONE_AFTER((counter_add(self->core, COUNTER_WAIT_NS, (uint64_t)given->waited_ns),
                      counter_add(self->core, COUNTER_EXHAUSTED, given->is_exhausted))),
          "Count one wait for buffers.")
RESULT(arena_own, now_ns, PyLong_FromUnsignedLongLong(arena_now_ns(self->core)), "The arena's clock.")
METHOD(arena_attached, record_error, OBJECT(text) INTEGER_OR(note, 0, 0, ERROR_NOTE_MAX),
       "Add a text to the arena's error log, with a note of 24 bits for its kind. A note of 0 is a plain sentence.")
METHOD(arena_open, region, OBJECT(name), "A read-only memoryview of a region of the arena.")
METHOD(arena_open, set_manual_clock, INTEGER_OR(now_ns, -1, 0, INT64_MAX),
       "Set the time of this handle, for tests. If now_ns is None, use the kernel's clock.")
RESULT_OF(arena_attached, set_sender_asleep, FLAG(is_asleep),
          NONE_AFTER(process_set_sender_sleep(self->core, given->is_asleep ? SENDER_ASLEEP : SENDER_AWAKE)),
          "Set whether producers write to the sender's wake FIFO.")
/* A process that waits for a buffer or a flush also wakes the sender. */
RESULT_OF(arena_attached, set_sender_short_wait, INTEGER(short_wait_us, 0, 1000000),
          NONE_AFTER(process_set_sender_sleep(self->core, SENDER_SHORT_WAIT + (uint32_t)given->short_wait_us)),
          "Let a producer wake the sender only if it waits for the sender or has a batch due within short_wait_us "
          "microseconds.")
METHOD(arena_attached, set_topic_partition_count, OBJECT(topic) INTEGER(partition_count, 0, INT32_MAX),
       "Set the number of partitions that the sink reports for a topic.")
/* Sets process_entry.fallback, which is only for display. */
RESULT(arena_attached, show_fallback, NONE_AFTER(store_relaxed_u32(&self->core->me->fallback, 1)),
       "Show that the records of this process use the fallback, until it attaches.")
RESULT_OF(arena_attached, stand_by, FLAG(is_standby), NONE_AFTER(process_stand_by(self->core, given->is_standby)),
          "Show whether this process waits for the sender role.")
/* The process that clears the flag wakes the sender. */
RESULT(arena_attached, take_sleep_flag,
       PyBool_FromLong(exchange_u32(&self->core->globals->sender_sleep, SENDER_AWAKE)) /* D3 */,
       "Clear the sender's sleep flag. Return True if it was set: the caller has to wake the sender.")
RESULT(arena_attached, take_listening, PyBool_FromLong(completion_take_listening(self->core)),
       "Return True if event loops wait for results and have to be woken.")
NO_ARGUMENTS(arena_attached, take_wanted_topics,
             "The names of the topics for which producers have requested more partitions since the last call.")
METHOD(arena_open, topic_partition_count, OBJECT(topic),
       "The number of partitions of a topic, as the sink reported it. 0 if unknown.")
METHOD(arena_attached, want_partitions, OBJECT(topic) INTEGER(partition_count, 1, INT32_MAX),
       "Request that the sender checks whether a topic has this many partitions.")

/* ---- arena_census.c ---- */

NO_ARGUMENTS(arena_open, census,
             "A dict of counts from one scan of the slots: states, queues, damaged batches, holders, waiters.")

/* ---- arena_closing.c ---- */

PROPERTY(arena_open, closing,
         "Whether the arena was removed: 'not', 'begun' (it takes no more records), 'done' (its sender has left).")
PROPERTY(arena_own, file_id, "Device and inode of the arena's file.")
VALUE(arena_own, has_lost_its_name, PyBool_FromLong(arena_lost_its_name(self->core)),
      "True if the arena's file has no name any more.")
PROPERTY(arena_own, permissions, "The current (user, group, mode) of the arena's file.")
VALUE(arena_open, presence, PyLong_FromUnsignedLongLong(load_relaxed_u64(&self->core->globals->presence)),
      "The number in the name of the sender's socket. 0 if there is none.")
RESULT(arena_attached, begin_closing, NONE_AFTER(closing_begin(self->core)),
       "Close the arena to further records, and seal open batches.")
NO_ARGUMENTS(arena_attached, end_closing, "Record that the sender exits after it has delivered everything that it can.")
NO_ARGUMENTS(arena_attached, check_name, "Begin to close the arena if it lost its name. Return `closing`.")
RESULT_OF(arena_attached, set_presence, WORD(number),
          NONE_AFTER(store_relaxed_u64(&self->core->globals->presence, given->number)),
          "Publish the number in the name of the sender's socket.")

/* ---- arena_completion.c ---- */

METHOD(arena_open, completions, INTEGER(first, 0, INT64_MAX) INTEGER(last, 0, INT64_MAX),
       "A list of (number, partition_index, seq, result, ...) of the results [first, last) that are not overwritten.")
NO_ARGUMENTS(arena_attached, expect_completion,
             "Request that the next result wakes event loops. Return completion_tail.")
METHOD(arena_open, find, OBJECT(token), "The result of a token's record, or None while it is pending.")
METHOD(arena_open, is_under_way, OBJECT(token),
       "True while a sender has drained a token's record and its result is pending.")
METHOD(arena_attached, wait_completion, INTEGER(tail, 0, INT64_MAX) INTEGER(timeout_ns, 0, INT64_MAX),
       "Wait until completion_tail differs from tail, and return it.")
METHOD(arena_attached, wait_transaction, WORD(word) INTEGER(timeout_ns, 0, INT64_MAX),
       "Wait until transaction_word differs from word, and return it.")

/* ---- arena_durability.c ---- */

METHOD(arena_attached, force_if_due, INTEGER(interval_ns, 0, INT64_MAX),
       "Force the arena to disk if interval_ns have passed since the last force.")
METHOD(arena_attached, sync, INTEGER(timeout_ns, 0, INT64_MAX),
       "Wait until the records of this process are on disk. Return False if timeout_ns passed first.")

/* ---- arena_report.c ---- */

PROPERTY(arena_open, features, "The creator's build, the arena's features, its extension regions.")
PROPERTY(arena_own, geometry, "The numbers that the creator chose.")
PROPERTY(arena_own, layout, "The start of each region, in bytes.")
NO_ARGUMENTS(arena_open, counters, "A dict of the named counters.")
NO_ARGUMENTS(arena_locks, delivery_clock,
             "The delivery clock, the delivery timeout, and the start and reason of an outage.")
NO_ARGUMENTS(arena_open, errors, "The distinct errors that the arena recorded.")
METHOD(arena_open, partition_limit, INTEGER(partition_index, 0, UINT32_MAX) INTEGER(need, 1, SLOT_COUNT_MAX),
       "The limit because of which a partition cannot open a batch of `need` slots now.")
NO_ARGUMENTS(arena_open, partitions, "(topic, partition) of each partition index.")
NO_ARGUMENTS(arena_locks, processes, "The process entries that were ever used.")
NO_ARGUMENTS(arena_open, recovery_plan, "The report of a cold recovery, without changing anything.")
NO_ARGUMENTS(arena_locks, sender, "The last holder of the sender role, alive or not, and the data that it published.")
NO_ARGUMENTS(arena_open, spilled, "The totals of the overflow, when it began, and its partitions.")
NO_ARGUMENTS(arena_open, state_counts, "A dict of the number of slots in each state.")
NO_ARGUMENTS(arena_locks, stuck_partitions,
             "(partition index, reason, error code, start in ms, free slots it needs) of each stuck partition.")
NO_ARGUMENTS(arena_open, topics, "The names of the topics, by topic index.")
METHOD(arena_open, verify, INTEGER(depth, VERIFY_QUICK, VERIFY_DEEP) FLAG_OR_FALSE(is_idle),
       "Check the invariants. Return a list of (slot index or None, finding).")

/* ---- arena_transaction.c ---- */

PROPERTY(arena_open, transaction, "(number of the newest transaction, its state, why it was aborted).")
VALUE(arena_open, transaction_begun_ns,
      PyLong_FromUnsignedLongLong(load_relaxed_u64(&self->core->globals->transaction_begun_ns)),
      "The time of the arena's clock when the newest transaction began. 0 if there was none.")
VALUE(arena_open, transaction_recovery_state,
      PyLong_FromUnsignedLongLong(load_relaxed_u64(&self->core->globals->transaction_recovery_state)),
      "The progress of the transaction in the sink, as stored by the last sender. 0 if there is none.")
VALUE(arena_open, transaction_why, PyLong_FromUnsignedLong(transaction_word_why(transaction_read(self->core))),
      "Why the newest transaction was aborted, as a number. 0 if it was not.")
VALUE(arena_open, transaction_word, PyLong_FromUnsignedLongLong(transaction_read(self->core)),
      "A number that changes when the transaction changes.")
RESULT_OF(arena_attached, abort_transaction, INTEGER(number, 1, TRANSACTION_NUMBER_MAX),
          none_or_raise(self->state, transaction_abort(self->core, (uint64_t)given->number, TRANSACTION_WHY_ASKED)),
          "Abort the transaction with this number.")
NO_ARGUMENTS(arena_attached, begin_transaction,
             "Begin a transaction and return its number. If the last one has not ended, return None: call again.")
RESULT_OF(arena_attached, commit_transaction, INTEGER(number, 1, TRANSACTION_NUMBER_MAX),
          none_or_raise(self->state, transaction_commit(self->core, (uint64_t)given->number)),
          "End the transaction with this number to further records. The sender delivers and commits it.")
METHOD(arena_attached, count_transaction_time, INTEGER(step, 0, TRANSACTION_STEP_COUNT - 1)
       INTEGER(time_ns, 0, INT64_MAX), "Add the time of one step of a transaction to its counter.")
RESULT(arena_attached, leave_transaction, NONE_AFTER(transaction_leave(self->core)),
       "Record that this process has read the outcome of its transaction, so that another one may begin.")
RESULT(arena_attached, unfence_transactions, PyBool_FromLong(transaction_unfence(self->core) == STATUS_OK),
       "Let the sender take back the transactional id of a fenced arena. Return False during a transaction.")

#include "python/common/methods_end.h"
