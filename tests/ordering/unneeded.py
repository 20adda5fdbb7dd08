# SPDX-License-Identifier: Apache-2.0
"""The orders that no model needs, each with the reason. They stay in the code: a model is not the machine.

`given_by` are orders that ensure the same. If they are weakened together with the order, a model breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

COUNTED = "the other half of the same operation has the edge, and one instruction has both"
BARRIER = "the full barrier behind it gives more"
LAST_LOOK = "the second look at a number: nothing is read after it"
POOL_LOCK = "it changes and is read again under the pool lock (L1, L2); a look without the lock decides nothing alone"
EARLIER = "the load before this CAS has acquired the word"
DEATH = "the barriers H1 and H2 give it to a hazard; it stays, because it is paired with a death"
SEALED = "a CAS from the value that was read; it continues the release sequence of P1"
ITSELF = "the value stands for itself"


@dataclass(frozen=True)
class Unneeded:
    """Why no model needs a half of a label."""

    reason: str
    given_by: tuple[str, ...] = ()


UNNEEDED: dict[str, Unneeded] = {
    "A1:acquire": Unneeded(COUNTED),
    "B1:acquire": Unneeded(COUNTED),
    "B2:acquire": Unneeded(COUNTED),
    "B3:release": Unneeded(COUNTED),
    "C3:acquire": Unneeded(BARRIER),
    "C3:release": Unneeded(BARRIER),
    "C4:acquire": Unneeded("a woken process acquires itself (C7) what it reads"),
    "C4:release": Unneeded("a woken process acquires itself (C7) what it reads"),
    "C8:release": Unneeded(BARRIER),
    "C9:acquire": Unneeded(LAST_LOOK),
    "D3:acquire": Unneeded(ITSELF),
    "D3:release": Unneeded(ITSELF),
    "D4:release": Unneeded(BARRIER),
    "F2:acquire": Unneeded(EARLIER, ("F5:acquire",)),
    "F2:release": Unneeded("the hint bits (B1, B2) and the store of OPEN (P3) publish what follows"),
    "F3:acquire": Unneeded(COUNTED),
    "F4:release": Unneeded(COUNTED),
    "F5:acquire": Unneeded("the CAS behind it acquires the same word", ("F2:acquire",)),
    "G1:release": Unneeded(POOL_LOCK),
    "G2:acquire": Unneeded(POOL_LOCK),
    "G3:release": Unneeded(POOL_LOCK),
    "G4:acquire": Unneeded(POOL_LOCK),
    "G4:release": Unneeded(POOL_LOCK),
    "G5:acquire": Unneeded(
        "the sender posts, and reads nothing else of the waiter; the barriers W2 and W3 order the look"
    ),
    "H1:acquire": Unneeded("the producer lock (L3, L4) has shown what it reads of the batch"),
    "I1:release": Unneeded(DEATH),
    "I2:acquire": Unneeded(DEATH),
    "I3:acquire": Unneeded(DEATH),
    "I3:release": Unneeded(DEATH),
    "I4:acquire": Unneeded(DEATH),
    "K10:acquire": Unneeded(LAST_LOOK),
    "K11:acquire": Unneeded(LAST_LOOK),
    "K9:acquire": Unneeded(COUNTED),
    "K9:release": Unneeded("sender_owner (K1) is stored after it, by release"),
    "L1:release": Unneeded(COUNTED),
    "L2:acquire": Unneeded(COUNTED),
    "L5:acquire": Unneeded("the load of `released` (L4) acquires"),
    "L5:release": Unneeded("the CAS of `open` or `next_seq` (L7) publishes it, and the commit's barrier"),
    "L6:acquire": Unneeded("the barriers X2 and H1 stand before the store that it protects"),
    "L7:acquire": Unneeded("the barriers X2 and H1 stand before the store that it protects"),
    "M1:release": Unneeded(BARRIER),
    "M3:acquire": Unneeded("its fields are stored after it, each by release"),
    "O1:release": Unneeded("the slot's DONE (C5) is stored after it, by release"),
    "O2:acquire": Unneeded("the slot's word (C5) was acquired before it"),
    "O5:release": Unneeded("the slot's DONE (C5) is stored after it, by release"),
    "P1:acquire": Unneeded(COUNTED),
    "P5:acquire": Unneeded(SEALED),
    "P5:release": Unneeded(SEALED),
    "P6:acquire": Unneeded("the CAS behind it decides; the sender loads the word again (P2)"),
    "P7:acquire": Unneeded("an empty slot goes back to its opener, which stored it"),
    "P7:release": Unneeded("an empty slot goes back to its opener, which stored it"),
    "T1:acquire": Unneeded(EARLIER),
    "W1:release": Unneeded(BARRIER),
    "W2:acquire": Unneeded("the pool lock is taken before anything else is read"),
    "X5:acquire": Unneeded(BARRIER),
    "X5:release": Unneeded(BARRIER),
}
