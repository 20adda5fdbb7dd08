/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/extension.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/build.h"
#include "base/bytes.h"

void build_name_of(const struct superblock *superblock, char name[BUILD_SIZE])
{
    uint32_t size = 0;
    while (size < BUILD_SIZE - 1 && superblock->build[size] >= ' ' && superblock->build[size] <= '~') {
        name[size] = superblock->build[size];
        size++;
    }
    if (size == 0 || superblock->build[size] != '\0') {
        snprintf(name, BUILD_SIZE, "another version of shmaccum");
        return;
    }
    name[size] = '\0';
}

enum status features_validate(const struct superblock *superblock, bool is_read_only, struct error *error)
{
    char build[BUILD_SIZE];
    uint64_t incompatible = superblock->features_incompatible & ~FEATURES_INCOMPATIBLE;
    uint64_t read_only = superblock->features_read_only & ~FEATURES_READ_ONLY;
    build_name_of(superblock, build);
    if (incompatible != 0) {
        return error_set(error, STATUS_OTHER_LAYOUT,
                         "%s does not know features of this arena (incompatible: %#" PRIx64 "), which %s made: install "
                         "that version or a later one, or drain the arena with it and create it again",
                         BUILD_NAME, incompatible, build);
    }
    if (read_only != 0 && !is_read_only) {
        return error_set(error, STATUS_OTHER_LAYOUT,
                         "%s may only inspect and check this arena, because it does not know features of it "
                         "(read-only: %#" PRIx64 "). %s made it: install that version or a later one, or drain the "
                         "arena with it and create it again",
                         BUILD_NAME, read_only, build);
    }
    return STATUS_OK;
}

static bool extension_is_possible(const struct extension *extension, uint64_t start)
{
    return extension->kind != 0 && extension->ref >= start && extension->ref <= INT64_MAX / 2 &&
           extension->ref % CACHE_LINE == 0 && extension->stride >= 8 && extension->stride % 8 == 0 &&
           extension->stride <= EXTENSION_STRIDE_MAX && extension->count >= 1 &&
           extension->count <= EXTENSION_ELEMENTS_MAX;
}

static uint64_t extension_end(const struct extension *extension)
{
    CHECK(extension->stride <= EXTENSION_STRIDE_MAX);
    CHECK(extension->count <= EXTENSION_ELEMENTS_MAX);
    return extension->ref + (uint64_t)extension->stride * extension->count;
}

uint64_t extensions_end(const struct extension *extensions, uint32_t count, uint64_t base_size)
{
    CHECK(count <= EXTENSION_COUNT_MAX);
    return count == 0 ? base_size : round_up(extension_end(&extensions[count - 1]), PAGE_SIZE_BYTES);
}

enum status extensions_validate(const struct superblock *superblock, uint64_t base_size, struct error *error)
{
    CHECK(base_size % PAGE_SIZE_BYTES == 0);
    uint64_t start = base_size;
    if (superblock->extension_count > EXTENSION_COUNT_MAX) {
        return error_set(error, STATUS_CORRUPT, "the superblock lists %u extension regions, the limit is %d",
                         superblock->extension_count, EXTENSION_COUNT_MAX);
    }
    for (uint32_t i = 0; i < superblock->extension_count; i++) {
        if (!extension_is_possible(&superblock->extensions[i], start)) {
            return error_set(error, STATUS_CORRUPT, "extension region %u has an impossible place in the superblock", i);
        }
        start = extension_end(&superblock->extensions[i]);
    }
    if (extensions_end(superblock->extensions, superblock->extension_count, base_size) != superblock->arena_size) {
        return error_set(error, STATUS_CORRUPT, "the superblock's size contradicts its geometry");
    }
    return STATUS_OK;
}

bool extension_is_valid(const struct arena *arena, uint32_t index)
{
    CHECK(index < arena->extension_count);
    return load_acquire_u64(&arena->globals->extension_epoch[index]) == /* X3 */
           load_relaxed_u64(&arena->globals->arena_epoch);
}
