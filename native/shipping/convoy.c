/* SPDX-License-Identifier: Apache-2.0 */
#include "shipping/convoy.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>

/* So long the last answers may take after the bell: a caller that is to stop does not wait for a dead broker. */
#define STOP_TIME_NS (5 * NS_PER_S)
/* A lane that ended waits for the others for this part of the time. */
enum { ENDED_PART = 8 };

struct run {
    struct ship_convoy *convoy;
    struct pollfd *polled; /* the bell, then the links */
    uint64_t now_ns;
    uint64_t begun_ns;
    uint64_t end_ns;  /* no request begins after this time */
    uint64_t stop_ns; /* no answer is waited for after this time */
    bool is_over;
};

static uint64_t now(void)
{
    static const struct clock kernel = {0};
    return clock_now_ns(&kernel);
}

static bool has_ended_lane(const struct ship_convoy *convoy)
{
    for (uint32_t i = 0; i < convoy->lane_count; i++) {
        if (convoy->lanes[i].state != SHIP_LANE_GOES) {
            return true;
        }
    }
    return false;
}

static bool has_strange_link(const struct ship_convoy *convoy)
{
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        const struct ship_link *link = &convoy->links[i];
        if (link->is_broken || link->has_refused || link->throttle_ms > 0) {
            return true;
        }
    }
    return false;
}

static void run_judge(struct run *run)
{
    const struct ship_convoy *convoy = run->convoy;
    uint64_t early_ns = run->begun_ns + convoy->time_ns / ENDED_PART;
    if (run->end_ns > early_ns && has_ended_lane(convoy)) {
        run->end_ns = early_ns;
    }
    run->is_over |= run->now_ns >= run->end_ns || has_strange_link(convoy) || convoy->keeper->is_over;
}

/* ---- 1 and 2 ---- */

static void links_send(struct run *run)
{
    for (uint32_t i = 0; i < run->convoy->link_count; i++) {
        link_send(&run->convoy->links[i], !run->is_over, run->now_ns);
    }
}

/* True when a link could take another request, and no lane has a batch for it. */
static bool has_room(const struct ship_convoy *convoy)
{
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        const struct ship_link *link = &convoy->links[i];
        if (!link->is_broken && !link->is_sending && link_in_flight(link) < link->requests_max) {
            return true;
        }
    }
    return false;
}

static bool lanes_keep(struct ship_convoy *convoy)
{
    return convoy->keeper->keep(convoy->keeper, convoy->lanes, convoy->lane_count);
}

static void run_send(struct run *run)
{
    struct ship_convoy *convoy = run->convoy;
    links_send(run);
    if (!run->is_over && has_room(convoy) && lanes_keep(convoy)) {
        links_send(run);
    }
}

/* ---- 3 ---- */

static uint32_t in_flight_count(const struct ship_convoy *convoy)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        count += link_in_flight(&convoy->links[i]);
    }
    return count;
}

/* The time at which an answer is late that may come by this link. */
static uint64_t late_ns(const struct run *run, const struct ship_link *link)
{
    uint64_t due_ns = link->requests[link->first % SHIP_REQUESTS_MAX].sent_ns + run->convoy->answer_time_ns;
    return due_ns < run->stop_ns ? due_ns : run->stop_ns;
}

/* Milliseconds until something is due without any news. */
static int wait_ms(const struct run *run)
{
    uint64_t due_ns = UINT64_MAX;
    for (uint32_t i = 0; i < run->convoy->link_count; i++) {
        const struct ship_link *link = &run->convoy->links[i];
        if (link_in_flight(link) > 0 && late_ns(run, link) < due_ns) {
            due_ns = late_ns(run, link);
        }
    }
    uint64_t left_ns = due_ns > run->now_ns ? due_ns - run->now_ns : 0;
    return left_ns > 1000 * NS_PER_MS ? 1000 : (int)(left_ns / NS_PER_MS) + 1;
}

static void run_stop(struct run *run)
{
    run->is_over = true;
    run->stop_ns = run->now_ns + STOP_TIME_NS;
    run->polled[0].fd = -1; /* poll passes over it */
}

static void run_wait(struct run *run)
{
    struct ship_convoy *convoy = run->convoy;
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        const struct ship_link *link = &convoy->links[i];
        run->polled[i + 1] = (struct pollfd){.fd = link_in_flight(link) > 0 ? link->socket : -1,
                                             .events = (short)(POLLIN | (link->is_sending ? POLLOUT : 0))};
    }
    int ready = poll(run->polled, convoy->link_count + 1, wait_ms(run));
    run->now_ns = now();
    if ((ready < 0 && errno == EINTR) || (ready > 0 && run->polled[0].fd >= 0 && run->polled[0].revents != 0)) {
        run_stop(run);
    }
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        struct ship_link *link = &convoy->links[i];
        if (ready > 0 && (run->polled[i + 1].revents & ~POLLOUT) != 0) {
            link_receive(link);
        }
        if (link_in_flight(link) > 0 && late_ns(run, link) <= run->now_ns) {
            link_break(link);
        }
    }
}

/* ---- the whole ---- */

static bool convoy_make(struct ship_convoy *convoy)
{
    bool is_made = true;
    for (uint32_t i = 0; i < convoy->link_count && is_made; i++) {
        is_made = link_make(&convoy->links[i]);
    }
    return is_made;
}

static void rounds_run(struct run *run)
{
    struct ship_convoy *convoy = run->convoy;
    while (true) {
        run_judge(run);
        run_send(run);
        if (in_flight_count(convoy) == 0) {
            break;
        }
        run_wait(run);
    }
    (void)lanes_keep(convoy);
}

bool convoy_run(struct ship_convoy *convoy)
{
    uint64_t begun_ns = now();
    struct run run = {.convoy = convoy,
                      .polled = calloc((size_t)convoy->link_count + 1, sizeof *run.polled),
                      .now_ns = begun_ns,
                      .begun_ns = begun_ns,
                      .end_ns = begun_ns + convoy->time_ns,
                      .stop_ns = UINT64_MAX};
    bool is_made = run.polled != NULL && convoy_make(convoy);
    if (is_made) {
        run.polled[0] = (struct pollfd){.fd = convoy->bell, .events = POLLIN};
        rounds_run(&run);
    }
    for (uint32_t i = 0; i < convoy->link_count; i++) {
        link_free(&convoy->links[i]);
    }
    free(run.polled);
    return is_made;
}
