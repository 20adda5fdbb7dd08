/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_RESULT_WAITERS_TYPE_H
#define PYTHON_PRODUCER_RESULT_WAITERS_TYPE_H

#include "python/common/module_state.h"

extern PyType_Spec result_waiters_spec;

#endif
