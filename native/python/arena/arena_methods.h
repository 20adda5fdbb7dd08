/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of Arena, by file.
 */
#ifndef PYTHON_ARENA_ARENA_METHODS_H
#define PYTHON_ARENA_ARENA_METHODS_H

#include "python/common/arena_object.h"

/* The results of records; arena_completion.c. */
PyObject *arena_completion_find(PyObject *self, PyObject *token);
PyObject *arena_completion_is_under_way(PyObject *self, PyObject *token);
PyObject *arena_completion_list(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *arena_sync(PyObject *self, PyObject *timeout_ns);
PyObject *arena_force_if_due(PyObject *self, PyObject *interval_ns);
PyObject *arena_get_closing(PyObject *self, void *unused);
PyObject *arena_get_file_id(PyObject *self, void *unused);
PyObject *arena_get_permissions(PyObject *self, void *unused);
PyObject *arena_get_presence(PyObject *self, void *unused);
PyObject *arena_set_presence(PyObject *self, PyObject *number);
PyObject *arena_get_has_lost_its_name(PyObject *self, void *unused);
PyObject *arena_check_name(PyObject *self, PyObject *unused);
PyObject *arena_begin_closing(PyObject *self, PyObject *unused);
PyObject *arena_end_closing(PyObject *self, PyObject *unused);
PyObject *arena_get_transaction(PyObject *self, void *unused);
PyObject *arena_get_transaction_word(PyObject *self, void *unused);
PyObject *arena_get_transaction_begun_ns(PyObject *self, void *unused);
PyObject *arena_begin_transaction(PyObject *self, PyObject *unused);
PyObject *arena_commit_transaction(PyObject *self, PyObject *number);
PyObject *arena_abort_transaction(PyObject *self, PyObject *number);
PyObject *arena_leave_transaction(PyObject *self, PyObject *unused);
PyObject *arena_count_transaction_time(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *arena_get_transaction_why(PyObject *self, void *unused);
PyObject *arena_get_transaction_standing(PyObject *self, void *unused);
PyObject *arena_unfence_transactions(PyObject *self, PyObject *unused);
PyObject *arena_completion_expect(PyObject *self, PyObject *unused);
PyObject *arena_completion_wait(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *arena_transaction_wait(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);


/* Appends to a list and takes over `item`; frees the list when anything failed. arena_report.c. */
PyObject *list_add(PyObject *list, PyObject *item);

/* Everything that the slots hold, counted in one look; arena_census.c. */
PyObject *arena_census(PyObject *self, PyObject *unused);

/* Methods that only read and show; arena_report.c. */
PyObject *arena_report_counters(PyObject *self, PyObject *unused);
PyObject *arena_report_errors(PyObject *self, PyObject *unused);
PyObject *arena_report_geometry(PyObject *self, void *unused);
PyObject *arena_report_layout(PyObject *self, void *unused);
PyObject *arena_report_features(PyObject *self, void *unused);
PyObject *arena_report_partitions(PyObject *self, PyObject *unused);
PyObject *arena_report_processes(PyObject *self, PyObject *unused);
PyObject *arena_report_recovery_plan(PyObject *self, PyObject *unused);
PyObject *arena_report_delivery_clock(PyObject *self, PyObject *unused);
PyObject *arena_report_spilled(PyObject *self, PyObject *unused);
PyObject *arena_report_sender(PyObject *self, PyObject *unused);
PyObject *arena_report_partition_limit(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *arena_report_stuck_partitions(PyObject *self, PyObject *unused);
PyObject *arena_report_state_counts(PyObject *self, PyObject *unused);
PyObject *arena_report_topics(PyObject *self, PyObject *unused);
PyObject *arena_report_verify(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names);

#endif
