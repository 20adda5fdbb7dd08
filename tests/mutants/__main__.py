# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.mutants --seed 1 --count 400``: how many mutants of the Python half the tests notice.

The first run executes the tests once, to record which lines each of them executes. Later runs use this record, unless
--folder is another one. The folder also stores the verdicts, so the same command continues an interrupted run: a
recording from its next file of tests, and the verdicts from the next mutant. ``equivalent.csv`` lists mutants that
change no behaviour, with the reason. They are reported, but no test runs with them and no share counts them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from setup import ROOT
from shmaccum.common import clock
from tests.mutants.campaign import (
    EQUIVALENT,
    KILLED,
    PACKAGES,
    SURVIVED,
    UNTESTED,
    Results,
    draw,
    run,
    run_tests,
    table,
)
from tests.mutants.equivalents import EQUIVALENTS, changes
from tests.mutants.line_map import LineMap, environment, record_lines
from tests.mutants.operators import Site

TESTS = ("tests/unit", "tests/contract", "tests/integration", "tests/kafka", "tests/architecture/test_generated.py")


def main() -> None:
    """Prints each verdict, the survivors and the shares."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    parser.add_argument("--count", type=int, default=400, help="of mutants")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="no file of tests and no mutant begins after them"
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--package", nargs="*", default=PACKAGES)
    parser.add_argument(
        "--tests", nargs="*", default=TESTS, help="files and folders to record, if the folder has no record yet"
    )
    parser.add_argument("--check", action="store_true", help="run the tests that noticed mutants once without a mutant")
    given = parser.parse_args()
    os.nice(10)
    end_s = clock.monotonic() + 60 * given.minutes
    if not record_lines(given.folder, given.tests, end_s):
        print("The recording is not complete. Run the command again to continue it.")
        return
    results = Results(given.folder / f"seed-{given.seed}.csv")
    drawn = draw(given.seed, given.count, given.package)
    for verdict in run(drawn, LineMap.load(given.folder), results, end_s):
        print(f"{verdict.outcome:10} {verdict.path}:{verdict.line} {verdict.operator} {verdict.killer}", flush=True)
    verdicts = results.load()
    print(f"\nseed {given.seed}; not noticed:")
    for each in sorted(verdicts, key=lambda each: (each.outcome, each.path, each.line)):
        if each.outcome in (SURVIVED, UNTESTED, EQUIVALENT):
            found = changes(each.path, (ROOT / each.path).read_text())
            change = found[Site(each.path, each.line, each.node_index, each.operator)]
            print(f"{each.outcome:10} {each.path}:{each.line} ({each.test_count} tests) {change.function}")
            print(f"{'':10} {EQUIVALENTS.get(change) or change.change}")
    print(table(verdicts))
    if given.check:
        killers = sorted({each.killer for each in verdicts if each.outcome == KILLED})
        print("without a mutant:", *run_tests(killers, 600 + 60 * len(killers), environment()))


if __name__ == "__main__":
    main()
