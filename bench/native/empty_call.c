/* SPDX-License-Identifier: Apache-2.0
 *
 * A function with the arguments of Producer.send that does nothing. A call of it from Python is the floor of every
 * send.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *nothing(PyObject *self, PyObject *const *arguments, Py_ssize_t count, PyObject *names)
{
    (void)self;
    (void)arguments;
    (void)count;
    (void)names;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"nothing", (PyCFunction)(void (*)(void))nothing, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "empty_call", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_empty_call(void)
{
    return PyModule_Create(&definition);
}
