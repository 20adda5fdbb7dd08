# SPDX-License-Identifier: Apache-2.0
"""A trial's settings, injuries and results, and their text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.chaos.audit import Audit
from tests.chaos.delays import DelayReport, Longest


@dataclass(frozen=True)
class Plan:
    """The settings of a trial."""

    seconds: float
    seed: int
    inside: bool
    """True if some processes run in a separate PID namespace."""
    path: str | None = None
    """If it is "pump" or "python", senders deliver that way over Kafka's protocol to a server of the log, which is
    injured, too. If it is None, they append to the log.
    """
    kill_count: int = 0
    """The trial continues until this many processes were killed, but at most for twice its time."""


@dataclass
class Tally:
    """The injuries of a trial."""

    kills: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    stop_spans: list[tuple[int, int]] = field(default_factory=list)
    sender_kill_count: int = 0
    """Senders that had the role."""
    pumping_kill_count: int = 0
    """Senders that were in a call of the pump."""
    stopped_kill_count: int = 0
    take_over_ns: list[int] = field(default_factory=list)
    """The times until a standby had the role."""
    result_ns: list[int] = field(default_factory=list)
    """The times until its first result, after it had recovered the log and delivered."""
    author_count: int = 0
    fork_count: int = 0


@dataclass(frozen=True)
class Outcome:
    """A trial that passed."""

    plan: Plan
    tally: Tally
    audit: Audit
    delays: DelayReport
    seconds: float

    def __str__(self) -> str:
        return "\n".join([*self._injuries(), *self._records(), *self._times()])

    def _injuries(self) -> Iterator[str]:
        tally = self.tally
        yield f"seed {self.plan.seed}, {self.seconds:.0f} s"
        yield from _counts("killed", tally.kills)
        yield _line("", tally.sender_kill_count, "of the senders had the role")
        yield _line("", tally.pumping_kill_count, "of them in the pump")
        yield _line("", tally.stopped_kill_count, "were stopped when they were killed")
        yield from _counts("stopped", tally.stops)

    def _records(self) -> Iterator[str]:
        audit = self.audit
        yield _line("producers", audit.author_count, "appended")
        yield _line("", self.tally.fork_count, "of them were forked in mid-use")
        yield _line("records", audit.acknowledged_count, "acknowledged")
        yield _line("", audit.delivered_count, "delivered: none is missing or there twice, all are in order")
        yield _line("offsets", audit.proof_count, "promised, and found there")

    def _times(self) -> Iterator[str]:
        """Times in milliseconds."""
        delays = self.delays
        yield _longest("an append, while no process was stopped", delays.beside_deaths)
        yield _longest("an append, while a process was stopped", delays.beside_stops)
        yield _longest("the machine's own, a sleep of a millisecond", delays.machine)
        yield from _distribution("after a kill a standby had the role", self.tally.take_over_ns)
        yield from _distribution("after a kill a standby had delivered", self.tally.result_ns)


def _line(label: str, count: int, what: str) -> str:
    return f"  {label:<9} {count:>12,}  {what}"


def _counts(label: str, counts: Counter[str]) -> Iterator[str]:
    yield _line(label, counts.total(), "in all")
    for place, count in sorted(counts.items()):
        yield _line("", count, place)


def _longest(what: str, longest: Longest) -> str:
    whole, own = longest.whole_ns / 1e6, longest.own_ns / 1e6
    return f"  longest   {whole:>9.1f} ms  {what}; {own:.1f} ms of it not in the run queue"


def _distribution(what: str, times_ns: Sequence[int]) -> Iterator[str]:
    if times_ns:
        ordered = [ns / 1e6 for ns in sorted(times_ns)]
        median, most = ordered[len(ordered) // 2], ordered[-1]
        yield f"  median    {median:>9.1f} ms  {what}; {most:.1f} ms at most, {len(ordered):,} times"
