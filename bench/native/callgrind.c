/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts and stops the count of callgrind. The process runs under valgrind --tool=callgrind --instr-atstart=no.
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
