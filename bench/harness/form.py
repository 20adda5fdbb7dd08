# SPDX-License-Identifier: Apache-2.0
"""The normal and the short form of a question whose jobs must be long for steady figures.

``python -m bench --short`` uses the short form. Its figures are a preview, and not for ``bench/results``.
"""

from __future__ import annotations

import os

VARIABLE = "SHMACCUM_BENCH_SHORT"
SHORT = 0.1
"""The length of a job in the short form, as a fraction of the normal one."""


def job_seconds(normal: float) -> float:
    """Return the length of a job in the selected form."""
    return normal * SHORT if os.environ.get(VARIABLE) else normal
