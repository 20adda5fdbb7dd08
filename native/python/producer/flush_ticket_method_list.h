/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of FlushTicket (python/common/methods.h).
 */
#define TYPE ticket
#define SELF struct flush_ticket_object
#define STATE(self) ((self)->appender->state)
#define ENTER(object) ALONE_BEGIN(arena_of_ticket(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

RESULT(ticket_open, record_count,
       PyLong_FromUnsignedLongLong(appender_flush_record_count(self->appender->core, &self->ticket)),
       "The number of records in the batches, of all processes.")
RESULT(ticket_open, remaining, PyLong_FromUnsignedLong(appender_flush_remaining(self->appender->core, &self->ticket)),
       "The number of batches that are not complete yet.")

#include "python/common/methods_end.h"
