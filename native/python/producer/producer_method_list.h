/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of NativeProducer without send (producer_type.c) (python/common/methods.h).
 */
#define TYPE producer
#define SELF struct producer_object
#define STATE(self) ((self)->state)
#define ENTER(object) ALONE_BEGIN(arena_of_producer(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

VALUE(any, is_open, PyBool_FromLong(self->is_open), "False after refuse_sends().")
VALUE(any, record_bytes, PyLong_FromUnsignedLongLong(self->record_bytes),
      "The bytes of the sent records in batches, by the upper bound of each.")
VALUE(any, record_count, PyLong_FromUnsignedLongLong(self->record_count), "The number of records sent through it.")
PROPERTY(any, tracker, "The object that looks up the results of its futures.")
METHOD(any, append_columns, OBJECT(topic) OBJECT(values) OBJECT_OR_NONE(keys) OBJECT_OR_NONE(headers)
       OBJECT_OR_NONE(timestamps_ms) OBJECT_OR_NONE(partition),
       "Append records given as sequences of their parts, for `send_many`. Return a Receipt.")
METHOD(any, append_rows, OBJECT(batch) OBJECT_OR_NONE(topic),
       "Append the rows of an Arrow batch, table or stream, for `append_arrow`. Return a Receipt.")
RESULT(any, refuse_sends, NONE_AFTER(self->is_open = false), "Make every later send() raise ProducerClosedError.")

#include "python/common/methods_end.h"
