/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: checks whether the file still has its name, and closes an arena without a name (arena/closing.h).
 */
#include <sys/stat.h>

#include "arena/closing.h"
#include "python/arena/arena_methods.h"
#include "python/common/errors.h"

PyObject *py_arena_closing(struct arena_object *self)
{
    static const char *const names[] = {[CLOSING_NOT] = "not", [CLOSING_BEGUN] = "begun", [CLOSING_DONE] = "done"};
    const struct arena *core = self->core;
    uint32_t closing = load_acquire_u32(&core->globals->closing); /* V2 */
    return PyUnicode_FromString(names[closing < CLOSING_DONE ? closing : CLOSING_DONE]);
}

PyObject *py_arena_check_name(struct arena_object *self)
{
    closing_check_now(self->core);
    return py_arena_closing(self);
}

PyObject *py_arena_end_closing(struct arena_object *self)
{
    if (!self->core->is_sender) {
        PyErr_SetString(self->state->not_sender, "only the sender may end the closing of its arena");
        return NULL;
    }
    closing_end(self->core);
    Py_RETURN_NONE;
}

/* Reads the status of the arena's file. Returns false with an exception set. */
static bool file_found(const struct arena_object *self, struct stat *found)
{
    if (fstat(self->core->map_descriptor, found) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    return true;
}

PyObject *py_arena_file_id(struct arena_object *self)
{
    struct stat found;
    if (!file_found(self, &found)) {
        return NULL;
    }
    return Py_BuildValue("(KK)", (unsigned long long)found.st_dev, (unsigned long long)found.st_ino);
}

PyObject *py_arena_permissions(struct arena_object *self)
{
    struct stat found;
    if (!file_found(self, &found)) {
        return NULL;
    }
    return Py_BuildValue("(III)", (unsigned)found.st_uid, (unsigned)found.st_gid, (unsigned)(found.st_mode & 07777));
}
