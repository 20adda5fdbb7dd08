/* SPDX-License-Identifier: Apache-2.0
 *
 * Locks on single bytes of the arena's file. Each belongs to an open file description (OFD lock). The kernel releases
 * it when the last descriptor of that description is closed. layout.h lists the bytes and their meanings.
 */
#ifndef ARENA_BYTE_LOCK_H
#define ARENA_BYTE_LOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum byte_lock { BYTE_UNLOCKED, BYTE_SHARED, BYTE_EXCLUSIVE };

/* Returns STATUS_BUSY if another process has a conflicting lock, and STATUS_OS if the file system has no OFD locks. */
enum status byte_lock_try(int descriptor, int64_t byte, enum byte_lock mode, struct error *error) MUST_USE;

/* Waits one slice. BYTE_LOCK_SLICE_COUNT slices are a second. If a conflict lasts longer than that, the other process
 * is probably stopped. It is not dead, because the kernel releases the locks of dead processes. */
enum { BYTE_LOCK_SLICE_COUNT = 500 };
void byte_lock_pause(void);

/* Returns true if another open file description has an exclusive lock on the byte. */
bool byte_is_locked(int descriptor, int64_t byte);

/* The same for any of `count` bytes. */
bool bytes_are_locked(int descriptor, int64_t first, int64_t count);

#endif
