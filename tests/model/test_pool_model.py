# SPDX-License-Identifier: Apache-2.0
"""The buffer pool's protocol, explored exhaustively; every planted mistake is found."""

from __future__ import annotations

import pytest

from tests.model.explorer import Report, explore
from tests.model.pool_model import MUTATIONS, Bounds, PoolModel, State


def run(bounds: Bounds, mutation: str = "") -> Report[State]:
    report = explore(PoolModel(bounds, mutation))
    print(f"{bounds} {mutation}: {report}")
    return report


ONE = frozenset({1})
BOTH = frozenset({1, 2})


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds((1, 1), 1, deaths=1),
        Bounds((1, 1), 2, deaths=1, cancels=1),
        Bounds((1, 2), 2, deaths=1, cancels=1, cap=2),
        Bounds((2, 2), 2, deaths=1, cap=2),
        pytest.param(Bounds((1, 1, 1), 1, cancels=1), marks=pytest.mark.slow),
        Bounds((1, 1), 1, deaths=1, stops=1),
        Bounds((2, 1), 2, stops=1, cancels=1, cap=2),
        Bounds((2, 1), 2, deaths=1, stops=1, cap=2),
        Bounds((1, 1), 2, deaths=1, stuck=BOTH),
        Bounds((1, 1), 4, cancels=1, stops=1, stuck=ONE),
        Bounds((2, 1), 4, cap=2, stops=1, stuck=BOTH),
    ],
)
def test_pool_is_sound(bounds: Bounds) -> None:
    """No slot leaks, no process is stuck, order and limits hold, if any process dies or stops at any step."""
    assert run(bounds).problem is None


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds((1, 1), 2, deaths=2, cancels=1),
        Bounds((1, 2, 1), 2, deaths=1, cancels=1, cap=2),
        Bounds((2, 2, 1), 3, deaths=1, cap=2),
        Bounds((1, 1, 1), 2, deaths=2),
        Bounds((1, 1, 1), 1, deaths=1, stops=1),
        Bounds((1, 2), 2, deaths=1, cancels=1, stops=1, cap=2),
        Bounds((2, 1), 4, deaths=1, cancels=1, stops=1, cap=2, stuck=ONE),
        Bounds((1, 1, 1), 2, deaths=1, stuck=BOTH),
    ],
)
def test_pool_is_sound_with_wider_bounds(bounds: Bounds) -> None:
    """The same, in minutes."""
    assert run(bounds).problem is None


# Bounds in which each mistake shows.
BOUNDS = {
    "nosteal": Bounds((1, 1), 1, deaths=1),
    "norepair": Bounds((1, 1), 1, deaths=1),
    "nohelp": Bounds((1, 1), 1, deaths=1),
    "noraise": Bounds((1, 1), 1),
    "nocleanup": Bounds((2, 2), 2, cancels=1),
    "nocap": Bounds((2, 2), 4, cap=2),
    "barging": Bounds((1, 1), 1),
    "lifo": Bounds((1, 1, 1), 1),
    "parked is served": Bounds((1, 1), 2, stuck=BOTH),
    "parked is counted": Bounds((1, 1), 2, stuck=ONE),
    "checked before parked": Bounds((1, 1), 2, stuck=ONE),
    "checked after a grant": Bounds((1, 1), 2, stuck=ONE),
    "no wake-up": Bounds((1, 1), 2, stuck=ONE),
    "no turns": Bounds((1,), 2, deaths=1, stuck=ONE),
    "looks for itself": Bounds((2, 1), 4, cap=2, stops=1, stuck=BOTH),
    "turn of the dead": Bounds((1, 1), 2, deaths=1, stops=1, stuck=BOTH),
    "no revocation": Bounds((1, 1), 1, stops=1),
    "word kept": Bounds((1, 1), 1, stops=1),
    "slots before the word": Bounds((1, 1), 1, deaths=1, stops=1),
    "parked keeps its grants": Bounds((1, 1), 1, deaths=1, stops=1),
    "helper ends parking": Bounds((1, 1), 1, stops=1),
    "take believes GOT": Bounds((1, 1), 1, stops=1),
    "cancel and take apart": Bounds((1, 1), 1, cancels=1, stops=1),
}


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_mistakes_are_found(mutation: str) -> None:
    """A model that cannot fail proves nothing."""
    assert run(BOUNDS[mutation], mutation).problem is not None
