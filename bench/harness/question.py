# SPDX-License-Identifier: Apache-2.0
"""The parts of a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bench.harness.stopped_processes import StoppedProcesses

Measurement = dict[str, float]
"""Figures by name, in base units (seconds, bytes, records per second), or in the unit that the name states."""

Better = Literal["higher", "lower"]


class UnavailableError(Exception):
    """A contender cannot run here. The message states what is missing and how to get it."""


@dataclass(frozen=True)
class Figure:
    """A column of a question's answer. `scale` converts a measurement to `unit`, and `what` describes it."""

    name: str
    unit: str
    scale: float
    better: Better
    what: str = ""


@dataclass(frozen=True)
class Guarantees:
    """The guarantees of a contender for a record, in one or two words each.

    Attributes:
        record: its form until it is consumed: a "copy", or a "reference" that the caller must not change.
        order: the scope in which the order of sends is kept: "partition", "queue" (of all senders), "sender".
        checksum: the checksum of a stored record.
        kill: the outcome of sent records after kill -9 of their process: "kept", "lost", "hangs" (all wait forever).
    """

    record: str
    order: str
    checksum: str
    kill: str


@dataclass(frozen=True)
class Contender:
    """Something that can be measured.

    `run` does the work once, in 0.2 to 3 seconds, and returns figures by name; the table has a dash for a missing one.
    `peer` names the contender to compare with, if that is not the peer of the question. `version` is called after the
    warm-up. `guarantees` is None if the work has none. `stopped` has the processes to stop between rounds.
    """

    name: str
    run: Callable[[], Measurement]
    peer: str = ""
    version: Callable[[], str] | None = None
    guarantees: Guarantees | None = None
    stopped: StoppedProcesses = field(default_factory=StoppedProcesses)


@dataclass(frozen=True)
class Goal:
    """A bound for the median of `figure` of `contender`, in the figure's unit, or for its ratio to the peer.

    `peer` names the contender to compare with, if that is not the peer of `contender`.
    """

    what: str
    contender: str
    figure: str
    bound: float
    is_ratio: bool = False
    peer: str = ""


@dataclass(frozen=True)
class Question:
    """A question, its contenders, and its goals.

    A ratio compares with `peer`, or with the peer that the contender names. `repetitions` is the number of rounds if
    the time suffices for more than five. ``make bench`` excludes questions of scope "full", which need a broker or
    Spark, or take long. ``--full`` excludes those of scope "alone", which take up to an hour and are asked by name.
    """

    title: str
    figures: Sequence[Figure]
    contenders: Callable[[], list[Contender]]
    peer: str
    repetitions: int = 7
    limit_s: float = 90.0
    """The seconds after which the question is given up, unless the command line has another limit."""
    scope: Literal["local", "full", "alone"] = "local"
    goals: Sequence[Goal] = ()
    has_warm_up: bool = True
    """False if there is no warm-up, because a run is long and starts everything anew."""
    is_exact: bool = False
    """True for a count, which is the same in each round, so one round suffices."""
    reason: str = ""
    """Why the first comparison is worse or a goal is missed, with the measurement that shows it.

    The name of a contender in braces stands for its ratio in the first figure.
    """
