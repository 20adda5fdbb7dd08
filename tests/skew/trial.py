# SPDX-License-Identifier: Apache-2.0
"""Trials of two builds on one arena, and their combined figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shmaccum.arena import Arena
from tests.chaos.outcome import Outcome, Plan
from tests.skew.builds import THIS, Build
from tests.skew.director import SkewDirector

SIZES = ("--buffer-memory", "64MiB", "--batch-size", "16KiB", "--process-count", "128", "--waiter-count", "128")


@dataclass
class Skew:
    """The figures of some trials."""

    outcomes: list[Outcome] = field(default_factory=list)
    successions: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def replacement_count(self) -> int:
        return sum(outcome.tally.kills.total() for outcome in self.outcomes)

    def add(self, other: Skew) -> None:
        """Add the figures of other trials."""
        self.outcomes += other.outcomes
        self.successions += other.successions

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        audits = [outcome.audit for outcome in self.outcomes]
        longest_ns = max(outcome.delays.beside_deaths.own_ns for outcome in self.outcomes)
        yield f"{self.replacement_count:,} replacements by the other build"
        for (former, present), count in sorted(self.successions.items()):
            yield f"  {count:>6,} times the role passed from {former} to {present}"
        yield f"  {sum(audit.delivered_count for audit in audits):,} records: 0 lost, 0 doubled, 0 out of order"
        yield f"  the longest append took {longest_ns / 1e6:.1f} ms outside of the run queue"


def create(creator: Build, name: str) -> None:
    """Create an arena with this build, without an extension region, or with the later one, with a region."""
    made = creator.run("create", name, *SIZES)
    assert made.returncode == 0, made.stderr


def run(name: str, folder: Path, plan: Plan, kind: str, creator: Build, later: Build) -> Skew:
    """Run one trial and check it.

    Raises:
        AssertionError: a check failed.
    """
    create(creator, name)
    with Arena.attach(name) as arena:
        director = SkewDirector(arena, folder, plan, kind, (THIS, later))
        outcome = director.run()
    return Skew([outcome], director.successions)
