/* SPDX-License-Identifier: Apache-2.0
 *
 * SenderHalf.pump: runs ordinary rounds of a sender whose sink is a Kafka cluster (sender/pump.h), in one call.
 *
 *   plan    (links, topics, places, linger_ns, size_max, in_flight_max, wake_fd, on_results)
 *   link    (socket, version, client, acks, timeout_ms, requests_max, correlation_first, transactional id or None)
 *   topic   (name, id or None)
 *   place   (partition index, number of its link, number of its topic, partition)
 *   found   a list to which the call appends three objects, also if it raises an exception:
 *             links    (is_broken, throttle_ms, request_count, sent_size, received_size, latency_sum_ns,
 *                      latency_max_ns, received, requests) each
 *             left     drained Batches that are not ordinary
 *             numbers  sums over the delivered batches (shmaccum.sender.sinks.sink.Delivered), or None
 *   request (correlation id, begun_ns, sent_size, Batches)    requests without a response
 *
 * The call has the GIL only in pump_round. `on_results` is called without arguments after results were recorded.
 */
#include <string.h>

#include "arena/waiter_semaphores.h"
#include "python/common/arguments.h"
#include "python/common/errors.h"
#include "python/common/items.h"
#include "python/sender/batch_type.h"
#include "python/sender/part.h"
#include "sender/pump.h"

enum plan_part { PLAN_LINKS, PLAN_TOPICS, PLAN_PLACES, PLAN_LINGER, PLAN_SIZE, PLAN_IN_FLIGHT, PLAN_WAKE_FD,
                 PLAN_RESULTS, PLAN_COUNT };

struct call {
    struct sender_half_object *half;
    PyObject *plan;
    PyObject *on_results;
    struct pump pump;
    struct produce_topic *topics;
    size_t names_size;
    uint64_t result_count; /* results for which on_results was called */
};

/* ---- the plan ---- */

/* Reads a transactional id, or None if the batches of the link belong to no transaction. */
static bool transactional_id_take(PyObject *tuple, Py_ssize_t index, struct produce_request *form)
{
    return PyTuple_GET_ITEM(tuple, index) == Py_None ||
           part_take_name(tuple, index, &form->transactional_id, &form->transactional_id_size);
}

static bool topic_fill(PyObject *tuple, struct produce_topic *topic)
{
    return part_is_tuple(tuple, 2) && part_take_topic(tuple, topic);
}

static bool link_fill(PyObject *tuple, struct broker_link *link)
{
    int64_t number[6];
    if (!part_is_tuple(tuple, 8) || !part_take_number(tuple, 0, 0, INT32_MAX, &number[0]) ||
        !part_take_number(tuple, 1, PRODUCE_VERSION_MIN, PRODUCE_VERSION_MAX, &number[1]) ||
        !part_take_name(tuple, 2, &link->form.client, &link->form.client_size) ||
        !part_take_number(tuple, 3, -1, 1, &number[2]) || !part_take_number(tuple, 4, 0, INT32_MAX, &number[3]) ||
        !part_take_number(tuple, 5, 1, BROKER_REQUESTS_MAX, &number[4]) ||
        !part_take_number(tuple, 6, 0, INT32_MAX, &number[5]) || !transactional_id_take(tuple, 7, &link->form)) {
        return false;
    }
    link->socket = (int)number[0];
    link->form.version = (int16_t)number[1];
    link->form.acks = (int16_t)number[2];
    link->form.timeout_ms = (int32_t)number[3];
    link->requests_max = (uint32_t)number[4];
    link->correlation_first = (uint32_t)number[5];
    return true;
}

static bool place_fill(struct call *call, PyObject *tuple)
{
    struct pump *pump = &call->pump;
    int64_t index;
    int64_t link;
    int64_t topic;
    int64_t partition;
    if (!part_is_tuple(tuple, 4) || !part_take_number(tuple, 0, 0, (int64_t)pump->place_count - 1, &index) ||
        !part_take_number(tuple, 1, 0, (int64_t)pump->link_count - 1, &link) ||
        !part_take_number(tuple, 2, 0, PyTuple_GET_SIZE(PyTuple_GET_ITEM(call->plan, PLAN_TOPICS)) - 1, &topic) ||
        !part_take_number(tuple, 3, 0, INT32_MAX, &partition)) {
        return false;
    }
    struct pump_place *place = &pump->places[index];
    pump->links[link].place_count += place->link == 0;
    if (place->link != 0) {
        PyErr_SetString(PyExc_ValueError, "a plan has a partition twice");
        return false;
    }
    *place = (struct pump_place){
        .link = (uint32_t)link + 1, .topic = (uint32_t)topic, .partition = (int32_t)partition};
    return true;
}

static bool tables_fill(struct call *call)
{
    PyObject *links = PyTuple_GET_ITEM(call->plan, PLAN_LINKS);
    PyObject *topics = PyTuple_GET_ITEM(call->plan, PLAN_TOPICS);
    PyObject *places = PyTuple_GET_ITEM(call->plan, PLAN_PLACES);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(links); i++) {
        if (!link_fill(PyTuple_GET_ITEM(links, i), &call->pump.links[i].broker)) {
            return false;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(topics); i++) {
        if (!topic_fill(PyTuple_GET_ITEM(topics, i), &call->topics[i])) {
            return false;
        }
        call->names_size += call->topics[i].name_size;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        if (!place_fill(call, PyTuple_GET_ITEM(places, i))) {
            return false;
        }
    }
    for (uint32_t i = 0; i < call->pump.link_count; i++) {
        if (call->pump.links[i].place_count == 0) {
            PyErr_SetString(PyExc_ValueError, "a link of a plan has no partition");
            return false;
        }
    }
    return true;
}

static bool limits_fill(struct call *call)
{
    int64_t number[4];
    if (!part_take_number(call->plan, PLAN_LINGER, 0, INT64_MAX, &number[0]) ||
        !part_take_number(call->plan, PLAN_SIZE, 1, INT32_MAX / 2, &number[1]) ||
        !part_take_number(call->plan, PLAN_IN_FLIGHT, 1, UINT32_MAX, &number[2]) ||
        !part_take_number(call->plan, PLAN_WAKE_FD, 0, INT32_MAX, &number[3])) {
        return false;
    }
    call->pump.linger_ns = (uint64_t)number[0];
    call->pump.size_max = (uint32_t)number[1];
    call->pump.in_flight_max = (uint32_t)number[2];
    call->pump.wake_fd = (int)number[3];
    call->on_results = PyTuple_GET_ITEM(call->plan, PLAN_RESULTS);
    return true;
}

/* Checks the sizes of the tuples of a plan, and allocates its tables. */
static bool tables_make(struct call *call)
{
    struct pump *pump = &call->pump;
    for (int i = PLAN_LINKS; i <= PLAN_PLACES; i++) {
        if (!PyTuple_CheckExact(PyTuple_GET_ITEM(call->plan, i))) {
            PyErr_SetString(PyExc_TypeError, "links, topics and places of a plan must be tuples");
            return false;
        }
    }
    Py_ssize_t link_count = PyTuple_GET_SIZE(PyTuple_GET_ITEM(call->plan, PLAN_LINKS));
    if (link_count == 0 || link_count > INT16_MAX) {
        PyErr_SetString(PyExc_ValueError, "a plan must have at least one link");
        return false;
    }
    size_t topic_count = (size_t)PyTuple_GET_SIZE(PyTuple_GET_ITEM(call->plan, PLAN_TOPICS));
    pump->place_count = call->half->core->arena->geometry.partition_count;
    pump->links = PyMem_Calloc((size_t)link_count, sizeof *pump->links);
    pump->places = PyMem_Calloc((size_t)pump->place_count + 1, sizeof *pump->places);
    pump->topics = call->topics = PyMem_Calloc(topic_count + 1, sizeof *call->topics);
    if (pump->links == NULL || pump->places == NULL || call->topics == NULL) {
        PyErr_NoMemory();
        return false;
    }
    pump->link_count = (uint32_t)link_count;
    return true;
}

static bool call_make(struct call *call, const struct py_half_pump *given)
{
    struct pump *pump = &call->pump;
    if (!part_is_tuple(given->plan, PLAN_COUNT)) {
        return false;
    }
    if (call->half->core->arena->clock.is_manual) {
        PyErr_SetString(PyExc_ValueError, "the arena has a manual clock, so no time limit of a pump passes");
        return false;
    }
    call->plan = given->plan;
    pump->half = call->half->core;
    if (!tables_make(call) || !tables_fill(call) || !limits_fill(call)) {
        return false;
    }
    pump->due_ns = (uint64_t)given->due_ns;
    pump->foreign_ns = (uint64_t)given->foreign_ns;
    pump->short_wait_ns = (uint64_t)given->short_wait_ns;
    pump->short_wait_flag = SENDER_SHORT_WAIT + (uint32_t)given->short_wait_us;
    pump->largest_record = (uint32_t)given->largest_record;
    if (!pump_make(pump, call->names_size)) {
        PyErr_NoMemory();
        return false;
    }
    return true;
}

static void call_free(struct call *call)
{
    pump_free(&call->pump);
    PyMem_Free(call->pump.links);
    PyMem_Free(call->pump.places);
    PyMem_Free(call->topics);
}

/* ---- the rounds ---- */

/* Wakes the waiters that the round has served, and calls on_results. Returns false with an exception set. */
static bool round_report_results(struct call *call)
{
    if (!call->pump.delays_waiters) {
        waiters_wake(call->half->arena->core, &call->half->wakes);
    }
    if (call->pump.delivered.batch_count == call->result_count) {
        return true;
    }
    call->result_count = call->pump.delivered.batch_count;
    PyObject *answer = PyObject_CallNoArgs(call->on_results);
    Py_XDECREF(answer);
    return answer != NULL;
}

/* Runs rounds, and always ends the pump. Returns false with an exception set. */
static bool rounds_run(struct call *call)
{
    bool is_told = true;
    while (pump_round(&call->pump, &call->half->wakes)) {
        is_told = is_told && round_report_results(call) && PyErr_CheckSignals() == 0; /* runs signal handlers */
        if (call->half->is_interrupted || !is_told) {
            pump_stop(&call->pump);
        }
        Py_BEGIN_ALLOW_THREADS
        pump_exchange(&call->pump);
        Py_END_ALLOW_THREADS
    }
    call->half->is_interrupted = false;
    return is_told && round_report_results(call);
}

/* ---- the outcome ---- */

struct link_of_call {
    struct call *call;
    struct pump_link *link;
};

static PyObject *request_report(const void *all, uint32_t index)
{
    const struct link_of_call *of = all;
    struct broker_link *broker = &of->link->broker;
    uint32_t number = broker->first + index;
    const struct broker_request *request = broker_link_request(broker, number);
    const struct pump_piece *pieces = pump_link_pieces(of->link, number);
    struct drained_batch *drained = of->call->pump.drained;
    for (uint32_t i = 0; i < request->produce.batch_count; i++) {
        drained[i] = pieces[i].drained;
    }
    return Py_BuildValue("(IKKN)", broker_link_correlation(broker, number), (unsigned long long)request->begun_ns,
                         (unsigned long long)request->pieces.sent_size,
                         half_batches_to_list(of->call->half, drained, request->produce.batch_count));
}

static PyObject *link_report(const void *all, uint32_t index)
{
    struct call *call = (struct call *)(uintptr_t)all;
    struct pump_link *link = &call->pump.links[index];
    const struct link_of_call of = {call, link};
    const struct broker_link *broker = &link->broker;
    pump_link_leave_damaged(&call->pump, link);
    return Py_BuildValue("(OiIKKKKNN)", broker->is_broken ? Py_True : Py_False, (int)broker->throttle_ms,
                         broker->request_count, (unsigned long long)broker->sent_size,
                         (unsigned long long)broker->received_total, (unsigned long long)link->latency_sum_ns,
                         (unsigned long long)link->latency_max_ns,
                         PyBytes_FromStringAndSize((const char *)broker->received, (Py_ssize_t)broker->received_size),
                         list_of(broker->end - broker->first, request_report, &of));
}

static PyObject *place_row(const void *places, uint32_t index)
{
    const struct pump_place *place = (const struct pump_place *)places + index;
    return place->batch_count == 0
               ? NULL
               : delivered_row(index, place->batch_count, place->record_count, place->size, 0);
}

static bool found_fill(struct call *call, PyObject *found)
{
    PyObject *raised = PyErr_Occurred() == NULL ? NULL : exception_take();
    PyObject *links = list_of(call->pump.link_count, link_report, call);
    if (links == NULL) { /* the caller then closes the sockets, and the batches are sent again */
        pump_requeue(&call->pump, &call->half->wakes);
    }
    bool is_filled = list_put(found, links) &&
                     list_put(found, half_batches_to_list(call->half, call->pump.left, call->pump.left_count)) &&
                     list_put(found, delivered_report(&call->pump.delivered, call->pump.last_begun_ns,
                                                  list_of(call->pump.place_count, place_row, call->pump.places)));
    if (raised != NULL) {
        exception_put(raised);
    }
    return is_filled;
}

/* ---- the call ---- */

static PyObject *pump_run(struct sender_half_object *self, const struct py_half_pump *given)
{
    struct call call = {.half = self};
    PyObject *result = NULL;
    if (call_make(&call, given)) {
        bool is_told = rounds_run(&call);
        bool is_filled = found_fill(&call, given->found);
        result = is_told && is_filled ? Py_NewRef(Py_None) : NULL;
    }
    call_free(&call);
    return result;
}

PyObject *py_half_pump(struct sender_half_object *self, const struct py_half_pump *given)
{
    if (!PyList_CheckExact(given->found)) {
        return PyErr_Format(PyExc_TypeError, "found must be a list, not %.80s", Py_TYPE(given->found)->tp_name);
    }
    return pump_run(self, given);
}

/* Any thread may call this, also without the role. A running pump ends soon. */
PyObject *py_half_interrupt(struct sender_half_object *self)
{
    self->is_interrupted = true;
    Py_RETURN_NONE;
}
