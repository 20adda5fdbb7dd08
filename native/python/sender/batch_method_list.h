/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of Batch (python/common/methods.h).
 */
#define TYPE batch
#define SELF struct batch_object
#define STATE(self) ((self)->half->state)
#define ENTER(object) ALONE_BEGIN(arena_of_batch(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

PROPERTY(batch_readable, buffers, "Read-only memoryviews of the wire bytes, in order. Release them after use.")
PROPERTY(any, is_ended, "True if its result was recorded while it is in flight (it expired or was aborted).")
VALUE(any, is_over, PyBool_FromLong(self->is_over || !batch_role_is_current(self)),
      "True if it was completed or requeued, or its sender role ended.")
PROPERTY(any, partition, "Kafka's partition number.")
PROPERTY(batch_readable, record_size_max, "The size of its largest record in bytes, computed by each call.")
PROPERTY(any, topic, "The topic's name.")
NO_ARGUMENTS(batch_readable, decode,
             "A list of (offset delta, timestamp_ms, key, value, headers). Raise CorruptArenaError if it is damaged.")
METHOD(batch_readable, part, INTEGER(first_record, 0, INT32_MAX) INTEGER(record_count, 1, INT32_MAX),
       "The wire bytes of a batch that has only the records [first_record, first_record + record_count).")
NO_ARGUMENTS(batch_readable, tobytes, "A copy of the wire bytes.")

#include "python/common/methods_end.h"
