# SPDX-License-Identifier: Apache-2.0
"""The parts of a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.harness.hold import Hold

Measurement = dict[str, float]
"""Figures by name, in base units (seconds, bytes, records per second, ...), or in those that the name says."""

Better = Literal["higher", "lower"]


class UnavailableError(Exception):
    """A contender cannot run here. The message is a sentence that says what is missing and how to get it."""


@dataclass(frozen=True)
class Figure:
    """A column of a question's answer: `scale` brings what was measured to `unit`, `what` says what that is."""

    name: str
    unit: str
    scale: float
    better: Better
    what: str = ""


@dataclass(frozen=True)
class Guarantees:
    """The guarantees of a contender for a record, in a word or two each: a ratio is read together with them.

    Attributes:
        record: its form until it is taken: a "copy", or a "reference" that the caller must not change.
        order: in which records are taken as they were sent: "partition", "queue" (of all senders), "sender".
        checksum: that protects what is kept.
        kill: the fate of sent records after kill -9 of their process: "kept", "lost", "hangs" (all wait for ever).
    """

    record: str
    order: str
    checksum: str
    kill: str


@dataclass(frozen=True)
class Contender:
    """Something that can be measured.

    `run` does the work once, in 0.2 to 3 seconds, and answers named figures; one that it leaves out is shown as a dash.
    `peer` names whom it is compared with, where that is not the question's own peer. `version` is asked after the
    warm-up, so that it may start what it has to ask. `guarantees` are None where there is nothing to guarantee. `hold`
    knows what runs on between rounds, and is stopped there.
    """

    name: str
    run: Callable[[], Measurement]
    peer: str = ""
    version: Callable[[], str] | None = None
    guarantees: Guarantees | None = None
    hold: Hold = field(default_factory=Hold)


@dataclass(frozen=True)
class Goal:
    """A number to reach: the median of `figure` of `contender`, in the figure's unit, or its ratio to its peer."""

    what: str
    contender: str
    figure: str
    bound: float
    is_ratio: bool = False


@dataclass(frozen=True)
class Question:
    """A question, its contenders, and its goals.

    Ratios are to `peer`, or to what a contender names itself. `repetitions` are the rounds that are wanted, if the time
    suffices for more than five. ``make bench`` leaves out a question of scope "full": it needs a broker or Spark, or
    takes long.
    """

    title: str
    figures: Sequence[Figure]
    contenders: Callable[[], list[Contender]]
    peer: str
    repetitions: int = 7
    limit_s: float = 90.0
    """The time after which the question is given up, unless the command line names another one."""
    scope: Literal["local", "full"] = "local"
    goals: Sequence[Goal] = ()
    is_exact: bool = False
    """A count, unlike a time, is the same in each round: one round suffices."""
