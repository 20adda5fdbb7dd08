# SPDX-License-Identifier: Apache-2.0
"""Divides a rejected batch into invalid records and unaffected ones (KIP-467)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

MESSAGE_TOO_LARGE = 10
RECORD_ERRORS_MAX = 64
"""A batch with more runs of valid and invalid records fails whole: each run displaces an older result."""


def error_runs(record_count: int, record_errors: Iterable[int]) -> Iterator[tuple[int, bool]]:
    """Yield (length, are the records invalid) for each run of records with the same outcome."""
    invalid = set(record_errors)
    for is_invalid, run in itertools.groupby(range(record_count), invalid.__contains__):
        yield sum(1 for _ in run), is_invalid
