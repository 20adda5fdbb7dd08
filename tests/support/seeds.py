# SPDX-License-Identifier: Apache-2.0
"""The seed of a random test."""

from __future__ import annotations

import os
import random


def new_seed() -> int:
    """Print and return a random seed. If SHMACCUM_SEED is set, it repeats a run."""
    seed = int(os.environ.get("SHMACCUM_SEED") or random.SystemRandom().getrandbits(32))
    print(f"SHMACCUM_SEED={seed}", flush=True)
    return seed
