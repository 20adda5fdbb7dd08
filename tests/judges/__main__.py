# SPDX-License-Identifier: Apache-2.0
"""``make judges SOURCES=DIR`` runs other projects' tests on a served log and checks the table of exemptions.

    python -m tests.judges DIR                    every suite in DIR
    python -m tests.judges DIR --only librdkafka  one suite

Each suite gets a server of its own. The output of the server and the report of the suite stay in build/judges. An
interrupted run leaves no process. The next run removes its files. If an outcome differs from the table or a suite
is missing, the exit code is 1.
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
    """Runs one suite and prints a summary. Returns True if every outcome matches the table."""
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
