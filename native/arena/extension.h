/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of an arena outside the frozen layout: features, and regions that only some builds know. The creator
 * chooses both, and neither changes during the life of the arena.
 *
 *   superblock: features_compatible | features_read_only | features_incompatible | extensions[extension_count]
 *                                                                                       |
 *   file:   base layout (layout.h) | slot data | region 0 | region 1 | ... | (padding to a page)
 *
 * FEATURES. A build that finds an unknown bit:
 *   in features_compatible     attaches and works, and does not use the feature's regions and words
 *   in features_read_only      maps the arena without write permission, for inspection
 *   in features_incompatible   rejects the arena, and names both builds
 * A feature that all processes have to maintain is incompatible.
 *
 * REGIONS. An array with an element for each slot, partition or process. The kind states which of the three, and
 *   defines the elements. Regions follow the slot data, in the order of the table, and do not overlap. A build that
 *   does not know a kind neither reads nor writes that region, even when it recovers the arena, scrubs a slot or takes
 *   a process entry. So a region is valid only if its users have marked it:
 *
 *   globals.extension_epoch[i] == globals.arena_epoch    region i is valid
 *   otherwise                                            the arena was recovered since, perhaps by a build that does
 *                                                        not know the region: its users rebuild it
 *
 *   rebuild   registry lock → check again → build the region from words of the base layout → extension_epoch[i] =
 *             arena_epoch (release, X3) → unlock
 *   use       extension_epoch[i] == arena_epoch (acquire, X3), once per attach: the arena is not recovered while a
 *             process is attached
 *   Both are 0 in a new arena, and the region is all zeros: zeros have to be correct for an arena without records.
 *
 * DEATHS. If a process dies during a rebuild, the epoch is unchanged. The next user steals the lock and rebuilds.
 * is_clean does not cover regions.
 *
 * Processes that do not know a region open batches, free slots and detach meanwhile. So an element has a generation,
 * and its users compare it with that of the slot or process entry.
 */
#ifndef ARENA_EXTENSION_H
#define ARENA_EXTENSION_H

#include "arena/arena.h"

#ifdef SHMACCUM_LATER_BUILD /* for a test (tests/skew) */
#define FEATURES_COMPATIBLE (UINT64_C(1) << 63)
#define FEATURES_READ_ONLY (UINT64_C(1) << 63)
#define FEATURES_INCOMPATIBLE (UINT64_C(1) << 63)
#else
#define FEATURES_COMPATIBLE UINT64_C(0)
#define FEATURES_READ_ONLY UINT64_C(0)
#define FEATURES_INCOMPATIBLE UINT64_C(0)
#endif

#define EXTENSION_STRIDE_MAX ((uint32_t)1 << 20)
#define EXTENSION_ELEMENTS_MAX SLOT_COUNT_MAX

/* Checks whether this build may use the arena, or read it if is_read_only. Returns STATUS_OTHER_LAYOUT with an error
 * that names both builds and the remedy. Requires a superblock whose checksum is right. */
enum status features_validate(const struct superblock *superblock, bool is_read_only, struct error *error) MUST_USE;

/* Checks that the table is possible after a base layout of `base_size` bytes, and that the arena's size agrees with
 * both. */
enum status extensions_validate(const struct superblock *superblock, uint64_t base_size, struct error *error) MUST_USE;

/* Returns the size of an arena with these regions. Requires that they are valid. */
uint64_t extensions_end(const struct extension *extensions, uint32_t count, uint64_t base_size);

/* Copies the name of the build that created the arena, or "another version of shmaccum" if it is not readable. */
void build_name_of(const struct superblock *superblock, char name[BUILD_SIZE]);

/* Requires index < arena->extension_count. */
bool extension_is_valid(const struct arena *arena, uint32_t index);

#ifdef SHMACCUM_LATER_BUILD
/* Sets the features and regions of an arena that is about to be created. Defined in tests/skew/later_build.c. */
void later_build_plan(struct arena *arena);

/* Called after each attach: rebuilds the region of the later build if it is not valid. */
void later_build_join(struct arena *arena);
#endif

#endif
