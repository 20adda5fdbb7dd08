# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.skew --replacements 1000``: processes of two builds replace each other on one arena."""

from __future__ import annotations

import argparse
import random
import tempfile
from itertools import product
from pathlib import Path

from shmaccum.arena import Arena
from tests.chaos.delays import LIMIT_NS
from tests.chaos.outcome import Plan
from tests.skew.builds import THIS, Build, later_build
from tests.skew.director import KINDS
from tests.skew.trial import Skew, run


def main() -> None:
    """Run a trial for each kind of senders and each build that may have made the arena."""
    parser = argparse.ArgumentParser(prog="python -m tests.skew", description=__doc__)
    parser.add_argument("--replacements", type=int, default=1000, help="of all trials together (default: 1000)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    chance = random.Random(arguments.seed)
    later = later_build()
    trials = list(product(KINDS, (THIS, later)))
    total = Skew()
    for number, (kind, creator) in enumerate(trials):
        share = max(arguments.replacements - total.replacement_count, 0) / (len(trials) - number)
        print(f"--- {kind}; the arena is made by {creator.name}", flush=True)
        skew = _run(kind, creator, Plan(0, chance.getrandbits(32), inside=False, kill_count=round(share)), later)
        print("\n".join(map(str, skew.outcomes)), skew, sep="\n", flush=True)
        skew.outcomes[0].delays.expect_within(LIMIT_NS)
        total.add(skew)
    print("--- all trials", total, sep="\n")


def _run(kind: str, creator: Build, plan: Plan, later: Build) -> Skew:
    name = f"shmaccum-test-skew-{plan.seed}"
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="shmaccum-test-skew-") as folder:
        try:
            return run(name, Path(folder), plan, kind, creator, later)
        finally:
            Arena.remove(name, missing_ok=True)


if __name__ == "__main__":
    main()
