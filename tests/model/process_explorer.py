# SPDX-License-Identifier: Apache-2.0
"""Explores every state of a model of processes that share memory: any interleaving, a death at any step.

A model is a class with

``initial()``                  the values that all share, and those of each process; both are hashable tuples
``steps(shared, p, own)``      every (label, shared, own) that process p may make of them next, its death included
``violation(shared)``          a sentence if the processes must not share such values, else None
``is_over(own)``               True if the process is finished or dead
``is_quiet(shared)``           True if such processes may leave these values

A step of a process depends only on the shared values and on its own ones. This pair is its *view*, and the explorer
calls the model once for each view. Each set of shared values has a number, and so has each set of a process's own. A
state is one integer of 64 bits with these numbers side by side, and a step is a difference of two integers. The
difference is the same for all values of the other processes. ``state_space.c`` adds the differences. It takes some 30
bytes for each state, and does not depend on the model. The integer is the whole state and not a digest, so no state is
missed.

Besides violations, the explorer finds *stuck* states, from which no end can be reached any more. It reports a shortest
path to each.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tests.model.explorer import Report, StateLimitError
from tests.native import c_build

Shared = TypeVar("Shared", bound=Hashable)
Own = TypeVar("Own", bound=Hashable)
Value = TypeVar("Value", bound=Hashable)

SHARED_BITS = 24
STATE_BITS = 64
SHARED_MASK = (1 << SHARED_BITS) - 1

_FINISHED, _UNKNOWN_VIEW, _BAD_STATE, _TOO_MANY = range(4)


class ProcessModel(Protocol[Shared, Own]):
    """A protocol of processes, as the explorer needs to know it."""

    def initial(self) -> tuple[Shared, tuple[Own, ...]]:
        """The first state."""
        ...

    def steps(self, shared: Shared, p: int, own: Own) -> Iterable[tuple[str, Shared, Own]]:
        """Everything that process p may do next."""
        ...

    def violation(self, shared: Shared) -> str | None:
        """The reason why the processes must not share these values, or None."""
        ...

    def is_over(self, own: Own) -> bool:
        """True if the process is finished or dead."""
        ...

    def is_quiet(self, shared: Shared) -> bool:
        """True if processes that are over may leave these values."""
        ...


@functools.cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(c_build.build_preloaded(Path(__file__).with_name("state_space.c"))))
    u32, u64, pointer = ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
    u64s = ctypes.POINTER(u64)
    for name, result, arguments in (
        ("space_new", pointer, [u32, u64s, u64, u64, u64]),
        ("space_free", None, [pointer]),
        ("space_learn", None, [pointer, u32, u64, u64s, u64]),
        ("space_condemn", None, [pointer, u64]),
        ("space_go", ctypes.c_int, [pointer, ctypes.POINTER(u32), u64s]),
        ("space_count", u64, [pointer]),
        ("space_state", u64, [pointer, u64]),
        ("space_parent", u64, [pointer, u64]),
        ("space_stuck", u64, [pointer, u64s, u64, ctypes.c_char_p]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _numbers(values: Iterable[int]) -> ctypes.Array[ctypes.c_uint64]:
    """Unsigned as in C: add 2 to the power of 64 to a negative difference."""
    whole = [value % (1 << STATE_BITS) for value in values]
    return (ctypes.c_uint64 * len(whole))(*whole)


class _Known(Generic[Value]):
    """Gives each value the next number."""

    def __init__(self, bits: int):
        self.values: list[Value] = []
        self._numbers: dict[Value, int] = {}
        self._count_max = 1 << bits

    def number_of(self, value: Value) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            if number == self._count_max:
                raise StateLimitError("the explorer has too few bits for the values of this model")
            self.values.append(value)
        return number


class ProcessExplorer(Generic[Shared, Own]):
    """One exploration of a model."""

    def __init__(self, model: ProcessModel[Shared, Own], state_count_max: int = 120_000_000):
        self._model = model
        self._state_count_max = state_count_max
        shared, owns = model.initial()
        own_bits = (STATE_BITS - SHARED_BITS) // len(owns)
        self._own_mask = (1 << own_bits) - 1
        self._shifts = [SHARED_BITS + own_bits * p for p in range(len(owns))]
        self._masks = [SHARED_MASK | self._own_mask << shift for shift in self._shifts]
        self._shared: _Known[Shared] = _Known(SHARED_BITS)
        self._owns: list[_Known[Own]] = [_Known(own_bits) for _ in owns]
        self._problems: dict[int, str] = {}
        self._view_count = 0
        self._first = self._shared.number_of(shared)
        for p, own in enumerate(owns):
            self._first |= self._owns[p].number_of(own) << self._shifts[p]

    def explore(self) -> Report[int]:
        """Breadth first, so that a trace is a shortest one.

        Raises:
            StateLimitError: the model has more states than are allowed.
        """
        library, masks = _library(), _numbers(self._masks)
        space = library.space_new(len(masks), masks, SHARED_MASK, self._first, self._state_count_max)
        try:
            self._judge(space, 0)
            return self._report(space, self._reach(space))
        finally:
            library.space_free(space)

    def _report(self, space: int, answer: int) -> Report[int]:
        library = _library()
        count = library.space_count(space)
        if answer == _BAD_STATE:
            problem = self._problems[library.space_state(space, count - 1) & SHARED_MASK]
            return Report(count, problem, self._trace(space, count - 1))
        stuck = self._stuck(space)
        if stuck == count:
            return Report(count, None, ())
        return Report(count, "stuck: nothing that can happen leads to an end", self._trace(space, stuck))

    # ---- forwards ----

    def _reach(self, space: int) -> int:
        process, view = ctypes.c_uint32(), ctypes.c_uint64()
        while True:
            answer: int = _library().space_go(space, process, view)
            if answer == _TOO_MANY:
                raise StateLimitError(f"more than {self._state_count_max} states")
            if answer != _UNKNOWN_VIEW:
                return answer
            self._learn(space, process.value, view.value)

    def _learn(self, space: int, p: int, view: int) -> None:
        known_count = len(self._shared.values)
        steps = _numbers({after - view: None for _, after in self._steps(p, view)})
        _library().space_learn(space, p, view, steps, len(steps))
        self._view_count += 1
        self._judge(space, known_count)

    def _judge(self, space: int, known_count: int) -> None:
        for number in range(known_count, len(self._shared.values)):
            problem = self._model.violation(self._shared.values[number])
            if problem is not None:
                self._problems[number] = problem
                _library().space_condemn(space, number)

    def _steps(self, p: int, view: int) -> Iterable[tuple[str, int]]:
        """The view that each step leads to."""
        shared = self._shared.values[view & SHARED_MASK]
        own = self._owns[p].values[view >> self._shifts[p] & self._own_mask]
        for label, shared_after, own_after in self._model.steps(shared, p, own):
            number = self._owns[p].number_of(own_after)
            yield label, self._shared.number_of(shared_after) | number << self._shifts[p]

    # ---- backwards ----

    def _stuck(self, space: int) -> int:
        over = (
            [number << shift for number, own in enumerate(known.values) if self._model.is_over(own)]
            for known, shift in zip(self._owns, self._shifts, strict=True)
        )
        owns = _numbers(sum(numbers) for numbers in itertools.product(*over))
        quiet = bytes(self._model.is_quiet(shared) for shared in self._shared.values)
        number: int = _library().space_stuck(space, owns, len(owns), quiet)
        return number

    def _trace(self, space: int, number: int) -> tuple[str, ...]:
        library = _library()
        labels: list[str] = []
        while number != 0:
            parent = library.space_parent(space, number)
            labels.append(self._label(library.space_state(space, parent), library.space_state(space, number)))
            number = parent
        return tuple(reversed(labels))

    def _label(self, state: int, after: int) -> str:
        return next(
            label
            for p, mask in enumerate(self._masks)
            for label, view in self._steps(p, state & mask)
            if state - (state & mask) + view == after
        )
