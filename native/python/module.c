/* SPDX-License-Identifier: Apache-2.0
 *
 * shmaccum._native: the module, its state, and the functions that open an arena.
 */
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "arena/attach.h"
#include "arena/durability.h"
#include "arena/transaction.h"
#include "arena/waiter_semaphores.h"
#include "base/bytes.h"
#include "format/crc32c.h"
#include "format/murmur2.h"
#include "python/arena/arena_methods.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/record_decode.h"
#include "python/common/token_type.h"
#include "python/common/view_type.h"
#include "python/log/consumer_record.h"
#include "python/log/log.h"
#include "python/log/log_end_type.h"
#include "python/producer/buffer_wait_type.h"
#include "python/producer/flush_ticket_type.h"
#include "python/producer/future_type.h"
#include "python/producer/producer_many.h"
#include "python/sender/batch_loop_parts.h"
#include "python/sender/batch_type.h"
#include "python/sender/produce_request_type.h"

/* ---- descriptors ---- */

struct descriptors {
    int map;
    int lock;
};

static bool descriptors_parse(const struct module_state *state, PyObject *const *args, struct descriptors *descriptors)
{
    static const struct integer_range range = {"a descriptor", 0, INT32_MAX};
    int64_t map;
    int64_t lock;
    if (!integer_parse(state, args[0], &range, &map) || !integer_parse(state, args[1], &range, &lock)) {
        return false;
    }
    *descriptors = (struct descriptors){.map = (int)map, .lock = (int)lock};
    return true;
}

static void descriptors_close(const struct descriptors *descriptors)
{
    close(descriptors->map);
    close(descriptors->lock);
}

/* ---- names ---- */

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

static PyObject *rename_new(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *source;
    const char *target;
    if (!PyArg_ParseTuple(args, "yy", &source, &target)) {
        return NULL;
    }
    if (syscall(SYS_renameat2, AT_FDCWD, source, AT_FDCWD, target, RENAME_NOREPLACE) < 0) {
        return PyErr_SetFromErrnoWithFilename(PyExc_OSError, target);
    }
    Py_RETURN_NONE;
}

/* ---- geometry ---- */

static bool number_get(const struct module_state *state, PyObject *mapping, const struct integer_range *range,
                       int64_t *value)
{
    PyObject *object = PyMapping_GetItemString(mapping, range->name);
    bool is_parsed = object != NULL && integer_parse(state, object, range, value);
    Py_XDECREF(object);
    return is_parsed;
}

static bool small_number_get(const struct module_state *state, PyObject *mapping, const char *name, uint32_t *target)
{
    const struct integer_range range = {name, 0, UINT32_MAX};
    int64_t value;
    if (!number_get(state, mapping, &range, &value)) {
        return false;
    }
    *target = (uint32_t)value;
    return true;
}

/* slot_stride and slot_count follow from the rest. The core judges the numbers. */
static bool geometry_parse(const struct module_state *state, PyObject *mapping, struct geometry *geometry)
{
    static const struct integer_range memory_range = {"buffer_memory", 1, INT64_MAX};
    static const struct integer_range oversized_range = {"oversized_bytes_max", 0, INT64_MAX};
    int64_t buffer_memory;
    int64_t oversized_bytes_max;
    uint32_t durability;
    uint32_t is_transactional;
    *geometry = (struct geometry){0};
    const struct {
        const char *name;
        uint32_t *target;
    } fields[] = {
        {"batch_size", &geometry->batch_size},
        {"process_count", &geometry->process_count},
        {"waiter_count", &geometry->waiter_count},
        {"topic_count", &geometry->topic_count},
        {"partition_count", &geometry->partition_count},
        {"name_heap_size", &geometry->name_heap_size},
        {"completion_count", &geometry->completion_count},
        {"record_size_max", &geometry->record_size_max},
        {"process_slot_count_max", &geometry->process_slot_count_max},
        {"topic_share_factor", &geometry->topic_share_factor},
        {"durability", &durability},
        {"is_transactional", &is_transactional},
        {"sync_interval_ms", &geometry->sync_interval_ms},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (!small_number_get(state, mapping, fields[i].name, fields[i].target)) {
            return false;
        }
    }
    if (!number_get(state, mapping, &memory_range, &buffer_memory) ||
        !number_get(state, mapping, &oversized_range, &oversized_bytes_max)) {
        return false;
    }
    uint64_t slot_count = geometry->batch_size == 0 ? 0 : (uint64_t)buffer_memory / geometry->batch_size;
    geometry->durability = (uint16_t)(durability > UINT16_MAX ? UINT16_MAX : durability);
    geometry->is_transactional = (uint16_t)(is_transactional > UINT16_MAX ? UINT16_MAX : is_transactional);
    geometry->buffer_memory = (uint64_t)buffer_memory;
    geometry->oversized_bytes_max = (uint64_t)oversized_bytes_max;
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

/* The core makes an arena on any file: whether its durability means anything there is asked here. */
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

static PyObject *module_arena_create(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "arena_create",
        .names = {"map_descriptor", "lock_descriptor", "geometry", "options"},
        .required_count = 4,
        .count = 4};
    struct module_state *state = PyModule_GetState(module);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct descriptors descriptors;
    Py_buffer options;
    if (!arguments_bind(&signature, args, count, names, bound) || !descriptors_parse(state, bound, &descriptors)) {
        return NULL;
    }
    if (PyObject_GetBuffer(bound[3], &options, PyBUF_SIMPLE) < 0) {
        descriptors_close(&descriptors);
        return NULL;
    }
    PyObject *arena = arena_create_on(state, &descriptors, bound[2], &options);
    PyBuffer_Release(&options);
    return arena;
}

typedef enum status arena_opener(int map_descriptor, int lock_descriptor, struct arena **arena, struct error *error);

static PyObject *arena_open_with(PyObject *module, const struct signature *signature, arena_opener *opener,
                                 PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    struct module_state *state = PyModule_GetState(module);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    struct descriptors descriptors;
    struct arena *core = NULL;
    struct error error;
    enum status status;
    if (!arguments_bind(signature, args, count, names, bound) || !descriptors_parse(state, bound, &descriptors)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    status = opener(descriptors.map, descriptors.lock, &core, &error);
    Py_END_ALLOW_THREADS
    return arena_answer(state, status, &error, core);
}

static PyObject *module_arena_attach(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {.function = "arena_attach",
                                               .names = {"map_descriptor", "lock_descriptor"},
                                               .required_count = 2,
                                               .count = 2};
    return arena_open_with(module, &signature, arena_attach, args, count, names);
}

static PyObject *module_arena_open_read_only(PyObject *module, PyObject *const *args, Py_ssize_t count,
                                             PyObject *names)
{
    static const struct signature signature = {.function = "arena_open_read_only",
                                               .names = {"map_descriptor", "lock_descriptor"},
                                               .required_count = 2,
                                               .count = 2};
    return arena_open_with(module, &signature, arena_open_read_only, args, count, names);
}

static PyObject *module_murmur2(PyObject *module, PyObject *key)
{
    Py_buffer bytes;
    (void)module;
    if (PyObject_GetBuffer(key, &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    uint32_t hash = murmur2(bytes.buf, (size_t)bytes.len);
    PyBuffer_Release(&bytes);
    return PyLong_FromUnsignedLong(hash);
}

enum { CRC_ALONE_SIZE = 32768 }; /* bytes that take longer than letting other threads run costs */

static PyObject *module_crc32c(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "crc32c", .names = {"data", "crc"}, .required_count = 1, .count = 2};
    static const struct integer_range range = {"crc", 0, UINT32_MAX};
    struct module_state *state = PyModule_GetState(module);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    Py_buffer bytes;
    int64_t crc = 0;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        (bound[1] != NULL && !integer_parse(state, bound[1], &range, &crc)) ||
        PyObject_GetBuffer(bound[0], &bytes, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyThreadState *thread = bytes.len >= CRC_ALONE_SIZE ? PyEval_SaveThread() : NULL;
    uint32_t extended = crc32c_extend((uint32_t)crc, bytes.buf, (size_t)bytes.len);
    if (thread != NULL) {
        PyEval_RestoreThread(thread);
    }
    PyBuffer_Release(&bytes);
    return PyLong_FromUnsignedLong(extended);
}

static PyObject *module_crc32c_combine(PyObject *module, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "crc32c_combine", .names = {"first", "second", "second_size"}, .required_count = 3, .count = 3};
    static const struct integer_range range = {"a crc", 0, UINT32_MAX};
    static const struct integer_range size_range = {"second_size", 0, INT64_MAX};
    struct module_state *state = PyModule_GetState(module);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t first;
    int64_t second;
    int64_t size;
    if (!arguments_bind(&signature, args, count, names, bound) || !integer_parse(state, bound[0], &range, &first) ||
        !integer_parse(state, bound[1], &range, &second) || !integer_parse(state, bound[2], &size_range, &size)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(crc32c_combine((uint32_t)first, (uint32_t)second, (uint64_t)size));
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

static bool types_add(PyObject *module, struct module_state *state)
{
    return type_add(module, &arena_spec, true, &state->arena_type) &&
           type_add(module, &appender_spec, true, &state->appender_type) &&
           type_add(module, &batch_spec, true, &state->batch_type) &&
           type_add(module, &buffer_wait_spec, true, &state->buffer_wait_type) &&
           type_add(module, &confluent_spec, true, &state->confluent_type) &&
           type_add(module, &consumer_record_spec, true, &state->consumer_record_type) &&
           consumer_record_finish(state->consumer_record_type) &&
           type_add(module, &flush_ticket_spec, true, &state->flush_ticket_type) &&
           type_add(module, &index_file_end_spec, true, &state->index_file_end_type) &&
           type_add(module, &index_position_spec, true, &state->index_position_type) &&
           type_add(module, &log_end_spec, true, &state->log_end_type) &&
           type_add(module, &produce_request_spec, true, &state->produce_request_type) &&
           type_add(module, &producer_spec, true, &state->producer_type) &&
           type_add(module, &receipt_spec, true, &state->receipt_type) &&
           type_add(module, &segment_end_spec, true, &state->segment_end_type) &&
           type_add(module, &sender_half_spec, true, &state->sender_half_type) &&
           type_add(module, &token_spec, true, &state->token_type) &&
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

/* Every member of the state, as one list, for traverse and clear. */
#define STATE_MEMBERS(X)      \
    X(arena_closed)           \
    X(arena_in_use)           \
    X(batch_in_use)           \
    X(not_sender)             \
    X(producer_closed)        \
    X(unknown_partition)      \
    X(future_functions)       \
    X(produce_in_python)      \
    X(appender_type)          \
    X(arena_type)             \
    X(batch_type)             \
    X(buffer_wait_type)       \
    X(confluent_type)         \
    X(consumer_record_type)   \
    X(flush_ticket_type)      \
    X(future_type)            \
    X(index_file_end_type)    \
    X(index_position_type)    \
    X(log_end_type)          \
    X(produce_request_type)   \
    X(producer_type)          \
    X(receipt_type)           \
    X(segment_end_type)       \
    X(sender_half_type)       \
    X(token_type)             \
    X(view_type)

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
#define STATE_VISIT(member) Py_VISIT(state->member);
    STATE_MEMBERS(STATE_VISIT)
#undef STATE_VISIT
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
#define STATE_CLEAR(member) Py_CLEAR(state->member);
    STATE_MEMBERS(STATE_CLEAR)
#undef STATE_CLEAR
    return 0;
}

static void module_free(void *module)
{
    struct module_state *state = PyModule_GetState(module);
    (void)module_clear(module);
    PyObject_Free(state->spare_future);
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

/* The structs of the arena's file, as tests hold them against the table of what is frozen. */
static PyObject *module_layout_fields(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    size_t count;
    const struct layout_field *fields = layout_fields(&count);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; i < count && list != NULL; i++) {
        list = list_add(list, Py_BuildValue("(ssII)", fields[i].type, fields[i].field, fields[i].offset,
                                            fields[i].size));
    }
    return list;
}

static PyMethodDef module_methods[] = {
    {"layout_fields", module_layout_fields, METH_NOARGS,
     "List of (struct, field, offset, size) of all that lies in an arena; a struct itself has the field ''."},
    {"arena_create", FAST(module_arena_create), METH_FASTCALL | METH_KEYWORDS,
     "Makes an arena in an empty file; takes over both descriptors, also when it fails."},
    {"arena_attach", FAST(module_arena_attach), METH_FASTCALL | METH_KEYWORDS,
     "Attaches to an arena; takes over both descriptors, also when it fails."},
    {"arena_open_read_only", FAST(module_arena_open_read_only), METH_FASTCALL | METH_KEYWORDS,
     "Maps an arena without write permission; takes over both descriptors, also when it fails."},
    {"rename_new", rename_new, METH_VARARGS,
     "Renames a file to a name that nothing has yet (renameat2 with RENAME_NOREPLACE); FileExistsError otherwise."},
    {"decode_batch", record_decode_buffer, METH_O,
     "List of (offset delta, timestamp_ms, key, value, headers) of an uncompressed record batch."},
    {"decode_records", FAST(log_decode), METH_FASTCALL | METH_KEYWORDS,
     "List of record_type(offset, timestamp_ms, key, value, headers) from a log's batch."},
    {"consume_batch", FAST(log_consume_batch), METH_FASTCALL | METH_KEYWORDS,
     "List of ConsumerRecord from the records of a log's batch, from an offset on."},
    {"consume_block", FAST(log_consume_block), METH_FASTCALL | METH_KEYWORDS,
     "List of ConsumerRecord from the plain batches of a block, the position and the offset behind the last of them."},
    {"decode_columns", FAST(log_columns), METH_FASTCALL | METH_KEYWORDS,
     "The buffers of Arrow columns from the records of many batches of a log; log/files/columns.py names them."},
    {"decode_block", FAST(log_block_columns), METH_FASTCALL | METH_KEYWORDS,
     "The same from the plain batches of a block, the position and the offset behind the last of them."},
    {"read_fetch", FAST(log_read_fetch), METH_FASTCALL | METH_KEYWORDS,
     "The request_type of a Fetch request, with a wanted_type for each partition; ValueError for anything else."},
    {"write_fetch", FAST(log_write_fetch), METH_FASTCALL | METH_KEYWORDS,
     "The pieces of the answer to a Fetch: bytes, and the ranges of files that stand between them."},
    {"find_batch", FAST(log_find_batch), METH_FASTCALL | METH_KEYWORDS,
     "(position, size) of the batch that has an offset, from a position of an open segment on; None: there is none."},
    {"append_frame", FAST(log_append_frame), METH_FASTCALL | METH_KEYWORDS,
     "Size of a file behind a frame that was written under a lock; 0: the lock is taken, or the file has changed."},
    {"send_pieces", FAST(log_send_pieces), METH_FASTCALL | METH_KEYWORDS,
     "How many bytes of the pieces a socket took that does not block."},
    {"serve_ready", FAST(log_serve_ready), METH_FASTCALL | METH_KEYWORDS,
     "Waits for files, and answers ordinary fetches: (client, events, outcome) or (descriptor, events, None) of each."},
    {"run_batch_loop", FAST(shipper_run_batch_loop), METH_FASTCALL | METH_KEYWORDS,
     "Ships the ordinary batches of streams to the brokers behind their links; `found` gets how far it came."},
    {"crc32c", FAST(module_crc32c), METH_FASTCALL | METH_KEYWORDS,
     "The CRC-32C of bytes, unsigned 32 bits; goes on from the checksum of what stands before them."},
    {"crc32c_combine", FAST(module_crc32c_combine), METH_FASTCALL | METH_KEYWORDS,
     "The CRC-32C of bytes, from that of their first part, and from that and the size of the second part."},
    {"header_for_producer", FAST(log_header_for_producer), METH_FASTCALL | METH_KEYWORDS,
     "The 61 bytes of a batch's header for another producer; the CRC follows without a look at the records."},
    {"records_time", FAST(log_records_time), METH_FASTCALL | METH_KEYWORDS,
     "(smallest, largest) timestamp of the records of a batch, which must be as many as the header says."},
    {"murmur2", module_murmur2, METH_O, "Kafka's hash of a key, unsigned 32 bits."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* a call has its arena alone: common/alone.h */
#endif
    {0, NULL},
};

static struct PyModuleDef native_module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "shmaccum._native",
    .m_doc = "The native core of shmaccum: the code that runs once per record.",
    .m_size = sizeof(struct module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&native_module);
}
