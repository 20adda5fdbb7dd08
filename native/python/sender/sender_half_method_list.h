/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of SenderHalf, by file (python/common/methods.h). If now_ns is None, a method uses the
 * arena's clock.
 */
#define TYPE half
#define SELF struct sender_half_object
#define STATE(self) ((self)->state)
#define ENTER(object) ALONE_BEGIN(arena_of_half(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

/* ---- sender_half_type.c: the role ---- */

VALUE(any, closed, PyBool_FromLong(self->is_closed), "True after close().")
VALUE(any, is_sender, PyBool_FromLong(half_has_role(self)), "True while this object holds the sender role.")
NO_ARGUMENTS(any, become_sender, "Take the sender role, or raise ArenaBusyError.")
NO_ARGUMENTS(any, close, "Give up the sender role as if this process died. Use resign() to leave it cleanly.")
NO_ARGUMENTS(any, resign, "Leave the sender role cleanly. The next sender resends the batches in flight.")

/* ---- sender_half_rounds.c: the rounds of a sender ---- */

PROPERTY(half_call, oldest_created_ns,
         "When the oldest batch without a result was opened, at the last next_expiry_ns() or expire(), or None.")
METHOD(half_call, abort, FLAG_OR_FALSE(is_in_flight_included), "Fail every batch, and return their number.")
METHOD(half_call, complete, OBJECT(batch) INTEGER(result, RESULT_SUCCEEDED, RESULT_COUNT - 1)
       INTEGER_OR(base_offset, -1, -1, INT64_MAX) INTEGER_OR(log_append_time_ms, -1, -1, INT64_MAX)
       INTEGER_OR(error_code, 0, INT32_MIN, INT32_MAX), "Record the result of a drained batch.")
METHOD(half_call, complete_many, OBJECT(batches) OBJECT(record_counts) OBJECT(base_offsets)
       OBJECT(log_append_times_ms),
       "Complete batches that succeeded. Return the places of batches that are not completed and need complete().")
METHOD(half_call, complete_part, OBJECT(batch) INTEGER(record_count, 1, BATCH_RECORD_COUNT_MAX)
       INTEGER(result, RESULT_SUCCEEDED, RESULT_COUNT - 1) INTEGER_OR(base_offset, -1, -1, INT64_MAX)
       INTEGER_OR(log_append_time_ms, -1, -1, INT64_MAX) INTEGER_OR(error_code, 0, INT32_MIN, INT32_MAX),
       "Record the result of the next records of a batch that was split.")
NO_ARGUMENTS(half_call, dead_letters,
             "A list of (Batch, result, error code) of failed batches that are not yet written as dead letters.")
METHOD(half_call, decide, OBJECT(batch) INTEGER(result, RESULT_SUCCEEDED, RESULT_COUNT - 1)
       INTEGER_OR(error_code, 0, INT32_MIN, INT32_MAX),
       "Record the result of a batch before it is completed. From then on, no sender sends it.")
METHOD(half_call, drain, OBJECT(partitions) INTEGER(size_max, 1, UINT32_MAX) INTEGER_OR(in_flight_max, 5, 1, UINT32_MAX)
       INTEGER_OR(now_ns, NOW, 0, INT64_MAX),
       "Drain a batch for each given partition, repeated ones included. Return (batches, partitions visited).")
METHOD(half_call, expire, INTEGER(delivery_timeout_ns, 0, INT64_MAX) INTEGER_OR(now_ns, NOW, 0, INT64_MAX),
       "Fail batches that are too old. Return (their number, nanoseconds until the next one is too old, or None).")
RESULT(half_call, maintain, NONE_AFTER(sender_maintain(self->core, &self->wakes)), "Repair what dead processes left.")
METHOD(half_call, next_expiry_ns, INTEGER(delivery_timeout_ns, 0, INT64_MAX) INTEGER_OR(now_ns, NOW, 0, INT64_MAX),
       "The nanoseconds until the next batch is too old: 0 if expire() would fail one, None if there is no batch.")
METHOD(half_call, quarantine, OBJECT(batch), "Quarantine a batch whose bytes are damaged.")
METHOD(half_call, ready, INTEGER(linger_ns, 0, INT64_MAX) FLAG_OR_FALSE(is_everything_ready)
       INTEGER_OR(now_ns, NOW, 0, INT64_MAX) INTEGER_OR(in_flight_max, 0, 1, UINT32_MAX) FLAG_OR_FALSE(takes_along),
       "Return (partitions that may be drained now, nanoseconds until the next one is ready, or None).")
METHOD(half_call, requeue, OBJECT(batch) INTEGER_OR(retry_at_ns, 0, 0, INT64_MAX), "Requeue a batch.")
RESULT(half_call, show_life, NONE_AFTER(sender_renew_heartbeat(self->core)),
       "Renew the sender's heartbeat, as each drain does.")
METHOD(half_call, spill, OBJECT(batch), "Free a drained batch that is in the overflow. Its result is recorded later.")
METHOD(half_call, spill_in_flight, OBJECT(batch), "Mark an in-flight batch as spilled. Its result frees it.")
NO_ARGUMENTS(half_call, statistics, "The sender's counters.")
NO_ARGUMENTS(half_call, take_expired,
             "A dict of the number of records that expired since the last call, by partition index.")

/* ---- sender_half_append.c, sender_half_batch_loop.c, sender_half_pump.c: ordinary rounds ---- */

METHOD(half_call, append_to_log, OBJECT(log_ends) OBJECT(partitions) INTEGER(size_max, 1, UINT32_MAX)
       INTEGER(in_flight_max, 1, UINT32_MAX) INTEGER(now_ns, 0, INT64_MAX) INTEGER(largest_record, 0, UINT32_MAX)
       OBJECT_OR_NONE(spills),
       "Drain, and append ordinary batches to their logs. Return (batches that were not appended, number of partitions "
       "visited, totals of the appended batches or None).")
NO_ARGUMENTS(any, interrupt, "Make a running pump() return soon. Any thread may call it.")
METHOD(half_call, pump, OBJECT(plan) OBJECT(found) INTEGER(due_ns, 0, INT64_MAX) INTEGER(foreign_ns, 0, INT64_MAX)
       INTEGER(short_wait_ns, 0, INT64_MAX) INTEGER(short_wait_us, 0, 1000000) INTEGER(largest_record, 0, UINT32_MAX),
       "Run ordinary rounds over borrowed sockets, and append the outcome to the list `found`.")
METHOD(half_call, run_batch_loop, OBJECT(links) OBJECT(streams) OBJECT(spills) OBJECT(found)
       INTEGER(wake_fd, 0, INT32_MAX)
       INTEGER(time_ms, 0, INT32_MAX) INTEGER(answer_time_ms, 1, INT32_MAX) WORD(arena) INTEGER(is_synced, 0, 1),
       "Run the ordinary rounds that send an overflow to brokers.")

/* ---- sender_half_settings.c ---- */

RESULT_OF(half_call, end_backoff, INTEGER(partition_index, 0, UINT32_MAX),
          NONE_AFTER(sender_end_backoff(self->core, (uint32_t)given->partition_index)),
          "End the backoff of a partition's batches.")
RESULT_OF(half_call, end_transaction, INTEGER(number, 1, INT64_MAX) INTEGER_OR(why, 0, 0, TRANSACTION_WHY_COUNT - 1),
          none_or_raise(self->state, sender_end_transaction(self->core, (uint64_t)given->number,
                                                            (enum transaction_why)given->why)),
          "Record that the sink has ended this transaction. If why is given, a decided transaction was not committed.")
RESULT_OF(half_call, fail_transaction, INTEGER(why, TRANSACTION_WHY_NOT + 1, TRANSACTION_WHY_COUNT - 1),
          NONE_AFTER(transaction_fail(self->arena->core, (enum transaction_why)given->why)),
          "Make an open or committing transaction abort-only, with this reason.")
RESULT_OF(half_call, store_recovery_state, WORD(recovery_state),
          NONE_AFTER(transaction_store_recovery_state(self->arena->core, given->recovery_state)),
          "Store the progress of the transaction in the sink, for the next sender.")
METHOD(half_call, next_transaction_task, INTEGER(timeout_ns, 0, INT64_MAX),
       "Advance the end of the arena's transaction. Return (whether to commit, number) for the sink, or None.")
RESULT_OF(half_call, mute, INTEGER(partition_index, 0, UINT32_MAX) FLAG(is_muted),
          NONE_AFTER(sender_mute(self->core, (uint32_t)given->partition_index, given->is_muted)),
          "Exclude a partition from being drained.")
METHOD(half_call, publish_outage, INTEGER(since_ns, 0, INT64_MAX) OBJECT(text),
       "Publish since when the sink does not work, or 0 if it works, and the reason as bytes.")
RESULT(half_call, publish_queues, NONE_AFTER(sender_publish_queues(self->core)),
       "Publish the number of batches that wait in each partition, for producers.")
METHOD(half_call, resequence, INTEGER_OR(partition_index, EVERY_PARTITION, 0, UINT32_MAX),
       "Withdraw the sequences of batches that are not in flight, of one partition or of all.")
RESULT_OF(half_call, run_delivery_clock, INTEGER(run_ns, 0, INT64_MAX),
          NONE_AFTER(sender_run_delivery_clock(self->core, (uint64_t)given->run_ns)),
          "Add the nanoseconds in which the sink worked to the delivery clock.")
RESULT_OF(half_call, set_available, INTEGER(partition_index, 0, UINT32_MAX) FLAG(is_available),
          NONE_AFTER(sender_set_available(self->core, (uint32_t)given->partition_index, given->is_available)),
          "Publish whether a partition can be delivered to, for producers of records without a key.")
METHOD(half_call, set_producer_id, INTEGER(producer_id, -1, INT64_MAX) INTEGER(producer_epoch, -1, INT16_MAX)
       OBJECT_OR_NONE(sink_identity),
       "Set Kafka's producer id and epoch, (-1, -1) for none, and the 16 bytes of the sink that assigned them.")
RESULT_OF(half_call, set_refused, INTEGER(partition_index, 0, UINT32_MAX) INTEGER(error_code, INT16_MIN, INT16_MAX),
          NONE_AFTER(sender_set_refused(self->core, (uint32_t)given->partition_index, (int16_t)given->error_code)),
          "Set the error with which a partition's broker rejects its batches for now, or 0 for none.")
METHOD(half_setting, set_sink_name, OBJECT(name),
       "Set the name of this sender's sink, as bytes, before become_sender().")
RESULT_OF(half_call, publish_delivery_timeout, INTEGER(delivery_timeout_ns, 0, INT64_MAX) FLAG_OR_FALSE(counts_always),
          NONE_AFTER(sender_publish_delivery_timeout(self->core, (uint64_t)given->delivery_timeout_ns,
                                                     given->counts_always)),
          "Publish the delivery timeout of this sender, and whether it includes the time in which no sink worked.")
RESULT_OF(half_setting, want_dead_letters, FLAG(is_wanted), NONE_AFTER(self->wants_dead_letters = given->is_wanted),
          "Set whether the bytes of failed batches are retained for dead_letters(), before become_sender().")

/* ---- sender_half_spilled.c ---- */

METHOD(half_call, complete_spilled, INTEGER(partition_index, 0, UINT32_MAX) INTEGER(slot_index, 0, UINT32_MAX)
       INTEGER(seq, 0, INT64_MAX) INTEGER(first_record, 0, BATCH_RECORD_COUNT_MAX)
       INTEGER(record_count, 1, BATCH_RECORD_COUNT_MAX) INTEGER(result, RESULT_SUCCEEDED, RESULT_COUNT - 1)
       INTEGER_OR(base_offset, -1, -1, INT64_MAX) INTEGER_OR(log_append_time_ms, -1, -1, INT64_MAX)
       INTEGER_OR(error_code, 0, INT32_MIN, INT32_MAX), "Record the result of records of a spilled batch.")
METHOD(any, partition_index, OBJECT(topic) INTEGER(partition, 0, INT32_MAX),
       "The index of a partition in the arena's table. Adds the partition if it is missing.")
METHOD(half_call, pressure, INTEGER(linger_ns, 0, INT64_MAX) INTEGER(now_ns, 0, INT64_MAX),
       "(used buffers, processes that wait for one, time of the last acknowledgement, time since which a batch has "
       "waited for its acknowledgement or None, last heartbeat of the previous sender).")
RESULT_OF(half_call, publish_spilled, INTEGER(batch_count, 0, INT64_MAX) INTEGER(record_count, 0, INT64_MAX)
          INTEGER(size, 0, INT64_MAX) INTEGER(since_ns, 0, INT64_MAX),
          NONE_AFTER(spilled_publish(self->core->arena,
                                     &(struct spilled_totals){.batch_count = (uint64_t)given->batch_count,
                                                              .record_count = (uint64_t)given->record_count,
                                                              .size = (uint64_t)given->size,
                                                              .since_ns = (uint64_t)given->since_ns})),
          "Publish the totals of the overflow, and since when it is not empty, or 0.")
RESULT_OF(half_call, set_spilled, INTEGER(partition_index, 0, UINT32_MAX) INTEGER(first_seq, 0, INT64_MAX)
          INTEGER(end_seq, 0, INT64_MAX),
          NONE_AFTER(spilled_set(self->core->arena, (uint32_t)given->partition_index, (uint64_t)given->first_seq,
                                 (uint64_t)given->end_seq)),
          "Set the range of a partition's batches in the overflow: [first_seq, end_seq).")
NO_ARGUMENTS(half_call, stuck_partitions,
             "The indexes of the stuck partitions.")

#include "python/common/methods_end.h"
