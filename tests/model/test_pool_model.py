# SPDX-License-Identifier: Apache-2.0
"""The buffer pool's protocol, explored exhaustively; every planted mistake is found."""

from __future__ import annotations

import pytest

from tests.model.explorer import Report, explore
from tests.model.pool_model import MUTATIONS, PoolModel, State


def run(
    needs: tuple[int, ...], slot_count: int, deaths: int, cancels: int = 0, cap: int = 9, mutation: str = ""
) -> Report[State]:
    report = explore(PoolModel(needs, slot_count, deaths, cancels, cap, mutation))
    print(f"needs {needs}, {slot_count} slots, {deaths} deaths, {cancels} cancels, cap {cap} {mutation}: {report}")
    return report


@pytest.mark.parametrize(
    ("needs", "slot_count", "deaths", "cancels", "cap"),
    [
        ((1, 1), 1, 1, 0, 9),
        ((1, 1), 2, 1, 1, 9),
        ((1, 2), 2, 1, 1, 2),
        ((2, 2), 2, 1, 0, 2),
        pytest.param((1, 1, 1), 1, 0, 1, 9, marks=pytest.mark.slow),
    ],
)
def test_pool_is_sound(needs: tuple[int, ...], slot_count: int, deaths: int, cancels: int, cap: int) -> None:
    """No slot leaks, nobody is stuck, order and cap hold, whoever dies wherever."""
    assert run(needs, slot_count, deaths, cancels, cap).problem is None


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("needs", "slot_count", "deaths", "cancels", "cap"),
    [
        ((1, 1), 2, 2, 1, 9),
        ((1, 2, 1), 2, 1, 1, 2),
        ((2, 2, 1), 3, 1, 0, 2),
        ((1, 1, 1), 2, 2, 0, 9),
    ],
)
def test_pool_is_sound_with_wider_bounds(
    needs: tuple[int, ...], slot_count: int, deaths: int, cancels: int, cap: int
) -> None:
    """The same, in minutes."""
    assert run(needs, slot_count, deaths, cancels, cap).problem is None


# Bounds in which each mistake shows.
BOUNDS = {
    "nosteal": ((1, 1), 1, 1, 0, 9),
    "norepair": ((1, 1), 1, 1, 0, 9),
    "nohelp": ((1, 1), 1, 1, 0, 9),
    "noraise": ((1, 1), 1, 0, 0, 9),
    "nocleanup": ((2, 2), 2, 0, 1, 9),
    "nocap": ((2, 2), 4, 0, 0, 2),
    "barging": ((1, 1), 1, 0, 0, 9),
    "lifo": ((1, 1, 1), 1, 0, 0, 9),
}


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_mistakes_are_found(mutation: str) -> None:
    """A model that cannot fail proves nothing."""
    needs, slot_count, deaths, cancels, cap = BOUNDS[mutation]
    assert run(needs, slot_count, deaths, cancels, cap, mutation).problem is not None
