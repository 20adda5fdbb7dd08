/* SPDX-License-Identifier: Apache-2.0
 *
 * Arena: waits until records are on disk, and forces them to disk.
 */
#include "arena/durability.h"
#include "base/clock.h"
#include "python/arena/arena_methods.h"
#include "python/common/errors.h"

/* If forcing to disk failed, the message is that of STATUS_SYNC_FAILED. */
static PyObject *raise_durability(const struct arena_object *self, enum status status)
{
    if (status == STATUS_OS) {
        struct error error;
        error_set_os(&error, "cannot lock the arena's file to force it to disk");
        return raise_error(self->state, &error);
    }
    if (status == STATUS_POISONED) {
        uint32_t reason = load_acquire_u32(&self->core->globals->poisoned_status); /* V2 */
        return raise_format(self->state, status, "the arena is poisoned: %s", status_sentence((enum status)reason));
    }
    return raise_status(self->state, status);
}

static bool is_durable(const struct arena_object *self)
{
    if (self->core->sync_records != NULL) {
        return true;
    }
    raise_format(self->state, STATUS_INVALID,
                 "the arena has durability=process and cannot be synced: create an arena with durability=interval or "
                 "sync, whose records survive a crash of the host");
    return false;
}

/* Releases the GIL in each step, and checks signals between steps. */
static enum status ticket_wait(struct arena *core, uint64_t timeout_ns)
{
    const struct clock clock = {0};
    uint64_t begin_ns = clock_now_ns(&clock);
    uint64_t ticket = durability_ticket(core);
    enum status status = durability_step(core, ticket);
    while (status == STATUS_PENDING && PyErr_CheckSignals() == 0 && clock_now_ns(&clock) - begin_ns < timeout_ns) {
        status = durability_step(core, ticket);
    }
    return status;
}

PyObject *py_arena_sync(struct arena_object *self, const struct py_arena_sync *given)
{
    if (!is_durable(self)) {
        return NULL;
    }
    self->call_count++;
    enum status status = ticket_wait(self->core, (uint64_t)given->timeout_ns);
    self->call_count--;
    if (PyErr_Occurred() != NULL) {
        return NULL;
    }
    return status == STATUS_OK || status == STATUS_PENDING ? PyBool_FromLong(status == STATUS_OK)
                                                           : raise_durability(self, status);
}

PyObject *py_arena_force_if_due(struct arena_object *self, const struct py_arena_force_if_due *given)
{
    if (!is_durable(self)) {
        return NULL;
    }
    self->call_count++;
    enum status status = durability_force_if_due(self->core, (uint64_t)given->interval_ns);
    self->call_count--;
    return status == STATUS_OK ? Py_NewRef(Py_None) : raise_durability(self, status);
}
