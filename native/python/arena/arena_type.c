/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: the mapping of one process. Opened by the module's functions from two descriptors (module.c), closed once.
 */
#include "arena/attach.h"
#include "arena/completion.h"
#include "arena/counters.h"
#include "arena/lost_memory.h"
#include "arena/process.h"
#include "arena/producer_id.h"
#include "arena/waiter_semaphores.h"
#include "python/arena/arena_methods.h"
#include "python/common/alone.h"
#include "python/common/arguments.h"
#include "python/common/blocking.h"
#include "python/common/errors.h"
#include "python/common/view_type.h"

static struct arena_object *arena_of(PyObject *self)
{
    return (struct arena_object *)self;
}

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
    PyTypeObject *type = Py_TYPE(object);
    if (arena_of(object)->core != NULL) {
        arena_release(arena_of(object));
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

const struct arena *arena_object_own(PyObject *object)
{
    const struct arena_object *self = arena_of(object);
    if (self->core == NULL) {
        PyErr_SetString(self->state->arena_closed, "the arena is closed: attach to it again");
    }
    return self->core;
}

bool arena_object_is_open(const struct arena_object *self)
{
    return arena_object_own((PyObject *)(uintptr_t)self) != NULL && arena_object_is_kept(self);
}

COLD bool arena_object_raise_lost(const struct arena_object *self)
{
    struct error error;
    (void)lost_memory_error(&error);
    raise_error(self->state, &error);
    return false;
}

/* The calls that were counted before fork() go on in the parent, not here. */
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
    do { /* a living process that recovers the arena is waited for, however long that takes */
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

static PyObject *arena_close(PyObject *object, PyObject *unused)
{
    struct arena_object *self = arena_of(object);
    (void)unused;
    if (self->core != NULL) {
        if (!arena_is_unused(self)) {
            return NULL;
        }
        arena_release(self);
    }
    Py_RETURN_NONE;
}

static PyObject *arena_attach_again(PyObject *object, PyObject *unused)
{
    (void)unused;
    return arena_object_attach(arena_of(object)) ? Py_NewRef(Py_None) : NULL;
}

/* ---- facts ---- */

static PyObject *arena_get_closed(PyObject *object, void *unused)
{
    (void)unused;
    return PyBool_FromLong(arena_of(object)->core == NULL);
}

static PyObject *arena_get_is_lost(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_of(object)->core;
    return PyBool_FromLong(core != NULL && arena_is_lost(core));
}

static PyObject *arena_get_is_attached(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_of(object)->core;
    return PyBool_FromLong(core != NULL && core->owner != 0);
}

/* The core of an open arena; NULL with an exception set for a closed one. */
static const struct arena *arena_core(PyObject *object)
{
    return arena_object_is_open(arena_of(object)) ? arena_of(object)->core : NULL;
}

static PyObject *arena_get_is_read_only(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyBool_FromLong(core->is_read_only);
}

static PyObject *arena_get_was_recovered(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyBool_FromLong(core->was_recovered);
}

static PyObject *arena_get_is_clean(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL : PyBool_FromLong(load_acquire_u32(&core->globals->is_clean) != 0); /* V2 */
}

/* The child of a fork has no descriptor to ask with until it is attached. */
static const struct arena *arena_core_with_locks(PyObject *object)
{
    struct arena_object *self = arena_of(object);
    if (arena_core(object) == NULL || (!self->core->is_read_only && !arena_object_attach(self))) {
        return NULL;
    }
    return self->core;
}

static PyObject *arena_get_sender_is_alive(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core_with_locks(object);
    return core == NULL ? NULL : PyBool_FromLong(process_sender_is_alive(core));
}

static PyObject *arena_get_sender_died(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core_with_locks(object);
    return core == NULL ? NULL : PyBool_FromLong(!process_sender_is_alive(core) && process_sender_died(core));
}

static PyObject *arena_get_entry_index(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    if (core == NULL) {
        return NULL;
    }
    return core->owner == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(core->entry_index);
}

static PyObject *arena_get_owner(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLong(core->owner);
}

static PyObject *arena_get_producer_identity(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    struct producer_identity identity;
    if (core == NULL) {
        return NULL;
    }
    producer_identity_read(core, &identity);
    return Py_BuildValue("(LiN)", (long long)identity.producer_id, identity.producer_epoch,
                         PyBytes_FromStringAndSize((const char *)identity.sink, sizeof identity.sink));
}

static PyObject *arena_get_sequences_are_in_doubt(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL : PyBool_FromLong(sequences_are_in_doubt(core));
}

static PyObject *arena_get_registered_topic_count(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLong(registry_topic_count(core));
}

static PyObject *arena_get_size(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLongLong(core->size);
}

static PyObject *arena_get_uuid(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyBytes_FromStringAndSize((const char *)core->uuid, sizeof core->uuid);
}

/* False with an exception set. */
static bool list_add_number(PyObject *list, uint32_t number)
{
    PyObject *object = PyLong_FromUnsignedLong(number);
    bool is_added = object != NULL && PyList_Append(list, object) == 0;
    Py_XDECREF(object);
    return is_added;
}

static PyObject *arena_get_opened_semaphores(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    PyObject *list = core == NULL ? NULL : PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < core->geometry.waiter_count; i++) {
        if (waiter_semaphore_is_open(core, i) && !list_add_number(list, i)) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *arena_get_created_ms(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL : PyLong_FromLongLong(core->superblock->created_ms);
}

static PyObject *arena_get_epoch(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLongLong(load_acquire_u64(&core->globals->arena_epoch)); /* V2 */
}

static PyObject *arena_get_completion_tail(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL
                        : PyLong_FromUnsignedLongLong(load_acquire_u64(&core->globals->completion_tail)); /* C7 */
}

static PyObject *arena_get_oversized_bytes(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLongLong(load_relaxed_u64(&core->globals->oversized_bytes));
}

static PyObject *arena_get_options(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    if (core == NULL) {
        return NULL;
    }
    uint32_t size = core->superblock->options_size;
    return PyBytes_FromStringAndSize((const char *)core->superblock->options,
                                     size < OPTIONS_SIZE_MAX ? size : OPTIONS_SIZE_MAX);
}

static PyObject *arena_get_poisoned(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_core(object);
    if (core == NULL) {
        return NULL;
    }
    uint32_t status = load_acquire_u32(&core->globals->poisoned_status); /* V2 */
    return status == 0 ? Py_NewRef(Py_None) : PyUnicode_FromString(status_name((enum status)status));
}

/* ---- clock and doorbell ---- */

static PyObject *arena_now(PyObject *object, PyObject *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyLong_FromUnsignedLongLong(arena_now_ns(core));
}

static PyObject *arena_get_has_manual_clock(PyObject *object, void *unused)
{
    (void)unused;
    const struct arena *core = arena_object_own(object);
    return core == NULL ? NULL : PyBool_FromLong(core->clock.is_manual);
}

static PyObject *arena_set_manual_clock(PyObject *object, PyObject *now)
{
    static const struct integer_range range = {"now_ns", 0, INT64_MAX};
    struct arena_object *self = arena_of(object);
    int64_t now_ns = 0;
    if (!arena_object_is_open(self) || !integer_parse_optional(self->state, now, &range, &now_ns)) {
        return NULL;
    }
    self->core->clock = (struct clock){.is_manual = now != Py_None, .manual_ns = (uint64_t)now_ns};
    Py_RETURN_NONE;
}

static struct arena *arena_core_for_writing(struct arena_object *self)
{
    return arena_object_attach(self) ? self->core : NULL;
}

/* D2: stored, full barrier, then the sender looks for news once more before it sleeps (D1 in appender.c). */
static PyObject *arena_set_sender_asleep(PyObject *object, PyObject *is_asleep)
{
    struct arena *core = arena_core_for_writing(arena_of(object));
    int truth = core == NULL ? -1 : PyObject_IsTrue(is_asleep);
    if (truth < 0) {
        return NULL;
    }
    store_seq_cst_u32(&core->globals->sender_sleep, truth ? SENDER_ASLEEP : SENDER_AWAKE); /* D4 */
    barrier_store_load(); /* D2 */
    Py_RETURN_NONE;
}

/* A process that waits for a buffer or a flush rings then, and a process with something due before the nap is over. */
static PyObject *arena_set_sender_short_wait(PyObject *object, PyObject *short_wait_us)
{
    static const struct integer_range range = {"short_wait_us", 0, 1000000};
    struct arena_object *self = arena_of(object);
    struct arena *core = arena_core_for_writing(self);
    int64_t number;
    if (core == NULL || !integer_parse(self->state, short_wait_us, &range, &number)) {
        return NULL;
    }
    store_seq_cst_u32(&core->globals->sender_sleep, SENDER_SHORT_WAIT + (uint32_t)number); /* D4 */
    barrier_store_load(); /* D2 */
    Py_RETURN_NONE;
}

static PyObject *arena_stand_by(PyObject *object, PyObject *is_standby)
{
    struct arena_object *self = arena_of(object);
    int value = PyObject_IsTrue(is_standby);
    if (value < 0 || !arena_object_attach(self)) {
        return NULL;
    }
    process_stand_by(self->core, value != 0);
    Py_RETURN_NONE;
}

/* Shown to others (process_entry.fallback); nothing rests on it. */
static PyObject *arena_show_fallback(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena *core = arena_core_for_writing(arena_of(object));
    if (core == NULL) {
        return NULL;
    }
    store_relaxed_u32(&core->me->fallback, 1);
    Py_RETURN_NONE;
}

/* The process that clears the flag rings. */
static PyObject *arena_take_sleep_flag(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena *core = arena_core_for_writing(arena_of(object));
    return core == NULL ? NULL : PyBool_FromLong(exchange_u32(&core->globals->sender_sleep, SENDER_AWAKE)); /* D3 */
}

static PyObject *arena_take_listening(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena *core = arena_core_for_writing(arena_of(object));
    return core == NULL ? NULL : PyBool_FromLong(completion_take_listening(core));
}

/* ---- counters, topics ---- */

static PyObject *arena_count_wait(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {
        .function = "count_wait", .names = {"waited_ns", "is_exhausted"}, .required_count = 2, .count = 2};
    static const struct integer_range range = {"waited_ns", 0, INT64_MAX};
    struct arena_object *self = arena_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    int64_t waited_ns;
    bool is_exhausted = false;
    if (!arguments_bind(&signature, args, count, names, bound) || !arena_object_attach(self) ||
        !integer_parse(self->state, bound[0], &range, &waited_ns) || !flag_parse_optional(bound[1], &is_exhausted)) {
        return NULL;
    }
    counter_add(self->core, COUNTER_WAIT_NS, (uint64_t)waited_ns);
    counter_add(self->core, COUNTER_EXHAUSTED, is_exhausted);
    Py_RETURN_NONE;
}

static PyObject *arena_record_error(PyObject *object, PyObject *args)
{
    struct arena_object *self = arena_of(object);
    const char *text;
    unsigned int note = 0;
    if (!PyArg_ParseTuple(args, "s|I:record_error", &text, &note) || !arena_object_attach(self)) {
        return NULL;
    }
    error_log_note(self->core, STATUS_OS, note & ERROR_NOTE_MAX, text);
    Py_RETURN_NONE;
}

/* A name keeps its place, for every process may have its index. So the sentence tells which names need none. */
static COLD void raise_no_topic_room(const struct arena_object *self)
{
    const char *example = "";
    uint32_t example_size = 0;
    uint32_t unknown_count = 0;
    uint32_t count = registry_topic_count(self->core);
    for (uint32_t i = 0; i < count; i++) {
        const char *name;
        uint32_t size;
        if (topic_partition_count(self->core, i) == 0 &&
            registry_topic_name(self->core, i, &name, &size) == STATUS_OK) {
            example = unknown_count == 0 ? name : example;
            example_size = unknown_count == 0 ? size : example_size;
            unknown_count++;
        }
    }
    if (unknown_count == 0) {
        raise_format(self->state, STATUS_NO_PARTITION,
                     "the arena has no room for another topic: create it with a larger topic_count");
        return;
    }
    PyObject *shown = PyUnicode_DecodeUTF8(example, (Py_ssize_t)example_size, "replace");
    if (shown != NULL) {
        raise_format(self->state, STATUS_NO_PARTITION,
                     "the arena has no room for another topic: it has %u, and no sink knows %u of them, as %R. A name "
                     "keeps its place: correct the programs that send to such names, and create the arena anew, with a "
                     "larger topic_count where that is too small",
                     count, unknown_count, shown);
        Py_DECREF(shown);
    }
}

bool arena_object_topic(struct arena_object *self, PyObject *topic, uint32_t *topic_index)
{
    const char *name;
    uint32_t name_size;
    if (!topic_parse(topic, &name, &name_size) || !arena_object_is_open(self)) {
        return false;
    }
    if (!self->core->is_read_only && !arena_object_attach(self)) {
        return false;
    }
    enum status status = registry_topic(self->registry, name, name_size, topic_index);
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
        raise_status(self->state, status);
        return false;
    }
    return true;
}

static PyObject *arena_topic_partition_count(PyObject *object, PyObject *topic)
{
    struct arena_object *self = arena_of(object);
    uint32_t topic_index;
    if (!arena_object_topic(self, topic, &topic_index)) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(load_acquire_u32(&self->core->topics[topic_index].partition_count)); /* V2 */
}

/* Without an entry of its own, nobody has appended to a partition yet, and nobody has said that it is unavailable. */
static bool partition_is_available(const struct arena_object *self, uint32_t topic_index, uint32_t partition)
{
    uint32_t partition_index;
    return !registry_find_partition(self->registry, topic_index, (int32_t)partition, &partition_index) ||
           load_relaxed_u32(&self->core->partitions[partition_index].queued_batch_count) != PARTITION_UNAVAILABLE;
}

static PyObject *arena_available_partitions(PyObject *object, PyObject *topic)
{
    struct arena_object *self = arena_of(object);
    uint32_t topic_index;
    if (!arena_object_topic(self, topic, &topic_index)) {
        return NULL;
    }
    uint32_t count = topic_partition_count(self->core, topic_index);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; i < count && list != NULL; i++) {
        if (partition_is_available(self, topic_index, i) && !list_add_number(list, i)) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Waits for nothing, and wakes nobody. */
static PyObject *arena_want_partitions(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    static const struct signature signature = {.function = "want_partitions",
                                               .names = {"topic", "partition_count"},
                                               .required_count = 2,
                                               .count = 2};
    static const struct integer_range range = {"partition_count", 1, INT32_MAX};
    struct arena_object *self = arena_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    uint32_t topic_index;
    int64_t partition_count;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(self->state, bound[1], &range, &partition_count) || !arena_object_attach(self) ||
        !arena_object_topic(self, bound[0], &topic_index)) {
        return NULL;
    }
    topic_want(self->core, topic_index, (uint32_t)partition_count);
    Py_RETURN_NONE;
}

static PyObject *arena_take_wanted_topics(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct arena_object *self = arena_of(object);
    PyObject *list = arena_object_attach(self) ? PyList_New(0) : NULL;
    for (uint32_t i = 0; list != NULL && i < registry_topic_count(self->core); i++) {
        const char *name;
        uint32_t size;
        if (topic_take_wanted(self->core, i) && registry_topic_name(self->core, i, &name, &size) == STATUS_OK) {
            list = list_add(list, PyUnicode_DecodeUTF8(name, size, "replace"));
        }
    }
    return list;
}

static PyObject *arena_set_topic_partition_count(PyObject *object, PyObject *const *args, Py_ssize_t count,
                                                 PyObject *names)
{
    static const struct signature signature = {.function = "set_topic_partition_count",
                                               .names = {"topic", "partition_count"},
                                               .required_count = 2,
                                               .count = 2};
    static const struct integer_range range = {"partition_count", 0, INT32_MAX};
    struct arena_object *self = arena_of(object);
    PyObject *bound[ARGUMENT_COUNT_MAX];
    uint32_t topic_index;
    int64_t partition_count;
    if (!arguments_bind(&signature, args, count, names, bound) ||
        !integer_parse(self->state, bound[1], &range, &partition_count) || !arena_object_attach(self) ||
        !arena_object_topic(self, bound[0], &topic_index)) {
        return NULL;
    }
    store_release_u32(&self->core->topics[topic_index].partition_count, (uint32_t)partition_count); /* V2 */
    Py_RETURN_NONE;
}

/* ---- regions ---- */

struct region {
    const char *name;
    uint64_t ref;
    uint64_t size;
};

enum { REGION_COUNT = 14 };

static void regions_list(const struct arena *core, struct region *regions)
{
    const struct layout *layout = &core->layout;
    const uint64_t names_size = core->geometry.name_heap_size;
    const uint64_t bitmap_size = sizeof(atomic_u64) * (uint64_t)layout->bitmap_word_count;
    const struct region all[REGION_COUNT] = {
        {"superblock", SUPERBLOCK_REF, sizeof(struct superblock)},
        {"globals", GLOBALS_REF, sizeof(struct globals)},
        {"processes", layout->processes, sizeof(struct process_entry) * (uint64_t)core->geometry.process_count},
        {"waiters", layout->waiters, sizeof(struct waiter_entry) * (uint64_t)core->geometry.waiter_count},
        {"topics", layout->topics, sizeof(struct topic_entry) * (uint64_t)core->geometry.topic_count},
        {"partitions", layout->partitions, sizeof(struct partition_entry) * (uint64_t)core->geometry.partition_count},
        {"names", layout->names, names_size},
        {"free_hints", layout->free_hints, bitmap_size},
        {"news_hints", layout->ready_hints, bitmap_size},
        {"news_groups", layout->ready_groups, sizeof(atomic_u64) * (uint64_t)layout->ready_group_count},
        {"slot_headers", layout->slot_headers, sizeof(struct slot_header) * (uint64_t)core->geometry.slot_count},
        {"completions", layout->completions,
         sizeof(struct completion_entry) * (uint64_t)core->geometry.completion_count},
        {"counters", layout->counters, sizeof(struct counter_entry) * (uint64_t)COUNTER_COUNT},
        {"slot_data", layout->slot_data, (uint64_t)core->geometry.slot_stride * core->geometry.slot_count},
    };
    memcpy(regions, all, sizeof all);
}

static PyObject *arena_region(PyObject *object, PyObject *name)
{
    struct arena_object *self = arena_of(object);
    struct region regions[REGION_COUNT];
    if (!arena_object_is_open(self)) {
        return NULL;
    }
    if (!PyUnicode_Check(name)) {
        return PyErr_Format(PyExc_TypeError, "region() takes a str, not %.80s", Py_TYPE(name)->tp_name);
    }
    regions_list(self->core, regions);
    for (int i = 0; i < REGION_COUNT; i++) {
        if (PyUnicode_CompareWithASCIIString(name, regions[i].name) == 0) {
            const struct view_counts counts = {.arena = &self->export_count};
            return view_memory(self->state, object, &counts, self->core->base + regions[i].ref, regions[i].size);
        }
    }
    return PyErr_Format(PyExc_KeyError, "the arena has no region %R", name);
}

/* ---- the type ---- */

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

ALONE(arena_available_partitions, itself)
ALONE(arena_abort_transaction, itself)
ALONE(arena_begin_closing, itself)
ALONE(arena_begin_transaction, itself)
ALONE(arena_commit_transaction, itself)
ALONE(arena_leave_transaction, itself)
ALONE(arena_unfence_transactions, itself)
ALONE(arena_end_closing, itself)
ALONE(arena_check_name, itself)
ALONE(arena_census, itself)
ALONE(arena_close, itself)
ALONE(arena_attach_again, itself)
ALONE_FAST(arena_count_transaction_time, itself)
ALONE_FAST(arena_count_wait, itself)
ALONE(arena_report_counters, itself)
ALONE(arena_report_errors, itself)
ALONE_FAST(arena_completion_list, itself)
ALONE(arena_completion_find, itself)
ALONE(arena_completion_is_under_way, itself)
ALONE(arena_now, itself)
ALONE(arena_report_partitions, itself)
ALONE(arena_report_processes, itself)
ALONE(arena_record_error, itself)
ALONE(arena_report_recovery_plan, itself)
ALONE(arena_region, itself)
ALONE(arena_report_delivery_clock, itself)
ALONE(arena_report_sender, itself)
ALONE(arena_set_manual_clock, itself)
ALONE(arena_set_presence, itself)
ALONE(arena_set_sender_asleep, itself)
ALONE(arena_set_sender_short_wait, itself)
ALONE_FAST(arena_set_topic_partition_count, itself)
ALONE_FAST(arena_want_partitions, itself)
ALONE(arena_report_spilled, itself)
ALONE_FAST(arena_report_partition_limit, itself)
ALONE(arena_report_stuck_partitions, itself)
ALONE(arena_report_state_counts, itself)
ALONE(arena_show_fallback, itself)
ALONE(arena_stand_by, itself)
ALONE(arena_take_sleep_flag, itself)
ALONE(arena_take_listening, itself)
ALONE(arena_topic_partition_count, itself)
ALONE(arena_report_topics, itself)
ALONE(arena_take_wanted_topics, itself)
ALONE(arena_sync, itself)
ALONE(arena_force_if_due, itself)
ALONE_FAST(arena_completion_wait, itself)
ALONE_FAST(arena_transaction_wait, itself)
ALONE(arena_completion_expect, itself)
ALONE_FAST(arena_report_verify, itself)

static PyMethodDef arena_methods[] = {
    {"available_partitions", alone_arena_available_partitions, METH_O,
     "The partitions of a topic that can be delivered to, in order."},
    {"abort_transaction", alone_arena_abort_transaction, METH_O, "Aborts the transaction with this number."},
    {"begin_closing", alone_arena_begin_closing, METH_NOARGS,
     "Closes the arena to further records, and seals open batches."},
    {"begin_transaction", alone_arena_begin_transaction, METH_NOARGS,
     "Begins a transaction; answers its number, or None while the last one is still being ended: call it again."},
    {"commit_transaction", alone_arena_commit_transaction, METH_O,
     "Lets the sender deliver and commit the transaction with this number, and takes no more records for it."},
    {"leave_transaction", alone_arena_leave_transaction, METH_NOARGS,
     "Says that this process has read the outcome of its transaction: others may begin one."},
    {"unfence_transactions", alone_arena_unfence_transactions, METH_NOARGS,
     "Lets the sender take the transactional id back, when the arena is fenced. False: its transaction is not over."},
    {"end_closing", alone_arena_end_closing, METH_NOARGS,
     "Says that the sender has delivered all that it could, and leaves."},
    {"check_name", alone_arena_check_name, METH_NOARGS,
     "Begins to close an arena that lost its name; answers `closing`."},
    {"census", alone_arena_census, METH_NOARGS,
     "What the slots hold, counted in one look: states, queues, damage, holders, processes that wait for a buffer."},
    {"close", alone_arena_close, METH_NOARGS,
     "Leaves the arena; raises ArenaInUseError while something of it is in use."},
    {"attach", alone_arena_attach_again, METH_NOARGS, "Attaches anew in the child of a fork; else does nothing."},
    {"count_transaction_time", FAST(alone_arena_count_transaction_time), METH_FASTCALL | METH_KEYWORDS,
     "Counts the time of one step of a transaction."},
    {"count_wait", FAST(alone_arena_count_wait), METH_FASTCALL | METH_KEYWORDS, "Counts one wait for buffers."},
    {"counters", alone_arena_report_counters, METH_NOARGS, "Label -> value of the named counters."},
    {"errors", alone_arena_report_errors, METH_NOARGS, "The distinct errors the arena recorded."},
    {"completions", FAST(alone_arena_completion_list), METH_FASTCALL | METH_KEYWORDS,
     "Results [first, last) as (number, partition_index, seq, result, ...); those overwritten are left out."},
    {"find", alone_arena_completion_find, METH_O, "The result of a token's record, or None while it is pending."},
    {"is_under_way", alone_arena_completion_is_under_way, METH_O,
     "True while a sender has taken a token's record out and its result is pending."},
    {"now_ns", alone_arena_now, METH_NOARGS, "The arena's clock."},
    {"partitions", alone_arena_report_partitions, METH_NOARGS, "(topic, partition) of each partition index."},
    {"processes", alone_arena_report_processes, METH_NOARGS, "The process entries ever used."},
    {"record_error", alone_arena_record_error, METH_VARARGS,
     "Adds a text to the arena's error log, with a note of 24 bits that says what it is; 0: a sentence."},
    {"recovery_plan", alone_arena_report_recovery_plan, METH_NOARGS,
     "The report that a cold recovery would give now; changes nothing."},
    {"region", alone_arena_region, METH_O, "A read-only memoryview of a region of the arena."},
    {"delivery_clock", alone_arena_report_delivery_clock, METH_NOARGS,
     "The time in which somebody could deliver, the delivery timeout, and an outage's start and reason."},
    {"sender", alone_arena_report_sender, METH_NOARGS,
     "The last holder of the sender role, alive or not, and the facts that it published."},
    {"set_presence", alone_arena_set_presence, METH_O, "Publishes the number in the name of the sender's socket."},
    {"set_manual_clock", alone_arena_set_manual_clock, METH_O,
     "Sets the time of this handle, for tests; None: the kernel's clock."},
    {"set_sender_asleep", alone_arena_set_sender_asleep, METH_O, "Says whether the sender wants the doorbell."},
    {"set_sender_short_wait", alone_arena_set_sender_short_wait, METH_O,
     "Says that only processes that wait for the sender ring, and those with a batch due in so many microseconds."},
    {"set_topic_partition_count", FAST(alone_arena_set_topic_partition_count), METH_FASTCALL | METH_KEYWORDS,
     "Sets the number of partitions that the sink reports for a topic."},
    {"spilled", alone_arena_report_spilled, METH_NOARGS,
     "What lies in the overflow, since when, and of which partitions."},
    {"partition_limit", FAST(alone_arena_report_partition_limit), METH_FASTCALL | METH_KEYWORDS,
     "What keeps a partition from opening a batch of so many slots now."},
    {"stuck_partitions", alone_arena_report_stuck_partitions, METH_NOARGS,
     "(partition index, reason, error code, since when in ms, free slots it needs) of each partition that is stuck."},
    {"state_counts", alone_arena_report_state_counts, METH_NOARGS, "State -> number of slots in it."},
    {"show_fallback", alone_arena_show_fallback, METH_NOARGS,
     "Shows that the records of this process go elsewhere, until it attaches again."},
    {"stand_by", alone_arena_stand_by, METH_O, "Shows whether this process waits for the sender role."},
    {"take_sleep_flag", alone_arena_take_sleep_flag, METH_NOARGS, "Clears the sleep flag. True if it was set."},
    {"take_listening", alone_arena_take_listening, METH_NOARGS,
     "True when a loop listens, so that the sender is to ring the results bell."},
    {"want_partitions", FAST(alone_arena_want_partitions), METH_FASTCALL | METH_KEYWORDS,
     "Asks the sender to find out whether a topic has so many partitions by now."},
    {"take_wanted_topics", alone_arena_take_wanted_topics, METH_NOARGS,
     "The names of the topics of which producers have wanted more partitions since the last call."},
    {"topic_partition_count", alone_arena_topic_partition_count, METH_O,
     "The number of partitions of a topic, as the sink reported; 0 when unknown."},
    {"topics", alone_arena_report_topics, METH_NOARGS, "The names of the topics, by topic index."},
    {"sync", alone_arena_sync, METH_O,
     "Waits until the records of this process are on disk. False: timeout_ns was over."},
    {"force_if_due", alone_arena_force_if_due, METH_O,
     "Forces the arena to disk if that was last done interval_ns ago."},
    {"wait_completion", FAST(alone_arena_completion_wait), METH_FASTCALL | METH_KEYWORDS,
     "Waits until completion_tail has another value; returns that."},
    {"wait_transaction", FAST(alone_arena_transaction_wait), METH_FASTCALL | METH_KEYWORDS,
     "Waits until transaction_word has another value; returns that."},
    {"expect_completion", alone_arena_completion_expect, METH_NOARGS,
     "Says that a loop listens to the results bell, so that the next result rings it; returns completion_tail."},
    {"verify", FAST(alone_arena_report_verify), METH_FASTCALL | METH_KEYWORDS,
     "Checks the invariants; a list of (slot index or None, finding)."},
    {NULL, NULL, 0, NULL},
};

ALONE_GET(arena_get_epoch, itself)
ALONE_GET(arena_get_closed, itself)
ALONE_GET(arena_get_closing, itself)
ALONE_GET(arena_get_completion_tail, itself)
ALONE_GET(arena_get_created_ms, itself)
ALONE_GET(arena_get_entry_index, itself)
ALONE_GET(arena_get_file_id, itself)
ALONE_GET(arena_report_geometry, itself)
ALONE_GET(arena_get_has_lost_its_name, itself)
ALONE_GET(arena_get_has_manual_clock, itself)
ALONE_GET(arena_get_is_attached, itself)
ALONE_GET(arena_get_is_lost, itself)
ALONE_GET(arena_get_is_clean, itself)
ALONE_GET(arena_get_is_read_only, itself)
ALONE_GET(arena_report_layout, itself)
ALONE_GET(arena_report_features, itself)
ALONE_GET(arena_get_opened_semaphores, itself)
ALONE_GET(arena_get_options, itself)
ALONE_GET(arena_get_oversized_bytes, itself)
ALONE_GET(arena_get_owner, itself)
ALONE_GET(arena_get_permissions, itself)
ALONE_GET(arena_get_poisoned, itself)
ALONE_GET(arena_get_presence, itself)
ALONE_GET(arena_get_producer_identity, itself)
ALONE_GET(arena_get_sequences_are_in_doubt, itself)
ALONE_GET(arena_get_registered_topic_count, itself)
ALONE_GET(arena_get_sender_died, itself)
ALONE_GET(arena_get_sender_is_alive, itself)
ALONE_GET(arena_get_size, itself)
ALONE_GET(arena_get_transaction, itself)
ALONE_GET(arena_get_transaction_word, itself)
ALONE_GET(arena_get_transaction_begun_ns, itself)
ALONE_GET(arena_get_transaction_standing, itself)
ALONE_GET(arena_get_transaction_why, itself)
ALONE_GET(arena_get_uuid, itself)
ALONE_GET(arena_get_was_recovered, itself)

static PyGetSetDef arena_properties[] = {
    {"arena_epoch", alone_arena_get_epoch, NULL, "The number of recoveries of the arena.", NULL},
    {"closed", alone_arena_get_closed, NULL, "True after close().", NULL},
    {"closing", alone_arena_get_closing, NULL,
     "Whether the arena was removed: 'not'; 'begun': it takes no more records; 'done': its sender has left.", NULL},
    {"completion_tail", alone_arena_get_completion_tail, NULL, "The number of results ever recorded.", NULL},
    {"created_ms", alone_arena_get_created_ms, NULL, "The time of its creation, wall clock.", NULL},
    {"entry_index", alone_arena_get_entry_index, NULL, "This process's entry, None when not attached.", NULL},
    {"file_id", alone_arena_get_file_id, NULL, "Device and inode of the arena's file.", NULL},
    {"geometry", alone_arena_report_geometry, NULL, "The numbers the creator chose.", NULL},
    {"has_lost_its_name", alone_arena_get_has_lost_its_name, NULL,
     "True when the arena's file has no name any more.", NULL},
    {"has_manual_clock", alone_arena_get_has_manual_clock, NULL, "True when its clock shows what it was set to.", NULL},
    {"is_lost", alone_arena_get_is_lost, NULL,
     "True when its memory is lost to this process (arena/lost_memory.h): every other call raises.", NULL},
    {"is_attached", alone_arena_get_is_attached, NULL,
     "False when closed, read-only, or forked and not used since.", NULL},
    {"is_clean", alone_arena_get_is_clean, NULL, "True when the last process left in order.", NULL},
    {"is_read_only", alone_arena_get_is_read_only, NULL, "True when mapped without write permission.", NULL},
    {"layout", alone_arena_report_layout, NULL, "The start of each region, in bytes.", NULL},
    {"features", alone_arena_report_features, NULL, "The creator's build, the arena's features, its extension regions.",
     NULL},
    {"opened_semaphores", alone_arena_get_opened_semaphores, NULL,
     "The waiter entries whose semaphores this handle has opened.", NULL},
    {"options", alone_arena_get_options, NULL, "The creator's options, msgpack.", NULL},
    {"oversized_bytes", alone_arena_get_oversized_bytes, NULL,
     "Bytes of the buffers that records larger than a buffer hold now.", NULL},
    {"owner", alone_arena_get_owner, NULL, "The number that names this process in the arena's words; 0: none.", NULL},
    {"poisoned", alone_arena_get_poisoned, NULL, "None, or the name of the status that poisoned the arena.", NULL},
    {"permissions", alone_arena_get_permissions, NULL, "(user, group, mode) of the arena's file, as it is now.", NULL},
    {"presence", alone_arena_get_presence, NULL, "The number in the name of the sender's socket; 0: none.", NULL},
    {"producer_identity", alone_arena_get_producer_identity, NULL,
     "(producer id, epoch, identity of the sink that gave them); -1: none.", NULL},
    {"registered_topic_count", alone_arena_get_registered_topic_count, NULL, "Topics ever named.", NULL},
    {"sequences_are_in_doubt", alone_arena_get_sequences_are_in_doubt, NULL,
     "True after a crash of the host, until the arena has another producer id or epoch.", NULL},
    {"sender_died", alone_arena_get_sender_died, NULL, "True when the last sender did not leave in order.", NULL},
    {"sender_is_alive", alone_arena_get_sender_is_alive, NULL, "True while a process holds the sender role.", NULL},
    {"size", alone_arena_get_size, NULL, "Bytes of the whole arena.", NULL},
    {"transaction", alone_arena_get_transaction, NULL,
     "(number of the newest transaction, its state, why it was aborted).", NULL},
    {"transaction_word", alone_arena_get_transaction_word, NULL,
     "A number that changes whenever the transaction does.", NULL},
    {"transaction_begun_ns", alone_arena_get_transaction_begun_ns, NULL,
     "The time of the arena's clock when the newest transaction began; 0: none did.", NULL},
    {"transaction_standing", alone_arena_get_transaction_standing, NULL,
     "How far the transaction has come in the sink, as the last sender packed it; 0: nothing is kept.", NULL},
    {"transaction_why", alone_arena_get_transaction_why, NULL,
     "Why the newest transaction was aborted, as a number; 0: it was not.", NULL},
    {"uuid", alone_arena_get_uuid, NULL, "16 random bytes of its creation.", NULL},
    {"was_recovered", alone_arena_get_was_recovered, NULL, "True when this attach ran a cold recovery.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot arena_slots[] = {
    {Py_tp_doc, "One process's mapping of an arena."},
    {Py_tp_dealloc, arena_dealloc},
    {Py_tp_methods, arena_methods},
    {Py_tp_getset, arena_properties},
    {0, NULL},
};

PyType_Spec arena_spec = {
    .name = "shmaccum._native.Arena",
    .basicsize = sizeof(struct arena_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = arena_slots,
};
