# SPDX-License-Identifier: Apache-2.0
"""The orders that no model needs, each with the reason (``unneeded.csv``).

They stay in the code, because a model does not cover everything that a machine may do.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

LISTED = Path(__file__).with_suffix(".csv")
WHYS = {
    "death": "paired with a death, of which the models have none",
    "futex": "paired with a futex",
    "system call": "paired with a system call",
    "operation": "one instruction has both orders, and a model needs the other one",
    "other order": "another order or barrier gives the same, as long as it stays",
}


@dataclass(frozen=True)
class Unneeded:
    """Why no model needs a half of a label.

    Attributes:
        why: the kind of the reason, of `WHYS`.
        pair: the labels of the accesses that would be reordered without the order.
        given_by: orders with the same effect. If they are weakened together with this order, a model breaks.
        litmus: a program without the order, with the same outcomes in ARM's model as with it. Empty if there is none.
        reason: sentences that name the pair.
    """

    why: str
    pair: tuple[str, ...]
    given_by: tuple[str, ...]
    litmus: str
    reason: str


def _listed() -> dict[str, Unneeded]:
    with LISTED.open(encoding="utf-8", newline="") as file:
        return {
            row["half"]: Unneeded(
                row["why"],
                tuple(filter(None, row["pair"].split("; "))),
                tuple(filter(None, row["given by"].split("; "))),
                row["litmus"],
                row["reason"],
            )
            for row in csv.DictReader(file)
        }


UNNEEDED = _listed()
