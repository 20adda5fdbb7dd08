# SPDX-License-Identifier: Apache-2.0
"""The producer lock's protocol, explored exhaustively; each planted mutation is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.explorer import Report, explore
from tests.model.lock_model import MUTATIONS, REPAIRS, Bounds, LockModel, State


def run(bounds: Bounds, mutation: str = "") -> Report[State]:
    report = explore(LockModel(bounds, mutation))
    print(f"{bounds} {mutation}: {report}")
    return report


SHORT = [
    Bounds(records=(2,), slot_count=2, deaths=1),
    Bounds(records=(1, 1), slot_count=2, deaths=1),
    Bounds(records=(1, 1), slot_count=3, freezes=1),
    Bounds(records=(2, 1), slot_count=3, passes=1, oversized=(1,), is_sender_last=True),
    Bounds(records=(3, 1), slot_count=3, numbers=2, is_sender_last=True),
]

MIDDLE = [
    Bounds(records=(2, 1), slot_count=3, passes=1, is_sender_last=True),
    Bounds(records=(1, 1), slot_count=2, passes=1, repair="forget"),
    Bounds(records=(1, 1), slot_count=3, passes=1, oversized=(1,)),
    Bounds(records=(1, 1), slot_count=2, passes=1),
    Bounds(records=(1, 1), slot_count=2, passes=1, repair="forget, then seal all batches"),
    Bounds(records=(2, 2), slot_count=3, passes=1, numbers=2, is_sender_last=True),
]

LONG = [
    Bounds(records=(1, 1), slot_count=2, deaths=2),
    Bounds(records=(2, 1), slot_count=2, deaths=1),
    Bounds(records=(2, 1), slot_count=3, freezes=1),
    Bounds(records=(1, 1), slot_count=2, passes=1, deaths=1),
    Bounds(records=(1, 1), slot_count=3, passes=1, freezes=1),
    Bounds(records=(1, 1), slot_count=2, passes=1, empty_seals=1),
    Bounds(records=(2, 1), slot_count=2, passes=1),
    Bounds(records=(2, 1), slot_count=2, capacity=1, passes=1),
    Bounds(records=(2, 1), slot_count=3, passes=1, oversized=(1,)),
    Bounds(records=(1, 1), slot_count=2, passes=2, is_sender_last=True),
    Bounds(records=(1, 1, 1), slot_count=3, passes=1, is_sender_last=True),
    Bounds(records=(3, 2), slot_count=3, passes=1, numbers=2, is_sender_last=True),
    Bounds(records=(3, 2), slot_count=3, passes=1, numbers=3, is_sender_last=True),
    Bounds(records=(2, 2), slot_count=3, deaths=1, numbers=2, is_sender_last=True),
    Bounds(records=(1, 1, 1), slot_count=3, passes=1, oversized=(2,), is_sender_last=True),
]
LONG += [
    replace(bounds, repair=repair)
    for repair in REPAIRS
    if repair != Bounds.repair
    for bounds in LONG
    if bounds.passes or bounds.freezes
]


@pytest.mark.parametrize(
    "bounds", [*SHORT, *(pytest.param(bounds, marks=pytest.mark.slow) for bounds in MIDDLE)], ids=str
)
def test_lock_is_sound(bounds: Bounds) -> None:
    """No record is lost, duplicated or out of order. No process writes into another one's slot, and none is stuck."""
    assert run(bounds).problem is None


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", LONG, ids=str)
def test_lock_is_sound_with_wider_bounds(bounds: Bounds) -> None:
    """Explore wider bounds, which takes minutes."""
    assert run(bounds).problem is None


# For each mutation, bounds in which the explorer finds it.
ONE_DIES = Bounds(records=(1, 1), slot_count=2, deaths=1)
ONE_FREEZES = Bounds(records=(1, 1), slot_count=3, freezes=1)
ONE_IS_PASSED = Bounds(records=(1, 1), slot_count=2, passes=1)
ONE_IS_PASSED_AND_ITS_EMPTY_BATCH_SEALED = Bounds(records=(1, 1), slot_count=2, passes=1, empty_seals=1)
ONE_IS_PASSED_AND_GOES_ON = Bounds(records=(2, 1), slot_count=3, passes=1, is_sender_last=True)
A_CHAIN_PASSES = Bounds(records=(2, 1), slot_count=3, passes=1, oversized=(1,), is_sender_last=True)
NUMBERS_COME_ROUND = Bounds(records=(3, 1), slot_count=3, numbers=2, is_sender_last=True)
NUMBERS_COME_ROUND_TO_THE_PASSED = Bounds(records=(2, 2), slot_count=3, passes=1, numbers=2, is_sender_last=True)
WIDE = {NUMBERS_COME_ROUND_TO_THE_PASSED, ONE_IS_PASSED_AND_ITS_EMPTY_BATCH_SEALED}
"""Mutations whose exploration takes seconds. Only ``make test-all`` runs them."""
BOUNDS = {
    "no hazard": ONE_DIES,
    "late hazard": ONE_DIES,
    "hazards ignored": ONE_DIES,
    "hazards read before the seal": ONE_IS_PASSED,
    "no second lock check": ONE_IS_PASSED,
    "no lock check before open": A_CHAIN_PASSES,
    "open batch used after a takeover": ONE_IS_PASSED,
    "commit by a store": ONE_DIES,
    "`open` set by a store": ONE_IS_PASSED_AND_GOES_ON,
    "next_seq raised by a store": ONE_IS_PASSED,
    "unlock of any holder": ONE_IS_PASSED_AND_GOES_ON,
    "`released` read once": NUMBERS_COME_ROUND,
    "pass takes the released word": NUMBERS_COME_ROUND_TO_THE_PASSED,
    "no repair after its own lock": NUMBERS_COME_ROUND,
    "slot taken back by a store": ONE_IS_PASSED_AND_ITS_EMPTY_BATCH_SEALED,
    "seal by a store": ONE_DIES,
    "acquisition number not raised": A_CHAIN_PASSES,
    "generation not raised": ONE_IS_PASSED_AND_ITS_EMPTY_BATCH_SEALED,
    "both meta cells written": ONE_DIES,
    "dead holder never passed": ONE_DIES,
    "frozen holder never passed": ONE_FREEZES,
    "no seal before a chain": A_CHAIN_PASSES,
}


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(name, marks=pytest.mark.slow if BOUNDS[name] in WIDE else []) for name in sorted(MUTATIONS)],
)
def test_mutations_are_found(mutation: str) -> None:
    """The explorer reports a problem for each mutation of the model."""
    assert run(BOUNDS[mutation], mutation).problem is not None
