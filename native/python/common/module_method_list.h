/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the module (python/common/methods.h), by file. They use no object, so they lock none.
 */
#define TYPE module
#define SELF PyObject
#define STATE(self) ((struct module_state *)PyModule_GetState(self))
#define ENTER(object) (void)(object)
#define LEAVE() (void)0
#include "python/common/methods.h"

/* ---- module.c ---- */

METHOD(any, arena_attach, INTEGER(map_descriptor, 0, INT32_MAX) INTEGER(lock_descriptor, 0, INT32_MAX),
       "Attach to an arena. Both descriptors are taken over, even if it fails.")
METHOD(any, arena_create, INTEGER(map_descriptor, 0, INT32_MAX) INTEGER(lock_descriptor, 0, INT32_MAX)
       OBJECT(geometry) OBJECT(options),
       "Make an arena in an empty file. Both descriptors are taken over, even if it fails.")
METHOD(any, arena_open_read_only, INTEGER(map_descriptor, 0, INT32_MAX) INTEGER(lock_descriptor, 0, INT32_MAX),
       "Map an arena without write permission. Both descriptors are taken over, even if it fails.")
METHOD_OF_BYTES(any, crc32c, data, INTEGER_OR(crc, 0, 0, UINT32_MAX),
       "The CRC-32C of bytes, an unsigned number of 32 bits. crc is that of the preceding bytes.")
RESULT_OF(any, crc32c_combine, INTEGER(first, 0, UINT32_MAX) INTEGER(second, 0, UINT32_MAX)
          INTEGER(second_size, 0, INT64_MAX),
          PyLong_FromUnsignedLong(
              crc32c_combine((uint32_t)given->first, (uint32_t)given->second, (uint64_t)given->second_size)),
          "The CRC-32C of two parts together, from the CRC of each part and the size of the second.")
NO_ARGUMENTS(any, layout_fields,
             "A list of (struct, field, offset, size) of the arena's file. A struct itself has the field ''.")
METHOD_OF_BYTES(any, murmur2, key, , "Kafka's hash of a key, an unsigned number of 32 bits.")
METHOD(any, rename_new, OBJECT(source) OBJECT(target),
       "Rename a file (renameat2 with RENAME_NOREPLACE). Raise FileExistsError if the new name exists.")

/* ---- record_decode.c ---- */

METHOD_OF_BYTES(any, decode_batch, buffer, ,
       "A list of (offset delta, timestamp_ms, key, value, headers) of an uncompressed record batch.")

/* ---- log: reading ---- */

METHOD(any, consume_batch, OBJECT(records) OBJECT(place) INTEGER(leader_epoch, INT32_MIN, INT32_MAX)
       INTEGER(first_offset, 0, INT64_MAX) INTEGER(base_offset, 0, INT64_MAX)
       INTEGER(base_timestamp_ms, INT64_MIN, INT64_MAX) INTEGER(record_count, 0, INT32_MAX)
       INTEGER_OR(log_append_time_ms, NO_TIMESTAMP, NO_TIMESTAMP, INT64_MAX) FLAG_OR_FALSE(has_key_views)
       FLAG_OR_FALSE(has_value_views),
       "A list of ConsumerRecord of the records of a log's batch, from first_offset on.")
METHOD(any, consume_block, OBJECT(block) INTEGER(position, 0, INT64_MAX) OBJECT(place)
       INTEGER(first_offset, 0, INT64_MAX) INTEGER(expected_first, 0, INT64_MAX) INTEGER(expected_last, 0, INT64_MAX)
       FLAG_OR_TRUE(is_crc_checked) FLAG_OR_FALSE(has_key_views) FLAG_OR_FALSE(has_value_views),
       "(a list of ConsumerRecord of the plain batches of a block, position and offset after the last of them).")
METHOD_OF_BYTES(any, decode_block, block, INTEGER(position, 0, INT64_MAX) INTEGER(first_offset, 0, INT64_MAX)
       INTEGER(end_offset, 0, INT64_MAX) FLAG(has_headers) INTEGER(expected_first, 0, INT64_MAX)
       INTEGER(expected_last, 0, INT64_MAX) FLAG_OR_TRUE(is_crc_checked),
       "(the buffers of Arrow columns of the plain batches of a block, position and offset after the last of them).")
METHOD(any, decode_columns, OBJECT(batches) INTEGER(first_offset, 0, INT64_MAX) INTEGER(end_offset, 0, INT64_MAX)
       FLAG_OR_FALSE(has_headers),
       "The buffers of Arrow columns of the records of many batches of a log. log/files/columns.py names them.")
METHOD_OF_BYTES(any, decode_records, records, OBJECT(record_type) INTEGER(base_offset, 0, INT64_MAX)
       INTEGER(base_timestamp_ms, INT64_MIN, INT64_MAX) INTEGER(record_count, 0, INT32_MAX)
       INTEGER_OR(log_append_time_ms, NO_TIMESTAMP, NO_TIMESTAMP, INT64_MAX),
       "A list of record_type(offset, timestamp_ms, key, value, headers) of a log's batch.")
METHOD_OF_BYTES(any, header_for_producer, header, INTEGER(producer_id, 0, INT64_MAX)
       INTEGER(producer_epoch, 0, INT16_MAX) INTEGER(base_sequence, 0, INT32_MAX),
       "The 61 bytes of a batch's header for another producer. Its CRC is computed without the records.")
METHOD_OF_BYTES(any, records_summary, records, INTEGER(base_timestamp_ms, INT64_MIN, INT64_MAX)
       INTEGER(record_count, 1, INT32_MAX),
       "(smallest timestamp, largest timestamp, whether a key is null) of the record_count records of a batch.")

/* ---- log: the server ---- */

METHOD(any, append_frame, INTEGER(lock, 0, INT32_MAX) INTEGER(byte, 0, INT64_MAX - 1) INTEGER(file, 0, INT32_MAX)
       INTEGER(size, 0, INT64_MAX / 2) OBJECT(body),
       "Write a frame under a lock. Return the size of the file, or 0 if the byte is locked or the file has changed.")
METHOD(any, find_batch, INTEGER(descriptor, 0, INT32_MAX) INTEGER(position, 0, INT64_MAX)
       INTEGER(end, 0, INT64_MAX / 2) INTEGER(offset, 0, INT64_MAX),
       "(position, size) of the batch that has an offset, from a position of a segment on, or None.")
METHOD_OF_BYTES(any, read_fetch, body, INTEGER(version, FETCH_VERSION_MIN, FETCH_VERSION_MAX) OBJECT(request_type)
       OBJECT(wanted_type),
       "The request_type of a Fetch request, with a wanted_type for each partition. Raise ValueError for other bytes.")
METHOD(any, send_pieces, INTEGER(socket, 0, INT32_MAX) OBJECT(pieces),
       "Send pieces to a non-blocking socket. Return the number of bytes that it accepted.")
METHOD(any, serve_ready, INTEGER(epoll, 0, INT32_MAX) INTEGER(timeout_ns, 0, INT64_MAX / 2) OBJECT(clients)
       OBJECT(heads) OBJECT(goes_on) INTEGER(size_max, 0, INT64_MAX) OBJECT(types),
       "Wait for files, and answer ordinary fetches. Return a list of (client or descriptor, events, outcome or None).")
METHOD(any, write_fetch, INTEGER(version, FETCH_VERSION_MIN, FETCH_VERSION_MAX)
       INTEGER(correlation_id, INT32_MIN, INT32_MAX) INTEGER(error, INT16_MIN, INT16_MAX)
       INTEGER(session_id, INT32_MIN, INT32_MAX) OBJECT(found),
       "The pieces of the response to a Fetch: bytes, and the ranges of files between them.")

/* ---- shipper_batch_loop.c ---- */

METHOD(any, run_batch_loop, OBJECT(links) OBJECT(streams) OBJECT(found) INTEGER(positions, 0, INT32_MAX)
       INTEGER(positions_size, 0, INT64_MAX) INTEGER(positions_size_max, 0, INT64_MAX) INTEGER(wake_fd, 0, INT32_MAX)
       INTEGER(time_ms, 0, INT32_MAX) INTEGER(answer_time_ms, 1, INT32_MAX),
       "Ship the ordinary batches of streams to the brokers of their links. The progress is appended to `found`.")

#include "python/common/methods_end.h"
