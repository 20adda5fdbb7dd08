# SPDX-License-Identifier: Apache-2.0
"""The bell of a group: one consumer of a process looks at the plan for all, and the others hear of it if need be."""

from __future__ import annotations

import contextlib
import math
import os
import random
import select
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Consumer, TopicPartition
from shmaccum.log.consumer import bell
from shmaccum.log.consumer.bell import PAUSE_S_MAX, PAUSE_S_MIN, PAUSE_S_PER_MEMBER, Bell
from shmaccum.log.consumer.timer import Timer
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.membership import Membership
from shmaccum.log.groups.plan import MemberRow, Plan
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC, open_log

IN_GROUP: dict[str, Any] = {"group_id": "g", "partition_assignment_strategy": ["sticky"]}
"""Only the partitions of a member that leaves change hands."""


class Hearer:
    """A consumer that acts on the next plan, or not."""

    def __init__(self, *, acts: bool = False) -> None:
        self.acts = acts

    def is_concerned(self, _plan: Plan) -> bool:
        return self.acts


def bell_of(*users: Hearer) -> Bell[Hearer]:
    one_bell: Bell[Hearer] = Bell()
    one_bell.users = dict.fromkeys(users)
    return one_bell


def plan_of(count: int) -> Plan:
    return Plan(1, {}, {str(number): MemberRow(number, 1, (), ()) for number in range(count)}, {})


# --- strikes


def test_a_ring_is_followed_by_a_series_of_strikes_with_growing_pauses() -> None:
    one = Hearer()
    one_bell = bell_of(one)
    assert one_bell.strike(0.0, one, ()) is None
    one_bell.ring()
    now_s, pauses = 0.0, []
    for _ in range(20):
        assert one_bell.strike(now_s, one, ()) is one
        assert one_bell.strike(now_s, one, ()) is None
        pauses.append(one_bell.next_s - now_s)
        now_s = one_bell.next_s
    assert pauses == pytest.approx([min(PAUSE_S_MIN * 2**number, PAUSE_S_MAX) for number in range(20)])
    one_bell.ring()
    assert one_bell.strike(now_s - 1, one, ()) is one
    assert one_bell.next_s == pytest.approx(now_s - 1 + PAUSE_S_MIN)


def test_the_first_pause_grows_with_the_group() -> None:
    one = Hearer()
    one_bell = bell_of(one)
    one_bell.looked(one, plan_of(1000), math.inf)
    one_bell.ring()
    one_bell.strike(0.0, one, ())
    assert one_bell.next_s == pytest.approx(1000 * PAUSE_S_PER_MEMBER)


def test_a_strike_goes_to_a_consumer_that_is_awake_or_waits() -> None:
    busy, waiting, stranger = Hearer(), Hearer(), Hearer()
    one_bell = bell_of(busy, waiting)
    one_bell.ring()
    assert one_bell.strike(0.0, stranger, {waiting: None, stranger: None}) is waiting
    one_bell.ring()
    assert one_bell.strike(0.0, busy, {waiting: None}) is busy


def test_a_strike_that_nobody_hears_is_kept_for_the_next_one() -> None:
    busy, stranger = Hearer(), Hearer()
    one_bell = bell_of(busy)
    one_bell.ring()
    assert one_bell.strike(0.0, stranger, {stranger: None}) is None
    assert one_bell.next_s == math.inf  # the timer does not end the waits of others again and again
    assert one_bell.strike(9.0, busy, ()) is busy


def test_a_consumer_that_wants_a_plan_hears_the_bell_first() -> None:
    first, eager = Hearer(), Hearer()
    one_bell = bell_of(first, eager)
    one_bell.looked(eager, Plan(), 7.0)
    assert one_bell.next_s == 7.0
    assert one_bell.strike(6.9, first, {eager: None}) is None
    assert one_bell.strike(7.0, first, {eager: None}) is eager
    one_bell.looked(eager, Plan(), math.inf)
    one_bell.ring()
    assert one_bell.strike(7.0, first, {eager: None}) is first


def test_only_a_consumer_that_heard_the_bell_passes_it_on() -> None:
    first, second, idle = Hearer(acts=True), Hearer(acts=True), Hearer()
    one_bell = bell_of(first, second, idle)
    one_bell.ring()
    one_bell.strike(0.0, first, ())
    assert one_bell.looked(second, Plan(), math.inf) == []
    assert one_bell.looked(first, Plan(), math.inf) == [second]
    assert one_bell.looked(first, Plan(), math.inf) == []


def test_a_timer_gets_readable_at_its_time() -> None:
    with contextlib.closing(Timer()) as timer:
        timer.set(time.monotonic() + 0.001)
        wait_until(lambda: is_readable(timer), "the time is over")
        timer.set(math.inf)
        assert not is_readable(timer)
        timer.set(0.0)
        wait_until(lambda: is_readable(timer), "the time is long over")
    timer.close()


def is_readable(timer: Timer) -> bool:
    return bool(select.select([timer.descriptor], [], [], 0)[0])


# --- consumers


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogDirectory]:
    """A log with one topic of six partitions."""
    with open_log(tmp_path, partitions=6) as directory:
        for number in range(6):
            directory.partition(TOPIC, number)
        yield directory


@pytest.fixture
def start(log: LogDirectory) -> Iterator[Callable[[], Consumer]]:
    """Makes consumers of one group, each polled by a thread of its own until it is closed."""
    threads: dict[Consumer, threading.Thread] = {}

    def begin() -> Consumer:
        consumer = Consumer(log.path, TOPIC, **IN_GROUP)
        threads[consumer] = threading.Thread(target=keep_polling, args=(consumer,))
        threads[consumer].start()
        return consumer

    yield begin
    for consumer, thread in threads.items():
        stop(consumer)
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()


_stopped: set[Consumer] = set()


def keep_polling(consumer: Consumer) -> None:
    with consumer:
        while consumer not in _stopped:
            consumer.poll(timeout_ms=WATCHDOG_S * 1000)


def stop(consumer: Consumer) -> None:
    _stopped.add(consumer)
    with contextlib.suppress(Exception):
        consumer.wakeup()


def shares(*consumers: Consumer) -> list[set[TopicPartition]]:
    return [set(consumer.assignment()) for consumer in consumers]


def is_settled(*consumers: Consumer) -> bool:
    """True when the partitions are shared fairly."""
    found = shares(*consumers)
    sizes = [len(each) for each in found]
    return sum(sizes) == 6 == len(set().union(*found)) and max(sizes) - min(sizes) <= 1


def test_threads_of_a_process_share_the_partitions_in_any_order_of_their_ends(
    start: Callable[[], Consumer], seeded: Callable[[], random.Random]
) -> None:
    dice = seeded()
    living = [start() for _ in range(3)]
    for is_start in (True, False, False, True, False, False):
        wait_until(lambda: is_settled(*living), "the partitions are shared")
        if is_start:
            living.append(start())
        else:
            stop(living.pop(dice.randrange(len(living))))
    wait_until(lambda: is_settled(*living), "the last one has all")


def test_one_member_of_a_process_looks_for_all(
    start: Callable[[], Consumer], log: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bell, "PAUSE_S_MIN", WATCHDOG_S)  # nobody looks but after a ring
    consumers = [start() for _ in range(3)]
    wait_until(lambda: is_settled(*consumers), "the partitions are shared")
    looks: list[Membership] = []
    look = Membership.look

    def counted(member: Membership, *, is_told: bool = False) -> bool:
        looks.append(member)
        return look(member, is_told=is_told)

    monkeypatch.setattr(Membership, "look", counted)
    with contextlib.closing(MemberLocks(log.path, "g")) as other:

        def is_looked_at_once_a_ring() -> bool:
            looks.clear()
            for _ in range(5):
                ring_and_wait(other, looks)
            return len(looks) == 5

        # Each member may ring once more after it has its partitions, so a look too many may be meant for this ring.
        assert any(is_looked_at_once_a_ring() for _ in range(1 + len(consumers)))


def ring_and_wait(other: MemberLocks, looks: list[Membership]) -> None:
    """Rings the bell, and waits until a member has begun to look."""
    count = len(looks)
    other.ring()
    wait_until(lambda: len(looks) > count, "a member looks")


def test_a_consumer_that_does_not_poll_delays_nobody(start: Callable[[], Consumer], log: LogDirectory) -> None:
    """The consumer that listens for all goes on with its program, and another member leaves meanwhile."""
    with Consumer(log.path, TOPIC, **IN_GROUP) as busy:
        busy.poll(timeout_ms=1)
        consumers = [start(), start()]
        wait_until(lambda: busy.poll(timeout_ms=1) is not None and is_settled(busy, *consumers), "all have a share")
        stop(consumers.pop())
        wait_until(lambda: sum(map(len, shares(busy, *consumers))) >= 5, "the other thread takes over")
    wait_until(lambda: is_settled(*consumers), "the last one has all")


def test_a_forked_child_has_a_group_of_its_own(start: Callable[[], Consumer], log: LogDirectory) -> None:
    first = start()
    wait_until(lambda: is_settled(first), "the consumer has all")
    child = os.fork()
    if not child:
        try:
            with Consumer(log.path, TOPIC, **IN_GROUP) as own:
                wait_until(lambda: own.poll(timeout_ms=1) == {} and len(own.assignment()) == 3, "the child has a share")
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    wait_until(lambda: is_settled(first), "the consumer has all again")


def test_members_without_a_watch_look_by_themselves(
    log: LogDirectory, monkeypatch: pytest.MonkeyPatch, start: Callable[[], Consumer]
) -> None:
    monkeypatch.setattr("shmaccum.log.files.log_watch.LogWatch.add", lambda _watch, _folder: False)
    consumers = [start(), start()]
    wait_until(lambda: is_settled(*consumers), "the partitions are shared")
    stop(consumers.pop())
    wait_until(lambda: is_settled(*consumers), "the other one has all")
