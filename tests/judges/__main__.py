# SPDX-License-Identifier: Apache-2.0
"""``make judges SOURCES=DIR``: other people's tests, run on a served log and held against the table of exemptions.

    python -m tests.judges DIR                    every suite that is there
    python -m tests.judges DIR --only librdkafka  one of them

Each suite gets a server of its own. The output of the server and the report of the suite stay in build/judges. A run
that is interrupted leaves no process, and leaves its files there, where the next run removes them. The exit code is 1
when a test's outcome is not as the table says, or when a suite is missing.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

from setup import ROOT
from tests.judges.judged import server
from tests.judges.outcomes import differences, read_table
from tests.judges.suites import SUITES, Suite, version_problem

PLACE = ROOT / "build" / "judges"


def judge(suite: Suite, sources: Path) -> bool:
    """Runs one suite and says how it went; True when every outcome is as the table says."""
    needed = sources / suite.needs
    if not needed.exists():
        print(f"{suite.name}: there is no {needed}")
        return False
    if (problem := version_problem(suite, sources)) is not None:
        print(f"{suite.name}: {problem}")
        return False
    told = PLACE / f"{suite.name}-server.log"
    with server(PLACE / f"{suite.name}-log", told, f"-Xpartitions={suite.partitions}") as address:
        outcomes = suite.run(needed, address, PLACE)
    counts = Counter(outcome.value for outcome in outcomes.values())
    print(f"{suite.name}: " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items())))
    wrong = list(differences(suite.name, outcomes, read_table()))
    print("".join(f"  {sentence}\n" for sentence in wrong), end="")
    return bool(outcomes) and not wrong


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.judges", description=__doc__.splitlines()[0])
    parser.add_argument("sources", type=Path, help="the folder of the suites")
    parser.add_argument("--only", action="append", choices=[suite.name for suite in SUITES], help="run this suite")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    chosen = [suite for suite in SUITES if not arguments.only or suite.name in arguments.only]
    results = [judge(suite, arguments.sources.resolve()) for suite in chosen]
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
