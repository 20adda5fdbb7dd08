/* SPDX-License-Identifier: Apache-2.0
 *
 * The name of this build, as an arena keeps that of its creator and as messages name both.
 */
#ifndef BASE_BUILD_H
#define BASE_BUILD_H

#define BUILD_VERSION "0.1.0" /* as pyproject.toml has it */

#ifdef SHMACCUM_LATER_BUILD
#define BUILD_NAME "shmaccum " BUILD_VERSION " (later build)"
#else
#define BUILD_NAME "shmaccum " BUILD_VERSION
#endif

#endif
