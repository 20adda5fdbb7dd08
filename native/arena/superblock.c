/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/superblock.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "arena/extension.h"
#include "base/build.h"
#include "format/crc32c.h"

STATIC_CHECK(sizeof BUILD_NAME <= BUILD_SIZE);

static uint32_t superblock_crc(const struct superblock *superblock)
{
    size_t start = offsetof(struct superblock, layout_fingerprint);
    size_t end = offsetof(struct superblock, options) + superblock->options_size;
    return crc32c_extend(0, (const uint8_t *)superblock + start, end - start);
}

static enum status uuid_make(uint8_t *uuid, size_t size, struct error *error)
{
    CHECK(size >= 1);
    ssize_t count = 0;
    while ((size_t)count != size) {
        count = getrandom(uuid, size, 0);
        if (count < 0 && errno != EINTR) {
            return error_set_os(error, "cannot get random bytes for the id of the arena");
        }
    }
    return STATUS_OK;
}

enum status superblock_fill(struct arena *arena, const void *options, uint32_t options_size, struct error *error)
{
    CHECK(arena->base != NULL);
    CHECK(options_size <= OPTIONS_SIZE_MAX);
    struct superblock *superblock = arena->superblock;
    RETURN_IF_FAILED(uuid_make(superblock->uuid, sizeof superblock->uuid, error));
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    superblock->layout_version = LAYOUT_VERSION;
    superblock->layout_fingerprint = layout_fingerprint();
    superblock->arena_size = arena->size;
    superblock->created_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    memcpy(superblock->build, BUILD_NAME, sizeof BUILD_NAME);
    superblock->features_compatible = arena->features_compatible;
    superblock->features_read_only = arena->features_read_only;
    superblock->features_incompatible = arena->features_incompatible;
    superblock->extension_count = arena->extension_count;
    memcpy(superblock->extensions, arena->extensions, sizeof superblock->extensions);
    superblock->geometry = arena->geometry;
    superblock->options_size = options_size;
    if (options_size > 0) {
        memcpy(superblock->options, options, options_size);
    }
    memcpy(arena->uuid, superblock->uuid, sizeof arena->uuid);
    superblock->superblock_crc = superblock_crc(superblock);
    return STATUS_OK;
}

static bool layout_is_known(const struct superblock *superblock)
{
    return superblock->layout_version == LAYOUT_VERSION && superblock->layout_fingerprint == layout_fingerprint();
}

static enum status layout_refuse(const struct superblock *superblock, struct error *error)
{
    char build[BUILD_SIZE];
    build_name_of(superblock, build);
    return error_set(error, STATUS_OTHER_LAYOUT,
                     "the arena has layout version %u of %s, and %s has version %d or another fingerprint of it: drain "
                     "the arena with the version that made it, or remove it",
                     superblock->layout_version, build, BUILD_NAME, LAYOUT_VERSION);
}

static enum status superblock_check_sizes(const struct superblock *superblock, uint64_t file_size, struct error *error)
{
    struct layout layout;
    RETURN_IF_FAILED(geometry_validate(&superblock->geometry, error));
    layout_compute(&superblock->geometry, &layout);
    RETURN_IF_FAILED(extensions_validate(superblock, layout.arena_size, error));
    if (superblock->arena_size > file_size) {
        return error_set(error, STATUS_TRUNCATED, "the arena needs %" PRIu64 " bytes, its file has %" PRIu64,
                         superblock->arena_size, file_size);
    }
    return STATUS_OK;
}

static enum status superblock_validate(const struct superblock *superblock, uint64_t file_size, bool is_read_only,
                                    struct error *error)
{
    uint64_t magic = load_relaxed_u64(&superblock->magic);
    if (magic == 0) {
        return error_set(error, STATUS_UNFINISHED, "%s", status_sentence(STATUS_UNFINISHED));
    }
    if (magic != ARENA_MAGIC) {
        return error_set(error, STATUS_NOT_AN_ARENA, "%s", status_sentence(STATUS_NOT_AN_ARENA));
    }
    if (!layout_is_known(superblock)) {
        return layout_refuse(superblock, error);
    }
    if (superblock->options_size > OPTIONS_SIZE_MAX || superblock_crc(superblock) != superblock->superblock_crc) {
        return error_set(error, STATUS_CORRUPT,
                         "the superblock's bytes contradict its checksum, so the arena's content cannot be read: "
                         "remove the arena and create it again");
    }
    RETURN_IF_FAILED(features_validate(superblock, is_read_only, error));
    return superblock_check_sizes(superblock, file_size, error);
}

bool superblock_is_sound(const struct arena *arena)
{
    CHECK(arena->base != NULL);
    struct superblock copy; /* a private copy, because the bytes may change during the check */
    memcpy(&copy, arena->superblock, sizeof copy);
    return superblock_validate(&copy, arena->size, arena->is_read_only, NULL) == STATUS_OK &&
           memcmp(&copy.geometry, &arena->geometry, sizeof copy.geometry) == 0 &&
           copy.extension_count == arena->extension_count &&
           memcmp(copy.extensions, arena->extensions, sizeof copy.extensions) == 0;
}

/* Uses pread, not the mapping: a file shorter than a page must not raise SIGBUS, and the checked bytes must not change.
 */
enum status superblock_read(struct arena *arena, off_t file_size, struct error *error)
{
    CHECK(arena->base == NULL);
    struct superblock superblock = {0};
    ssize_t size = pread(arena->map_descriptor, &superblock, sizeof superblock, 0);
    if (size < 0) {
        return error_set_os(error, "cannot read the superblock");
    }
    if ((size_t)size < sizeof superblock && load_relaxed_u64(&superblock.magic) == ARENA_MAGIC) {
        return error_set(error, STATUS_TRUNCATED, "the file ends inside its superblock");
    }
    RETURN_IF_FAILED(superblock_validate(&superblock, (uint64_t)file_size, arena->is_read_only, error));
    arena->geometry = superblock.geometry;
    arena->file_size_wanted = superblock.arena_size;
    arena->features_compatible = superblock.features_compatible;
    arena->features_read_only = superblock.features_read_only;
    arena->features_incompatible = superblock.features_incompatible;
    arena->extension_count = superblock.extension_count;
    memcpy(arena->extensions, superblock.extensions, sizeof arena->extensions);
    memcpy(arena->uuid, superblock.uuid, sizeof arena->uuid);
    return STATUS_OK;
}
