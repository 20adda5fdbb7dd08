/* SPDX-License-Identifier: Apache-2.0
 */
#ifndef PYTHON_PRODUCER_FLUSH_TICKET_TYPE_H
#define PYTHON_PRODUCER_FLUSH_TICKET_TYPE_H

#include "python/common/module_state.h"

extern PyType_Spec flush_ticket_spec;

#endif
