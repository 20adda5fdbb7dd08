/* SPDX-License-Identifier: Apache-2.0
 *
 * The path of a tracee through its operation, and the short cuts on it.
 *
 * Every stop has its own tracee, which must first reach its instruction. Single-stepping costs two process switches for
 * each instruction before it. But all tracees take the same path. So the tracee runs to a hardware breakpoint at an
 * *anchor*, a seldom executed instruction shortly before the wanted one, and is stepped from there. If breakpoints are
 * not available (another processor, a container that forbids them), it is stepped all the way.
 */
#ifndef CRASH_PATH_H
#define CRASH_PATH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct path_point {
    uint64_t address; /* of the next instruction */
    uint32_t visits;  /* how often the path has reached this address, including this time */
    uint32_t anchor;  /* the point to run to; if 0, step from the beginning */
};

struct path {
    struct path_point *points; /* point i: after i instructions */
    uint32_t count;
};

/* Allocate pages outside the heap. Tracees inherit the heap, and the number of instructions of their malloc depends on
 * its free memory. So the harness allocates nothing in it meanwhile. */
void *memory_new(size_t size);
void memory_free(void *memory, size_t size);

/* Record the instruction at which the tracee is. */
void path_add(struct path *path, pid_t pid);
/* Find the anchors of a complete path. */
void path_plan(struct path *path, pid_t pid);
void path_free(struct path *path);

/* Returns the address of the next instruction of a stopped process, or 0 if it is unknown. */
uint64_t instruction_address(pid_t pid);

/* Stop the process (SIGTRAP) whenever it reaches `address`; if 0, nowhere. Return false if that is not possible. */
bool breakpoint_set(pid_t pid, uint64_t address);

#endif
