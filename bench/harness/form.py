# SPDX-License-Identifier: Apache-2.0
"""The two forms of a question whose jobs have to be long to be steady: the normal one, and a short one for a busy hour.

``python -m bench --short`` asks in the short form. Its figures are for a look, and not for ``bench/results``.
"""

from __future__ import annotations

import os

VARIABLE = "SHMACCUM_BENCH_SHORT"
SHORT = 0.1
"""The length of a job in the short form, as a part of the normal one."""


def job_seconds(normal: float) -> float:
    """The length of a job in the form that was asked for."""
    return normal * SHORT if os.environ.get(VARIABLE) else normal
