/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of ResultWaiters (python/common/methods.h), which has its own mutex.
 */
#define TYPE waiters
#define SELF struct waiters_object
#define STATE(self) ((self)->state)
#define ENTER(object) { (void)(object)
#define LEAVE() }
#include "python/common/methods.h"

VALUE(any, ended_count, PyLong_FromSize_t(self->core.ended.count), "The number of waiters with a result.")
VALUE(any, waiting_count, PyLong_FromSize_t(self->core.waiting_count), "The number of waiters without a result.")
METHOD(any, add, OBJECT(arena) OBJECT(future) OBJECT(observer),
       "Add a waiter. Return False if the record of the future is not pending: the caller queries its result.")
NO_ARGUMENTS(any, call_next,
             "Call the observer of the next ended waiter with its future. Return False if there is none.")
METHOD(any, check, OBJECT(arena), "End the waiters that have a result, after a query for each of them.")
NO_ARGUMENTS(any, clear, "Remove all waiters, and return the number of observers that were not called.")
METHOD(any, collect, OBJECT(arena),
       "End the waiters with results since the last call. Return True if an observer is due.")
METHOD(any, discard, OBJECT(future) OBJECT(observer), "Remove a waiter that is not needed any more.")
RESULT(any, end_known, NONE_AFTER(result_waiters_end_if(&self->core, waiter_is_known, NULL)),
       "End the waiters whose futures have a completion.")
METHOD(any, wait, OBJECT(arena) INTEGER(idle_ns, 0, INT64_MAX) INTEGER(timeout_ns, 0, INT64_MAX),
       "Wait at most idle_ns until there is a waiter, and then until a waiter has a result. Return True if "
       "one has. Return False after a timeout and after wake.")
NO_ARGUMENTS(any, waiters, "A list of (future, observer) of all waiters, including those that have ended.")
RESULT(any, wake, NONE_AFTER(result_waiters_wake(&self->core)), "End the current or the next wait.")

#include "python/common/methods_end.h"
