# SPDX-License-Identifier: Apache-2.0
"""The recovery state of a protocol in 64 bits, for the next sender (native/arena/transaction.h).

::

    bits 63 fenced    62 lost       61..32 number      31..16 epoch      15..10 version
         9 needs_epoch    8 is_end_sent    7 is_confirmed    6 is_known      5..3 outcome      2..0 state

Rules
    One store writes all bits before the request is sent to a broker. 0 means that there is no state. The number is that
    of the arena's transaction, its lowest 30 bits. The arena stores the producer id separately, after these bits.
    Partitions and groups are not stored: a successor adds them again, and the coordinator ignores duplicates.

Deaths
    A sender may die after it has stored this word for the next transaction, and before it has stored the next producer
    id. If only the epoch changes, the epoch here is correct. If the producer id changes, too, the epoch here is lower
    than that of the arena. Then the successor does not know the new id, and requests another one.
"""

from __future__ import annotations

from typing import NamedTuple

from shmaccum.arena.results import FENCED_STATE, LOST_STATE
from shmaccum.sender.sinks.kafka.transaction.protocol import RecoveryState, State, TransactionOutcome

NUMBER_MASK = (1 << 30) - 1
NUMBER_SHIFT = 32
EPOCH_MASK = (1 << 16) - 1
EPOCH_SHIFT = 16
VERSION_MASK = (1 << 6) - 1
VERSION_SHIFT = 10
OUTCOME_MASK = 3
OUTCOME_SHIFT = 3
STATE_MASK = 7
STATES = frozenset(map(int, State))
IS_KNOWN, IS_CONFIRMED, IS_END_SENT, NEEDS_EPOCH = 1 << 6, 1 << 7, 1 << 8, 1 << 9


class StoredState(NamedTuple):
    """The recovery state of a protocol, and the transaction of the arena that it describes."""

    recovery_state: RecoveryState
    number: int = 0
    """The lowest bits of the transaction's number; 0 if there is none."""
    is_fenced: bool = False
    """Another producer has the transactional id."""


def pack(stored: StoredState) -> int:
    """Return the 64 bits; 0 for a producer without a producer id."""
    recovery_state = stored.recovery_state
    if recovery_state.state is State.NEW:
        return 0
    outcome = 0 if recovery_state.outcome is None else int(recovery_state.outcome)
    flags = (
        IS_KNOWN * recovery_state.is_known
        | IS_CONFIRMED * recovery_state.is_confirmed
        | IS_END_SENT * recovery_state.is_end_sent
        | NEEDS_EPOCH * recovery_state.needs_epoch
        | FENCED_STATE * stored.is_fenced
    )
    return (
        flags
        | (stored.number & NUMBER_MASK) << NUMBER_SHIFT
        | (recovery_state.producer_epoch & EPOCH_MASK) << EPOCH_SHIFT
        | min(recovery_state.version, VERSION_MASK) << VERSION_SHIFT
        | outcome << OUTCOME_SHIFT
        | recovery_state.state
    )


def unpack(word: int, producer_id: int, producer_epoch: int, newest: int) -> StoredState:
    """Return the recovery state that a former sender stored. Invalid bits are a lost state.

    Args:
        word: the 64 bits.
        producer_id: of the arena; -1 if it has none.
        producer_epoch: of the arena.
        newest: the number of the arena's newest transaction, to which a lost state is attributed.
    """
    number = word >> NUMBER_SHIFT & NUMBER_MASK
    outcome = word >> OUTCOME_SHIFT & OUTCOME_MASK
    epoch = word >> EPOCH_SHIFT & EPOCH_MASK
    recovery_state = RecoveryState(outcome=TransactionOutcome(outcome) if outcome else None)
    if word & LOST_STATE or word & STATE_MASK not in STATES:
        return StoredState(recovery_state._replace(outcome=TransactionOutcome.UNKNOWN), newest & NUMBER_MASK)
    is_fenced = bool(word & FENCED_STATE)
    if word & STATE_MASK == State.NEW or ((producer_id < 0 or epoch < producer_epoch) and not is_fenced):
        return StoredState(recovery_state, number)
    recovery_state = recovery_state._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        state=State(word & STATE_MASK),
        version=max(word >> VERSION_SHIFT & VERSION_MASK, 1),
        is_known=bool(word & IS_KNOWN),
        is_confirmed=bool(word & IS_CONFIRMED),
        is_end_sent=bool(word & IS_END_SENT),
        needs_epoch=bool(word & NEEDS_EPOCH),
    )
    return StoredState(recovery_state, number, is_fenced)
