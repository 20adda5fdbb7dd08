/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports about an Arena: geometry, tables, counters, errors, findings. These functions only read, work on a read-only
 * mapping, and trust no byte of it.
 */
#include "arena/counters.h"
#include "arena/delivery_clock.h"
#include "arena/extension.h"
#include "arena/process.h"
#include "arena/recovery.h"
#include "arena/topic_share.h"
#include "arena/verify.h"
#include "arena/spilled.h"
#include "arena/transaction.h"
#include "python/arena/arena_methods.h"
#include "python/common/errors.h"

/* ---- small dictionaries ---- */

struct number {
    const char *name;
    uint64_t value;
};

static PyObject *numbers_to_dict(const struct number *numbers, size_t count)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; i < count && dict != NULL; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(numbers[i].value);
        if (value == NULL || PyDict_SetItemString(dict, numbers[i].name, value) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(value);
    }
    return dict;
}

PyObject *py_arena_geometry(struct arena_object *self)
{
    struct number numbers[sizeof(struct geometry)];
    size_t count;
    const struct layout_field *fields = geometry_fields(&count);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = (struct number){fields[i].field, geometry_number(&self->core->geometry, &fields[i])};
    }
    return numbers_to_dict(numbers, count);
}

PyObject *py_arena_layout(struct arena_object *self)
{
    struct region regions[REGION_COUNT];
    struct number numbers[REGION_COUNT + 2] = {{"version", LAYOUT_VERSION}, {"fingerprint", layout_fingerprint()}};
    layout_regions(&self->core->geometry, &self->core->layout, regions);
    for (size_t i = 0; i < REGION_COUNT; i++) {
        numbers[i + 2] = (struct number){regions[i].name, regions[i].ref};
    }
    return numbers_to_dict(numbers, REGION_COUNT + 2);
}

static PyObject *extension_to_dict(const void *all, uint32_t index)
{
    const struct arena *core = all;
    const struct extension *extension = &core->extensions[index];
    return Py_BuildValue("{s:I,s:K,s:I,s:I,s:N}", "kind", extension->kind, "ref", (unsigned long long)extension->ref,
                         "stride", extension->stride, "count", extension->count, "is_valid",
                         PyBool_FromLong(extension_is_valid(core, index)));
}

PyObject *py_arena_features(struct arena_object *self)
{
    const struct arena *core = self->core;
    char build[BUILD_SIZE];
    build_name_of(core->superblock, build);
    return Py_BuildValue("{s:s,s:K,s:K,s:K,s:N}", "build", build, "compatible",
                         (unsigned long long)core->features_compatible, "read_only",
                         (unsigned long long)core->features_read_only, "incompatible",
                         (unsigned long long)core->features_incompatible, "regions",
                         list_of(core->extension_count, extension_to_dict, core));
}

PyObject *py_arena_state_counts(struct arena_object *self)
{
    const struct arena *core = self->core;
    uint32_t counts[SLOT_BAD + 1];
    struct number numbers[SLOT_BAD + 1];
    verify_count_states(core, counts);
    for (uint32_t i = 0; i <= SLOT_BAD; i++) {
        numbers[i] = (struct number){slot_state_name(i), counts[i]};
    }
    return numbers_to_dict(numbers, SLOT_BAD + 1);
}

PyObject *py_arena_counters(struct arena_object *self)
{
    const struct arena *core = self->core;
    struct number numbers[COUNTERS_USED];
    for (uint32_t i = 0; i < COUNTERS_USED; i++) {
        numbers[i] = (struct number){counter_label(i), load_relaxed_u64(&core->counters[i].value)};
    }
    return numbers_to_dict(numbers, COUNTERS_USED);
}

PyObject *py_arena_recovery_plan(struct arena_object *self)
{
    struct recovery_report report;
    struct error error;
    if (recovery_plan(self->core, &report, &error) != STATUS_OK) {
        return raise_error(self->state, &error);
    }
    const struct number numbers[] = {
        {"freed_count", report.freed_count},
        {"sealed_count", report.sealed_count},
        {"cut_count", report.cut_count},
        {"ready_count", report.ready_count},
        {"quarantined_count", report.quarantined_count},
        {"record_count", report.record_count},
        {"is_same_boot", report.is_same_boot},
    };
    return numbers_to_dict(numbers, sizeof numbers / sizeof numbers[0]);
}

/* ---- lists ---- */

/* The bytes of another process may not be valid text. */
static PyObject *text_of(const char *bytes, size_t size_max)
{
    return PyUnicode_DecodeUTF8(bytes, (Py_ssize_t)strnlen(bytes, size_max), "replace");
}

static PyObject *error_to_dict(const void *all, uint32_t index)
{
    const struct error_entry *entry = &((const struct arena *)all)->error_log[index];
    if (load_acquire_u64(&entry->key) == 0) { /* V4 */
        return NULL;
    }
    bool is_readable = load_acquire_u32(&entry->is_readable) != 0; /* E1 */
    PyObject *text = is_readable ? text_of(entry->text, ERROR_LOG_TEXT_SIZE) : PyUnicode_FromString("");
    const char *status = is_readable ? status_name(error_code_status(entry->code)) : "UNKNOWN";
    unsigned int note = is_readable ? error_code_note(entry->code) : 0;
    return Py_BuildValue("{s:s,s:I,s:N,s:K,s:K,s:K}", "status", status, "note", note, "text", text, "count",
                         (unsigned long long)load_relaxed_u64(&entry->count), "first_ns",
                         (unsigned long long)load_relaxed_u64(&entry->first_ns), "last_ns",
                         (unsigned long long)load_relaxed_u64(&entry->last_ns));
}

PyObject *py_arena_errors(struct arena_object *self)
{
    return list_of(ERROR_LOG_COUNT, error_to_dict, self->core);
}

static PyObject *process_to_dict(const void *all, uint32_t index)
{
    const struct arena *core = all;
    const struct process_entry *entry = &core->processes[index];
    uint32_t owner = owner_of(index, load_acquire_u32(&entry->generation)); /* V4 */
    char name[PROCESS_NAME_SIZE];
    memcpy(name, entry->name, sizeof name);
    return Py_BuildValue(
        "{s:I,s:I,s:s,s:N,s:N,s:I,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:K,s:N,s:N}", "entry", index, "pid",
        load_relaxed_u32(&entry->pid), "role",
        process_role_name(load_acquire_u32(&entry->role)), "alive", /* V4 */
        PyBool_FromLong(process_is_alive(core, owner)), "name", text_of(name, sizeof name), "generation",
        load_relaxed_u32(&entry->generation), "attached_ns",
        (unsigned long long)load_relaxed_u64(&entry->attached_ns), "start_time_ticks",
        (unsigned long long)load_relaxed_u64(&entry->start_time_ticks), "record_count",
        (unsigned long long)load_relaxed_u64(&entry->record_count), "record_bytes",
        (unsigned long long)load_relaxed_u64(&entry->record_bytes), "passed_count",
        (unsigned long long)load_relaxed_u64(&entry->passed_count), "record_count_before",
        (unsigned long long)load_relaxed_u64(&entry->record_count_before), "record_bytes_before",
        (unsigned long long)load_relaxed_u64(&entry->record_bytes_before), "passed_count_before",
        (unsigned long long)load_relaxed_u64(&entry->passed_count_before), "is_forcing",
        PyBool_FromLong(load_relaxed_u32(&entry->is_forcing) != 0), "fallback",
        PyBool_FromLong(load_relaxed_u32(&entry->fallback) != 0));
}

PyObject *py_arena_processes(struct arena_object *self)
{
    const struct arena *core = self->core;
    uint32_t used = load_acquire_u32(&core->globals->process_count_used); /* V4 */
    used = used < core->geometry.process_count ? used : core->geometry.process_count;
    return list_of(used, process_to_dict, core);
}

/* Returns None unless a living sender has published the name. */
static PyObject *sink_name_of(const struct arena *core)
{
    char name[SINK_NAME_SIZE];
    return process_sink_name(core, name) ? PyBytes_FromString(name) : Py_NewRef(Py_None);
}

/* Only the sink's name depends on a living sender. `Arena.sender_is_alive` checks the byte lock. */
PyObject *py_arena_sender(struct arena_object *self)
{
    const struct arena *core = self->core;
    const struct globals *globals = core->globals;
    const uint32_t owner = load_relaxed_u32(&globals->sender_owner);
    PyObject *entry = owner == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(owner_index(owner));
    return Py_BuildValue("{s:N,s:K,s:K,s:N,s:L,s:I,s:N}", "entry", entry, "epoch",
                         (unsigned long long)load_relaxed_u64(&globals->sender_epoch), "heartbeat_ns",
                         (unsigned long long)load_relaxed_u64(&globals->sender_heartbeat_ns), "is_asleep",
                         PyBool_FromLong(load_relaxed_u32(&globals->sender_sleep) != SENDER_AWAKE), "producer_id",
                         (long long)load_relaxed_u64(&globals->producer_id), "producer_epoch",
                         load_relaxed_u32(&globals->producer_epoch) & UINT16_MAX, "sink_name", sink_name_of(core));
}

/* The delivery clock, and the reason of an outage, if the living sender has published one. */
PyObject *py_arena_delivery_clock(struct arena_object *self)
{
    const struct arena *core = self->core;
    char text[OUTAGE_SIZE] = "";
    const struct globals *globals = core->globals;
    const uint64_t since_ns = delivery_clock_outage(core, text);
    return Py_BuildValue("{s:K,s:K,s:N,s:K,s:y}", "clock_ns",
                         (unsigned long long)load_relaxed_u64(&globals->delivery_clock_ns), "timeout_ns",
                         (unsigned long long)load_relaxed_u64(&globals->delivery_timeout_ns), "counts_always",
                         PyBool_FromLong(load_relaxed_u32(&globals->delivery_counts_always) != 0), "outage_since_ns",
                         (unsigned long long)since_ns, "outage", since_ns == 0 ? "" : text);
}

/* The index of each partition with batches in the overflow. */
static PyObject *spilled_partition(const void *core, uint32_t index)
{
    return spilled_has_up_to(core, index, UINT64_MAX) ? PyLong_FromUnsignedLong(index) : NULL;
}

/* The index, the first seq and the end seq of each of these partitions. */
static PyObject *spilled_range(const void *core, uint32_t index)
{
    const struct partition_entry *partition = &((const struct arena *)core)->partitions[index];
    return spilled_has_up_to(core, index, UINT64_MAX)
               ? Py_BuildValue("(IKK)", index, (unsigned long long)load_relaxed_u64(&partition->spilled_first_seq),
                               (unsigned long long)load_relaxed_u64(&partition->spilled_end_seq))
               : NULL;
}

PyObject *py_arena_spilled(struct arena_object *self)
{
    const struct arena *core = self->core;
    uint32_t partition_count = registry_partition_count(core);
    struct spilled_totals totals;
    spilled_read(core, &totals);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:N,s:N}", "batch_count", (unsigned long long)totals.batch_count,
                         "record_count", (unsigned long long)totals.record_count, "size",
                         (unsigned long long)totals.size, "since_ns", (unsigned long long)totals.since_ns,
                         "partitions", list_of(partition_count, spilled_partition, core), "ranges",
                         list_of(partition_count, spilled_range, core));
}

static PyObject *topic_name(const void *core, uint32_t topic_index)
{
    const char *name;
    uint32_t size;
    if (registry_topic_name(core, topic_index, &name, &size) != STATUS_OK) {
        return PyUnicode_FromString("?");
    }
    return PyUnicode_DecodeUTF8(name, size, "replace");
}

/* Describes why a partition may open no batch of `need` slots now. */
PyObject *py_arena_partition_limit(struct arena_object *self, const struct py_arena_partition_limit *given)
{
    const struct arena *core = self->core;
    const uint32_t partition_index = (uint32_t)given->partition_index;
    const uint32_t need = (uint32_t)given->need;
    const struct topic_entry *topic = topic_of_partition(core, partition_index);
    if (topic == NULL) {
        return raise_format(self->state, STATUS_INVALID, "there is no partition %u", partition_index);
    }
    const struct partition_entry *partition = &core->partitions[partition_index];
    bool is_stuck = partition_is_stuck(core, partition_index);
    uint64_t word = is_stuck ? load_relaxed_u64(&partition->stuck) : 0;
    bool has_part = need == 1 || topic_share_admits_oversized(core, partition_index, need, 0);
    return Py_BuildValue("{s:N,s:i,s:I,s:I,s:I,s:i,s:K,s:N,s:N}", "topic", topic_name(core, partition->topic_index),
                         "partition", partition->partition, "held", topic_slot_count(core, partition->topic_index),
                         "free_needed", topic_share_free_needed(core, partition_index, need, 0),
                         "stuck_reason", stuck_word_reason(word), "stuck_error", (int)stuck_word_error_code(word),
                         "stuck_since_ms", (unsigned long long)stuck_word_since_ms(word), "is_admitted",
                         PyBool_FromLong(topic_share_admits(core, partition_index, need)),
                         "is_oversized_admitted", PyBool_FromLong(has_part));
}

/* (partition index, reason, error code, since when in ms, free slots that it needs) of each partition that is stuck. */
static PyObject *stuck_row(const void *all, uint32_t index)
{
    const struct arena *core = all;
    uint64_t word = load_relaxed_u64(&core->partitions[index].stuck);
    return stuck_word_reason(word) != STUCK_NOT && partition_is_stuck(core, index)
               ? Py_BuildValue("(IIiKI)", index, stuck_word_reason(word), (int)stuck_word_error_code(word),
                               (unsigned long long)stuck_word_since_ms(word),
                               topic_share_free_needed(core, index, 1, 0))
               : NULL;
}

PyObject *py_arena_stuck_partitions(struct arena_object *self)
{
    return list_of(registry_partition_count(self->core), stuck_row, self->core);
}

PyObject *py_arena_topics(struct arena_object *self)
{
    return list_of(registry_topic_count(self->core), topic_name, self->core);
}

static PyObject *partition_row(const void *core, uint32_t index)
{
    const struct partition_entry *entry = &((const struct arena *)core)->partitions[index];
    return Py_BuildValue("(Ni)", topic_name(core, entry->topic_index), entry->partition);
}

PyObject *py_arena_partitions(struct arena_object *self)
{
    return list_of(registry_partition_count(self->core), partition_row, self->core);
}

/* ---- verify ---- */

enum { FINDINGS_SHOWN_MAX = 256 };

static PyObject *finding_to_tuple(const void *findings, uint32_t index)
{
    const struct finding *finding = (const struct finding *)findings + index;
    PyObject *text = text_of(finding->text, VERIFY_TEXT_SIZE);
    return finding->slot_index == NO_SLOT ? Py_BuildValue("(ON)", Py_None, text)
                                          : Py_BuildValue("(IN)", finding->slot_index, text);
}

static PyObject *findings_to_list(const struct finding *findings, uint32_t found)
{
    uint32_t shown = found < FINDINGS_SHOWN_MAX ? found : FINDINGS_SHOWN_MAX;
    PyObject *list = list_of(shown, finding_to_tuple, findings);
    if (list != NULL && found > shown) {
        PyObject *rest = PyUnicode_FromFormat("and %u more", found - shown);
        if (!list_put(list, Py_BuildValue("(ON)", Py_None, rest))) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *py_arena_verify(struct arena_object *self, const struct py_arena_verify *given)
{
    struct finding *findings = PyMem_Calloc(FINDINGS_SHOWN_MAX, sizeof *findings);
    if (findings == NULL) {
        return PyErr_NoMemory();
    }
    const struct verify_options options = {.depth = (enum verify_depth)given->depth, .is_idle = given->is_idle};
    PyObject *list = findings_to_list(findings, verify(self->core, &options, findings, FINDINGS_SHOWN_MAX));
    PyMem_Free(findings);
    return list;
}
