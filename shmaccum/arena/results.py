# SPDX-License-Identifier: Apache-2.0
"""How a batch ended: the numbers that stand in the arena's ring of results (native/arena/completion.h)."""

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
