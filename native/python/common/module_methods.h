/* SPDX-License-Identifier: Apache-2.0
 *
 * Declares the functions of the module. module.c has their rows, and files of the folders define them.
 */
#ifndef PYTHON_COMMON_MODULE_METHODS_H
#define PYTHON_COMMON_MODULE_METHODS_H

#include "format/fetch.h"
#include "format/record.h"
#include "python/common/module_state.h"

#define METHODS_PART METHODS_DECLARED
#include "python/common/module_method_list.h"

#endif
