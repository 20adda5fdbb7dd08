/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks on single bytes of the arena's file. Each belongs to an open file description (OFD lock), so the kernel frees
 * it when the last descriptor of its process is gone. Which byte means what stands in layout.h.
 */
#ifndef ARENA_BYTE_LOCK_H
#define ARENA_BYTE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum byte_lock { BYTE_UNLOCKED, BYTE_SHARED, BYTE_EXCLUSIVE };

/* STATUS_BUSY when somebody else's lock is in the way, STATUS_OS when the file system has no OFD locks. */
enum status byte_lock_try(int descriptor, int64_t byte, enum byte_lock mode, struct error *error) MUST_USE;

/* A slice of a wait, of which BYTE_LOCK_SLICE_COUNT make a second. The kernel frees what the dead held, so a holder
 * that is in the way for longer is alive, and probably stopped. */
enum { BYTE_LOCK_SLICE_COUNT = 500 };
void byte_lock_rest(void);

/* True when another open file description holds the byte exclusively. */
bool byte_is_locked(int descriptor, int64_t byte);

/* The same of any of `count` bytes. */
bool bytes_are_locked(int descriptor, int64_t first, int64_t count);

#endif
