# SPDX-License-Identifier: Apache-2.0
"""The seed of a random test."""

from __future__ import annotations

import os
import random


def new_seed() -> int:
    """Prints and returns a random seed, or the one in SHMACCUM_SEED, which repeats a run."""
    seed = int(os.environ.get("SHMACCUM_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SHMACCUM_SEED={seed}", flush=True)
    return seed
