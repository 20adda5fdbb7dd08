/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/result_waiters.h"

#include <stdlib.h>
#include <time.h>

#include "arena/lost_memory.h"
#include "base/check.h"

enum { BUCKET_COUNT_MIN = 64 };

enum status result_waiters_init(struct result_waiters *waiters)
{
    pthread_condattr_t attributes;
    *waiters = (struct result_waiters){0};
    if (pthread_condattr_init(&attributes) != 0) {
        return STATUS_OS;
    }
    bool is_done = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
                   pthread_cond_init(&waiters->changed, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return is_done && pthread_mutex_init(&waiters->mutex, NULL) == 0 ? STATUS_OK : STATUS_OS;
}

/* ---- lists ---- */

static void list_append(struct result_waiter_list *list, struct result_waiter *waiter)
{
    CHECK((list->first == NULL) == (list->last == NULL));
    waiter->next = NULL;
    if (list->last == NULL) {
        list->first = waiter;
    } else {
        list->last->next = waiter;
    }
    list->last = waiter;
}

/* `place` is the address of the pointer to the waiter, and `former` is the previous waiter, or NULL. */
static struct result_waiter *list_remove(struct result_waiter_list *list, struct result_waiter **place,
                                         struct result_waiter *former)
{
    CHECK(*place != NULL);
    struct result_waiter *waiter = *place;
    *place = waiter->next;
    if (list->last == waiter) {
        list->last = former;
    }
    waiter->next = NULL;
    return waiter;
}

static bool is_before(const struct result_waiter *left, const struct result_waiter *right)
{
    if (left->token.partition_index != right->token.partition_index) {
        return left->token.partition_index < right->token.partition_index;
    }
    if (left->token.seq != right->token.seq) {
        return left->token.seq < right->token.seq;
    }
    if (left->token.record_index != right->token.record_index) {
        return left->token.record_index < right->token.record_index;
    }
    return left->number < right->number;
}

static struct result_waiter_list merged(struct result_waiter_list left, struct result_waiter_list right)
{
    CHECK(left.first != NULL);
    struct result_waiter_list list = {0};
    while (left.first != NULL || right.first != NULL) {
        bool is_left = right.first == NULL || (left.first != NULL && is_before(left.first, right.first));
        struct result_waiter_list *source = is_left ? &left : &right;
        list_append(&list, list_remove(source, &source->first, NULL));
    }
    return list;
}

/* Sorts a list with merge sort. The depth of the recursion is the logarithm of the count. */
static struct result_waiter_list sorted(struct result_waiter_list list, size_t count)
{
    CHECK(list.first != NULL || count == 0);
    if (count < 2) {
        return list;
    }
    struct result_waiter_list left = {0};
    for (size_t i = 0; i < count / 2; i++) {
        list_append(&left, list_remove(&list, &list.first, NULL));
    }
    return merged(sorted(left, count / 2), sorted(list, count - count / 2));
}

/* ---- table ---- */

static struct result_waiter_list *bucket_of(const struct result_waiters *waiters, uint32_t partition_index,
                                            uint64_t seq)
{
    CHECK(waiters->bucket_count > 0);
    uint64_t mixed = (seq ^ ((uint64_t)partition_index << 32)) * UINT64_C(0x9E3779B97F4A7C15);
    return &waiters->buckets[(mixed >> 32) & (waiters->bucket_count - 1)];
}

static void bucket_add(struct result_waiters *waiters, struct result_waiter *waiter)
{
    CHECK(waiters->bucket_count > 0);
    list_append(bucket_of(waiters, waiter->token.partition_index, waiter->token.seq), waiter);
}

static bool table_grow(struct result_waiters *waiters)
{
    CHECK(waiters->waiting_count >= waiters->bucket_count);
    size_t former_count = waiters->bucket_count;
    struct result_waiter_list *former = waiters->buckets;
    size_t count = former_count == 0 ? BUCKET_COUNT_MIN : former_count * 2;
    struct result_waiter_list *buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL) {
        return false;
    }
    waiters->buckets = buckets;
    waiters->bucket_count = count;
    for (size_t i = 0; i < former_count; i++) {
        while (former[i].first != NULL) {
            bucket_add(waiters, list_remove(&former[i], &former[i].first, NULL));
        }
    }
    free(former);
    return true;
}

/* If the table cannot grow, it still works, but is slower. */
static bool table_reserve(struct result_waiters *waiters)
{
    CHECK(waiters->bucket_count == 0 || waiters->buckets != NULL);
    if (waiters->waiting_count < waiters->bucket_count) {
        return true;
    }
    return table_grow(waiters) || waiters->bucket_count > 0;
}

static uint64_t result_count(const struct arena *arena)
{
    CHECK(arena->globals != NULL);
    return load_acquire_u64(&arena->globals->completion_tail); /* C7 */
}

static enum status add_locked(struct result_waiters *waiters, const struct arena *arena, struct result_waiter *waiter)
{
    CHECK(waiter->next == NULL);
    if (!table_reserve(waiters)) {
        return STATUS_OS;
    }
    if (waiters->waiting_count == 0) {
        waiters->tail = result_count(arena);
    }
    enum status status = completion_find(arena, &waiter->token, &waiter->completion);
    if (status == STATUS_PENDING) {
        waiter->has_completion = false;
        waiter->number = waiters->added_count++;
        bucket_add(waiters, waiter);
        waiters->waiting_count++;
        pthread_cond_signal(&waiters->changed);
    }
    return status;
}

enum status result_waiters_add(struct result_waiters *waiters, const struct arena *arena, struct result_waiter *waiter)
{
    CHECK(waiter->next == NULL);
    pthread_mutex_lock(&waiters->mutex);
    enum status status = add_locked(waiters, arena, waiter);
    pthread_mutex_unlock(&waiters->mutex);
    return status;
}

/* ---- wait ---- */

static struct timespec time_after(uint64_t timeout_ns)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t whole_ns = (uint64_t)now.tv_nsec + timeout_ns % NS_PER_S;
    return (struct timespec){.tv_sec = now.tv_sec + (time_t)(timeout_ns / NS_PER_S + whole_ns / NS_PER_S),
                             .tv_nsec = (long)(whole_ns % NS_PER_S)};
}

/* Returns false after the timeout, or if the thread was woken. */
static bool await_waiter(struct result_waiters *waiters, uint64_t timeout_ns)
{
    CHECK(waiters->bucket_count == 0 || waiters->buckets != NULL);
    int error = 0;
    pthread_mutex_lock(&waiters->mutex);
    if (waiters->waiting_count == 0) {
        const struct timespec end = time_after(timeout_ns);
        while (waiters->waiting_count == 0 && !waiters->is_woken && error == 0) {
            error = pthread_cond_timedwait(&waiters->changed, &waiters->mutex, &end);
        }
    }
    bool is_there = waiters->waiting_count > 0;
    waiters->is_woken = waiters->is_woken && is_there;
    pthread_mutex_unlock(&waiters->mutex);
    return is_there;
}

static bool is_of(const struct result_waiter *waiter, const struct completion *completion)
{
    CHECK(completion->result != RESULT_NONE);
    return waiter->token.seq == completion->seq && waiter->token.partition_index == completion->partition_index &&
           waiter->token.record_index - completion->first_record < completion->record_count;
}

static bool has_waiter(const struct result_waiters *waiters, const struct completion *completion)
{
    CHECK(waiters->waiting_count > 0);
    const struct result_waiter *waiter = bucket_of(waiters, completion->partition_index, completion->seq)->first;
    while (waiter != NULL && !is_of(waiter, completion)) {
        waiter = waiter->next;
    }
    return waiter != NULL;
}

/* Returns false if the result was overwritten. The memory is shared, so its content is untrusted. */
static bool result_read(const struct arena *arena, uint64_t number, struct completion *completion)
{
    CHECK(arena->completions != NULL);
    return completion_at(arena, number, completion) == STATUS_OK && completion->result > RESULT_NONE &&
           completion->result < RESULT_COUNT;
}

/* Returns true if all results from `tail` to `last` are in the ring. */
static bool is_in_ring(const struct result_waiters *waiters, const struct arena *arena, uint64_t last)
{
    CHECK(arena->geometry.completion_count > 0);
    return !arena_is_lost(arena) && last >= waiters->tail &&
           last - waiters->tail <= arena->geometry.completion_count;
}

/* Advances `tail` to the first result that a waiter waits for. Returns false if there is none. */
static bool result_search(struct result_waiters *waiters, const struct arena *arena)
{
    uint64_t last = result_count(arena);
    struct completion completion;
    if (waiters->waiting_count == 0) {
        return false;
    }
    if (!is_in_ring(waiters, arena, last)) {
        return true;
    }
    while (waiters->tail < last && result_read(arena, waiters->tail, &completion) &&
           !has_waiter(waiters, &completion)) {
        waiters->tail++;
    }
    return waiters->tail < last;
}

/* Returns true if the search ends the wait: a result of a waiter was found, or the thread was woken. */
static bool search_locked(struct result_waiters *waiters, const struct arena *arena, bool *is_found, uint64_t *tail)
{
    pthread_mutex_lock(&waiters->mutex);
    *is_found = result_search(waiters, arena);
    *tail = waiters->tail;
    bool is_over = *is_found || waiters->is_woken;
    waiters->is_woken = waiters->is_woken && !is_over;
    pthread_mutex_unlock(&waiters->mutex);
    return is_over;
}

bool result_waiters_wait(struct result_waiters *waiters, struct arena *arena, uint64_t idle_ns, uint64_t timeout_ns)
{
    CHECK(arena->owner != 0);
    static const struct clock clock = {0};
    uint64_t tail;
    bool is_found;
    if (!await_waiter(waiters, idle_ns)) {
        return false;
    }
    uint64_t begin_ns = clock_now_ns(&clock);
    uint64_t waited_ns = 0;
    while (!search_locked(waiters, arena, &is_found, &tail) && waited_ns < timeout_ns) {
        completion_wait_slice(arena, &arena->globals->completion_tail, tail, timeout_ns - waited_ns);
        waited_ns = clock_now_ns(&clock) - begin_ns;
    }
    return is_found;
}

void result_waiters_wake(struct result_waiters *waiters)
{
    CHECK(waiters->bucket_count == 0 || waiters->buckets != NULL);
    pthread_mutex_lock(&waiters->mutex);
    waiters->is_woken = true;
    pthread_cond_signal(&waiters->changed);
    pthread_mutex_unlock(&waiters->mutex);
}

/* ---- collect ---- */

/* Moves the waiters of a bucket that `is_it` selects to `found`, and returns their number. */
static size_t bucket_move(struct result_waiter_list *bucket, const struct completion *completion,
                          bool (*is_known)(const struct result_waiter *), struct result_waiter_list *found)
{
    CHECK((completion == NULL) != (is_known == NULL));
    size_t count = 0;
    struct result_waiter *former = NULL;
    for (struct result_waiter **place = &bucket->first; *place != NULL;) {
        bool is_it = completion != NULL ? is_of(*place, completion) : is_known(*place);
        if (!is_it) {
            former = *place;
            place = &former->next;
            continue;
        }
        struct result_waiter *waiter = list_remove(bucket, place, former);
        if (completion != NULL) {
            waiter->completion = *completion;
            waiter->has_completion = true;
        }
        list_append(found, waiter);
        count++;
    }
    return count;
}

static void end_found(struct result_waiters *waiters, struct result_waiter_list found, size_t count)
{
    CHECK(count <= waiters->waiting_count);
    found = sorted(found, count);
    waiters->waiting_count -= count;
    waiters->ended_count += count;
    while (found.first != NULL) {
        list_append(&waiters->ended, list_remove(&found, &found.first, NULL));
    }
}

static void end_by_result(struct result_waiters *waiters, const struct completion *completion)
{
    CHECK(completion->result != RESULT_NONE);
    struct result_waiter_list found = {0};
    struct result_waiter_list *bucket = bucket_of(waiters, completion->partition_index, completion->seq);
    end_found(waiters, found, bucket_move(bucket, completion, NULL, &found));
}

static bool collect_locked(struct result_waiters *waiters, const struct arena *arena)
{
    uint64_t last = result_count(arena);
    bool is_whole = is_in_ring(waiters, arena, last);
    struct completion completion;
    while (is_whole && waiters->waiting_count > 0 && waiters->tail < last) {
        is_whole = result_read(arena, waiters->tail, &completion);
        if (is_whole) {
            end_by_result(waiters, &completion);
            waiters->tail++;
        }
    }
    waiters->tail = last;
    return is_whole;
}

bool result_waiters_collect(struct result_waiters *waiters, const struct arena *arena)
{
    CHECK(arena->globals != NULL);
    if (waiters->waiting_count == 0) {
        return true;
    }
    pthread_mutex_lock(&waiters->mutex);
    bool is_whole = collect_locked(waiters, arena);
    pthread_mutex_unlock(&waiters->mutex);
    return is_whole;
}

static void end_if(struct result_waiters *waiters, bool (*is_known)(const struct result_waiter *))
{
    CHECK(is_known != NULL);
    struct result_waiter_list found = {0};
    size_t count = 0;
    for (size_t i = 0; i < waiters->bucket_count; i++) {
        count += bucket_move(&waiters->buckets[i], NULL, is_known, &found);
    }
    end_found(waiters, found, count);
}

void result_waiters_end_if(struct result_waiters *waiters, bool (*is_known)(const struct result_waiter *))
{
    CHECK(is_known != NULL);
    pthread_mutex_lock(&waiters->mutex);
    end_if(waiters, is_known);
    pthread_mutex_unlock(&waiters->mutex);
}

bool result_waiter_is_any(const struct result_waiter *waiter)
{
    return waiter != NULL;
}

void result_waiters_close(struct result_waiters *waiters)
{
    CHECK(waiters->waiting_count <= waiters->added_count);
    (void)pthread_mutex_init(&waiters->mutex, NULL);
    end_if(waiters, result_waiter_is_any);
    free(waiters->buckets);
    waiters->buckets = NULL;
    waiters->bucket_count = 0;
}

/* ---- take ---- */

static struct result_waiter *take_locked(struct result_waiters *waiters)
{
    CHECK((waiters->ended_count == 0) == (waiters->ended.first == NULL));
    if (waiters->ended.first == NULL) {
        return NULL;
    }
    waiters->ended_count--;
    return list_remove(&waiters->ended, &waiters->ended.first, NULL);
}

struct result_waiter *result_waiters_take(struct result_waiters *waiters)
{
    pthread_mutex_lock(&waiters->mutex);
    struct result_waiter *taken = take_locked(waiters);
    pthread_mutex_unlock(&waiters->mutex);
    return taken;
}

struct result_waiter *result_waiters_remove(struct result_waiters *waiters, const struct record_token *token,
                                            bool (*is_it)(const struct result_waiter *, const void *), const void *it)
{
    CHECK(is_it != NULL);
    struct result_waiter_list *lists[] = {NULL, &waiters->ended};
    size_t *counts[] = {&waiters->waiting_count, &waiters->ended_count};
    struct result_waiter *removed = NULL;
    pthread_mutex_lock(&waiters->mutex);
    lists[0] = waiters->bucket_count > 0 ? bucket_of(waiters, token->partition_index, token->seq) : &waiters->ended;
    for (size_t i = 0; i < 2 && removed == NULL; i++) {
        struct result_waiter *former = NULL;
        struct result_waiter **place = &lists[i]->first;
        while (*place != NULL && !is_it(*place, it)) {
            former = *place;
            place = &former->next;
        }
        if (*place != NULL) {
            removed = list_remove(lists[i], place, former);
            (*counts[i])--;
        }
    }
    pthread_mutex_unlock(&waiters->mutex);
    return removed;
}

static int list_visit(const struct result_waiter_list *list, int (*visit)(struct result_waiter *, void *), void *arg)
{
    CHECK(visit != NULL);
    int found = 0;
    for (struct result_waiter *waiter = list->first; waiter != NULL && found == 0; waiter = waiter->next) {
        found = visit(waiter, arg);
    }
    return found;
}

int result_waiters_visit(const struct result_waiters *waiters, int (*visit)(struct result_waiter *, void *), void *arg)
{
    int found = list_visit(&waiters->ended, visit, arg);
    for (size_t i = 0; i < waiters->bucket_count && found == 0; i++) {
        found = list_visit(&waiters->buckets[i], visit, arg);
    }
    return found;
}
