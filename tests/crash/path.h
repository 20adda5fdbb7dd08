/* SPDX-License-Identifier: Apache-2.0
 *
 * The path of a tracee: the instructions of its operation, in the order of execution.
 *
 * Each point to test has its own tracee, which must first reach that point. A single step costs two process switches,
 * so stepping from the beginning is slow. All tracees take the same path, so a breakpoint can replace most steps. The
 * tracee first runs to a hardware breakpoint at an *anchor*: an instruction shortly before the point that is executed
 * only a few times. From there it is stepped. If the processor or a container has no hardware breakpoints, the tracee
 * is stepped from the beginning.
 */
#ifndef CRASH_PATH_H
#define CRASH_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct path_point {
    uint64_t address; /* of the next instruction */
    uint32_t visits;  /* times that the path has reached this address, up to this point */
    uint32_t anchor;  /* the index of the point to run to; if 0, step from the beginning */
};

struct path {
    struct path_point *points; /* points[i] is the state after i instructions */
    uint32_t count;
};

/* Allocates pages outside of the heap. Tracees inherit the heap, and the number of instructions of their malloc depends
 * on its free blocks. So the harness must not change the heap between two tracees. */
void *memory_new(size_t size);
void memory_free(void *memory, size_t size);

/* Adds the tracee's current instruction to the path. */
void path_add(struct path *path, pid_t pid);
/* Chooses the anchor of each point. The path must be complete. */
void path_plan(struct path *path, pid_t pid);
void path_free(struct path *path);

/* Returns the address of the next instruction of a stopped process, or 0 if it is unknown. */
uint64_t instruction_address(pid_t pid);

/* Sets a breakpoint: the process gets SIGTRAP whenever it reaches `address`. If `address` is 0, removes the breakpoint.
 * Returns false if breakpoints are not available. */
bool breakpoint_set(pid_t pid, uint64_t address);

#endif
