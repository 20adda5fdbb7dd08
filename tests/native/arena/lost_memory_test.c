/* SPDX-License-Identifier: Apache-2.0 */
/* runs under: tsan */
#include "arena_fixture.h"

#include <setjmp.h>

#include "arena/lost_memory.h"

/* Runs code in a child, and returns the child's wait status. */
static int status_of_child(void (*run)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL); /* a sanitizer has its own handler */
        run();
        _exit(testing_exit_code());
    }
    EXPECT(waitpid(child, &status, 0) == child);
    return status;
}

static void expect_exit(void (*run)(void))
{
    int status = status_of_child(run);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void expect_sigbus(void (*run)(void))
{
    int status = status_of_child(run);
    EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* Returns a page past the end of its file. */
static volatile uint8_t *foreign_page(void)
{
    int file = memfd_create("foreign", MFD_CLOEXEC);
    EXPECT(file >= 0);
    void *page = mmap(NULL, PAGE_SIZE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    EXPECT(page != MAP_FAILED);
    return page;
}

/* ---- the arena ---- */

static void read_and_write_a_cut_arena(void)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    EXPECT(!arena_is_lost(arena));
    EXPECT(ftruncate(file, 0) == 0);
    EXPECT_EQ_U64(arena->superblock->magic, 0);
    EXPECT(arena_is_lost(arena));
    EXPECT(arena_is_poisoned(arena));
    arena_slot_data(arena, 7)[0] = 1;
    EXPECT_EQ_U64(arena_slot_data(arena, 7)[0], 1);
}

TEST(a_process_survives_the_cut_of_its_arena)
{
    expect_exit(read_and_write_a_cut_arena);
}

static void lose_the_end_alone(void)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    struct arena *other = arena_attached(file);
    EXPECT(ftruncate(file, (off_t)arena->layout.slot_data) == 0);
    EXPECT(!arena_is_poisoned(arena)); /* the first page is still there */
    arena_slot_data(arena, 0)[0] = 1;
    EXPECT(arena_is_lost(arena));
    EXPECT_EQ_U64(arena->superblock->magic, 0); /* all pages were replaced, and the new ones are zeros */
    EXPECT(!arena_is_lost(other));
    EXPECT_EQ_U64(other->superblock->magic, ARENA_MAGIC);
    EXPECT(!arena_is_poisoned(other)); /* the word was stored in a page of the first handle */
}

TEST(a_lost_page_replaces_the_whole_mapping_and_no_other_one)
{
    expect_exit(lose_the_end_alone);
}

static void read_only(void)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    struct arena *reader = NULL;
    struct error error;
    EXPECT_STATUS(arena_open_read_only(file_opened_again(file), file_opened_again(file), &reader, &error), STATUS_OK);
    EXPECT(ftruncate(file, 0) == 0);
    EXPECT_EQ_U64(load_relaxed_u32(&reader->globals->closing), 0);
    EXPECT(arena_is_lost(reader) && !arena_is_lost(arena));
}

TEST(a_reader_survives_it_too)
{
    expect_exit(read_only);
}

enum { WRITERS = 8 };

struct writer {
    struct arena *arena;
    uint32_t number;
};

/* Writes its part of each slot, so all writers touch the same pages and no byte of another one. */
static void *write_part(void *given)
{
    const struct writer *writer = given;
    const struct arena *arena = writer->arena;
    uint32_t size = arena->geometry.batch_size / WRITERS;
    for (uint32_t i = 0; i < arena->geometry.slot_count; i++) {
        memset(arena_slot_data(arena, i) + writer->number * size, 1, size);
    }
    EXPECT(arena_is_lost(arena));
    return NULL;
}

static void fault_in_threads(void)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(64, 4096));
    pthread_t threads[WRITERS];
    struct writer writers[WRITERS];
    EXPECT(ftruncate(file, 0) == 0);
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.arena = arena, .number = i};
        EXPECT(pthread_create(&threads[i], NULL, write_part, &writers[i]) == 0);
    }
    for (size_t i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
    }
}

TEST(threads_that_fault_together_survive)
{
    expect_exit(fault_in_threads);
}

static void lose_in_a_fork(void)
{
    int file = arena_file_new();
    struct arena *arena = arena_created(file, geometry_of(8, 512));
    EXPECT(ftruncate(file, 0) == 0);
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        (void)*(volatile uint64_t *)(void *)arena->base;
        _exit(arena_is_lost(arena) ? 0 : 1);
    }
    EXPECT(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT(!arena_is_lost(arena)); /* its own pages were not touched */
}

TEST(a_forked_child_survives_lost_memory_and_its_parent_does_not_notice)
{
    expect_exit(lose_in_a_fork);
}

static void detach_and_fault(void)
{
    int file = arena_file_new();
    struct arena *first = arena_created(file, geometry_of(8, 512));
    for (int i = 0; i < 100; i++) {
        arena_detach(arena_attached(file));
    }
    volatile uint8_t *page = foreign_page();
    struct arena *second = arena_attached(file);
    EXPECT(ftruncate(file, 0) == 0);
    EXPECT_EQ_U64(second->superblock->magic, 0);
    EXPECT(arena_is_lost(second) && !arena_is_lost(first));
    page[0] = 1;
}

TEST(an_unmapped_arena_is_no_longer_watched)
{
    expect_sigbus(detach_and_fault);
}

/* ---- everything else ---- */

static void fault_elsewhere(void)
{
    (void)arena_created(arena_file_new(), geometry_of(8, 512));
    foreign_page()[0] = 1;
}

TEST(a_fault_elsewhere_ends_the_process_as_before)
{
    expect_sigbus(fault_elsewhere);
}

static void kill_with_it(void)
{
    (void)arena_created(arena_file_new(), geometry_of(8, 512));
    raise(SIGBUS);
}

TEST(a_signal_of_kill_ends_the_process_as_before)
{
    expect_sigbus(kill_with_it);
}

static void ignore_it(void)
{
    signal(SIGBUS, SIG_IGN);
    (void)arena_created(arena_file_new(), geometry_of(8, 512));
    raise(SIGBUS);
}

TEST(an_ignored_signal_of_kill_stays_ignored)
{
    expect_exit(ignore_it);
}

static void ignore_a_fault(void)
{
    signal(SIGBUS, SIG_IGN);
    fault_elsewhere();
}

TEST(an_ignored_fault_ends_the_process_as_the_kernel_has_it)
{
    expect_sigbus(ignore_a_fault);
}

static sigjmp_buf back;
static void *volatile seen;

static void former_handler(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    seen = info->si_addr;
    siglongjmp(back, 1);
}

static void plain_handler(int number)
{
    siglongjmp(back, number);
}

static void reach_a_former_handler(void)
{
    struct sigaction action = {.sa_sigaction = former_handler, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    (void)arena_created(arena_file_new(), geometry_of(8, 512));
    volatile uint8_t *page = foreign_page();
    if (sigsetjmp(back, 1) == 0) {
        page[0] = 1;
    }
    EXPECT(seen == (void *)(uintptr_t)page);
}

TEST(a_fault_elsewhere_reaches_the_former_handler)
{
    expect_exit(reach_a_former_handler);
}

static void reach_a_plain_handler(void)
{
    signal(SIGBUS, plain_handler);
    (void)arena_created(arena_file_new(), geometry_of(8, 512));
    int number = sigsetjmp(back, 1);
    if (number == 0) {
        foreign_page()[0] = 1;
    }
    EXPECT(number == SIGBUS);
}

TEST(a_former_handler_without_the_facts_is_reached_too)
{
    expect_exit(reach_a_plain_handler);
}

RUN_ALL()
