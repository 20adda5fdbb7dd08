# SPDX-License-Identifier: Apache-2.0
"""The standing of a protocol in 64 bits, for the sender that comes next (native/arena/transaction.h).

::

    bits 63 fenced    62 lost       61..32 number      31..16 epoch      15..10 version
         9 needs_epoch    8 is_end_sent    7 is_confirmed    6 is_known      5..3 outcome      2..0 state

Rules
    One store writes all of it, before a broker hears of the step. 0 says that nothing is kept. The number is that of
    the arena's transaction, its lowest 30 bits. The producer id is in the arena beside it, written behind this.
    Partitions and groups are not kept: a successor adds them again, and the coordinator has each once.

Deaths
    between this and the producer id of the next transaction: the epoch here is that of the next transaction. It is
    lower than the arena's only when the producer id is another one, too. Nobody knows that id then, so the successor
    asks for one.
"""

from __future__ import annotations

from typing import NamedTuple

from shmaccum.arena.results import FENCED_STANDING, LOST_STANDING
from shmaccum.sender.sinks.kafka.transaction.protocol import Standing, State, TransactionOutcome

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


class Kept(NamedTuple):
    """The standing of a protocol, and the transaction of the arena that it is about."""

    standing: Standing
    number: int = 0
    """The lowest bits of the transaction's number; 0: none."""
    is_fenced: bool = False
    """Another producer has the transactional id."""


def pack(kept: Kept) -> int:
    """The 64 bits; 0 for a producer that has no producer id yet."""
    standing = kept.standing
    if standing.state is State.NEW:
        return 0
    outcome = 0 if standing.outcome is None else int(standing.outcome)
    flags = (
        IS_KNOWN * standing.is_known
        | IS_CONFIRMED * standing.is_confirmed
        | IS_END_SENT * standing.is_end_sent
        | NEEDS_EPOCH * standing.needs_epoch
        | FENCED_STANDING * kept.is_fenced
    )
    return (
        flags
        | (kept.number & NUMBER_MASK) << NUMBER_SHIFT
        | (standing.producer_epoch & EPOCH_MASK) << EPOCH_SHIFT
        | min(standing.version, VERSION_MASK) << VERSION_SHIFT
        | outcome << OUTCOME_SHIFT
        | standing.state
    )


def unpack(word: int, producer_id: int, producer_epoch: int, newest: int) -> Kept:
    """The standing that a former sender kept. Any bits may come; those that make no sense are a lost standing.

    Args:
        word: the 64 bits.
        producer_id: of the arena; -1: it has none.
        producer_epoch: of the arena.
        newest: the number of the arena's newest transaction. A lost standing is taken to be about that.
    """
    number = word >> NUMBER_SHIFT & NUMBER_MASK
    outcome = word >> OUTCOME_SHIFT & OUTCOME_MASK
    epoch = word >> EPOCH_SHIFT & EPOCH_MASK
    standing = Standing(outcome=TransactionOutcome(outcome) if outcome else None)
    if word & LOST_STANDING or word & STATE_MASK not in STATES:
        return Kept(standing._replace(outcome=TransactionOutcome.UNKNOWN), newest & NUMBER_MASK)
    is_fenced = bool(word & FENCED_STANDING)
    if word & STATE_MASK == State.NEW or ((producer_id < 0 or epoch < producer_epoch) and not is_fenced):
        return Kept(standing, number)
    standing = standing._replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        state=State(word & STATE_MASK),
        version=max(word >> VERSION_SHIFT & VERSION_MASK, 1),
        is_known=bool(word & IS_KNOWN),
        is_confirmed=bool(word & IS_CONFIRMED),
        is_end_sent=bool(word & IS_END_SENT),
        needs_epoch=bool(word & NEEDS_EPOCH),
    )
    return Kept(standing, number, is_fenced)
