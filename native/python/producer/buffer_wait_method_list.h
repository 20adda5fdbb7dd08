/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods and properties of BufferWait (python/common/methods.h).
 */
#define TYPE wait
#define SELF struct buffer_wait_object
#define STATE(self) ((self)->arena->state)
#define ENTER(object) ALONE_BEGIN(arena_of_wait(object))
#define LEAVE() ALONE_END()
#include "python/common/methods.h"

RESULT(any, cancel, NONE_AFTER(buffer_wait_finish(self)), "Leave the queue, or return the slots.")
RESULT(wait_queued, help, NONE_AFTER(place_help(self)),
       "Repair the pool and serve waiters. If this waiter is parked, check whether it fits now.")
NO_ARGUMENTS(any, interrupt,
             "End this wait's sleep, from any thread, and each later one. Do nothing if the wait is over.")
RESULT(wait_queued, is_parked, PyBool_FromLong(buffer_pool_is_parked(self->arena->core, &self->wait)),
       "True while its topic or its partition may hold no more buffers.")
RESULT(wait_queued, is_stuck, PyBool_FromLong(buffer_wait_is_stuck(self)),
       "True while it is parked because its partition is stuck.")
RESULT(wait_queued, open_semaphore, PyBool_FromLong(waiter_semaphore_open(self->arena->core, self->wait.waiter_index)),
       "Open the semaphore of this waiter. Return False if it has to be created first.")
RESULT(wait_queued, poll, poll_status_to_bool(self, buffer_pool_poll(self->arena->core, &self->wait)),
       "Return True if the slots are granted. Then call take().")
RESULT_OF(wait_queued, sleep, INTEGER(timeout_ns, 0, SLEEP_NS_MAX),
          poll_status_to_bool(self, place_sleep(self, given->timeout_ns)),
          "Sleep until the grant, a signal, or the timeout. Return the result of poll().")
NO_ARGUMENTS(wait_queued, take, "Take the granted slots. Return False if they are no longer granted.")

#include "python/common/methods_end.h"
