/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of NativeProducer (python/common/methods.h), except for send (producer_type.c).
 */
#define TYPE producer
#define SELF struct producer_object
#define STATE(self) ((self)->state)
#define ENTER(object) ALONE_BEGIN(arena_of_producer(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

VALUE(any, is_open, PyBool_FromLong(self->is_open), "False after refuse_sends().")
VALUE(any, record_bytes, PyLong_FromUnsignedLongLong(self->record_bytes),
      "The sum of the upper bounds of the sizes of the sent records.")
VALUE(any, record_count, PyLong_FromUnsignedLongLong(self->record_count), "The number of sent records.")
PROPERTY(any, tracker, "The object that looks up the results of its futures.")
METHOD(any, append_columns, OBJECT(topic) OBJECT(values) OBJECT_OR_NONE(keys) OBJECT_OR_NONE(headers)
       OBJECT_OR_NONE(timestamps_ms) OBJECT_OR_NONE(partition),
       "Append records from sequences of their parts, for `send_many`. Return a Receipt.")
METHOD(any, append_rows, OBJECT(batch) OBJECT_OR_NONE(topic),
       "Append the rows of an Arrow batch, table or stream, for `append_arrow`. Return a Receipt.")
RESULT(any, refuse_sends, NONE_AFTER(self->is_open = false), "Make every later send() raise ProducerClosedError.")

#include "python/common/methods_end.h"
