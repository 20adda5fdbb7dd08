# SPDX-License-Identifier: Apache-2.0
"""Explore the models of the orders of atomics, and print a line for each.

    python -m tests.ordering                      every model, with at most 5 preemptions
    python -m tests.ordering --weaken             weakens each order in turn, and prints which models break
    python -m tests.ordering --weaken pool ring   the same, only in these models

The exit code is 1 if a model is broken, or if an order that no model needs is not listed in unneeded.csv.
"""

from __future__ import annotations

import argparse
import sys

from tests.ordering import explorer
from tests.ordering.unneeded import UNNEEDED

CANNOT = 77
"""The exit code if the models cannot be built here."""


def weaken(models: list[str], preemptions: int) -> bool:
    """Weaken each order in turn. Return True if each one breaks a model or is listed."""
    breaking: dict[str, list[str]] = {}
    for each in explorer.weaken_each(preemptions, models):
        breaking.setdefault(each.half, [])
        if each.problem:
            breaking[each.half].append(each.model)
    for half, names in sorted(breaking.items()):
        reason = UNNEEDED[half].reason if half in UNNEEDED else "NOT LISTED"
        print(f"{half:12} {'breaks ' + ', '.join(names) if names else 'needed by no model: ' + reason}")
    return all(names or half in UNNEEDED for half, names in breaking.items())


def hold(models: list[str], preemptions: int) -> bool:
    """Explore the models. Return True if all hold."""
    is_good = True
    for model in models or explorer.models():
        outcome = explorer.explore(model, preemptions)
        is_good &= outcome.problem is None
        print(f"{model:16} {outcome.executions:9,} executions, {outcome.problem or 'holds'}", flush=True)
    return is_good


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.ordering", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL")
    parser.add_argument("--weaken", action="store_true", help="weaken each order in turn")
    parser.add_argument("--preemptions", type=int, help="the maximum number in an execution")
    arguments = parser.parse_args()
    if (reason := explorer.why_not()) is not None:
        print(reason, file=sys.stderr)
        return CANNOT
    if strange := set(arguments.models) - set(explorer.models()):
        parser.error(f"there is no model {', '.join(sorted(strange))}: there are {', '.join(explorer.models())}")
    if arguments.weaken:
        is_good = weaken(arguments.models, arguments.preemptions or explorer.SHORT_PREEMPTIONS)
    else:
        is_good = hold(arguments.models, arguments.preemptions or explorer.FULL_PREEMPTIONS)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
