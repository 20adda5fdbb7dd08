# SPDX-License-Identifier: Apache-2.0
"""The records of a refused batch that are to blame, and those that only lay beside them (KIP-467)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

MESSAGE_TOO_LARGE = 10
RECORD_ERRORS_MAX = 64
"""More than so many runs of good and bad records in one batch would push too much out of the ring of results."""


def blame_runs(record_count: int, record_errors: Iterable[int]) -> Iterator[tuple[int, bool]]:
    """(length, are they to blame) of the runs of records that share their fate."""
    blamed = set(record_errors)
    for is_blamed, run in itertools.groupby(range(record_count), blamed.__contains__):
        yield sum(1 for _ in run), is_blamed
