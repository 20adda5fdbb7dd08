/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of Receipt (python/common/methods.h).
 */
#define TYPE receipt
#define SELF struct receipt_object
#define STATE(self) ((self)->arena->state)
#define ENTER(object) ALONE_BEGIN(arena_of_receipt(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

VALUE(any, row_count, PyLong_FromUnsignedLong(self->receipt.row_count),
      "The number of records that the call has read, appended or not.")
NO_ARGUMENTS(any, first_failed,
             "The index of the first record that is known to have failed, or whose result is lost, or None.")
NO_ARGUMENTS(receipt_answerable, resolve, "Look for results. Return True if every record has one.")
METHOD(any, row, OBJECT(index), "The place of the record with this index in the given order.")
NO_ARGUMENTS(receipt_answerable, totals,
             "A list of (partition index, result or None, error code, count, first offset, last offset).")

#include "python/common/methods_end.h"
