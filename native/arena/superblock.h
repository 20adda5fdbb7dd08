/* SPDX-License-Identifier: Apache-2.0
 *
 * The superblock: the facts of an arena about itself, written once by its creator and never again.
 *
 *   write   every field → the checksum over all of them → magic (release): from here on it is an arena
 *   judge   magic → layout version and fingerprint → checksum → features → geometry within bounds → extension regions
 *           and sizes that agree with it
 *
 * It is input: each byte is judged first, and then believed from a private copy. A creator that dies
 * before the magic leaves a file that says UNFINISHED.
 */
#ifndef ARENA_SUPERBLOCK_H
#define ARENA_SUPERBLOCK_H

#include <sys/types.h>

#include "arena/arena.h"

/* Everything but the magic. Requires a mapped arena and options_size <= OPTIONS_SIZE_MAX. STATUS_OS: no random bytes
 * can be had. */
enum status superblock_fill(struct arena *arena, const void *options, uint32_t options_size,
                            struct error *error) MUST_USE;

/* The arena's geometry and uuid from the file, which has file_size bytes. STATUS_NOT_AN_ARENA, STATUS_UNFINISHED,
 * STATUS_OTHER_LAYOUT, STATUS_TRUNCATED or STATUS_CORRUPT say what is wrong with it. */
enum status superblock_read(struct arena *arena, off_t file_size, struct error *error) MUST_USE;

/* Whether the superblock in the mapping is still one that we would attach to, and says what it said then. */
bool superblock_is_sound(const struct arena *arena);

#endif
