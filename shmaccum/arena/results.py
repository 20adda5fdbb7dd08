# SPDX-License-Identifier: Apache-2.0
"""How a batch or a transaction ended: numbers that stand in the arena.

Those of batches are in its ring of results (native/arena/completion.h), those of transactions in the transaction word
(native/arena/transaction.h).
"""

from __future__ import annotations

import enum

from shmaccum import _native


class BatchResult(enum.IntEnum):
    """How a batch ended."""

    SUCCEEDED = _native.RESULT_SUCCEEDED
    FAILED = _native.RESULT_FAILED
    EXPIRED = _native.RESULT_EXPIRED
    ABORTED = _native.RESULT_ABORTED
    CORRUPT = _native.RESULT_CORRUPT


class TransactionWhy(enum.IntEnum):
    """Why a transaction was not committed, as far as more than the words of the core depends on it."""

    NOT = 0
    """It was committed, or is not over."""
    FAILED_BATCH = _native.TRANSACTION_WHY_FAILED_BATCH
    """A batch of it was not delivered."""
    FENCED = _native.TRANSACTION_WHY_FENCED
    """Another producer has the transactional id, or the brokers aborted the transaction for its time."""
    REFUSED = _native.TRANSACTION_WHY_REFUSED
    """The sink refused it."""
    UNKNOWN = _native.TRANSACTION_WHY_UNKNOWN
    """The sink does not tell how it ended."""


FENCED_STANDING = 1 << 63
"""The bit of a standing that says: another producer has the transactional id (native/arena/transaction.h)."""
LOST_STANDING = 1 << 62
"""The bit of a standing that says: the host crashed, and the sink may have come further."""
