# SPDX-License-Identifier: Apache-2.0
"""Runs rounds of all kinds, and prints one line of figures: ``python -m tests.linear --seed 1 --minutes 10``.

``--made 10000000`` judges a generated history of so many operations instead, without the product.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.linear.director import KINDS_OF_ROUNDS, Outcome, Round
from tests.linear.made import measure

ROUND_S = 40.0


def main() -> int:
    """Return the exit code, which is 1 if a fault was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.linear", description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "little"))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--round-seconds", type=float, default=ROUND_S, help="injuries of a round")
    parser.add_argument("--kind", choices=KINDS_OF_ROUNDS, help="rounds of this kind alone")
    parser.add_argument("--keep", action="store_true", help="keep the files of rounds in which something was found")
    parser.add_argument("--made", type=int, help="judge a made history of so many operations instead")
    given = parser.parse_args()
    if given.made:
        with tempfile.TemporaryDirectory(prefix="linear-") as name:
            verdict, figures = measure(Path(name), given.made)
        print(figures, *verdict.descriptions, sep="\n")
        return 1 if verdict.counts else 0
    end_s = time.monotonic() + 60 * given.minutes
    total = Outcome()
    while total.rounds == 0 or time.monotonic() < end_s:
        kind = given.kind or KINDS_OF_ROUNDS[total.rounds % len(KINDS_OF_ROUNDS)]
        folder = Path(tempfile.mkdtemp(prefix="linear-"))
        seconds = min(given.round_seconds, max(end_s - time.monotonic(), 5.0))
        name = f"linear-{os.getpid()}-{total.rounds}"
        outcome = Round(folder, name, kind, seconds, f"{given.seed}/{total.rounds}").run()
        for line in outcome.lines():
            print(line, flush=True)
        if outcome.is_clean or not given.keep:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"the files are in {folder}", flush=True)
        total.add(outcome)
    print(f"seed {given.seed}: {total}", flush=True)
    return 0 if total.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
