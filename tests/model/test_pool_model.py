# SPDX-License-Identifier: Apache-2.0
"""The buffer pool's protocol, explored exhaustively; each planted mutation is found."""

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
        pytest.param(Bounds((1, 1), 4, cancels=1, stops=1, stuck=ONE), marks=pytest.mark.slow),
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
    """Explore wider bounds, which takes minutes."""
    assert run(bounds).problem is None


# For each mutation, bounds in which the explorer finds it.
BOUNDS = {
    "dead lock owner keeps the lock": Bounds((1, 1), 1, deaths=1),
    "no repair": Bounds((1, 1), 1, deaths=1),
    "waiters do not help": Bounds((1, 1), 1, deaths=1),
    "waiting_count not raised": Bounds((1, 1), 1),
    "cancel keeps grants": Bounds((2, 2), 2, cancels=1),
    "no cap": Bounds((2, 2), 4, cap=2),
    "arrivals pass waiters": Bounds((1, 1), 1),
    "newest waiter first": Bounds((1, 1, 1), 1),
    "parked waiter served": Bounds((1, 1), 2, stuck=BOTH),
    "parked waiter counted": Bounds((1, 1), 2, stuck=ONE),
    "limit checked before PARKED": Bounds((1, 1), 2, stuck=ONE),
    "limit checked after a grant": Bounds((1, 1), 2, stuck=ONE),
    "parked waiter not posted": Bounds((1, 1), 2, stuck=ONE),
    "parked waiter has no turns": Bounds((1,), 2, deaths=1, stuck=ONE),
    "turn without posts": Bounds((2, 1), 4, cap=2, stops=1, stuck=BOTH),
    "turn of an absent waiter": Bounds((1, 1), 2, deaths=1, stops=1, stuck=BOTH),
    "no revocation": Bounds((1, 1), 1, stops=1),
    "revocation keeps the word": Bounds((1, 1), 1, stops=1),
    "revocation frees slots first": Bounds((1, 1), 1, deaths=1, stops=1),
    "grants of a parked waiter not freed": Bounds((1, 1), 1, deaths=1, stops=1),
    "helper ends parking": Bounds((1, 1), 1, stops=1),
    "GOT not checked again": Bounds((1, 1), 1, stops=1),
    "cancel and take in two steps": Bounds((1, 1), 1, cancels=1, stops=1),
}


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_mutations_are_found(mutation: str) -> None:
    """The explorer reports a problem for each mutation of the model."""
    assert run(BOUNDS[mutation], mutation).problem is not None
