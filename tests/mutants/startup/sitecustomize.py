# SPDX-License-Identifier: Apache-2.0
"""Each Python process of a run of mutants records its lines at its start, or takes the mutant for its module.

This folder is at the head of PYTHONPATH. Both variables are inherited, so children have the same mutant as the test.
"""

from __future__ import annotations

import os

if "SHMACCUM_RECORD_LINES" in os.environ:
    from tests.mutants.recording import record

    record()
if "SHMACCUM_MUTANT" in os.environ:
    from tests.mutants.loading import install

    install(os.environ["SHMACCUM_MUTANT"])
