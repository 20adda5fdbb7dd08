# SPDX-License-Identifier: Apache-2.0
"""The normal and the short form of a question. Its jobs must be long, so that the figures of its rounds differ little.

``python -m bench --short`` uses the short form. Its figures are a preview. They do not belong in ``bench/results``.
``--megabytes`` sets the amount of data of the questions that store much of it.
"""

from __future__ import annotations

import os

VARIABLE = "SHMACCUM_BENCH_SHORT"
SIZE_VARIABLE = "SHMACCUM_BENCH_MEGABYTES"
SHORT = 0.1
"""The length of a job in the short form, as a fraction of the normal one."""


def job_seconds(normal: float) -> float:
    """Return the length of a job in the selected form."""
    return normal * SHORT if os.environ.get(VARIABLE) else normal


def data_size(normal: int, short: int) -> int:
    """Return the bytes of data in the selected form, or those that ``--megabytes`` gives."""
    given = os.environ.get(SIZE_VARIABLE)
    return int(given) * 1_000_000 if given else short if os.environ.get(VARIABLE) else normal
