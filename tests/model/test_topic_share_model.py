# SPDX-License-Identifier: Apache-2.0
"""The limits of topics and of stuck partitions, explored exhaustively; each planted mutation is found."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tests.model.explorer import Report, explore
from tests.model.topic_share_model import MUTATIONS, Bounds, State, TopicShareModel

FIRST = frozenset({0})
BOTH = frozenset({0, 1})


def run(bounds: Bounds, mutation: str = "") -> Report[State]:
    report = explore(TopicShareModel(bounds, mutation))
    print(f"{bounds} {mutation}: {report}")
    return report


@pytest.mark.parametrize(
    "bounds",
    [
        Bounds((0, 0), 2, deaths=1, factor=Fraction(1)),
        Bounds((0, 1), 2, rounds=2, factor=Fraction(1)),
        pytest.param(Bounds((0, 1), 3, rounds=2, factor=Fraction(1)), marks=pytest.mark.slow),
        Bounds((0, 1), 2, rounds=2, stuck=BOTH),
        pytest.param(Bounds((0, 1), 4, rounds=2, stuck=BOTH), marks=pytest.mark.slow),
        Bounds((0, 1), 2, deaths=1, stuck=FIRST),
        pytest.param(Bounds((0, 0), 4, needs=(2, 1), deaths=1, factor=Fraction(2)), marks=pytest.mark.slow),
        Bounds((0, 1), 3, factor=Fraction(1), marks=1),
    ],
)
def test_limits_are_sound(bounds: Bounds) -> None:
    """If any process dies at any step, the sums stay correct, the limits hold, and no topic is rejected forever."""
    assert run(bounds).problem is None


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds((0, 0, 1), 3, deaths=1, factor=Fraction(1)),
        Bounds((0, 1), 2, rounds=2, deaths=2, factor=Fraction(1), stuck=FIRST),
        Bounds((0, 1), 4, rounds=3, factor=Fraction(1), stuck=FIRST),
        Bounds((0, 1, 1), 4, needs=(2, 1, 1), deaths=1, factor=Fraction(2), stuck=FIRST),
        Bounds((0, 1), 3, rounds=2, factor=Fraction(1), marks=2),
        Bounds((0, 1), 3, deaths=1, factor=Fraction(1), marks=2),
        Bounds((0, 1, 2), 6, factor=Fraction(1)),
    ],
)
def test_limits_are_sound_with_wider_bounds(bounds: Bounds) -> None:
    """Explore wider bounds, which takes minutes."""
    assert run(bounds).problem is None


SHARED = Bounds((0, 0), 2, deaths=1, factor=Fraction(1))
CHAIN = Bounds((0,), 4, needs=(2,), rounds=2, factor=Fraction(4))

# For each mutation, bounds in which the explorer finds it.
BOUNDS = {
    "added before OPEN": SHARED,
    "freed before released": SHARED,
    "no recount at takeover": SHARED,
    "no recount after a death": SHARED,
    "recount without a second read": SHARED,
    "chain adds one": CHAIN,
    "negative difference not clamped": Bounds((0, 0), 3, rounds=2, deaths=1, factor=Fraction(1)),
    "no first batch": Bounds((0, 1), 2, factor=Fraction(1, 2)),
    "marks of a dead sender apply": Bounds((0, 1), 2, deaths=1, stuck=FIRST),
    "chain checked as one slot": Bounds((0,), 4, needs=(2,), rounds=2, stuck=FIRST),
    "no limit for stuck partitions": Bounds((0,), 4, rounds=3, stuck=FIRST),
    "no limit for topics": Bounds((0,), 4, rounds=4, factor=Fraction(1)),
    "half for each stuck partition": Bounds((0, 1), 4, rounds=2, stuck=BOTH),
    "share ignores other topics": Bounds((0, 1), 5, rounds=2, factor=Fraction(1)),
    "stuck slots counted": Bounds((0, 1), 5, rounds=2, factor=Fraction(1), stuck=FIRST),
}


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_mutations_are_found(mutation: str) -> None:
    """The explorer reports a problem for each mutation of the model."""
    assert run(BOUNDS[mutation], mutation).problem is not None
