/* SPDX-License-Identifier: Apache-2.0
 *
 * The name of this build. An arena stores the name of its creator's build, and messages show both.
 */
#ifndef BASE_BUILD_H
#define BASE_BUILD_H

#define BUILD_VERSION "0.1.0" /* the same as in pyproject.toml */

#ifdef SHMACCUM_LATER_BUILD
#define BUILD_NAME "shmaccum " BUILD_VERSION " (later build)"
#else
#define BUILD_NAME "shmaccum " BUILD_VERSION
#endif

#endif
