/* SPDX-License-Identifier: Apache-2.0
 *
 * What an arena has beyond the frozen layout: features, and regions that only some builds know. The creator chooses
 * both, and neither changes as long as the arena lives.
 *
 *   superblock: features_compatible | features_read_only | features_incompatible | extensions[extension_count]
 *                                                                                       |
 *   file:   base layout (layout.h) | slot data | region 0 | region 1 | ... | (padding to a page)
 *
 * FEATURES. A build that meets a bit that it does not know:
 *   in features_compatible     attaches and works, and leaves the feature's regions and words alone
 *   in features_read_only      maps the arena without write permission, for inspection
 *   in features_incompatible   refuses the arena, and names both builds
 * A feature that all processes have to maintain is incompatible by definition: a build that does not know it would not.
 *
 * REGIONS. An array with an element for each slot, partition or process; which one, and what its elements are, follows
 *   from its kind. Regions lie behind the slot data, in the order of the table, and do not overlap.
 *   A build that does not know a kind neither reads nor writes that region: also not when it recovers the arena, scrubs
 *   a slot or takes a process entry. So a region says nothing about its arena unless its users say so:
 *
 *   globals.extension_epoch[i] == globals.arena_epoch    region i is valid
 *   otherwise                                            the arena was recovered since, perhaps by a build that does
 *                                                        not know the region: its users rebuild it
 *
 *   rebuild   registry lock → look again → build the region from words of the base layout → extension_epoch[i] =
 *             arena_epoch (release, X3) → unlock
 *   use       extension_epoch[i] == arena_epoch (acquire, X3), once per attach: an arena that has attached processes
 *             is not recovered
 *   Both are 0 in a new arena, and the region is all zeros: zeros have to be right for an arena without records.
 *
 * DEATHS. A process that dies while it rebuilds leaves the epoch as it was, and a lock that is stolen: the next user
 * rebuilds. is_clean says nothing about regions.
 *
 * A region has to be right although processes that do not know it open batches, free slots and leave meanwhile: its
 * users compare what it says of a slot with the slot's generation, and what it says of a process with the entry's.
 */
#ifndef ARENA_EXTENSION_H
#define ARENA_EXTENSION_H

#include "arena/arena.h"

/* The features that this build knows. */
#ifdef SHMACCUM_LATER_BUILD /* of a test (tests/skew) */
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

/* Whether this build may use the arena, or look at it where that is all that is wanted. STATUS_OTHER_LAYOUT: `error`
 * names both builds and what to do. Requires a superblock whose checksum is right. */
enum status features_judge(const struct superblock *superblock, bool is_read_only, struct error *error) MUST_USE;

/* Whether the table is possible behind a base layout of `base_size` bytes, and the arena as large as both say. */
enum status extensions_judge(const struct superblock *superblock, uint64_t base_size, struct error *error) MUST_USE;

/* The size of an arena with these regions, which are possible. */
uint64_t extensions_end(const struct extension *extensions, uint32_t count, uint64_t base_size);

/* The name of the build that made the arena, or a phrase where there is no readable one. */
void build_name_of(const struct superblock *superblock, char name[BUILD_SIZE]);

/* Requires index < arena->extension_count. */
bool extension_is_valid(const struct arena *arena, uint32_t index);

#ifdef SHMACCUM_LATER_BUILD
/* The features and regions of an arena that is about to be made. tests/skew/later_build.c has both functions. */
void later_build_plan(struct arena *arena);

/* Called after each attach: rebuilds the region of the later build if it is not valid. */
void later_build_join(struct arena *arena);
#endif

#endif
