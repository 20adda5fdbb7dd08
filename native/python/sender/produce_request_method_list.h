/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of ProduceRequest (python/common/methods.h).
 */
#define TYPE request
#define SELF struct produce_request_object
#define STATE(self) ((self)->state)
#define ENTER(object) ALONE_BEGIN(object)
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

VALUE(any, is_touched, PyBool_FromLong(self->is_touched), "True if a byte of it was written, or returned by peek().")
VALUE(any, is_written, PyBool_FromLong(is_written(self)), "True if it is written completely, or was released.")
VALUE(any, size, PyLong_FromUnsignedLongLong(self->size), "The size of the whole frame in bytes.")
VALUE(any, version, PyLong_FromLong(self->request.version), "The version of the protocol.")
RESULT_OF(any, begin, INTEGER(correlation_id, 0, INT32_MAX),
          NONE_AFTER(store_be32(self->own + PRODUCE_CORRELATION, (uint32_t)given->correlation_id)),
          "Set the correlation id.")
NO_ARGUMENTS(request_own, peek, "A copy of the next bytes, at most one TLS record.")
METHOD_OF_BYTES(any, read_answer, answer, ,
       "(throttle_time_ms, base offsets, log append times) of a response without an error, or None for any other.")
RESULT(request_own, release, NONE_AFTER(buffers_release(self)), "Release its buffers, and write nothing more.")
METHOD(request_own, send, INTEGER(descriptor, 0, INT32_MAX),
       "Write as much as the socket accepts. Return the number of written bytes.")
METHOD(request_own, skip, INTEGER(count, 0, INT32_MAX), "Count this number of bytes as written.")

#include "python/common/methods_end.h"
