/* SPDX-License-Identifier: Apache-2.0
 *
 * POINT(name) marks a place between two steps of a protocol, at which a test may stop, kill or reorder a process. A
 * release build compiles it to nothing. With -DSHMACCUM_POINTS it calls `point_hook` if a test has set one.
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
