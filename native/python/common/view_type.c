/* SPDX-License-Identifier: Apache-2.0
 *
 * View: exports the buffer of a memoryview of the mapping. While a memoryview, or an object made from it, is alive, the
 * counts of the View are raised: the batch cannot be completed, and the arena cannot be closed.
 *
 * The attribute `obj` of the memoryview is the View, which may outlive it. After the last buffer of a View is released,
 * its memory may be unmapped or belong to another batch. So it never exports a buffer again.
 */
#include "python/common/view_type.h"

struct view_object {
    PyObject ob_base;
    PyObject *owner;
    struct view_counts counts;
    atomic_u32 buffer_count; /* exported buffers, plus one in view_memory. At 0, the View exports no more */
    const uint8_t *start;
    Py_ssize_t size;
};

static void counts_add(const struct view_counts *counts, uint32_t amount)
{
    add_u32(counts->arena, amount); /* V6 */
    if (counts->half != NULL) {
        add_u32(counts->half, amount); /* V6 */
    }
    if (counts->batch != NULL) {
        add_u32(counts->batch, amount); /* V6 */
    }
}

/* The counts are raised before a buffer is exported, and lowered after its release. So at 0, no buffer is exported. */
static bool view_acquire(struct view_object *self)
{
    uint32_t buffer_count = load_acquire_u32(&self->buffer_count); /* V6 */
    counts_add(&self->counts, 1);
    while (buffer_count != 0) {
        if (cas_u32(&self->buffer_count, &buffer_count, buffer_count + 1)) { /* V6 */
            return true;
        }
    }
    counts_add(&self->counts, (uint32_t)-1);
    return false;
}

static void view_release(struct view_object *self)
{
    add_u32(&self->buffer_count, (uint32_t)-1); /* V6 */
    counts_add(&self->counts, (uint32_t)-1);
}

static int view_get_buffer(PyObject *object, Py_buffer *buffer, int flags)
{
    struct view_object *self = (struct view_object *)object;
    if (!view_acquire(self)) {
        buffer->obj = NULL;
        PyErr_SetString(PyExc_BufferError, "all memoryviews of this memory were released: get another one from the "
                                           "arena or the batch");
        return -1;
    }
    if (PyBuffer_FillInfo(buffer, object, (void *)(uintptr_t)self->start, self->size, 1, flags) < 0) {
        view_release(self);
        return -1;
    }
    return 0;
}

static void view_release_buffer(PyObject *object, Py_buffer *buffer)
{
    (void)buffer;
    view_release((struct view_object *)object);
}

static int view_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((struct view_object *)object)->owner);
    return 0;
}

/* Without tp_clear: a view refers only to its owner. The owner clears each cycle that contains both. */
static void view_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((struct view_object *)object)->owner);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

PyObject *view_memory(struct module_state *state, PyObject *owner, const struct view_counts *counts,
                      const uint8_t *start, size_t size)
{
    struct view_object *self = PyObject_GC_New(struct view_object, state->view_type);
    if (self == NULL) {
        return NULL;
    }
    Py_INCREF(owner);
    self->owner = owner;
    self->counts = *counts;
    self->start = start;
    self->size = (Py_ssize_t)size;
    store_relaxed_u32(&self->buffer_count, 1);
    counts_add(counts, 1);
    PyObject_GC_Track(self);
    PyObject *memory = PyMemoryView_FromObject((PyObject *)self);
    view_release(self);
    Py_DECREF(self);
    return memory;
}

static PyType_Slot view_slots[] = {
    {Py_tp_dealloc, view_dealloc},
    {Py_tp_traverse, view_traverse},
    {Py_bf_getbuffer, view_get_buffer},
    {Py_bf_releasebuffer, view_release_buffer},
    {0, NULL},
};

PyType_Spec view_spec = NATIVE_TYPE("View", struct view_object, view_slots,
                                    Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION);
