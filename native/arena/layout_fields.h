/* SPDX-License-Identifier: Apache-2.0
 *
 * Each struct of the arena's file, field by field: STRUCT(type, size), then FIELD(type, field, offset, size). layout.c
 * asserts the numbers at compile time, computes the fingerprint from them, and lists them for inspection.
 *
 * The fields of a struct are adjacent, without a gap. Unused parts have a name, too (reserved).
 */
#ifndef ARENA_LAYOUT_FIELDS_H
#define ARENA_LAYOUT_FIELDS_H

#define LAYOUT_FIELDS(STRUCT, FIELD)                   \
    STRUCT(superblock, 3072)                           \
    FIELD(superblock, magic, 0, 8)                     \
    FIELD(superblock, layout_version, 8, 4)            \
    FIELD(superblock, superblock_crc, 12, 4)           \
    FIELD(superblock, layout_fingerprint, 16, 8)       \
    FIELD(superblock, arena_size, 24, 8)               \
    FIELD(superblock, uuid, 32, 16)                    \
    FIELD(superblock, created_ms, 48, 8)               \
    FIELD(superblock, build, 56, 64)                   \
    FIELD(superblock, features_compatible, 120, 8)     \
    FIELD(superblock, features_read_only, 128, 8)      \
    FIELD(superblock, features_incompatible, 136, 8)   \
    FIELD(superblock, geometry, 144, 128)              \
    FIELD(superblock, options_size, 272, 4)            \
    FIELD(superblock, extension_count, 276, 4)         \
    FIELD(superblock, extensions, 280, 512)            \
    FIELD(superblock, reserved, 792, 232)              \
    FIELD(superblock, options, 1024, 2048)             \
    STRUCT(extension, 32)                              \
    FIELD(extension, kind, 0, 4)                       \
    FIELD(extension, reserved, 4, 4)                   \
    FIELD(extension, ref, 8, 8)                        \
    FIELD(extension, stride, 16, 4)                    \
    FIELD(extension, count, 20, 4)                     \
    FIELD(extension, reserved_2, 24, 8)                \
    STRUCT(geometry, 128)                              \
    FIELD(geometry, buffer_memory, 0, 8)               \
    FIELD(geometry, oversized_bytes_max, 8, 8)         \
    FIELD(geometry, batch_size, 16, 4)                 \
    FIELD(geometry, slot_stride, 20, 4)                \
    FIELD(geometry, slot_count, 24, 4)                 \
    FIELD(geometry, process_count, 28, 4)              \
    FIELD(geometry, waiter_count, 32, 4)               \
    FIELD(geometry, topic_count, 36, 4)                \
    FIELD(geometry, partition_count, 40, 4)            \
    FIELD(geometry, name_heap_size, 44, 4)             \
    FIELD(geometry, completion_count, 48, 4)           \
    FIELD(geometry, record_size_max, 52, 4)            \
    FIELD(geometry, process_slot_count_max, 56, 4)     \
    FIELD(geometry, durability, 60, 2)                 \
    FIELD(geometry, is_transactional, 62, 2)           \
    FIELD(geometry, sync_interval_ms, 64, 4)           \
    FIELD(geometry, topic_share_factor, 68, 4)         \
    FIELD(geometry, reserved, 72, 56)                  \
    STRUCT(globals, 4096)                              \
    FIELD(globals, pool_lock, 0, 8)                    \
    FIELD(globals, reserved_pool, 8, 56)               \
    FIELD(globals, registry_lock, 64, 8)               \
    FIELD(globals, reserved_registry, 72, 56)          \
    FIELD(globals, waiting_count, 128, 4)              \
    FIELD(globals, parked_count, 132, 4)               \
    FIELD(globals, reserved_waiting, 136, 56)          \
    FIELD(globals, next_ticket, 192, 8)                \
    FIELD(globals, oversized_bytes, 200, 8)            \
    FIELD(globals, waiter_count_used, 208, 4)          \
    FIELD(globals, reserved_ticket, 212, 4)            \
    FIELD(globals, reserved_ticket_2, 216, 40)         \
    FIELD(globals, free_scan_hint, 256, 4)             \
    FIELD(globals, reserved_scan, 260, 4)              \
    FIELD(globals, reserved_scan_2, 264, 56)           \
    FIELD(globals, topic_count, 320, 4)                \
    FIELD(globals, partition_count, 324, 4)            \
    FIELD(globals, name_heap_used, 328, 4)             \
    FIELD(globals, process_count_used, 332, 4)         \
    FIELD(globals, reserved_counts, 336, 48)           \
    FIELD(globals, sender_epoch, 384, 8)               \
    FIELD(globals, sender_heartbeat_ns, 392, 8)        \
    FIELD(globals, sender_owner, 400, 4)               \
    FIELD(globals, sender_sleep, 404, 4)               \
    FIELD(globals, producer_id, 408, 8)                \
    FIELD(globals, producer_epoch, 416, 4)             \
    FIELD(globals, sink_identity, 420, 16)             \
    FIELD(globals, reserved_sender, 436, 4)            \
    FIELD(globals, sender_left_epoch, 440, 8)          \
    FIELD(globals, acked_ns, 448, 8)                   \
    FIELD(globals, usual_delivery_ns, 456, 8)          \
    FIELD(globals, stuck_epoch, 464, 8)                \
    FIELD(globals, reserved_delivery, 472, 40)         \
    FIELD(globals, completion_tail, 512, 8)            \
    FIELD(globals, completion_wait, 520, 4)            \
    FIELD(globals, reserved_completion, 524, 4)        \
    FIELD(globals, reserved_completion_2, 528, 48)     \
    FIELD(globals, sync_wanted, 576, 8)                \
    FIELD(globals, reserved_sync_wanted, 584, 56)      \
    FIELD(globals, sync_done, 640, 8)                  \
    FIELD(globals, sync_done_ns, 648, 8)               \
    FIELD(globals, presence, 656, 8)                   \
    FIELD(globals, reserved_sync_done, 664, 40)        \
    FIELD(globals, arena_epoch, 704, 8)                \
    FIELD(globals, boot_id, 712, 16)                   \
    FIELD(globals, is_clean, 728, 4)                   \
    FIELD(globals, poisoned_status, 732, 4)            \
    FIELD(globals, closing, 736, 4)                    \
    FIELD(globals, reserved_epoch, 740, 4)             \
    FIELD(globals, transaction, 744, 8)                \
    FIELD(globals, transaction_begun_ns, 752, 8)       \
    FIELD(globals, transaction_coordinator, 760, 4)    \
    FIELD(globals, reserved_transaction, 764, 4)       \
    FIELD(globals, sink_name, 768, 256)                \
    FIELD(globals, delivery_clock_ns, 1024, 8)         \
    FIELD(globals, reserved_clock, 1032, 56)           \
    FIELD(globals, delivery_timeout_ns, 1088, 8)       \
    FIELD(globals, delivery_counts_always, 1096, 4)    \
    FIELD(globals, outage_number, 1100, 4)             \
    FIELD(globals, outage_since_ns, 1104, 8)           \
    FIELD(globals, outage, 1112, 256)                  \
    FIELD(globals, spilled_batch_count, 1368, 8)       \
    FIELD(globals, spilled_record_count, 1376, 8)      \
    FIELD(globals, spilled_size, 1384, 8)              \
    FIELD(globals, spilled_since_ns, 1392, 8)          \
    FIELD(globals, transaction_recovery_state, 1400, 8)\
    FIELD(globals, extension_epoch, 1408, 128)         \
    FIELD(globals, reserved_end, 1536, 2560)           \
    STRUCT(process_entry, 128)                         \
    FIELD(process_entry, generation, 0, 4)             \
    FIELD(process_entry, role, 4, 4)                   \
    FIELD(process_entry, pid, 8, 4)                    \
    FIELD(process_entry, fallback, 12, 4)              \
    FIELD(process_entry, attached_ns, 16, 8)           \
    FIELD(process_entry, start_time_ticks, 24, 8)      \
    FIELD(process_entry, name, 32, 16)                 \
    FIELD(process_entry, reserved, 48, 16)             \
    FIELD(process_entry, writing, 64, 4)               \
    FIELD(process_entry, is_forcing, 68, 4)            \
    FIELD(process_entry, record_count, 72, 8)          \
    FIELD(process_entry, record_bytes, 80, 8)          \
    FIELD(process_entry, passed_count, 88, 8)          \
    FIELD(process_entry, record_count_before, 96, 8)   \
    FIELD(process_entry, record_bytes_before, 104, 8)  \
    FIELD(process_entry, passed_count_before, 112, 8)  \
    FIELD(process_entry, reserved_2, 120, 8)           \
    STRUCT(waiter_entry, 64)                           \
    FIELD(waiter_entry, word, 0, 8)                    \
    FIELD(waiter_entry, owner, 8, 4)                   \
    FIELD(waiter_entry, granted_count, 12, 4)          \
    FIELD(waiter_entry, granted_first, 16, 4)          \
    FIELD(waiter_entry, partition, 20, 4)              \
    FIELD(waiter_entry, granted_ns, 24, 8)             \
    FIELD(waiter_entry, waiting_ns, 32, 8)             \
    FIELD(waiter_entry, reserved, 40, 24)              \
    STRUCT(topic_entry, 128)                           \
    FIELD(topic_entry, name_index, 0, 4)               \
    FIELD(topic_entry, name_size, 4, 4)                \
    FIELD(topic_entry, partition_count, 8, 4)          \
    FIELD(topic_entry, queued_batch_count_max, 12, 4)  \
    FIELD(topic_entry, sticky, 16, 8)                  \
    FIELD(topic_entry, wanted_partition_count, 24, 4)  \
    FIELD(topic_entry, crc, 28, 4)                     \
    FIELD(topic_entry, reserved_2, 32, 32)             \
    FIELD(topic_entry, opened, 64, 8)                  \
    FIELD(topic_entry, released, 72, 8)                \
    FIELD(topic_entry, is_parked_for, 80, 4)           \
    FIELD(topic_entry, reserved_3, 84, 4)              \
    FIELD(topic_entry, reserved_4, 88, 40)             \
    STRUCT(partition_entry, 128)                       \
    FIELD(partition_entry, lock, 0, 16)                \
    FIELD(partition_entry, open, 16, 8)                \
    FIELD(partition_entry, next_seq, 24, 8)            \
    FIELD(partition_entry, topic_index, 32, 4)         \
    FIELD(partition_entry, partition, 36, 4)           \
    FIELD(partition_entry, stuck, 40, 8)               \
    FIELD(partition_entry, crc, 48, 4)                 \
    FIELD(partition_entry, reserved, 52, 12)           \
    FIELD(partition_entry, producer_id, 64, 8)         \
    FIELD(partition_entry, producer_epoch, 72, 4)      \
    FIELD(partition_entry, next_base_sequence, 76, 4)  \
    FIELD(partition_entry, queued_batch_count, 80, 4)  \
    FIELD(partition_entry, reserved_2, 84, 4)          \
    FIELD(partition_entry, spilled_first_seq, 88, 8)   \
    FIELD(partition_entry, spilled_end_seq, 96, 8)     \
    FIELD(partition_entry, reserved_3, 104, 24)        \
    STRUCT(producer_lock, 16)                          \
    FIELD(producer_lock, word, 0, 8)                   \
    FIELD(producer_lock, released, 8, 8)               \
    STRUCT(slot_header, 128)                           \
    FIELD(slot_header, word, 0, 8)                     \
    FIELD(slot_header, partition_index, 8, 4)          \
    FIELD(slot_header, written_end, 12, 4)             \
    FIELD(slot_header, seq, 16, 8)                     \
    FIELD(slot_header, base_timestamp_ms, 24, 8)       \
    FIELD(slot_header, meta, 32, 32)                   \
    FIELD(slot_header, created_ns, 64, 8)              \
    FIELD(slot_header, chain_next, 72, 4)              \
    FIELD(slot_header, result, 76, 4)                  \
    FIELD(slot_header, producer_id, 80, 8)             \
    FIELD(slot_header, base_sequence, 88, 4)           \
    FIELD(slot_header, producer_epoch, 92, 4)          \
    FIELD(slot_header, attempt_count, 96, 4)           \
    FIELD(slot_header, acked_record_count, 100, 4)     \
    FIELD(slot_header, last_completion, 104, 8)        \
    FIELD(slot_header, linger, 112, 8)                 \
    FIELD(slot_header, opener, 120, 4)                 \
    FIELD(slot_header, delivery_stamp_ms, 124, 4)      \
    STRUCT(batch_meta, 16)                             \
    FIELD(batch_meta, max_timestamp_ms, 0, 8)          \
    FIELD(batch_meta, records_crc, 8, 4)               \
    FIELD(batch_meta, reserved, 12, 4)                 \
    STRUCT(completion_entry, 64)                       \
    FIELD(completion_entry, number, 0, 8)              \
    FIELD(completion_entry, previous, 8, 8)            \
    FIELD(completion_entry, seq, 16, 8)                \
    FIELD(completion_entry, slot_index, 24, 4)         \
    FIELD(completion_entry, partition_index, 28, 4)    \
    FIELD(completion_entry, base_offset, 32, 8)        \
    FIELD(completion_entry, log_append_time_ms, 40, 8) \
    FIELD(completion_entry, first_record, 48, 4)       \
    FIELD(completion_entry, record_count, 52, 4)       \
    FIELD(completion_entry, result, 56, 4)             \
    FIELD(completion_entry, error_code, 60, 4)         \
    STRUCT(counter_entry, 64)                          \
    FIELD(counter_entry, label, 0, 56)                 \
    FIELD(counter_entry, value, 56, 8)                 \
    STRUCT(error_entry, 256)                           \
    FIELD(error_entry, key, 0, 8)                      \
    FIELD(error_entry, first_ns, 8, 8)                 \
    FIELD(error_entry, last_ns, 16, 8)                 \
    FIELD(error_entry, count, 24, 8)                   \
    FIELD(error_entry, is_readable, 32, 4)             \
    FIELD(error_entry, code, 36, 4)                    \
    FIELD(error_entry, text, 40, 208)                  \
    FIELD(error_entry, reserved, 248, 8)               \
    STRUCT(sync_record, 512)                           \
    FIELD(sync_record, own_crc, 0, 4)                  \
    FIELD(sync_record, partition_index, 4, 4)          \
    FIELD(sync_record, number, 8, 8)                   \
    FIELD(sync_record, seq, 16, 8)                     \
    FIELD(sync_record, generation, 24, 4)              \
    FIELD(sync_record, count, 28, 4)                   \
    FIELD(sync_record, size, 32, 4)                    \
    FIELD(sync_record, records_crc, 36, 4)             \
    FIELD(sync_record, max_timestamp_ms, 40, 8)        \
    FIELD(sync_record, base_timestamp_ms, 48, 8)       \
    FIELD(sync_record, end, 56, 4)                     \
    FIELD(sync_record, reserved, 60, 4)                \
    FIELD(sync_record, reserved_2, 64, 448)

#endif
