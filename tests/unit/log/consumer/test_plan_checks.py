# SPDX-License-Identifier: Apache-2.0
"""One consumer of a process checks the group's plan for all, and informs the others if needed."""

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
from shmaccum.log.consumer import plan_checks
from shmaccum.log.consumer.plan_checks import PAUSE_S_MAX, PAUSE_S_MIN, PAUSE_S_PER_MEMBER, PlanChecks
from shmaccum.log.consumer.timer import Timer
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.groups.member_locks import MemberLocks
from shmaccum.log.groups.membership import Membership
from shmaccum.log.groups.plan import MemberRow, Plan
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC, open_log

IN_GROUP: dict[str, Any] = {"group_id": "g", "partition_assignment_strategy": ["sticky"]}
"""This strategy moves only the partitions of a member that leaves."""


class Checker:
    """A consumer with a switch for acting on the next plan."""

    def __init__(self, *, acts: bool = False) -> None:
        self.acts = acts

    def is_concerned(self, _plan: Plan) -> bool:
        return self.acts


def checks_of(*users: Checker) -> PlanChecks[Checker]:
    checks: PlanChecks[Checker] = PlanChecks()
    checks.users = dict.fromkeys(users)
    return checks


def plan_of(count: int) -> Plan:
    return Plan(1, {}, {str(number): MemberRow(number, 1, (), ()) for number in range(count)}, {})


# --- checks


def test_a_wake_up_is_followed_by_a_series_of_checks_with_growing_pauses() -> None:
    one = Checker()
    checks = checks_of(one)
    assert checks.next_checker(0.0, one, ()) is None
    checks.wake()
    now_s, pauses = 0.0, []
    for _ in range(20):
        assert checks.next_checker(now_s, one, ()) is one
        assert checks.next_checker(now_s, one, ()) is None
        pauses.append(checks.next_s - now_s)
        now_s = checks.next_s
    assert pauses == pytest.approx([min(PAUSE_S_MIN * 2**number, PAUSE_S_MAX) for number in range(20)])
    checks.wake()
    assert checks.next_checker(now_s - 1, one, ()) is one
    assert checks.next_s == pytest.approx(now_s - 1 + PAUSE_S_MIN)


def test_the_first_pause_grows_with_the_group() -> None:
    one = Checker()
    checks = checks_of(one)
    checks.checked(one, plan_of(1000), math.inf)
    checks.wake()
    checks.next_checker(0.0, one, ())
    assert checks.next_s == pytest.approx(1000 * PAUSE_S_PER_MEMBER)


def test_a_check_goes_to_a_consumer_that_is_awake_or_waits() -> None:
    busy, waiting, stranger = Checker(), Checker(), Checker()
    checks = checks_of(busy, waiting)
    checks.wake()
    assert checks.next_checker(0.0, stranger, {waiting: None, stranger: None}) is waiting
    checks.wake()
    assert checks.next_checker(0.0, busy, {waiting: None}) is busy


def test_a_check_without_a_checker_is_left_for_the_next_one() -> None:
    busy, stranger = Checker(), Checker()
    checks = checks_of(busy)
    checks.wake()
    assert checks.next_checker(0.0, stranger, {stranger: None}) is None
    assert checks.next_s == math.inf  # the timer does not repeatedly end other waits
    assert checks.next_checker(9.0, busy, ()) is busy


def test_a_consumer_that_wants_a_plan_checks_first() -> None:
    first, eager = Checker(), Checker()
    checks = checks_of(first, eager)
    checks.checked(eager, Plan(), 7.0)
    assert checks.next_s == 7.0
    assert checks.next_checker(6.9, first, {eager: None}) is None
    assert checks.next_checker(7.0, first, {eager: None}) is eager
    checks.checked(eager, Plan(), math.inf)
    checks.wake()
    assert checks.next_checker(7.0, first, {eager: None}) is first


def test_only_a_consumer_that_was_chosen_informs_the_others() -> None:
    first, second, idle = Checker(acts=True), Checker(acts=True), Checker()
    checks = checks_of(first, second, idle)
    checks.wake()
    checks.next_checker(0.0, first, ())
    assert checks.checked(second, Plan(), math.inf) == []
    assert checks.checked(first, Plan(), math.inf) == [second]
    assert checks.checked(first, Plan(), math.inf) == []


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
    monkeypatch.setattr(plan_checks, "PAUSE_S_MIN", WATCHDOG_S)  # checks follow only wake-ups
    consumers = [start() for _ in range(3)]
    wait_until(lambda: is_settled(*consumers), "the partitions are shared")
    looks: list[Membership] = []
    check_plan = Membership.check_plan

    def counted(member: Membership, *, is_checked: bool = False) -> bool:
        looks.append(member)
        return check_plan(member, is_checked=is_checked)

    monkeypatch.setattr(Membership, "check_plan", counted)
    with contextlib.closing(MemberLocks(log.path, "g")) as other:

        def is_checked_once_a_wake_up() -> bool:
            looks.clear()
            for _ in range(5):
                wake_and_wait(other, looks)
            return len(looks) == 5

        # After it has its partitions, each member may wake the others and cause one more check.
        assert any(is_checked_once_a_wake_up() for _ in range(1 + len(consumers)))


def wake_and_wait(other: MemberLocks, looks: list[Membership]) -> None:
    """Wake the members, and wait until a member has begun to check."""
    count = len(looks)
    other.wake()
    wait_until(lambda: len(looks) > count, "a member looks")


def test_a_consumer_that_does_not_poll_delays_no_other(start: Callable[[], Consumer], log: LogDirectory) -> None:
    """The consumer that watches for all does not poll while another member leaves."""
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
