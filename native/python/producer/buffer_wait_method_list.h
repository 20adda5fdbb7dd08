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

NO_ARGUMENTS(any, cancel, "Leave the queue, or return the slots.")
NO_ARGUMENTS(wait_queued, help, "Repair the pool and serve waiters, or check whether a parked one fits now.")
NO_ARGUMENTS(any, interrupt,
             "End this wait's sleep, from any thread, and each later one. Do nothing if the wait is over.")
NO_ARGUMENTS(wait_queued, is_parked, "True while its topic or its partition may hold no more buffers.")
NO_ARGUMENTS(wait_queued, is_stuck, "True while it is parked because its partition is stuck.")
NO_ARGUMENTS(wait_queued, open_semaphore,
             "Open the semaphore of this place. Return False if a waiter has to make it first.")
NO_ARGUMENTS(wait_queued, poll, "Return True if the slots are granted. Then call take().")
METHOD(wait_queued, sleep, INTEGER(timeout_ns, 0, SLEEP_NS_MAX),
       "Sleep until the grant, a signal, or the end of timeout_ns. Return what poll() returns.")
NO_ARGUMENTS(wait_queued, take, "Take the granted slots. Return False if they are no longer granted.")

#include "python/common/methods_end.h"
