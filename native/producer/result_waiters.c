/* SPDX-License-Identifier: Apache-2.0 */
#include "producer/result_waiters.h"

#include <stdlib.h>
#include <time.h>

#include "arena/lost_memory.h"
#include "base/check.h"

enum { BUCKET_COUNT_MIN = 64 };

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
    list->count++;
}

static void list_join(struct result_waiter_list *list, struct result_waiter_list rest)
{
    CHECK((list->first == NULL) == (list->last == NULL));
    if (list->last == NULL) {
        *list = rest;
    } else if (rest.first != NULL) {
        list->last->next = rest.first;
        list->last = rest.last;
        list->count += rest.count;
    }
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
    list->count--;
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

static struct result_waiter_list lists_merge(struct result_waiter_list left, struct result_waiter_list right)
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

/* Merge sort. The depth of the recursion is the logarithm of the count. */
static struct result_waiter_list list_sort(struct result_waiter_list list)
{
    CHECK(list.first != NULL);
    if (list.count == 1) {
        return list;
    }
    struct result_waiter_list left = {0};
    for (size_t count = list.count / 2; count > 0; count--) {
        list_append(&left, list_remove(&list, &list.first, NULL));
    }
    return lists_merge(list_sort(left), list_sort(list));
}

/* Nearly every list is in the order of the records already. */
static struct result_waiter_list list_order(struct result_waiter_list list)
{
    CHECK((list.first == NULL) == (list.count == 0));
    const struct result_waiter *waiter = list.first;
    while (waiter != NULL && waiter->next != NULL && is_before(waiter, waiter->next)) {
        waiter = waiter->next;
    }
    return waiter == list.last ? list : list_sort(list);
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
    is_done = is_done && pthread_mutex_init(&waiters->mutex, NULL) == 0 && table_grow(waiters);
    return is_done ? STATUS_OK : STATUS_OS;
}

/* ---- add ---- */

static uint64_t result_count(const struct arena *arena)
{
    CHECK(arena->globals != NULL);
    return load_acquire_u64(&arena->globals->completion_tail); /* C7 */
}

/* `tail` is read before the query. So a result that the query does not find is read later. */
static enum status result_query(struct result_waiters *waiters, const struct arena *arena,
                                struct result_waiter *waiter)
{
    CHECK(waiter->next == NULL);
    if (waiters->waiting_count == 0) {
        waiters->tail = result_count(arena);
    }
    return completion_find(arena, &waiter->token, &waiter->completion);
}

static void waiter_add(struct result_waiters *waiters, struct result_waiter *waiter)
{
    CHECK(waiter->next == NULL);
    waiter->has_completion = false;
    waiter->number = waiters->added_count++;
    bucket_add(waiters, waiter);
    if (waiters->waiting_count++ == 0) {
        pthread_cond_signal(&waiters->changed);
    }
}

enum status result_waiters_add(struct result_waiters *waiters, const struct arena *arena, struct result_waiter *waiter)
{
    CHECK(waiter->next == NULL);
    pthread_mutex_lock(&waiters->mutex);
    enum status status = table_reserve(waiters) ? result_query(waiters, arena, waiter) : STATUS_OS;
    bool is_late = waiter->may_be_late && status != STATUS_PENDING && status != STATUS_OS;
    if (status == STATUS_PENDING || is_late) {
        waiters->has_late = waiters->has_late || is_late;
        waiter_add(waiters, waiter);
    }
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
    if (waiters->has_late || !is_in_ring(waiters, arena, last)) {
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

/* Moves the waiters of a bucket for which `is_over` returns true. */
static void bucket_end_if(struct result_waiters *waiters, struct result_waiter_list *bucket,
                          result_waiter_test is_over, const void *argument, struct result_waiter_list *ended)
{
    CHECK(is_over != NULL);
    struct result_waiter *former = NULL;
    for (struct result_waiter **place = &bucket->first; *place != NULL;) {
        if (is_over(*place, argument)) {
            list_append(ended, list_remove(bucket, place, former));
            waiters->waiting_count--;
        } else {
            former = *place;
            place = &former->next;
        }
    }
}

static bool waiter_end_by(struct result_waiter *waiter, const void *completion)
{
    waiter->has_completion = is_of(waiter, completion);
    if (waiter->has_completion) {
        waiter->completion = *(const struct completion *)completion;
    }
    return waiter->has_completion;
}

static void end_by_result(struct result_waiters *waiters, const struct completion *completion,
                          struct result_waiter_list *ended)
{
    CHECK(completion->result != RESULT_NONE);
    struct result_waiter_list found = {0};
    struct result_waiter_list *bucket = bucket_of(waiters, completion->partition_index, completion->seq);
    bucket_end_if(waiters, bucket, waiter_end_by, completion, &found);
    list_join(ended, list_order(found));
}

/* Returns false if some of the results since the last call were overwritten, or the memory of the arena is lost. */
static bool end_by_results(struct result_waiters *waiters, const struct arena *arena,
                           struct result_waiter_list *ended)
{
    uint64_t last = result_count(arena);
    bool is_whole = is_in_ring(waiters, arena, last);
    struct completion completion;
    while (is_whole && waiters->waiting_count > 0 && waiters->tail < last) {
        is_whole = result_read(arena, waiters->tail, &completion);
        if (is_whole) {
            end_by_result(waiters, &completion, ended);
            waiters->tail++;
        }
    }
    waiters->tail = last;
    return is_whole;
}

static void end_if(struct result_waiters *waiters, result_waiter_test is_over, const void *argument,
                   struct result_waiter_list *ended)
{
    CHECK(is_over != NULL);
    for (size_t i = 0; i < waiters->bucket_count; i++) {
        bucket_end_if(waiters, &waiters->buckets[i], is_over, argument, ended);
    }
}

static bool waiter_query(struct result_waiter *waiter, const void *arena)
{
    enum status status = completion_find(arena, &waiter->token, &waiter->completion);
    bool is_lost = arena_is_lost(arena);
    waiter->has_completion = status == STATUS_OK && !is_lost;
    return status != STATUS_PENDING || is_lost;
}

/* The queries may find results that are older than those that were read. So all ended waiters are sorted together. */
static void collect_locked(struct result_waiters *waiters, const struct arena *arena)
{
    CHECK(arena->globals != NULL);
    struct result_waiter_list ended = {0};
    bool is_whole = end_by_results(waiters, arena, &ended);
    if (!is_whole || waiters->has_late) {
        waiters->has_late = false;
        end_if(waiters, waiter_query, arena, &ended);
        ended = list_order(ended);
    }
    list_join(&waiters->ended, ended);
}

void result_waiters_collect(struct result_waiters *waiters, const struct arena *arena)
{
    CHECK(arena->globals != NULL);
    pthread_mutex_lock(&waiters->mutex);
    if (waiters->waiting_count > 0) {
        collect_locked(waiters, arena);
    }
    pthread_mutex_unlock(&waiters->mutex);
}

void result_waiters_end_if(struct result_waiters *waiters, result_waiter_test is_over, const void *argument)
{
    CHECK(is_over != NULL);
    struct result_waiter_list ended = {0};
    pthread_mutex_lock(&waiters->mutex);
    end_if(waiters, is_over, argument, &ended);
    list_join(&waiters->ended, list_order(ended));
    pthread_mutex_unlock(&waiters->mutex);
}

void result_waiters_check(struct result_waiters *waiters, const struct arena *arena)
{
    CHECK(arena->globals != NULL);
    result_waiters_end_if(waiters, waiter_query, arena);
}

bool result_waiter_is_any(struct result_waiter *waiter, const void *argument)
{
    (void)argument;
    return waiter != NULL;
}

void result_waiters_close(struct result_waiters *waiters)
{
    CHECK(waiters->waiting_count <= waiters->added_count);
    (void)pthread_mutex_init(&waiters->mutex, NULL);
    end_if(waiters, result_waiter_is_any, NULL, &waiters->ended);
    free(waiters->buckets);
    waiters->buckets = NULL;
    waiters->bucket_count = 0;
}

/* ---- take ---- */

static struct result_waiter *take_locked(struct result_waiters *waiters)
{
    CHECK((waiters->ended.count == 0) == (waiters->ended.first == NULL));
    return waiters->ended.first == NULL ? NULL : list_remove(&waiters->ended, &waiters->ended.first, NULL);
}

struct result_waiter *result_waiters_take(struct result_waiters *waiters)
{
    pthread_mutex_lock(&waiters->mutex);
    struct result_waiter *taken = take_locked(waiters);
    pthread_mutex_unlock(&waiters->mutex);
    return taken;
}

static struct result_waiter *list_remove_if(struct result_waiter_list *list,
                                            bool (*is_it)(const struct result_waiter *, const void *), const void *it)
{
    CHECK(is_it != NULL);
    struct result_waiter *former = NULL;
    struct result_waiter **place = &list->first;
    while (*place != NULL && !is_it(*place, it)) {
        former = *place;
        place = &former->next;
    }
    return *place == NULL ? NULL : list_remove(list, place, former);
}

struct result_waiter *result_waiters_remove(struct result_waiters *waiters, const struct record_token *token,
                                            bool (*is_it)(const struct result_waiter *, const void *), const void *it)
{
    CHECK(is_it != NULL);
    struct result_waiter *removed = NULL;
    pthread_mutex_lock(&waiters->mutex);
    if (waiters->bucket_count > 0) {
        removed = list_remove_if(bucket_of(waiters, token->partition_index, token->seq), is_it, it);
        waiters->waiting_count -= removed != NULL;
    }
    if (removed == NULL) {
        removed = list_remove_if(&waiters->ended, is_it, it);
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
