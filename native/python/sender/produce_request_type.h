/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_SENDER_PRODUCE_REQUEST_TYPE_H
#define PYTHON_SENDER_PRODUCE_REQUEST_TYPE_H

#include "python/common/module_state.h"

extern PyType_Spec produce_request_spec;

#endif
