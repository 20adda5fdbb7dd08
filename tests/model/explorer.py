# SPDX-License-Identifier: Apache-2.0
"""Explores every state of a small model of the arena's protocols: any interleaving, a death at any step.

A model is a class with

``initial()``        the first state; states are hashable tuples
``steps(state)``     every (label, state) that may come next, deaths included
``violation(state)`` a sentence if the state must not exist, else None
``is_good(state)``   True if all processes are finished or dead, so that the rest can be judged

Besides violations, the explorer finds *stuck* states, from which no good state can be reached any more. It reports a
shortest path to each.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """A protocol, as the explorer needs to know it."""

    def initial(self) -> State:
        """The first state."""
        ...

    def steps(self, state: State) -> Iterable[tuple[str, State]]:
        """Everything that may happen next."""
        ...

    def violation(self, state: State) -> str | None:
        """The reason why the state must not exist, or None."""
        ...

    def is_good(self, state: State) -> bool:
        """True if all processes are finished or dead."""
        ...


@dataclass(frozen=True)
class Report(Generic[State]):
    """The result of an exploration. ``trace`` leads to the first violation, or to a stuck state."""

    state_count: int
    problem: str | None
    trace: tuple[str, ...]

    def __str__(self) -> str:
        if self.problem is None:
            return f"{self.state_count} states, sound"
        steps = "\n".join(f"  {number:>3}. {label}" for number, label in enumerate(self.trace, 1))
        return f"{self.problem} after {len(self.trace)} steps ({self.state_count} states seen):\n{steps}"


class StateLimitError(Exception):
    """The bounds of the model are too wide for the number of states allowed."""


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector, which would traverse all states again and again. None of them is garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_collection()
def explore(model: Model[State], state_count_max: int = 20_000_000) -> Report[State]:
    """Breadth first, so that a trace is a shortest one."""
    first = model.initial()
    numbers = {first: 0}
    states = [first]
    links: list[tuple[int, str]] = [(0, "")]  # of each state: the number of the state before it, and the label
    predecessors: list[list[int]] = [[]]
    for number, state in enumerate(states):  # it grows meanwhile
        problem = model.violation(state)
        if problem is not None:
            return Report(len(states), problem, _trace(links, number))
        for label, successor in model.steps(state):
            found = numbers.setdefault(successor, len(states))
            if found == len(states):
                states.append(successor)
                links.append((number, label))
                predecessors.append([])
            predecessors[found].append(number)
        if len(states) > state_count_max:
            raise StateLimitError(f"more than {state_count_max} states")
    stuck = _first_stuck(map(model.is_good, states), predecessors)
    if stuck is None:
        return Report(len(states), None, ())
    return Report(len(states), "stuck: nothing that can happen leads to an end", _trace(links, stuck))


def _first_stuck(is_good: Iterable[bool], predecessors: list[list[int]]) -> int | None:
    """Return the first state from which no good state can be reached."""
    reaches_good = bytearray(is_good)
    waiting = [number for number, reaches in enumerate(reaches_good) if reaches]
    while waiting:
        for number in predecessors[waiting.pop()]:
            if not reaches_good[number]:
                reaches_good[number] = True
                waiting.append(number)
    stuck = reaches_good.find(False)
    return None if stuck < 0 else stuck


def _trace(links: list[tuple[int, str]], number: int) -> tuple[str, ...]:
    labels = []
    while number:
        number, label = links[number]
        labels.append(label)
    return tuple(reversed(labels))
