/* SPDX-License-Identifier: Apache-2.0 */
#include "arena/extension.h"

#include "arena/arena_fixture.h"

#include "arena/attach.h"
#include "arena/buffer_pool.h"
#include "arena/verify.h"
#include "base/build.h"
#include "core/planting.h"
#include "format/crc32c.h"

enum { SLOT_COUNT = 6, BATCH_SIZE = 512, PATTERN = 0x5a, KIND = 77 };

/* ---- an arena of a later build ---- */

static void superblock_read_whole(int file, struct superblock *superblock)
{
    EXPECT_EQ_U64((uint64_t)pread(file, superblock, sizeof *superblock, 0), sizeof *superblock);
}

static void superblock_write_signed(int file, struct superblock *superblock)
{
    size_t start = offsetof(struct superblock, layout_fingerprint);
    size_t end = offsetof(struct superblock, options) + superblock->options_size;
    superblock->superblock_crc = crc32c_extend(0, (const uint8_t *)superblock + start, end - start);
    EXPECT_EQ_U64((uint64_t)pwrite(file, superblock, sizeof *superblock, 0), sizeof *superblock);
}

static int plain_file(void)
{
    int file = arena_file_new();
    arena_detach(arena_created(file, geometry_of(SLOT_COUNT, BATCH_SIZE)));
    return file;
}

/* Makes a file with two regions of an unknown feature. All of their bytes have a pattern. */
static int later_file(struct superblock *superblock)
{
    int file = plain_file();
    superblock_read_whole(file, superblock);
    uint64_t base = superblock->arena_size;
    superblock->features_compatible = 1;
    superblock->extension_count = 2;
    superblock->extensions[0] = (struct extension){.kind = KIND, .ref = base, .stride = 24, .count = SLOT_COUNT};
    superblock->extensions[1] = (struct extension){.kind = KIND + 1, .ref = base + 192, .stride = 8, .count = 1};
    superblock->arena_size = extensions_end(superblock->extensions, 2, base);
    uint8_t page[PAGE_SIZE_BYTES];
    memset(page, PATTERN, sizeof page);
    EXPECT_EQ_U64(superblock->arena_size, base + sizeof page);
    EXPECT_EQ_U64((uint64_t)pwrite(file, page, sizeof page, (off_t)base), sizeof page);
    superblock_write_signed(file, superblock);
    return file;
}

static enum status attach_status(int file, struct error *error)
{
    struct arena *arena = NULL;
    *error = (struct error){0};
    enum status status = arena_attach(file_opened_again(file), file_opened_again(file), &arena, error);
    if (status == STATUS_OK) {
        arena_detach(arena);
    }
    return status;
}

static enum status read_only_status(int file, struct error *error)
{
    struct arena *arena = NULL;
    *error = (struct error){0};
    enum status status = arena_open_read_only(file_opened_again(file), file_opened_again(file), &arena, error);
    if (status == STATUS_OK) {
        arena_detach(arena);
    }
    return status;
}

/* ---- features ---- */

static void expect_said(const struct error *error, const char *build, const char *remedy)
{
    const char *const words[] = {BUILD_NAME, build, remedy};
    for (uint32_t i = 0; i < COUNT_OF(words); i++) {
        EXPECT_OR_SAY(strstr(error->message, words[i]) != NULL, "\"%s\" does not say %s", error->message, words[i]);
    }
}

TEST(an_arena_with_an_unknown_compatible_feature_is_used)
{
    struct superblock superblock;
    struct error error;
    int file = later_file(&superblock);
    superblock.features_compatible = UINT64_MAX;
    superblock_write_signed(file, &superblock);
    EXPECT_STATUS(attach_status(file, &error), STATUS_OK);
    EXPECT_STATUS(read_only_status(file, &error), STATUS_OK);
    close(file);
}

TEST(an_arena_with_an_unknown_read_only_feature_can_only_be_inspected)
{
    struct superblock superblock;
    struct error error;
    int file = plain_file();
    superblock_read_whole(file, &superblock);
    superblock.features_read_only = 2;
    memcpy(superblock.build, "shmaccum 7.8", sizeof "shmaccum 7.8");
    superblock_write_signed(file, &superblock);
    EXPECT_STATUS(attach_status(file, &error), STATUS_OTHER_LAYOUT);
    expect_said(&error, "shmaccum 7.8", "install that version or a later one");
    expect_said(&error, "0x2", "inspect");
    EXPECT_STATUS(read_only_status(file, &error), STATUS_OK);
    close(file);
}

TEST(an_arena_with_an_unknown_incompatible_feature_is_refused)
{
    struct superblock superblock;
    struct error error;
    int file = plain_file();
    superblock_read_whole(file, &superblock);
    superblock.features_incompatible = UINT64_C(1) << 63;
    memset(superblock.build, 'x', sizeof superblock.build);
    superblock.build[BUILD_SIZE - 1] = '\0';
    superblock_write_signed(file, &superblock);
    EXPECT_STATUS(read_only_status(file, &error), STATUS_OTHER_LAYOUT);
    expect_said(&error, "0x8000000000000000", "install that version or a later one");
    EXPECT_STATUS(attach_status(file, &error), STATUS_OTHER_LAYOUT);
    expect_said(&error, superblock.build, "drain the arena with it and create it again");
    close(file);
}

TEST(the_name_of_a_build_is_text_or_none)
{
    struct superblock superblock = {0};
    char name[BUILD_SIZE];
    const char *const none = "another version of shmaccum";
    build_name_of(&superblock, name);
    EXPECT(strcmp(name, none) == 0);
    memset(superblock.build, 'a', sizeof superblock.build); /* without an end */
    build_name_of(&superblock, name);
    EXPECT(strcmp(name, none) == 0);
    memcpy(superblock.build, "\033[2J", 5);
    build_name_of(&superblock, name);
    EXPECT(strcmp(name, none) == 0);
    memcpy(superblock.build, "shmaccum 9\n", 12);
    build_name_of(&superblock, name);
    EXPECT(strcmp(name, none) == 0);
    memcpy(superblock.build, "shmaccum 9", 11);
    build_name_of(&superblock, name);
    EXPECT(strcmp(name, "shmaccum 9") == 0);
}

TEST(a_new_arena_names_its_build_and_has_no_features)
{
    struct superblock superblock;
    int file = plain_file();
    superblock_read_whole(file, &superblock);
    EXPECT(strcmp(superblock.build, BUILD_NAME) == 0);
    EXPECT_EQ_U64(superblock.features_compatible | superblock.features_read_only | superblock.features_incompatible, 0);
    EXPECT_EQ_U64(superblock.extension_count, 0);
    close(file);
}

/* ---- regions ---- */

static void expect_pattern(int file, uint64_t start, uint64_t end)
{
    uint8_t byte = 0;
    for (uint64_t i = start; i < end; i++) {
        EXPECT_EQ_U64((uint64_t)pread(file, &byte, 1, (off_t)i), 1);
        EXPECT_OR_SAY(byte == PATTERN, "byte %llu of an unknown region changed", (unsigned long long)(i - start));
    }
}

TEST(neither_work_nor_recovery_changes_an_unknown_region)
{
    struct superblock superblock;
    int file = later_file(&superblock);
    struct arena *arena = arena_attached(file);
    EXPECT_EQ_U64(arena->size, superblock.arena_size);
    EXPECT_EQ_U64(arena->extension_count, 2);
    EXPECT(!extension_is_valid(arena, 0)); /* a build that does not know the region attached, with a cold recovery */
    uint32_t slot_index = ready_batch_plant(arena, 3);
    chain_plant(arena);
    buffer_pool_repair(arena);
    struct finding finding;
    const struct verify_options options = {.depth = VERIFY_DEEP};
    EXPECT_EQ_U64(verify(arena, &options, &finding, 1), 0);
    arena->owner = 0; /* as a death leaves it */
    arena_detach(arena);
    arena = arena_attached(file);
    EXPECT(arena->was_recovered);
    EXPECT_EQ_U64(slot_word_state(slot_word_at(arena, slot_index)), SLOT_READY);
    EXPECT_EQ_U64(load_relaxed_u64(&arena->globals->extension_epoch[0]), 0);
    expect_pattern(file, arena->layout.arena_size, superblock.arena_size);
    arena_detach(arena);
    close(file);
}

TEST(a_region_is_valid_in_the_epoch_in_which_it_was_built)
{
    struct superblock superblock;
    int file = later_file(&superblock);
    struct arena *arena = arena_attached(file);
    store_release_u64(&arena->globals->extension_epoch[1], load_relaxed_u64(&arena->globals->arena_epoch));
    EXPECT(!extension_is_valid(arena, 0));
    EXPECT(extension_is_valid(arena, 1));
    arena_detach(arena);
    arena = arena_attached(file);
    EXPECT(!extension_is_valid(arena, 1));
    arena_detach(arena);
    close(file);
}

/* ---- hostile tables ---- */

static void expect_refused(struct superblock *superblock, int file, const char *what)
{
    struct error error;
    superblock_write_signed(file, superblock);
    EXPECT_OR_SAY(attach_status(file, &error) == STATUS_CORRUPT, "%s: attached, or \"%s\"", what, error.message);
    EXPECT_OR_SAY(read_only_status(file, &error) == STATUS_CORRUPT, "%s: opened, or \"%s\"", what, error.message);
}

/* Expects an error if one field of the second region has this value. */
#define EXPECT_BAD(field, value)                              \
    do {                                                      \
        struct superblock superblock;                         \
        int file = later_file(&superblock);                   \
        superblock.extensions[1].field = (value);             \
        expect_refused(&superblock, file, #field " " #value); \
        close(file);                                          \
    } while (0)

TEST(a_table_that_cannot_be_is_refused)
{
    EXPECT_BAD(kind, 0);
    EXPECT_BAD(ref, 0);
    EXPECT_BAD(ref, superblock.extensions[0].ref);      /* it overlaps the first region */
    EXPECT_BAD(ref, superblock.extensions[0].ref + 64); /* it overlaps a region, too */
    EXPECT_BAD(ref, superblock.extensions[1].ref + 8);  /* not aligned to a cache line */
    EXPECT_BAD(ref, superblock.extensions[1].ref + 2 * PAGE_SIZE_BYTES);
    EXPECT_BAD(ref, UINT64_MAX - 63);
    EXPECT_BAD(ref, UINT64_C(1) << 63);
    EXPECT_BAD(stride, 0);
    EXPECT_BAD(stride, 4);
    EXPECT_BAD(stride, 9);
    EXPECT_BAD(stride, EXTENSION_STRIDE_MAX + 8);
    EXPECT_BAD(stride, UINT32_MAX - 7);
    EXPECT_BAD(count, 0);
    EXPECT_BAD(count, PAGE_SIZE_BYTES);
    EXPECT_BAD(count, UINT32_MAX);
}

TEST(a_region_does_not_lie_in_the_base_layout)
{
    struct superblock superblock;
    int file = later_file(&superblock);
    superblock.extensions[0].ref -= PAGE_SIZE_BYTES;
    expect_refused(&superblock, file, "in the slot data");
    superblock.extensions[0].ref = GLOBALS_REF;
    expect_refused(&superblock, file, "in the globals");
    close(file);
}

TEST(a_count_of_regions_that_cannot_be_is_refused)
{
    const uint32_t counts[] = {3, EXTENSION_COUNT_MAX, EXTENSION_COUNT_MAX + 1, UINT32_MAX};
    for (uint32_t i = 0; i < COUNT_OF(counts); i++) {
        struct superblock superblock;
        int file = later_file(&superblock);
        superblock.extension_count = counts[i];
        expect_refused(&superblock, file, "a count");
        close(file);
    }
}

/* One region more than the table has rows. Its row would be in the reserved words, and would be valid there. */
TEST(a_region_beyond_the_table_is_not_read)
{
    struct superblock superblock;
    struct extension regions[EXTENSION_COUNT_MAX + 1];
    int file = later_file(&superblock);
    uint64_t base = superblock.extensions[0].ref;
    for (uint32_t i = 0; i < COUNT_OF(regions); i++) {
        regions[i] = (struct extension){.kind = KIND, .ref = base + i * CACHE_LINE, .stride = 8, .count = 1};
    }
    memcpy((uint8_t *)&superblock + offsetof(struct superblock, extensions), regions, sizeof regions);
    superblock.extension_count = COUNT_OF(regions);
    expect_refused(&superblock, file, "a region too many");
    superblock.extension_count--;
    struct error error;
    superblock_write_signed(file, &superblock);
    EXPECT_STATUS(attach_status(file, &error), STATUS_OK);
    close(file);
}

TEST(a_file_that_ends_in_a_region_is_truncated)
{
    struct superblock superblock;
    struct error error;
    int file = later_file(&superblock);
    EXPECT(ftruncate(file, (off_t)superblock.arena_size - 1) == 0);
    EXPECT_STATUS(attach_status(file, &error), STATUS_TRUNCATED);
    EXPECT_STATUS(read_only_status(file, &error), STATUS_TRUNCATED);
    close(file);
}

RUN_ALL()
