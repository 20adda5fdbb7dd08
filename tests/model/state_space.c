/* SPDX-License-Identifier: Apache-2.0
 *
 * The states of a model of processes, for process_explorer.py. This file knows no protocol. A state is 64 bits. A
 * process reads some of them, its view. A step of the process adds a number that depends only on its view.
 *
 *   states     in the order in which they were found, each with the one that it was found from
 *   places     open addressing: the numbers of the states, by their hash; 0 is free, so a number stands there plus 1
 *   tables     one for each process: view -> its steps, as Python has computed them
 *
 * space_go expands states until a view is not in its table. Python then computes the view's steps, and calls again.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { PROCESS_COUNT_MAX = 8, FIRST_SIZE = 1024 };
enum answer { FINISHED, UNKNOWN_VIEW, BAD_STATE, TOO_MANY };

struct table {
    uint64_t *views;
    uint32_t *steps; /* the index of the count in `steps` of the space, plus 1; 0 if free */
    uint64_t size;
    uint64_t count;
};

struct space {
    uint32_t process_count;
    uint64_t masks[PROCESS_COUNT_MAX];
    struct table tables[PROCESS_COUNT_MAX];
    uint64_t *steps; /* for each view their count, then the steps */
    uint64_t steps_size;
    uint64_t steps_count;
    uint64_t *states;
    uint32_t *parents;
    uint64_t states_size;
    uint64_t count;
    uint64_t count_max;
    uint32_t *places;
    uint64_t places_size;
    uint64_t next; /* the state that is expanded */
    uint32_t next_process;
    uint64_t shared_mask;
    uint8_t *bad; /* by the number of the shared values */
};

static uint64_t hash_of(uint64_t value)
{
    value ^= value >> 32;
    value *= UINT64_C(0xd6e8feb86659fd93);
    value ^= value >> 32;
    value *= UINT64_C(0xd6e8feb86659fd93);
    return value ^ value >> 32;
}

static void *resized(void *memory, uint64_t count, size_t size)
{
    void *larger = realloc(memory, count * size);
    if (larger == NULL) {
        abort();
    }
    return larger;
}

static void *zeroed(uint64_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

/* ---- tables ---- */

static uint64_t table_place(const struct table *table, uint64_t view)
{
    uint64_t place = hash_of(view) & (table->size - 1);
    while (table->steps[place] != 0 && table->views[place] != view) {
        place = (place + 1) & (table->size - 1);
    }
    return place;
}

static void table_put(struct table *table, uint64_t view, uint32_t steps);

static void table_grow(struct table *table)
{
    struct table larger = {.size = table->size == 0 ? FIRST_SIZE : 2 * table->size};
    larger.views = zeroed(larger.size, sizeof *larger.views);
    larger.steps = zeroed(larger.size, sizeof *larger.steps);
    for (uint64_t i = 0; i < table->size; i++) {
        if (table->steps[i] != 0) {
            table_put(&larger, table->views[i], table->steps[i]);
        }
    }
    free(table->views);
    free(table->steps);
    *table = larger;
}

static void table_put(struct table *table, uint64_t view, uint32_t steps)
{
    if (2 * table->count >= table->size) {
        table_grow(table);
    }
    uint64_t place = table_place(table, view);
    table->count += table->steps[place] == 0;
    table->views[place] = view;
    table->steps[place] = steps;
}

static const uint64_t *table_steps(const struct space *space, const struct table *table, uint64_t view)
{
    if (table->size == 0) {
        return NULL;
    }
    uint32_t steps = table->steps[table_place(table, view)];
    return steps == 0 ? NULL : &space->steps[steps - 1];
}

static uint32_t steps_add(struct space *space, const uint64_t *steps, uint64_t count)
{
    while (space->steps_count + count + 1 > space->steps_size) {
        space->steps_size = space->steps_size == 0 ? FIRST_SIZE : 2 * space->steps_size;
        space->steps = resized(space->steps, space->steps_size, sizeof *space->steps);
    }
    uint64_t at = space->steps_count;
    if (at >= UINT32_MAX) {
        abort();
    }
    space->steps[at] = count;
    memcpy(&space->steps[at + 1], steps, count * sizeof *steps);
    space->steps_count += count + 1;
    return (uint32_t)at + 1;
}

/* ---- states ---- */

static uint64_t state_place(const struct space *space, uint64_t state)
{
    uint64_t place = hash_of(state) & (space->places_size - 1);
    while (space->places[place] != 0 && space->states[space->places[place] - 1] != state) {
        place = (place + 1) & (space->places_size - 1);
    }
    return place;
}

static void places_grow(struct space *space)
{
    free(space->places);
    space->places_size *= 2;
    space->places = zeroed(space->places_size, sizeof *space->places);
    for (uint64_t i = 0; i < space->count; i++) {
        space->places[state_place(space, space->states[i])] = (uint32_t)i + 1;
    }
}

static void states_grow(struct space *space)
{
    space->states_size *= 2;
    space->states = resized(space->states, space->states_size, sizeof *space->states);
    space->parents = resized(space->parents, space->states_size, sizeof *space->parents);
}

static bool state_add(struct space *space, uint64_t state, uint64_t parent)
{
    uint64_t place = state_place(space, state);
    if (space->places[place] != 0) {
        return false;
    }
    if (space->count == space->states_size) {
        states_grow(space);
    }
    space->states[space->count] = state;
    space->parents[space->count] = (uint32_t)parent;
    space->places[place] = (uint32_t)++space->count;
    if (4 * space->count > 3 * space->places_size) {
        places_grow(space);
    }
    return true;
}

static bool state_is_bad(const struct space *space, uint64_t state)
{
    return space->bad[state & space->shared_mask] != 0;
}

/* ---- forwards ---- */

struct space *space_new(uint32_t process_count, const uint64_t *masks, uint64_t shared_mask, uint64_t first,
                        uint64_t count_max)
{
    if (process_count > PROCESS_COUNT_MAX || count_max >= UINT32_MAX) {
        return NULL;
    }
    struct space *space = zeroed(1, sizeof *space);
    *space = (struct space){.process_count = process_count,
                            .states_size = FIRST_SIZE,
                            .places_size = FIRST_SIZE,
                            .shared_mask = shared_mask,
                            .count_max = count_max};
    memcpy(space->masks, masks, process_count * sizeof *masks);
    space->states = zeroed(space->states_size, sizeof *space->states);
    space->parents = zeroed(space->states_size, sizeof *space->parents);
    space->places = zeroed(space->places_size, sizeof *space->places);
    space->bad = zeroed(shared_mask + 1, sizeof *space->bad);
    (void)state_add(space, first, 0);
    return space;
}

void space_free(struct space *space)
{
    for (uint32_t p = 0; p < space->process_count; p++) {
        free(space->tables[p].views);
        free(space->tables[p].steps);
    }
    free(space->steps);
    free(space->states);
    free(space->parents);
    free(space->places);
    free(space->bad);
    free(space);
}

void space_learn(struct space *space, uint32_t process, uint64_t view, const uint64_t *steps, uint64_t count)
{
    table_put(&space->tables[process], view, steps_add(space, steps, count));
}

void space_condemn(struct space *space, uint64_t shared)
{
    space->bad[shared] = 1;
}

/* Return true if a bad state was found, which is then the last one. */
static bool state_expand(struct space *space, uint64_t state, const uint64_t *steps)
{
    for (uint64_t i = 1; i <= steps[0]; i++) {
        uint64_t after = state + steps[i];
        if (state_add(space, after, space->next) && state_is_bad(space, after)) {
            return true;
        }
    }
    return false;
}

/* Breadth first. UNKNOWN_VIEW: `process` and `view` say whose steps are to be learned. BAD_STATE: the last state is. */
int space_go(struct space *space, uint32_t *process, uint64_t *view)
{
    if (state_is_bad(space, space->states[0])) {
        return BAD_STATE;
    }
    for (; space->next < space->count; space->next++, space->next_process = 0) {
        uint64_t state = space->states[space->next];
        for (; space->next_process < space->process_count; space->next_process++) {
            uint32_t p = space->next_process;
            *process = p;
            *view = state & space->masks[p];
            const uint64_t *steps = table_steps(space, &space->tables[p], *view);
            if (steps == NULL) {
                return UNKNOWN_VIEW;
            }
            if (state_expand(space, state, steps)) {
                return BAD_STATE;
            }
        }
        if (space->count > space->count_max) {
            return TOO_MANY;
        }
    }
    return FINISHED;
}

uint64_t space_count(const struct space *space)
{
    return space->count;
}

uint64_t space_state(const struct space *space, uint64_t number)
{
    return space->states[number];
}

uint64_t space_parent(const struct space *space, uint64_t number)
{
    return space->parents[number];
}

/* ---- backwards ---- */

/* The steps of one process, as one chain for each view to which they lead. */
struct reversed {
    struct table heads;
    uint32_t *next;
    uint64_t *steps;
    uint64_t count;
};

static void reversed_fill(struct reversed *reversed, const struct space *space, const struct table *table)
{
    reversed->next = zeroed(space->steps_count + 1, sizeof *reversed->next);
    reversed->steps = zeroed(space->steps_count + 1, sizeof *reversed->steps);
    for (uint64_t i = 0; i < table->size; i++) {
        const uint64_t *steps = table->steps[i] == 0 ? NULL : &space->steps[table->steps[i] - 1];
        for (uint64_t j = 1; steps != NULL && j <= steps[0]; j++) {
            uint64_t after = table->views[i] + steps[j];
            uint64_t place = reversed->heads.size == 0 ? 0 : table_place(&reversed->heads, after);
            uint32_t head = reversed->heads.size == 0 ? 0 : reversed->heads.steps[place];
            reversed->steps[++reversed->count] = steps[j];
            reversed->next[reversed->count] = head;
            table_put(&reversed->heads, after, (uint32_t)reversed->count);
        }
    }
}

struct search {
    const struct space *space;
    struct reversed reversed[PROCESS_COUNT_MAX];
    uint8_t *reaches; /* by the number of the state */
    uint32_t *waiting;
    uint64_t waiting_count;
};

static void search_add(struct search *search, uint64_t number)
{
    if (search->reaches[number] == 0) {
        search->reaches[number] = 1;
        search->waiting[search->waiting_count++] = (uint32_t)number;
    }
}

/* A step leads back to states, too, that cannot be reached. */
static void search_back(struct search *search, uint32_t process, uint64_t state)
{
    const struct space *space = search->space;
    const struct reversed *reversed = &search->reversed[process];
    if (reversed->heads.size == 0) {
        return;
    }
    uint32_t at = reversed->heads.steps[table_place(&reversed->heads, state & space->masks[process])];
    for (; at != 0; at = reversed->next[at]) {
        uint32_t found = space->places[state_place(space, state - reversed->steps[at])];
        if (found != 0) {
            search_add(search, found - 1);
        }
    }
}

static void search_free(struct search *search)
{
    for (uint32_t p = 0; p < search->space->process_count; p++) {
        free(search->reversed[p].heads.views);
        free(search->reversed[p].heads.steps);
        free(search->reversed[p].next);
        free(search->reversed[p].steps);
    }
    free(search->reaches);
    free(search->waiting);
}

/* The number of the first state from which no end can be reached; the count of states: there is none. `owns_over` has
 * the numbers of ends without the shared values, `is_quiet` a byte for each set of shared values. */
uint64_t space_stuck(const struct space *space, const uint64_t *owns_over, uint64_t owns_count, const uint8_t *is_quiet)
{
    struct search search = {.space = space,
                            .reaches = zeroed(space->count, sizeof *search.reaches),
                            .waiting = zeroed(space->count, sizeof *search.waiting)};
    for (uint32_t p = 0; p < space->process_count; p++) {
        reversed_fill(&search.reversed[p], space, &space->tables[p]);
    }
    for (uint64_t i = 0; i < space->count; i++) {
        uint64_t owns = space->states[i] & ~space->shared_mask;
        for (uint64_t j = 0; j < owns_count && is_quiet[space->states[i] & space->shared_mask] != 0; j++) {
            if (owns == owns_over[j]) {
                search_add(&search, i);
            }
        }
    }
    while (search.waiting_count > 0) {
        uint64_t state = space->states[search.waiting[--search.waiting_count]];
        for (uint32_t p = 0; p < space->process_count; p++) {
            search_back(&search, p, state);
        }
    }
    const uint8_t *stuck = memchr(search.reaches, 0, space->count);
    uint64_t number = stuck == NULL ? space->count : (uint64_t)(stuck - search.reaches);
    search_free(&search);
    return number;
}
