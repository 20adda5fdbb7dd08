/* SPDX-License-Identifier: Apache-2.0
 *
 * POINT(name) marks a place between two steps of a protocol where a test may stop, kill or reorder a process. In a
 * release build it is nothing; with -DSHMACCUM_POINTS it calls `point_hook` when a test has set one.
 */
#ifndef BASE_POINT_H
#define BASE_POINT_H

#ifdef SHMACCUM_POINTS
extern void (*point_hook)(const char *name);
#define POINT(name)             \
    do {                        \
        if (point_hook != 0) {  \
            point_hook(#name);  \
        }                       \
    } while (0)
#else
#define POINT(name) ((void)0)
#endif

#endif
