/* SPDX-License-Identifier: Apache-2.0 */
#include "path.h"

#include "ledger.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/user.h>

void *memory_new(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    return memory;
}

void memory_free(void *memory, size_t size)
{
    REQUIRE(munmap(memory, size) == 0);
}

/* ---- breakpoints of the processor ---- */

#if defined(__x86_64__)

enum { ENABLE_FIRST = 1 }; /* the bit of DR7 that enables the execution breakpoint in DR0 */

uint64_t instruction_address(pid_t pid)
{
    return (uint64_t)ptrace(PTRACE_PEEKUSER, pid, offsetof(struct user, regs.rip), NULL);
}

/* The breakpoint is disabled while its address changes, because the kernel checks both registers together. */
bool breakpoint_set(pid_t pid, uint64_t address)
{
    uint64_t enable = address == 0 ? 0 : ENABLE_FIRST;
    return ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), 0) == 0 &&
           ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[0]), address) == 0 &&
           ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg[7]), enable) == 0;
}

#else

uint64_t instruction_address(pid_t pid)
{
    (void)pid;
    return 0;
}

bool breakpoint_set(pid_t pid, uint64_t address)
{
    (void)pid;
    (void)address;
    return false;
}

#endif

/* ---- the path ---- */

enum { POINTS_MAX = 1 << 18 };

void path_add(struct path *path, pid_t pid)
{
    if (path->points == NULL) {
        path->points = memory_new(POINTS_MAX * sizeof *path->points);
    }
    REQUIRE(path->count < POINTS_MAX);
    path->points[path->count++] = (struct path_point){.address = instruction_address(pid)};
}

/* Returns true if a breakpoint at this point would stop the process. A repeated instruction (rep movsb) is stepped once
 * per repetition, but a breakpoint stops only before the first one. The process starts at point 0. */
static bool is_breakable(const struct path *path, uint32_t index)
{
    return index > 0 && path->points[index].address != path->points[index - 1].address;
}

static uint32_t visits_count(const struct path *path, uint32_t index)
{
    uint32_t visits = 0;
    for (uint32_t i = 1; i <= index; i++) {
        visits += path->points[i].address == path->points[index].address && is_breakable(path, i);
    }
    return visits;
}

/* Returns the number of stops on the way to a point. A stop at a breakpoint costs about as much as a single step. */
static uint32_t cost_of(const struct path *path, uint32_t anchor, uint32_t index)
{
    return path->points[anchor].visits + (index - anchor);
}

void path_plan(struct path *path, pid_t pid)
{
    if (!breakpoint_set(pid, path->points[0].address) || !breakpoint_set(pid, 0)) {
        return;
    }
    for (uint32_t i = 1; i < path->count; i++) {
        uint32_t anchor = path->points[i - 1].anchor;
        path->points[i].visits = visits_count(path, i);
        path->points[i].anchor = is_breakable(path, i) && cost_of(path, i, i) < cost_of(path, anchor, i) ? i : anchor;
    }
}

void path_free(struct path *path)
{
    memory_free(path->points, POINTS_MAX * sizeof *path->points);
}
