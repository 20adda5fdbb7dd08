/* SPDX-License-Identifier: Apache-2.0
 *
 * shmaccum._native: the module, its state, and the functions that open an arena.
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena/attach.h"
#include "arena/durability.h"
#include "arena/parked_waiters.h"
#include "arena/transaction.h"
#include "arena/waiter_sleep.h"
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/murmur2.h"
#include "python/arena/arena_methods.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/common/record_decode.h"
#include "python/log/consumer_record.h"
#include "python/log/log_end_type.h"
#include "python/producer/producer_many.h"

/* ---- descriptors ---- */

struct descriptors {
    int map;
    int lock;
};

static void descriptors_close(const struct descriptors *descriptors)
{
    close(descriptors->map);
    close(descriptors->lock);
}

/* ---- names ---- */

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

PyObject *py_module_rename_new(PyObject *module, const struct py_module_rename_new *given)
{
    (void)module;
    const char *source = PyBytes_AsString(given->source);
    const char *target = source == NULL ? NULL : PyBytes_AsString(given->target);
    if (target == NULL) {
        return NULL;
    }
    if (syscall(SYS_renameat2, AT_FDCWD, source, AT_FDCWD, target, RENAME_NOREPLACE) < 0) {
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, target);
    }
    Py_RETURN_NONE;
}

/* ---- geometry ---- */

static bool number_get(const struct module_state *state, PyObject *mapping, const struct layout_field *field,
                       struct geometry *geometry)
{
    int64_t max = field->size < sizeof(int64_t) ? (INT64_C(1) << 8 * field->size) - 1 : INT64_MAX;
    const struct integer_range range = {field->field, 0, max};
    int64_t value;
    PyObject *object = PyMapping_GetItemString(mapping, field->field);
    bool is_parsed = object != NULL && integer_parse(state, object, &range, &value);
    Py_XDECREF(object);
    if (is_parsed) {
        geometry_set_number(geometry, field, (uint64_t)value);
    }
    return is_parsed;
}

/* slot_stride and slot_count are computed from the others. The core checks the numbers. */
static bool geometry_parse(const struct module_state *state, PyObject *mapping, struct geometry *geometry)
{
    size_t count;
    const struct layout_field *fields = geometry_fields(&count);
    *geometry = (struct geometry){0};
    for (size_t i = 0; i < count; i++) {
        bool is_given = strcmp(fields[i].field, "slot_stride") != 0 && strcmp(fields[i].field, "slot_count") != 0;
        if (is_given && !number_get(state, mapping, &fields[i], geometry)) {
            return false;
        }
    }
    uint64_t slot_count = geometry->batch_size == 0 ? 0 : geometry->buffer_memory / geometry->batch_size;
    geometry->slot_count = slot_count > UINT32_MAX ? UINT32_MAX : (uint32_t)slot_count;
    geometry->slot_stride = (uint32_t)round_up(geometry->batch_size, PAGE_SIZE_BYTES);
    return true;
}

/* ---- open ---- */

static PyObject *arena_answer(struct module_state *state, enum status status, const struct error *error,
                              struct arena *core)
{
    return status == STATUS_OK ? arena_object_new(state, core) : raise_error(state, error);
}

/* Checks durability here, because the core creates an arena in any file. */
static enum status arena_create_there(const struct descriptors *descriptors, const struct geometry *geometry,
                                      const Py_buffer *options, struct arena **core, struct error *error)
{
    uint32_t options_size = options->len > UINT32_MAX ? UINT32_MAX : (uint32_t)options->len;
    enum status status = durability_check_place(descriptors->map, geometry->durability, error);
    if (status != STATUS_OK) {
        descriptors_close(descriptors);
        return status;
    }
    return arena_create(descriptors->map, descriptors->lock, geometry, options->buf, options_size, core, error);
}

static PyObject *arena_create_on(struct module_state *state, const struct descriptors *descriptors,
                                 PyObject *mapping, const Py_buffer *options)
{
    struct geometry geometry;
    struct arena *core = NULL;
    struct error error;
    enum status status;
    if (!geometry_parse(state, mapping, &geometry)) {
        descriptors_close(descriptors);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = arena_create_there(descriptors, &geometry, options, &core, &error);
    Py_END_ALLOW_THREADS
    return arena_answer(state, status, &error, core);
}

PyObject *py_module_arena_create(PyObject *module, const struct py_module_arena_create *given)
{
    const struct descriptors descriptors = {.map = (int)given->map_descriptor, .lock = (int)given->lock_descriptor};
    Py_buffer options;
    if (PyObject_GetBuffer(given->options, &options, PyBUF_SIMPLE) < 0) {
        descriptors_close(&descriptors);
        return NULL;
    }
    PyObject *arena = arena_create_on(PyModule_GetState(module), &descriptors, given->geometry, &options);
    PyBuffer_Release(&options);
    return arena;
}

typedef enum status arena_opener(int map_descriptor, int lock_descriptor, struct arena **arena, struct error *error);

static PyObject *arena_open_with(PyObject *module, arena_opener *opener, int64_t map, int64_t lock)
{
    struct arena *core = NULL;
    struct error error;
    enum status status;
    Py_BEGIN_ALLOW_THREADS
    status = opener((int)map, (int)lock, &core, &error);
    Py_END_ALLOW_THREADS
    return arena_answer(PyModule_GetState(module), status, &error, core);
}

PyObject *py_module_arena_attach(PyObject *module, const struct py_module_arena_attach *given)
{
    return arena_open_with(module, arena_attach, given->map_descriptor, given->lock_descriptor);
}

PyObject *py_module_arena_open_read_only(PyObject *module, const struct py_module_arena_open_read_only *given)
{
    return arena_open_with(module, arena_open_read_only, given->map_descriptor, given->lock_descriptor);
}

PyObject *py_module_murmur2(PyObject *module, const Py_buffer *bytes, const struct py_module_murmur2 *given)
{
    (void)module;
    (void)given;
    return PyLong_FromUnsignedLong(murmur2(bytes->buf, (size_t)bytes->len));
}

enum { CRC_ALONE_SIZE = 32768 }; /* for more bytes, the GIL is released */

PyObject *py_module_crc32c(PyObject *module, const Py_buffer *bytes, const struct py_module_crc32c *given)
{
    (void)module;
    PyThreadState *thread = bytes->len >= CRC_ALONE_SIZE ? PyEval_SaveThread() : NULL;
    uint32_t extended = crc32c_extend((uint32_t)given->crc, bytes->buf, (size_t)bytes->len);
    if (thread != NULL) {
        PyEval_RestoreThread(thread);
    }
    return PyLong_FromUnsignedLong(extended);
}

/* ---- the module ---- */

static bool type_add(PyObject *module, PyType_Spec *spec, bool is_public, PyTypeObject **target)
{
    *target = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *target != NULL && (!is_public || PyModule_AddType(module, *target) == 0);
}

static bool type_add_derived(PyObject *module, PyType_Spec *spec, PyTypeObject *base, PyTypeObject **target)
{
    PyObject *bases = PyTuple_Pack(1, base);
    *target = bases == NULL ? NULL : (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, bases);
    Py_XDECREF(bases);
    return *target != NULL && PyModule_AddType(module, *target) == 0;
}

#define TYPE_ADD(name) type_add(module, &name##_spec, true, &state->name##_type) &&

static bool types_add(PyObject *module, struct module_state *state)
{
    return PUBLIC_TYPES(TYPE_ADD) consumer_record_finish(state->consumer_record_type) &&
           type_add_derived(module, &future_spec, state->token_type, &state->future_type) &&
           type_add(module, &view_spec, false, &state->view_type);
}

static bool constants_add(PyObject *module)
{
    return PyModule_AddIntMacro(module, BATCH_SIZE_MAX) == 0 && PyModule_AddIntMacro(module, SLOT_COUNT_MAX) == 0 &&
           PyModule_AddIntMacro(module, PROCESS_COUNT_MAX) == 0 &&
           PyModule_AddIntMacro(module, WAITER_COUNT_MAX) == 0 && PyModule_AddIntMacro(module, WAITER_SLICE_NS) == 0 &&
           PyModule_AddIntMacro(module, PARKED_SLICE_NS) == 0 &&
           PyModule_AddIntMacro(module, PARKED_SLEEP_NS) == 0 &&
           PyModule_AddIntMacro(module, TOPIC_SHARE_ONE) == 0 &&
           PyModule_AddIntMacro(module, RESULT_SUCCEEDED) == 0 && PyModule_AddIntMacro(module, RESULT_FAILED) == 0 &&
           PyModule_AddIntMacro(module, RESULT_EXPIRED) == 0 && PyModule_AddIntMacro(module, RESULT_ABORTED) == 0 &&
           PyModule_AddIntMacro(module, RESULT_CORRUPT) == 0 &&
           PyModule_AddIntMacro(module, INDEX_FILE_SIZE_MAX) == 0 &&
           PyModule_AddIntMacro(module, PRODUCER_ROWS_KEPT) == 0 &&
           PyModule_AddIntMacro(module, TRANSACTION_WHY_FAILED_BATCH) == 0 &&
           PyModule_AddIntMacro(module, TRANSACTION_WHY_FENCED) == 0 &&
           PyModule_AddIntMacro(module, TRANSACTION_WHY_REFUSED) == 0 &&
           PyModule_AddIntMacro(module, TRANSACTION_WHY_UNKNOWN) == 0;
}

static bool name_intern(const char *name, PyObject **interned)
{
    *interned = PyUnicode_InternFromString(name);
    return *interned != NULL;
}

static bool names_intern(const char *const *names, int count, PyObject **interned)
{
    int i = 0;
    while (i < count && name_intern(names[i], &interned[i])) {
        i++;
    }
    return i == count;
}

static bool names_add(struct module_state *state)
{
    static const char *const send[SEND_ARGUMENT_COUNT] = {"topic",   "value",     "key",
                                                          "headers", "partition", "timestamp_ms"};
    static const char *const produce[PRODUCE_ARGUMENT_COUNT] = {"topic",    "value",       "key",       "partition",
                                                                "callback", "on_delivery", "timestamp", "headers"};
    return names_intern(send, SEND_ARGUMENT_COUNT, state->send_names) &&
           names_intern(produce, PRODUCE_ARGUMENT_COUNT, state->produce_names) &&
           name_intern("_produce_in_python", &state->produce_in_python);
}

static int module_exec(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    return errors_load(state) && names_add(state) && types_add(module, state) && constants_add(module) ? 0 : -1;
}

/* The members of the state other than types, for traverse and clear. */
#define STATE_MEMBERS(X) \
    X(arena_closed)      \
    X(arena_in_use)      \
    X(batch_in_use)      \
    X(not_sender)        \
    X(producer_closed)   \
    X(unknown_partition) \
    X(future_functions)  \
    X(produce_in_python) \
    X(future_type)       \
    X(view_type)

#define STATE_VISIT(member) Py_VISIT(state->member);
#define STATE_CLEAR(member) Py_CLEAR(state->member);
#define TYPE_VISIT(name) STATE_VISIT(name##_type)
#define TYPE_CLEAR(name) STATE_CLEAR(name##_type)

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct module_state *state = PyModule_GetState(module);
    for (int i = 0; i < STATUS_COUNT; i++) {
        Py_VISIT(state->exceptions[i]);
    }
    for (int i = 0; i < SEND_ARGUMENT_COUNT; i++) {
        Py_VISIT(state->send_names[i]);
    }
    for (int i = 0; i < PRODUCE_ARGUMENT_COUNT; i++) {
        Py_VISIT(state->produce_names[i]);
    }
    STATE_MEMBERS(STATE_VISIT)
    PUBLIC_TYPES(TYPE_VISIT)
    return 0;
}

static int module_clear(PyObject *module)
{
    struct module_state *state = PyModule_GetState(module);
    for (int i = 0; i < STATUS_COUNT; i++) {
        Py_CLEAR(state->exceptions[i]);
    }
    for (int i = 0; i < SEND_ARGUMENT_COUNT; i++) {
        Py_CLEAR(state->send_names[i]);
    }
    for (int i = 0; i < PRODUCE_ARGUMENT_COUNT; i++) {
        Py_CLEAR(state->produce_names[i]);
    }
    STATE_MEMBERS(STATE_CLEAR)
    PUBLIC_TYPES(TYPE_CLEAR)
    return 0;
}

static void module_free(void *module)
{
    struct module_state *state = PyModule_GetState(module);
    (void)module_clear(module);
    PyObject_Free(state->spare_future);
}

static PyObject *layout_field_row(const void *fields, uint32_t index)
{
    const struct layout_field *field = (const struct layout_field *)fields + index;
    return Py_BuildValue("(ssII)", field->type, field->field, field->offset, field->size);
}

/* The structs of the arena's file, which tests compare with the frozen layout. */
PyObject *py_module_layout_fields(PyObject *module)
{
    (void)module;
    size_t count;
    const struct layout_field *fields = layout_fields(&count);
    return list_of((uint32_t)count, layout_field_row, fields);
}

#define METHODS_LIST "python/common/module_method_list.h"
#include "python/common/method_tables.h"

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* without a GIL, a call locks its arena: common/alone.h */
#endif
    {0, NULL},
};

static struct PyModuleDef native_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "shmaccum._native",
    .m_doc = "The native core of shmaccum: the code that runs once per record.",
    .m_size = sizeof(struct module_state),
    .m_methods = methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&native_module);
}
