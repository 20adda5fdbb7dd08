# SPDX-License-Identifier: Apache-2.0
"""On models that are small enough for both, the explorer of processes has the same results as the plain explorer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.model.explorer import Report, StateLimitError, explore
from tests.model.process_explorer import ProcessExplorer
from tests.model.transaction_model import Bounds, Own, Shared, TransactionModel

Whole = tuple[Shared, tuple[Own, ...]]


class Plainly:
    """A model of processes in the form of a model of whole states."""

    def __init__(self, model: TransactionModel):
        self._model = model

    def initial(self) -> Whole:
        return self._model.initial()

    def steps(self, state: Whole) -> Iterator[tuple[str, Whole]]:
        shared, owns = state
        for p, own in enumerate(owns):
            for label, after, own_after in self._model.steps(shared, p, own):
                yield label, (after, (*owns[:p], own_after, *owns[p + 1 :]))

    def violation(self, state: Whole) -> str | None:
        return self._model.violation(state[0])

    def is_good(self, state: Whole) -> bool:
        return self._model.is_quiet(state[0]) and all(self._model.is_over(own) for own in state[1])


ONE = Bounds(records=((0,),))
ONE_FAILS_AND_DIES = Bounds(records=((0,),), slot_count=1, deaths=1, failures=1)


@pytest.mark.parametrize(
    ("bounds", "mutation"),
    [
        (ONE, ""),
        (Bounds(records=((0,),), oversized=(0,), is_late=True), ""),
        (ONE_FAILS_AND_DIES, ""),
        (ONE, "record committed by a store"),
        (ONE_FAILS_AND_DIES, "failed batch DONE before ABORT_ONLY"),
        (ONE_FAILS_AND_DIES, "dead coordinator not aborted"),
    ],
    ids=str,
)
def test_both_explorers_find_the_same(bounds: Bounds, mutation: str) -> None:
    model = TransactionModel(bounds, mutation)
    plain, quick = explore(Plainly(model)), ProcessExplorer(model).explore()
    assert quick.problem == plain.problem
    assert len(quick.trace) == len(plain.trace)
    if plain.problem is None or plain.problem.startswith("stuck"):
        assert quick.state_count == plain.state_count


class Hands:
    """Two processes that both need two locks, and take them in the same order or in opposite orders."""

    def __init__(self, is_ordered: bool):
        self._is_ordered = is_ordered

    def initial(self) -> tuple[tuple[int, int], tuple[int, int]]:
        return (-1, -1), (0, 0)

    def steps(self, shared: tuple[int, int], p: int, own: int) -> Iterator[tuple[str, tuple[int, int], int]]:
        order = (0, 1) if self._is_ordered or p == 0 else (1, 0)
        if own < 2 and shared[order[own]] == -1:
            held = [p if thing == order[own] else owner for thing, owner in enumerate(shared)]
            yield f"{p} takes {order[own]}", (held[0], held[1]), own + 1
        elif own == 2:
            yield f"{p} lets go", (-1, -1), 3

    def violation(self, shared: tuple[int, int]) -> str | None:
        return None

    def is_over(self, own: int) -> bool:
        return own == 3

    def is_quiet(self, shared: tuple[int, int]) -> bool:
        return shared == (-1, -1)


def test_a_state_without_a_way_to_an_end_is_found_with_the_shortest_way_there() -> None:
    assert ProcessExplorer(Hands(is_ordered=True)).explore().problem is None
    report: Report[int] = ProcessExplorer(Hands(is_ordered=False)).explore()
    assert report.problem is not None
    assert report.problem.startswith("stuck")
    assert set(report.trace) == {"0 takes 0", "1 takes 1"}


def test_more_states_than_are_allowed_end_the_exploration() -> None:
    with pytest.raises(StateLimitError):
        ProcessExplorer(TransactionModel(ONE), state_count_max=100).explore()
