/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena, its name: whether the file still has one, and the closing of an arena that has none (arena/closing.h).
 */
#include <sys/stat.h>

#include "arena/closing.h"
#include "python/arena/arena_methods.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"

static struct arena_object *arena_of(PyObject *self)
{
    return (struct arena_object *)self;
}

static const struct arena *core_of(PyObject *self)
{
    return arena_object_is_open(arena_of(self)) ? arena_of(self)->core : NULL;
}

PyObject *arena_get_closing(PyObject *object, void *unused)
{
    static const char *const names[] = {[CLOSING_NOT] = "not", [CLOSING_BEGUN] = "begun", [CLOSING_DONE] = "done"};
    (void)unused;
    const struct arena *core = core_of(object);
    if (core == NULL) {
        return NULL;
    }
    uint32_t closing = load_acquire_u32(&core->globals->closing); /* V2 */
    return PyUnicode_FromString(names[closing < CLOSING_DONE ? closing : CLOSING_DONE]);
}

PyObject *arena_check_name(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!arena_object_attach(arena_of(object))) {
        return NULL;
    }
    closing_check_now(arena_of(object)->core);
    return arena_get_closing(object, NULL);
}

PyObject *arena_begin_closing(PyObject *object, PyObject *unused)
{
    (void)unused;
    if (!arena_object_attach(arena_of(object))) {
        return NULL;
    }
    closing_begin(arena_of(object)->core);
    Py_RETURN_NONE;
}

PyObject *arena_end_closing(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena_object *self = arena_of(object);
    if (!arena_object_attach(self)) {
        return NULL;
    }
    if (!self->core->is_sender) {
        PyErr_SetString(self->state->not_sender, "only the sender ends the closing of its arena");
        return NULL;
    }
    closing_end(self->core);
    Py_RETURN_NONE;
}

/* The arena's file as it is now; false with an exception. */
static bool file_found(PyObject *object, struct stat *found)
{
    const struct arena *core = arena_object_own(object);
    if (core == NULL) {
        return false;
    }
    if (fstat(core->map_descriptor, found) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    return true;
}

PyObject *arena_get_file_id(PyObject *object, void *unused)
{
    (void)unused;
    struct stat found;
    if (!file_found(object, &found)) {
        return NULL;
    }
    return Py_BuildValue("(KK)", (unsigned long long)found.st_dev, (unsigned long long)found.st_ino);
}

PyObject *arena_get_permissions(PyObject *object, void *unused)
{
    (void)unused;
    struct stat found;
    if (!file_found(object, &found)) {
        return NULL;
    }
    return Py_BuildValue("(III)", (unsigned)found.st_uid, (unsigned)found.st_gid, (unsigned)(found.st_mode & 07777));
}

PyObject *arena_get_presence(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = core_of(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLongLong(load_relaxed_u64(&core->globals->presence));
}

PyObject *arena_set_presence(PyObject *object, PyObject *given)
{
    struct arena_object *self = arena_of(object);
    unsigned long long number = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred() != NULL || !arena_object_attach(self)) {
        return NULL;
    }
    store_relaxed_u64(&self->core->globals->presence, number);
    Py_RETURN_NONE;
}

PyObject *arena_get_has_lost_its_name(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyBool_FromLong(arena_lost_its_name(core));
}
