/* SPDX-License-Identifier: Apache-2.0
 *
 * Fill all process entries of the arena: the processes are attached at the same time, and each appends a record.
 */
#include "core/delivery_fixture.h"

#include "arena/attach.h"
#include "arena/process.h"

/* With the sanitizer, a fork takes a hundred times as long. */
#if defined(__SANITIZE_ADDRESS__)
enum { CROWD_COUNT = 64 };
#else
enum { CROWD_COUNT = 1024 };
#endif
enum { SLOT_COUNT = 256, BATCH_SIZE = 512, PARTITION_COUNT = 8 };

struct gate {
    int arrived[2]; /* each writes a byte when it has appended */
    int leaving[2]; /* the members exit when it is closed */
};

static struct geometry crowd_geometry(void)
{
    struct geometry geometry = geometry_of(SLOT_COUNT, BATCH_SIZE);
    geometry.process_count = CROWD_COUNT + 1; /* one more for the parent */
    return geometry;
}

static void wait_for_the_sign(struct gate *gate)
{
    uint8_t byte = 0;
    close(gate->leaving[1]);
    EXPECT(write(gate->arrived[1], &byte, 1) == 1);
    close(gate->arrived[1]);
    EXPECT(read(gate->leaving[0], &byte, 1) == 0);
}

static pid_t member_started(int file, struct gate *gate, uint32_t number)
{
    pid_t child = child_forked();
    if (child == 0) {
        struct arena *arena = arena_attached(file);
        struct accumulator *producer = accumulator_opened(arena);
        EXPECT_STATUS(append_number(producer, number % PARTITION_COUNT, number), STATUS_OK);
        wait_for_the_sign(gate);
        accumulator_close(producer);
        arena_detach(arena);
        _exit(testing_exit_code());
    }
    return child;
}

static uint32_t bytes_read(int descriptor)
{
    uint8_t bytes[256];
    uint32_t count = 0;
    for (ssize_t size; count < CROWD_COUNT && (size = read(descriptor, bytes, sizeof bytes)) > 0;) {
        count += (uint32_t)size;
    }
    return count;
}

static uint32_t living_count(const struct arena *arena)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < arena->geometry.process_count; i++) {
        count += process_is_alive(arena, owner_of(i, load_acquire_u32(&arena->processes[i].generation)));
    }
    return count;
}

static void expect_no_room_for_one_more(int file)
{
    struct arena *arena = NULL;
    struct error error = {0};
    EXPECT_STATUS(arena_attach(file_opened_again(file), file_opened_again(file), &arena, &error), STATUS_NO_ENTRY);
    EXPECT(strstr(error.message, "process entries are taken") != NULL);
}

TEST(every_entry_is_a_process_of_its_own_and_every_record_arrives)
{
    static pid_t members[CROWD_COUNT];
    struct ledger *ledger = calloc(1, sizeof *ledger);
    struct gate gate;
    int file = arena_file_new();
    struct arena *arena = arena_created(file, crowd_geometry());
    EXPECT(pipe2(gate.arrived, O_CLOEXEC) == 0 && pipe2(gate.leaving, O_CLOEXEC) == 0);
    for (uint32_t i = 0; i < CROWD_COUNT; i++) {
        members[i] = member_started(file, &gate, i);
    }
    close(gate.arrived[1]);
    EXPECT_EQ_U64(bytes_read(gate.arrived[0]), CROWD_COUNT);
    EXPECT_EQ_U64(living_count(arena), CROWD_COUNT + 1);
    expect_no_room_for_one_more(file);

    struct accumulator *sender = sender_opened(arena);
    deliver_everything(sender, ledger);
    expect_delivered_once(ledger, 0, CROWD_COUNT);

    close(gate.leaving[1]);
    for (uint32_t i = 0; i < CROWD_COUNT; i++) {
        EXPECT_OR_SAY(child_is_content(members[i]), "process %u did not end well", i);
    }
    EXPECT_EQ_U64(living_count(arena), 1);
    close(gate.arrived[0]);
    close(gate.leaving[0]);
    accumulator_close(sender);
    expect_all_free(arena);
    arena_end(arena, file);
    free(ledger);
}

RUN_ALL()
