/* SPDX-License-Identifier: Apache-2.0
 *
 * The later build of the tests of skew (SHMACCUM_LATER_BUILD in setup.py). It has one feature of each kind, which
 * current builds do not know.
 *
 *   compatible     in every arena that it creates: a region with an element for each process entry, which is the
 *                  generation with which a later build has attached
 *   read-only      in an arena that is made while SHMACCUM_LATER_FEATURES contains "read-only"
 *   incompatible   in an arena that is made while SHMACCUM_LATER_FEATURES contains "incompatible"
 */
#include "arena/extension.h"

#include <stdlib.h>
#include <string.h>

#include "arena/lock.h"

enum { EXTENSION_ATTACHMENTS = 0x4154 };

struct attachment {
    atomic_u32 generation; /* owner: the owner of the process entry */
    atomic_u32 is_rebuilt; /* 1 while no owner has attached since the region was rebuilt */
    uint64_t reserved;
};

void later_build_plan(struct arena *arena)
{
    const char *asked = getenv("SHMACCUM_LATER_FEATURES");
    arena->features_compatible = FEATURES_COMPATIBLE;
    arena->features_read_only = asked != NULL && strstr(asked, "read-only") != NULL ? FEATURES_READ_ONLY : 0;
    arena->features_incompatible = asked != NULL && strstr(asked, "incompatible") != NULL ? FEATURES_INCOMPATIBLE : 0;
    arena->extension_count = 1;
    arena->extensions[0] = (struct extension){.kind = EXTENSION_ATTACHMENTS,
                                              .ref = arena->layout.arena_size,
                                              .stride = sizeof(struct attachment),
                                              .count = arena->geometry.process_count};
    arena->file_size_wanted = extensions_end(arena->extensions, 1, arena->layout.arena_size);
}

static struct attachment *attachments_find(const struct arena *arena, uint32_t *index)
{
    for (uint32_t i = 0; i < arena->extension_count; i++) {
        const struct extension *extension = &arena->extensions[i];
        if (extension->kind == EXTENSION_ATTACHMENTS && extension->stride == sizeof(struct attachment) &&
            extension->count == arena->geometry.process_count) {
            *index = i;
            return (struct attachment *)(void *)(arena->base + extension->ref);
        }
    }
    return NULL;
}

/* Rebuilds the region from the words of the base layout, whatever the region contains. */
static void attachments_rebuild(struct arena *arena, struct attachment *attachments)
{
    for (uint32_t i = 0; i < arena->geometry.process_count; i++) {
        store_relaxed_u32(&attachments[i].generation, load_relaxed_u32(&arena->processes[i].generation));
        store_relaxed_u32(&attachments[i].is_rebuilt, 1);
    }
}

void later_build_join(struct arena *arena)
{
    uint32_t index;
    struct attachment *attachments = attachments_find(arena, &index);
    if (attachments == NULL) {
        return;
    }
    if (!extension_is_valid(arena, index)) {
        uint64_t held;
        while (lock_acquire(arena, &arena->globals->registry_lock, &held) == LOCK_REFUSED) {
        }
        if (!extension_is_valid(arena, index)) {
            attachments_rebuild(arena, attachments);
            store_release_u64(&arena->globals->extension_epoch[index], /* X1 */
                              load_relaxed_u64(&arena->globals->arena_epoch));
        }
        lock_release(&arena->globals->registry_lock, held);
    }
    store_relaxed_u32(&attachments[arena->entry_index].generation, load_relaxed_u32(&arena->me->generation));
    store_relaxed_u32(&attachments[arena->entry_index].is_rebuilt, 0);
}
