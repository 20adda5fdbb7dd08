# SPDX-License-Identifier: Apache-2.0
"""The causes that delay an append: its own stop, another process's stop, the machine, or a death.

There are three kinds of long appends:

* If its own process was stopped (SIGSTOP), it is not a delay.
* If another process was stopped at the time, the append may have waited for memory that a stopped sender did not free.
* Otherwise, only a death can be the cause, and the limit applies.

The machine contributes to all of them. The kernel reports how long the process was ready while others ran
(`queued_ns`), which is subtracted. The delays of a process that only sleeps (`roles.measure_machine`) are reported.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.ledger import Delay

LIMIT_NS = 50_000_000
BUSY_LIMIT_NS = 250_000_000
"""The limit for tests that run in parallel, in which the holder of a lock waits for a processor, too."""


@dataclass(frozen=True)
class Longest:
    """The longest of some delays, in nanoseconds."""

    count: int
    whole_ns: int
    own_ns: int
    """The longest delay if the time in which the machine ran other processes is subtracted from each."""

    @classmethod
    def of(cls, delays: Sequence[Delay]) -> Longest:
        return cls(
            count=len(delays),
            whole_ns=max((delay.elapsed_ns for delay in delays), default=0),
            own_ns=max((own_ns(delay) for delay in delays), default=0),
        )


@dataclass(frozen=True)
class DelayReport:
    """All long appends of a trial."""

    beside_deaths: Longest
    beside_stops: Longest
    stopped_count: int
    """Appends whose own process was stopped."""
    machine: Longest

    def expect_within(self, limit_ns: int) -> None:
        """Check that no death delayed an append for longer than the limit plus the machine's longest delay.

        Raises:
            AssertionError: a delay is longer.
        """
        limit_ns += self.machine.own_ns
        assert self.beside_deaths.own_ns <= limit_ns, f"an append took {self.beside_deaths.own_ns / 1e6:.1f} ms: {self}"


def own_ns(delay: Delay) -> int:
    """Return the delay without the machine's part."""
    return max(delay.elapsed_ns - delay.queued_ns, 0)


class Stops:
    """The spans in which some process was stopped."""

    def __init__(self, spans: Sequence[tuple[int, int]]) -> None:
        self._spans = sorted(spans)
        self._begins = [begin for begin, _ in self._spans]
        self._ends_so_far: list[int] = []
        for _, end in self._spans:
            self._ends_so_far.append(max(end, self._ends_so_far[-1] if self._ends_so_far else 0))

    def overlap(self, begin_ns: int, end_ns: int) -> bool:
        """Return whether any process was stopped within this time."""
        before_end = bisect.bisect_left(self._begins, end_ns)
        return before_end > 0 and self._ends_so_far[before_end - 1] > begin_ns


def judge(delays: Sequence[Delay], hiccups: Sequence[Delay], stops: Stops) -> DelayReport:
    """Group long appends by their possible cause."""
    others = [delay for delay in delays if not delay.was_stopped]
    beside_stops = [each for each in others if stops.overlap(each.begin_ns, each.begin_ns + each.elapsed_ns)]
    beside_deaths = [each for each in others if not stops.overlap(each.begin_ns, each.begin_ns + each.elapsed_ns)]
    return DelayReport(
        beside_deaths=Longest.of(beside_deaths),
        beside_stops=Longest.of(beside_stops),
        stopped_count=len(delays) - len(others),
        machine=Longest.of(hiccups),
    )
