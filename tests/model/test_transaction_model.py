# SPDX-License-Identifier: Apache-2.0
"""The transaction word's protocol, explored exhaustively; each planted mutation is found."""

from __future__ import annotations

import pytest

from tests.model.explorer import Report
from tests.model.process_explorer import ProcessExplorer
from tests.model.transaction_model import MUTATIONS, Bounds, TransactionModel


def run(bounds: Bounds, mutation: str = "") -> Report[int]:
    report = ProcessExplorer(TransactionModel(bounds, mutation)).explore()
    print(f"{bounds} {mutation}: {report}")
    return report


ONE = Bounds(records=((0,),))
ONE_DIES = Bounds(records=((0,),), deaths=1)
ONE_BATCH_FAILS = Bounds(records=((0,),), failures=1)
A_SENDER_DIES_AND_A_BATCH_FAILS = Bounds(records=((0,),), failures=1, deaths=1)
ONE_IS_LATE = Bounds(records=((0,),), is_late=True)
A_CHAIN = Bounds(records=((0,),), oversized=(0,))
A_CHAIN_DIES = Bounds(records=((0,),), oversized=(0,), deaths=1)
ONE_IN_TWO = Bounds(records=((0,),), transactions=(2,))
ONE_JOINS_THE_FIRST = Bounds(records=((1,),), transactions=(2,), slot_count=1, aborts=False)
TWO_COORDINATORS = Bounds(records=((0,),), transactions=(1, 1), slot_count=1, aborts=False)
TWO_IN_TWO = Bounds(records=((0,), (0,)), transactions=(2,), slot_count=1, aborts=False)
ONE_JOINS_BESIDE_ANOTHER = Bounds(records=((0,), (1,)), transactions=(2,), slot_count=1, aborts=False)

ONE_JOINS_IN_TWO = Bounds(records=((1,),), transactions=(2,))
A_COORDINATOR_FOLLOWS = Bounds(records=((0,),), transactions=(1, 1), slot_count=1, aborts=False, deaths=1)

SHORT = [
    ONE,
    ONE_DIES,
    ONE_BATCH_FAILS,
    A_SENDER_DIES_AND_A_BATCH_FAILS,
    ONE_IS_LATE,
    A_CHAIN,
    A_CHAIN_DIES,
    ONE_IN_TWO,
    ONE_JOINS_IN_TWO,
    ONE_JOINS_THE_FIRST,
    TWO_COORDINATORS,
    A_COORDINATOR_FOLLOWS,
    TWO_IN_TWO,
    ONE_JOINS_BESIDE_ANOTHER,
]
MIDDLE = [
    Bounds(records=((0,), (0,)), aborts=False),
    Bounds(records=((0,), (0,)), aborts=False, oversized=(1,)),
    Bounds(records=((0,), (0,)), oversized=(1,), deaths=1),
    Bounds(records=((0, 0), (0,)), slot_count=1),
    Bounds(records=((0,), (0,)), transactions=(2,), slot_count=1, deaths=1),
    Bounds(records=((0,), (1,)), transactions=(2,), slot_count=1, deaths=1),
]
LONG = [
    Bounds(records=((0,), (0,), (0,)), slot_count=1, aborts=False),
    Bounds(records=((0,), (1,)), transactions=(2,), slot_count=1, deaths=1, failures=1, is_late=True),
    Bounds(records=((0,), (0,)), deaths=1),
    Bounds(records=((0,), (0,)), deaths=2),
    Bounds(records=((0,), (0,)), deaths=1, is_late=True),
    Bounds(records=((0,), (0,)), deaths=1, failures=1),
    Bounds(records=((0,), (0,)), transactions=(2,)),
    Bounds(records=((0,), (1,)), transactions=(2,)),
    Bounds(records=((0,), (0,)), transactions=(1, 1), slot_count=1, deaths=1),
]


@pytest.mark.parametrize(
    "bounds", [*SHORT, *(pytest.param(bounds, marks=pytest.mark.slow) for bounds in MIDDLE)], ids=str
)
def test_transactions_are_sound(bounds: Bounds) -> None:
    """Each record ends once, in the transaction it was accepted in, and no process waits forever."""
    assert run(bounds).problem is None


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("bounds", LONG, ids=str)
def test_transactions_are_sound_with_wider_bounds(bounds: Bounds) -> None:
    """Explore wider bounds, which takes minutes."""
    assert run(bounds).problem is None


# For each mutation, bounds in which the explorer finds it.
BOUNDS = {
    "word not read after OPEN": ONE,
    "word read before OPEN only": ONE,
    "batches sealed before COMMITTING": ONE,
    "sender does not seal": ONE_DIES,
    "decision without a scan": ONE,
    "failed batch DONE before ABORT_ONLY": A_SENDER_DIES_AND_A_BATCH_FAILS,
    "chain committed by a store": A_CHAIN,
    "number compared first": ONE_JOINS_BESIDE_ANOTHER,
    "number not compared": ONE_JOINS_THE_FIRST,
    "record committed by a store": ONE,
    "dead coordinator not aborted": ONE_DIES,
    "NONE before the broker's end": ONE,
    "role taken from the living": TWO_COORDINATORS,
    "role given up before the outcome": TWO_COORDINATORS,
    "batch not reported": ONE,
    "batch reported after `open`": ONE,
    "batch reported by a store": ONE,
    "batch used after a pass": TWO_IN_TWO,
    "empty commit by a store": ONE,
    "empty abort by a store": ONE,
    "sender's empty abort by a store": A_COORDINATOR_FOLLOWS,
    "abort with batches stores NONE": ONE,
    "ABORT_ONLY aborted as empty": ONE_BATCH_FAILS,
    "empty abort without a reason": ONE_IS_LATE,
    "ended transaction continued": ONE,
    "abort of a later transaction": TWO_COORDINATORS,
    "no repair after a pass": TWO_IN_TWO,
}


@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_mutations_are_found(mutation: str) -> None:
    """The explorer reports a problem for each mutation of the model."""
    assert run(BOUNDS[mutation], mutation).problem is not None
