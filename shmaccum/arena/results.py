# SPDX-License-Identifier: Apache-2.0
"""The outcomes of batches and transactions, as numbers in the arena.

The outcomes of batches are in its completions (native/arena/completion.h), and those of transactions in the
transaction word (native/arena/transaction.h).
"""

from __future__ import annotations

import enum

from shmaccum import _native


class BatchResult(enum.IntEnum):
    """The outcome of a batch."""

    SUCCEEDED = _native.RESULT_SUCCEEDED
    FAILED = _native.RESULT_FAILED
    EXPIRED = _native.RESULT_EXPIRED
    ABORTED = _native.RESULT_ABORTED
    CORRUPT = _native.RESULT_CORRUPT


class TransactionReason(enum.IntEnum):
    """Why a transaction was not committed, as far as the code distinguishes reasons."""

    NOT = 0
    """It was committed, or is not over."""
    FAILED_BATCH = _native.TRANSACTION_WHY_FAILED_BATCH
    """A batch of it was not delivered."""
    FENCED = _native.TRANSACTION_WHY_FENCED
    """Another producer has the transactional id, or the brokers aborted the transaction after a timeout."""
    REFUSED = _native.TRANSACTION_WHY_REFUSED
    """The sink rejected it."""
    UNKNOWN = _native.TRANSACTION_WHY_UNKNOWN
    """The sink does not report the outcome."""


FENCED_STATE = 1 << 63
"""This bit of a recovery state means that another producer has the transactional id (native/arena/transaction.h)."""
LOST_STATE = 1 << 62
"""This bit of a recovery state means that the host crashed, and the sink may be ahead."""
