/* SPDX-License-Identifier: Apache-2.0
 *
 * The superblock: the constant facts of an arena, written once by its creator.
 *
 *   write   every field → the checksum over all of them → magic (release): from here on, the file is an arena
 *   check   magic → layout version and fingerprint → checksum → features → geometry within bounds → extension regions
 *           and sizes that agree with it
 *
 * It is untrusted: a private copy is checked and then used. A creator that dies before the magic leaves a file that is
 * reported as UNFINISHED.
 */
#ifndef ARENA_SUPERBLOCK_H
#define ARENA_SUPERBLOCK_H

#include <sys/types.h>

#include "arena/arena.h"

/* Writes everything but the magic. Requires a mapped arena and options_size <= OPTIONS_SIZE_MAX. Returns STATUS_OS if
 * there are no random bytes. */
enum status superblock_fill(struct arena *arena, const void *options, uint32_t options_size,
                            struct error *error) MUST_USE;

/* Reads the arena's geometry and uuid from the file, which has file_size bytes. Returns STATUS_NOT_AN_ARENA,
 * STATUS_UNFINISHED, STATUS_OTHER_LAYOUT, STATUS_TRUNCATED or STATUS_CORRUPT if it is not valid. */
enum status superblock_read(struct arena *arena, off_t file_size, struct error *error) MUST_USE;

/* Returns true if the superblock in the mapping is valid and its geometry and extensions are those at attach. */
bool superblock_is_sound(const struct arena *arena);

#endif
