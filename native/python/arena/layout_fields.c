/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the fields of the arena's structs lie that outlive a change of the layout: an upgrade copies them by name from
 * an arena of the former layout into one of this layout (shmaccum/arena/upgrade.py).
 *
 * A field whose meaning changes gets another name, so that an upgrade never takes one for the other.
 */
#include "python/arena/arena_methods.h"

#define FIELD(region, type, field) {region, #field, sizeof(struct type), offsetof(struct type, field), \
                                    sizeof(((struct type *)0)->field)}
#define SUPERBLOCK(field) FIELD("superblock", superblock, field)
#define GLOBAL(field) FIELD("globals", globals, field)
#define PROCESS(field) FIELD("processes", process_entry, field)
#define TOPIC(field) FIELD("topics", topic_entry, field)
#define PARTITION(field) FIELD("partitions", partition_entry, field)
#define SLOT(field) FIELD("slot_headers", slot_header, field)
#define COMPLETION(field) FIELD("completions", completion_entry, field)
#define COUNTER(field) FIELD("counters", counter_entry, field)
#define ERROR_ENTRY(field) FIELD("error_log", error_entry, field)
#define SYNC_RECORD(field) FIELD("sync_records", sync_record, field)

struct field {
    const char *region;
    const char *name;
    size_t struct_size;
    size_t offset;
    size_t size;
};

static const struct field fields[] = {
    SUPERBLOCK(superblock_crc), SUPERBLOCK(layout_fingerprint), SUPERBLOCK(uuid), SUPERBLOCK(created_ms),
    SUPERBLOCK(options),

    GLOBAL(topic_count), GLOBAL(partition_count), GLOBAL(name_heap_used), GLOBAL(process_count_used),
    GLOBAL(sender_epoch), GLOBAL(producer_id), GLOBAL(producer_epoch), GLOBAL(sink_identity),
    GLOBAL(completion_tail), GLOBAL(sync_wanted), GLOBAL(sync_done), GLOBAL(arena_epoch), GLOBAL(boot_id),
    GLOBAL(poisoned_status),

    PROCESS(generation), PROCESS(record_count), PROCESS(record_bytes), PROCESS(passed_count),

    TOPIC(name_index), TOPIC(name_size), TOPIC(partition_count), TOPIC(sticky),

    PARTITION(next_seq), PARTITION(topic_index), PARTITION(partition), PARTITION(producer_id),
    PARTITION(producer_epoch), PARTITION(next_base_sequence),

    SLOT(word), SLOT(partition_index), SLOT(written_end), SLOT(seq), SLOT(base_timestamp_ms), SLOT(meta),
    SLOT(created_ns), SLOT(chain_next), SLOT(result), SLOT(producer_id), SLOT(base_sequence), SLOT(producer_epoch),
    SLOT(attempt_count), SLOT(acked_record_count), SLOT(last_completion), SLOT(linger), SLOT(opener),

    COMPLETION(number), COMPLETION(previous), COMPLETION(seq), COMPLETION(slot_index), COMPLETION(partition_index),
    COMPLETION(base_offset), COMPLETION(log_append_time_ms), COMPLETION(first_record), COMPLETION(record_count),
    COMPLETION(result), COMPLETION(error_code),

    COUNTER(label), COUNTER(value),

    ERROR_ENTRY(key), ERROR_ENTRY(first_ns), ERROR_ENTRY(last_ns), ERROR_ENTRY(count), ERROR_ENTRY(is_readable),
    ERROR_ENTRY(code), ERROR_ENTRY(text),

    SYNC_RECORD(own_crc), SYNC_RECORD(partition_index), SYNC_RECORD(number), SYNC_RECORD(seq),
    SYNC_RECORD(generation), SYNC_RECORD(count), SYNC_RECORD(size), SYNC_RECORD(records_crc),
    SYNC_RECORD(max_timestamp_ms), SYNC_RECORD(base_timestamp_ms),
};

/* The list of a region's fields; a new one when the region has none yet. Borrowed. */
static PyObject *region_list(PyObject *regions, const struct field *field)
{
    PyObject *list = PyDict_GetItemString(regions, field->region);
    if (list != NULL) {
        return list;
    }
    list = PyList_New(0);
    PyObject *region = list == NULL ? NULL : PyDict_SetItemString(regions, field->region, list) < 0 ? NULL : list;
    Py_XDECREF(list);
    return region;
}

static bool field_add(PyObject *regions, const struct field *field)
{
    PyObject *list = region_list(regions, field);
    PyObject *row = list == NULL ? NULL
                                 : Py_BuildValue("snnn", field->name, (Py_ssize_t)field->offset,
                                                 (Py_ssize_t)field->size, (Py_ssize_t)field->struct_size);
    bool is_added = row != NULL && PyList_Append(list, row) == 0;
    Py_XDECREF(row);
    return is_added;
}

PyObject *layout_fields(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *regions = PyDict_New();
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && regions != NULL; i++) {
        if (!field_add(regions, &fields[i])) {
            Py_CLEAR(regions);
        }
    }
    return regions;
}
