# SPDX-License-Identifier: Apache-2.0
"""Cut the power of a disk repeatedly, and print one line of figures for each path and level.

    python -m tests.power                                       every path, with each of its levels
    python -m tests.power --paths arena-log overflow:sync --cuts 20 --seed 7

It needs root and a loop device. The exit code is 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys

from tests.power.disk import why_not
from tests.power.paths import TRIALS, each_trial, run_trial

CANNOT = 77
"""The exit code if no power can be cut here."""


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__.splitlines()[0])
    parser.add_argument("--paths", nargs="+", default=list(TRIALS), metavar="PATH[:LEVEL]", help=", ".join(TRIALS))
    parser.add_argument("--cuts", type=int, default=5, help="power cuts for each path and level")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    if strange := {name.partition(":")[0] for name in arguments.paths} - TRIALS.keys():
        parser.error(f"no path has the name {', '.join(sorted(strange))}: there are {', '.join(TRIALS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the disk is removed, too
    if (reason := why_not()) is not None:
        print(f"no power can be cut: {reason}", file=sys.stderr)
        return CANNOT
    print(f"seed {arguments.seed}", flush=True)
    is_good = True
    for kind, level in each_trial(arguments.paths):
        figures = run_trial(kind, level, arguments.cuts, arguments.seed)
        print(f"{kind.name:20} {level:18} {figures}", flush=True)
        is_good &= figures.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
