/* SPDX-License-Identifier: Apache-2.0
 *
 * Defines the wrappers of a list of methods (python/common/methods.h), and the arrays `methods` and `properties`.
 *
 * Usage: define METHODS_LIST, the path of the list, and include this file once. If the type has other methods, define
 * OTHER_METHODS as their rows.
 */
#ifndef OTHER_METHODS
#define OTHER_METHODS
#endif

#define METHODS_PART METHODS_WRAPPED
#include METHODS_LIST

static PyMethodDef methods[] = {
#define METHODS_PART METHOD_ROWS
#include METHODS_LIST
    OTHER_METHODS
    {NULL, NULL, 0, NULL},
};

__attribute__((unused)) static PyGetSetDef properties[] = { /* some types have none */
#define METHODS_PART PROPERTY_ROWS
#include METHODS_LIST
    {NULL, NULL, NULL, NULL, NULL},
};
