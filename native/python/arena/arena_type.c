/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: the mapping of one process. Functions of the module open it from two descriptors (module.c).
 */
#include "arena/attach.h"
#include "arena/buffer_pool.h"
#include "arena/closing.h"
#include "arena/completion.h"
#include "arena/counters.h"
#include "arena/lost_memory.h"
#include "arena/process.h"
#include "arena/producer_id.h"
#include "arena/waiter_semaphores.h"
#include "python/arena/arena_methods.h"
#include "python/common/alone.h"
#include "python/common/blocking.h"
#include "python/common/errors.h"
#include "python/common/monotonic.h"
#include "python/common/view_type.h"

/* ---- open and close ---- */

PyObject *arena_object_new(struct module_state *state, struct arena *core)
{
    struct error error;
    struct registry *registry;
    if (registry_open(core, &registry, &error) != STATUS_OK) {
        arena_detach(core);
        return raise_error(state, &error);
    }
    struct arena_object *self = PyObject_New(struct arena_object, state->arena_type);
    if (self == NULL) {
        registry_close(registry);
        arena_detach(core);
        return NULL;
    }
    core->blocking = gil_hooks;
    self->state = state;
    self->core = core;
    self->registry = registry;
    self->half_count = 0;
    store_relaxed_u32(&self->export_count, 0);
    self->call_count = 0;
    return (PyObject *)self;
}

static void arena_release(struct arena_object *self)
{
    struct arena *core = self->core;
    self->core = NULL;
    registry_close(self->registry);
    arena_detach(core);
}

static void arena_dealloc(PyObject *object)
{
    struct arena_object *self = (struct arena_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->core != NULL) {
        arena_release(self);
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

bool arena_object_is_closed(const struct arena_object *self)
{
    if (self->core == NULL) {
        PyErr_SetString(self->state->arena_closed, "the arena is closed: attach to it again");
    }
    return self->core == NULL;
}

bool arena_object_is_open(const struct arena_object *self)
{
    return !arena_object_is_closed(self) && arena_object_check_memory(self);
}

COLD bool arena_object_raise_lost(const struct arena_object *self)
{
    struct error error;
    (void)lost_memory_error(&error);
    raise_error(self->state, &error);
    return false;
}

/* The calls that were counted before fork() run only in the parent. */
bool arena_object_attach(struct arena_object *self)
{
    struct error error;
    enum status status;
    if (!arena_object_is_open(self)) {
        return false;
    }
    if (LIKELY(self->core->owner != 0)) {
        return true;
    }
    if (!self->core->is_read_only) {
        self->call_count = 0;
    }
    do { /* waits as long as another living process recovers the arena */
        status = arena_ensure_attached(self->core, &error);
    } while (status == STATUS_BUSY && PyErr_CheckSignals() == 0);
    if (status != STATUS_OK && PyErr_Occurred() == NULL) {
        raise_error(self->state, &error);
    }
    return status == STATUS_OK;
}

static bool arena_is_unused(struct arena_object *self)
{
    uint32_t call_count = self->core->owner == 0 ? 0 : self->call_count;
    uint32_t export_count = load_acquire_u32(&self->export_count); /* V6 */
    if (call_count + self->half_count + export_count == 0) {
        return true;
    }
    PyErr_Format(self->state->arena_in_use,
                 "the arena cannot be closed yet: open producers and senders: %u, exported buffers: %u, calls of other "
                 "threads: %u; close, release and join them first",
                 self->half_count, export_count, call_count);
    return false;
}

PyObject *py_arena_close(struct arena_object *self)
{
    if (self->core != NULL) {
        if (!arena_is_unused(self)) {
            return NULL;
        }
        arena_release(self);
    }
    Py_RETURN_NONE;
}

/* ---- facts ---- */

PyObject *py_arena_producer_identity(struct arena_object *self)
{
    const struct arena *core = self->core;
    struct producer_identity identity;
    producer_identity_read(core, &identity);
    return Py_BuildValue("(LiN)", (long long)identity.producer_id, identity.producer_epoch,
                         PyBytes_FromStringAndSize((const char *)identity.sink, sizeof identity.sink));
}

static PyObject *opened_semaphore(const void *core, uint32_t index)
{
    return waiter_semaphore_is_open(core, index) ? PyLong_FromUnsignedLong(index) : NULL;
}

PyObject *py_arena_opened_semaphores(struct arena_object *self)
{
    return list_of(self->core->geometry.waiter_count, opened_semaphore, self->core);
}

PyObject *py_arena_options(struct arena_object *self)
{
    const struct arena *core = self->core;
    uint32_t size = core->superblock->options_size;
    return PyBytes_FromStringAndSize((const char *)core->superblock->options,
                                     size < OPTIONS_SIZE_MAX ? size : OPTIONS_SIZE_MAX);
}

PyObject *py_arena_pool_lock_keeper(struct arena_object *self)
{
    uint32_t owner = buffer_pool_lock_keeper(self->core);
    return owner == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(owner_index(owner));
}

PyObject *py_arena_poisoned(struct arena_object *self)
{
    const struct arena *core = self->core;
    uint32_t status = load_acquire_u32(&core->globals->poisoned_status); /* V2 */
    return status == 0 ? Py_NewRef(Py_None) : PyUnicode_FromString(status_name((enum status)status));
}

/* ---- clock and sleep flag ---- */

PyObject *py_arena_set_manual_clock(struct arena_object *self, const struct py_arena_set_manual_clock *given)
{
    const bool is_manual = given->now_ns >= 0;
    self->core->clock = (struct clock){.is_manual = is_manual, .manual_ns = is_manual ? (uint64_t)given->now_ns : 0};
    Py_RETURN_NONE;
}

/* ---- counters, topics ---- */

PyObject *py_arena_record_error(struct arena_object *self, const struct py_arena_record_error *given)
{
    const char *text = PyUnicode_AsUTF8(given->text);
    if (text == NULL) {
        return NULL;
    }
    error_log_note(self->core, STATUS_OS, (uint32_t)given->note, text);
    Py_RETURN_NONE;
}

/* An entry is never removed, because any process may have its index. So the message names topics that no sink has. */
static COLD void raise_no_topic_room(const struct arena_object *self)
{
    uint32_t example;
    const char *name = "";
    uint32_t name_size = 0;
    uint32_t unknown_count = registry_count_unknown_topics(self->core, &example);
    if (unknown_count == 0 || registry_topic_name(self->core, example, &name, &name_size) != STATUS_OK) {
        raise_format(self->state, STATUS_NO_PARTITION,
                     "the arena has no room for another topic: create it with a larger topic_count");
        return;
    }
    PyObject *shown = PyUnicode_DecodeUTF8(name, (Py_ssize_t)name_size, "replace");
    if (shown != NULL) {
        raise_format(self->state, STATUS_NO_PARTITION,
                     "the arena has no room for another topic: it has %u, and no sink knows %u of them, such as %R. A "
                     "name keeps its entry: correct the programs that send to such names, and create the arena again, "
                     "with a larger topic_count if necessary",
                     registry_topic_count(self->core), unknown_count, shown);
        Py_DECREF(shown);
    }
}

/* Returns true if a call of the registry that returned STATUS_BUSY is to be repeated: a stopped process keeps the lock
 * of the registry. Returns false at the deadline, and with an exception set after a signal. */
static bool registry_is_tried_again(struct registry_limit *limit)
{
    int64_t now_ns = monotonic_ns();
    if (limit->deadline_ns == 0) {
        int64_t block_ns = limit->block_ms * 1000000;
        limit->deadline_ns = block_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + block_ns;
    }
    return now_ns < limit->deadline_ns && PyErr_CheckSignals() == 0;
}

PyObject *raise_registry(const struct module_state *state, enum status status)
{
    if (status != STATUS_BUSY) {
        return raise_status(state, status);
    }
    return PyErr_Occurred() != NULL
               ? NULL
               : raise_format(state, status,
                              "a process was stopped while it created a topic or a partition in the arena, so no other "
                              "process can create one: continue the process (shmaccum top shows it), or end it");
}

/* Other threads, and signal handlers, run while it waits. */
static enum status topic_await(struct arena_object *self, const char *name, uint32_t name_size,
                               struct registry_limit limit, uint32_t *topic_index)
{
    enum status status;
    self->call_count++;
    do {
        status = registry_topic(self->registry, name, name_size, topic_index);
    } while (status == STATUS_BUSY && registry_is_tried_again(&limit));
    self->call_count--;
    return status;
}

enum status arena_object_partition(struct arena_object *self, uint32_t topic_index, uint32_t partition,
                                   struct registry_limit limit, uint32_t *partition_index)
{
    enum status status;
    self->call_count++;
    do {
        status = registry_partition(self->registry, topic_index, (int32_t)partition, partition_index);
    } while (status == STATUS_BUSY && registry_is_tried_again(&limit));
    self->call_count--;
    return status;
}

bool arena_object_topic(struct arena_object *self, PyObject *topic, uint32_t *topic_index)
{
    return arena_object_topic_within(self, topic, (struct registry_limit){.block_ms = REGISTRY_BLOCK_MS}, topic_index);
}

bool arena_object_topic_within(struct arena_object *self, PyObject *topic, struct registry_limit limit,
                               uint32_t *topic_index)
{
    const char *name;
    uint32_t name_size;
    if (!topic_parse(topic, &name, &name_size) || !arena_object_is_open(self)) {
        return false;
    }
    if (!self->core->is_read_only && !arena_object_attach(self)) {
        return false;
    }
    enum status status = topic_await(self, name, name_size, limit, topic_index);
    if (status == STATUS_INVALID) {
        raise_format(self->state, status,
                     "%R is not a topic name: 1 to %d of the characters a-z A-Z 0-9 . _ - and not . or ..", topic,
                     TOPIC_NAME_SIZE_MAX);
        return false;
    }
    if (status == STATUS_NO_PARTITION) {
        raise_no_topic_room(self);
        return false;
    }
    if (status != STATUS_OK) {
        raise_registry(self->state, status);
        return false;
    }
    return true;
}

PyObject *py_arena_topic_partition_count(struct arena_object *self, const struct py_arena_topic_partition_count *given)
{
    uint32_t topic_index;
    if (!arena_object_topic(self, given->topic, &topic_index)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(load_acquire_u32(&self->core->topics[topic_index].partition_count)); /* V2 */
}

struct topic {
    const struct arena_object *arena;
    uint32_t index;
};

/* A partition without an entry has no records yet, and counts as available. */
static PyObject *available_partition(const void *all, uint32_t partition)
{
    const struct topic *topic = all;
    const struct arena_object *self = topic->arena;
    uint32_t partition_index;
    bool is_available =
        !registry_find_partition(self->registry, topic->index, (int32_t)partition, &partition_index) ||
        load_relaxed_u32(&self->core->partitions[partition_index].queued_batch_count) != PARTITION_UNAVAILABLE;
    return is_available ? PyLong_FromUnsignedLong(partition) : NULL;
}

PyObject *py_arena_available_partitions(struct arena_object *self, const struct py_arena_available_partitions *given)
{
    struct topic topic = {.arena = self};
    if (!arena_object_topic(self, given->topic, &topic.index)) {
        return NULL;
    }
    return list_of(topic_partition_count(self->core, topic.index), available_partition, &topic);
}

/* Neither waits nor wakes a process. */
PyObject *py_arena_want_partitions(struct arena_object *self, const struct py_arena_want_partitions *given)
{
    uint32_t topic_index;
    if (!arena_object_topic(self, given->topic, &topic_index)) {
        return NULL;
    }
    topic_want(self->core, topic_index, (uint32_t)given->partition_count);
    Py_RETURN_NONE;
}

static PyObject *wanted_topic(const void *all, uint32_t index)
{
    struct arena *core = ((const struct arena_object *)all)->core;
    const char *name;
    uint32_t size;
    return topic_take_wanted(core, index) && registry_topic_name(core, index, &name, &size) == STATUS_OK
               ? PyUnicode_DecodeUTF8(name, size, "replace")
               : NULL;
}

PyObject *py_arena_take_wanted_topics(struct arena_object *self)
{
    return list_of(registry_topic_count(self->core), wanted_topic, self);
}

PyObject *py_arena_set_topic_partition_count(struct arena_object *self,
                                             const struct py_arena_set_topic_partition_count *given)
{
    uint32_t topic_index;
    if (!arena_object_topic(self, given->topic, &topic_index)) {
        return NULL;
    }
    store_release_u32(&self->core->topics[topic_index].partition_count, (uint32_t)given->partition_count); /* V2 */
    Py_RETURN_NONE;
}

/* ---- regions ---- */

PyObject *py_arena_region(struct arena_object *self, const struct py_arena_region *given)
{
    struct region regions[REGION_COUNT];
    if (!PyUnicode_Check(given->name)) {
        return PyErr_Format(PyExc_TypeError, "region() takes a str, not %.80s", Py_TYPE(given->name)->tp_name);
    }
    layout_regions(&self->core->geometry, &self->core->layout, regions);
    for (int i = 0; i < REGION_COUNT; i++) {
        if (PyUnicode_CompareWithASCIIString(given->name, regions[i].name) == 0) {
            const struct view_counts counts = {.arena = &self->export_count};
            return view_memory(self->state, (PyObject *)self, &counts, self->core->base + regions[i].ref,
                               regions[i].size);
        }
    }
    return PyErr_Format(PyExc_KeyError, "the arena has no region %R", given->name);
}

/* ---- the type ---- */

#define METHODS_LIST "python/arena/arena_method_list.h"
#include "python/common/method_tables.h"

static PyType_Slot arena_slots[] = {
    {Py_tp_doc, "One process's mapping of an arena."},
    {Py_tp_dealloc, arena_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, properties},
    {0, NULL},
};

PyType_Spec arena_spec = NATIVE_TYPE("Arena", struct arena_object, arena_slots, Py_TPFLAGS_DISALLOW_INSTANTIATION);
