# SPDX-License-Identifier: Apache-2.0
"""Runs rounds of all kinds, and prints the figures after each: ``python -m tests.linear --seed 1 --minutes 10``.

With ``--totals FILE``, the figures include those of earlier runs with the same file.
``--made 10000000`` instead judges a generated history of that many operations, and does not run the product.
"""

from __future__ import annotations

import argparse
import os
import pickle
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
    parser.add_argument("--made", type=int, help="judge a made history of this many operations instead")
    parser.add_argument("--totals", type=Path, help="a file with the figures so far, which are continued")
    given = parser.parse_args()
    if given.made:
        with tempfile.TemporaryDirectory(prefix="linear-") as name:
            verdict, figures = measure(Path(name), given.made)
        print(figures, *verdict.descriptions, sep="\n")
        return 1 if verdict.counts else 0
    total = _run(given, Outcome() if given.totals is None else _read_totals(given.totals))
    return 0 if total.is_clean else 1


def _run(given: argparse.Namespace, total: Outcome) -> Outcome:
    end_s, is_first = time.monotonic() + 60 * given.minutes, True
    while is_first or time.monotonic() < end_s:
        is_first = False
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
        if given.totals is not None:
            temporary = given.totals.with_suffix(".tmp")
            temporary.write_bytes(pickle.dumps(total))
            temporary.replace(given.totals)
    return total


def _read_totals(path: Path) -> Outcome:
    if not path.exists():
        return Outcome()
    total = pickle.loads(path.read_bytes())
    assert isinstance(total, Outcome)
    return total


if __name__ == "__main__":
    sys.exit(main())
