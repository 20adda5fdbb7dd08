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

from collections import deque
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
        """Why the state must not exist."""
        ...

    def is_good(self, state: State) -> bool:
        """All processes are finished or dead."""
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


def explore(model: Model[State], state_count_max: int = 20_000_000) -> Report[State]:
    """Breadth first, so that a trace is a shortest one."""
    first = model.initial()
    parents: dict[State, tuple[State, str] | None] = {first: None}
    predecessors: dict[State, list[State]] = {}
    queue = deque([first])
    while queue:
        state = queue.popleft()
        problem = model.violation(state)
        if problem is not None:
            return Report(len(parents), problem, _trace(parents, state))
        for label, successor in model.steps(state):
            predecessors.setdefault(successor, []).append(state)
            if successor not in parents:
                parents[successor] = (state, label)
                queue.append(successor)
        if len(parents) > state_count_max:
            raise StateLimitError(f"more than {state_count_max} states")
    return _report_stuck(model, parents, predecessors)


def _report_stuck(
    model: Model[State],
    parents: dict[State, tuple[State, str] | None],
    predecessors: dict[State, list[State]],
) -> Report[State]:
    reaches_good = set(_backwards((state for state in parents if model.is_good(state)), predecessors))
    stuck = next((state for state in parents if state not in reaches_good), None)
    if stuck is None:
        return Report(len(parents), None, ())
    return Report(len(parents), "stuck: nothing that can happen leads to an end", _trace(parents, stuck))


def _backwards(good: Iterable[State], predecessors: dict[State, list[State]]) -> Iterator[State]:
    seen = set(good)
    waiting = list(seen)
    yield from seen
    while waiting:
        for state in predecessors.get(waiting.pop(), ()):
            if state not in seen:
                seen.add(state)
                waiting.append(state)
                yield state


def _trace(parents: dict[State, tuple[State, str] | None], state: State) -> tuple[str, ...]:
    labels = []
    link = parents[state]
    while link is not None:
        state, label = link
        labels.append(label)
        link = parents[state]
    return tuple(reversed(labels))
