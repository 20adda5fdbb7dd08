# SPDX-License-Identifier: Apache-2.0
"""The arguments of the pump and the use of its results, without a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.sender.pump import PumpRunner
from shmaccum.sender.sinks.sink import BorrowedSocket, Delivered, Limits, SocketEnd

PARTITION_COUNT = 4
TURN_NS = 30 * NS_PER_S
NOTHING: tuple[Any, ...] = ([(False, 0, 0, 0, 0, 0, 0, b"", ())], [], None)
"""Results of a call that sent nothing: the use of the socket, batches that are not ordinary, numbers."""


class Pumped:
    """A runner with fake sockets and a fake native call.

    Attributes:
        now_ns: the clock.
        calls: the arguments of each native call after the list of results.
        carried: the partitions of each hand-over.
        returned: the state of each returned socket.
        results: what the native call reports.
        error: raised by the native call, if it is not None.
    """

    def __init__(self) -> None:
        self.now_ns = 1_000 * NS_PER_S
        self.calls: list[tuple[Any, ...]] = []
        self.carried: list[Sequence[int]] = []
        self.returned: list[SocketEnd] = []
        self.results: Sequence[Any] = NOTHING
        self.error: BaseException | None = None
        self.held: set[int] = set()
        self.has_socket = True
        shared: Any = SimpleNamespace(
            half=SimpleNamespace(pump=self._pump),
            native=SimpleNamespace(now_ns=lambda: self.now_ns),
            sink=SimpleNamespace(limits=Limits()),
            sink_batches=None,
            places=[("t", partition) for partition in range(PARTITION_COUNT)],
            metrics=SimpleNamespace(largest_record=lambda _: 77, delivered=lambda *_: None),
            short_waits=SimpleNamespace(depth=(1, 2), record_sent=lambda *_: None),
            wake_fifo=SimpleNamespace(fileno=lambda: 3),
            results_waker=SimpleNamespace(wake_if_awaited=None),
            linger_ns=0,
            options=SimpleNamespace(request_timeout_ms=5),
        )
        self.runner = PumpRunner(shared, self, self.held.__contains__)  # type: ignore[arg-type]

    def _pump(self, _plan: object, found: list[Any], *arguments: Any) -> None:
        self.calls.append(arguments)
        if self.error is not None:
            raise self.error
        found += self.results

    def hand_over(self, partition_indices: Sequence[int]) -> Sequence[BorrowedSocket]:
        self.carried.append(partition_indices)
        return [BorrowedSocket(1, 9, 9, "c", -1, 5, 0, partition_indices, {})] if self.has_socket else []

    def return_socket(self, _borrowed: BorrowedSocket, _delivered: Delivered, end: SocketEnd) -> None:
        self.returned.append(end)

    def run(self, *ready: int, is_stuck: bool = False, due_in_ns: int = 2 * NS_PER_S) -> Any:
        return self.runner.run(ready, self.now_ns + due_in_ns, is_stuck=is_stuck)


@pytest.mark.parametrize(
    ("is_stuck", "due_in_ns", "end_in_ns", "foreign_in_ns"),
    [
        (False, 2 * NS_PER_S, NS_PER_S, NS_PER_MS),
        (True, 2 * NS_PER_S, NS_PER_S, 100 * NS_PER_MS),
        (False, 30 * NS_PER_MS, 30 * NS_PER_MS, NS_PER_MS),
    ],
)
def test_a_call_ends_when_another_duty_is_due_and_soon_for_a_partition_that_it_does_not_carry(
    is_stuck: bool, due_in_ns: int, end_in_ns: int, foreign_in_ns: int
) -> None:
    pumped = Pumped()
    assert pumped.run(1, is_stuck=is_stuck, due_in_ns=due_in_ns) == (0, ())
    now_ns = pumped.now_ns
    assert pumped.calls == [(now_ns + end_in_ns, now_ns + foreign_in_ns, 1, 2, 77)]


def test_a_partition_without_batches_is_in_the_plans_of_one_to_two_turns() -> None:
    pumped = Pumped()
    for elapsed_ns, ready, carried in (
        (0, [1], [1]),
        (TURN_NS - 1, [2], [1, 2]),
        (1, [3], [1, 2, 3]),
        (TURN_NS - 1, [], [1, 2, 3]),
        (1, [], [3]),
        (TURN_NS, [], []),
    ):
        pumped.now_ns += elapsed_ns
        pumped.run(*ready)
        assert sorted(pumped.carried[-1]) == carried


def test_a_partition_that_is_held_or_has_no_socket_is_not_carried() -> None:
    pumped = Pumped()
    pumped.held.add(2)
    pumped.run(1, 2)
    assert [pumped.runner.carries(index) for index in (1, 2)] == [True, False]
    pumped.has_socket = False
    assert pumped.run(1) is None
    assert not pumped.runner.carries(1)
    assert len(pumped.calls) == 1


@pytest.mark.parametrize(
    "fail", [lambda: None, KeyboardInterrupt], ids=["without results", "interrupted before its results"]
)
def test_a_socket_of_a_call_without_results_is_returned_as_broken(fail: Callable[[], BaseException | None]) -> None:
    pumped = Pumped()
    pumped.results, pumped.error = (), fail()
    if pumped.error is None:
        assert pumped.run(1) == (0, ())
    else:
        with pytest.raises(KeyboardInterrupt):
            pumped.run(1)
    assert [end.is_broken for end in pumped.returned] == [True]


def test_the_state_of_a_socket_is_returned_as_the_call_left_it() -> None:
    pumped = Pumped()
    pumped.results = ([(True, 250, 3, 400, 500, 6, 7, b"rest", ())], ["left"], (2, 20, 200))
    assert pumped.run(1) == (2, ["left"])
    assert pumped.returned == [SocketEnd(True, 250, b"rest", [])]
