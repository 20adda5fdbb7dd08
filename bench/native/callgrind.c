/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells callgrind, under which the process runs (valgrind --tool=callgrind --instr-atstart=no), what to count.
 */
#include <valgrind/callgrind.h>

void instructions_begin(void);
void instructions_end(void);

void instructions_begin(void)
{
    CALLGRIND_START_INSTRUMENTATION;
}

void instructions_end(void)
{
    CALLGRIND_STOP_INSTRUMENTATION;
}
