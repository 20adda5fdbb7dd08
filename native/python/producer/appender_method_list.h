/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of Appender (python/common/methods.h).
 */
#define TYPE appender
#define SELF struct appender_object
#define STATE(self) ((self)->state)
#define ENTER(object) ALONE_BEGIN(arena_of_appender(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

VALUE(any, closed, PyBool_FromLong(self->core == NULL), "True after close().")
VALUE(appender_open, incomplete_count, PyLong_FromUnsignedLongLong(appender_incomplete_count(self->core)),
      "The number of records of this process that have no result yet. A partition with records in the overflow "
      "counts as one more.")
NO_ARGUMENTS(any, close, "Stop appending.")
NO_ARGUMENTS(any, flush_begin, "Seal the batches that this process appended to. Return a FlushTicket.")
METHOD(appender_open, join, INTEGER(number, 0, TRANSACTION_NUMBER_MAX),
       "Append later records only to the transaction with this number. 0 for any open transaction.")

#include "python/common/methods_end.h"
