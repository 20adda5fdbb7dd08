# SPDX-License-Identifier: Apache-2.0
"""Open the images that power cuts may leave, and print one line of figures for each scenario.

    python -m tests.power_images                                        every scenario
    python -m tests.power_images --images 10000 --seed 7
    python -m tests.power_images --scenarios log overflow:sync --images 500
    python -m tests.power_images --scenarios users damage --exhaustive
    python -m tests.power_images --without-syncs                        removes each sync in turn

The exit code is 1 if a promise was broken, or if a sync that `kept_syncs` does not list can be removed without a broken
promise.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from tests.power_images.checking import image_folder
from tests.power_images.recording import recorder
from tests.power_images.removal import are_all_shown_or_kept
from tests.power_images.scenario import Scenario
from tests.power_images.scenarios import each_scenario, scenario_named
from tests.power_images.trial import run_trial

RECORD = "record"


def main() -> int:
    """Run the command line."""
    if len(sys.argv) == 4 and sys.argv[1] == RECORD:
        scenario_named(sys.argv[2]).record(Path(sys.argv[3]))
        os._exit(0)  # as by a power cut
    parser = argparse.ArgumentParser(prog="python -m tests.power_images", description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", nargs="+", default=[""], metavar="SCENARIO[:LEVEL]")
    parser.add_argument("--images", type=int, default=10_000, help="of all scenarios together, at most")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    parser.add_argument("--without-syncs", action="store_true", help="remove each sync, until an image shows its lack")
    parser.add_argument("--exhaustive", action="store_true", help="open all images of each cut with few units")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    scenarios = list(each_scenario(arguments.scenarios))
    with image_folder() as folder:
        if arguments.without_syncs:
            return int(not are_all_shown_or_kept(scenarios, arguments.seed, folder))
        return int(not _are_all_good(scenarios, arguments, folder))


def _are_all_good(scenarios: Sequence[Scenario], arguments: argparse.Namespace, folder: Path) -> bool:
    is_good, count = True, 0
    for number, scenario in enumerate(scenarios):
        chance = random.Random(f"{arguments.seed} {scenario}")
        share = max(arguments.images - count, 0) // (len(scenarios) - number)
        figures = run_trial(scenario, share, chance, folder, is_exhaustive=arguments.exhaustive)
        count += figures.image_count
        print(f"{scenario!s:28} {figures}", flush=True)
        is_good &= figures.is_good
    print(f"{count:,} images of {len(scenarios)} scenarios")
    return is_good


def _boot_again() -> None:
    """Run this program again under the recorder, which gives it another boot id."""
    with tempfile.NamedTemporaryFile("w", suffix=".boot", delete=False) as boot:
        boot.write(f"{uuid.uuid4()}\n")
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "LD_PRELOAD": str(recorder()), "POWER_BOOT": boot.name}
    os.execv(sys.executable, [sys.executable, "-m", "tests.power_images", *sys.argv[1:]])


if __name__ == "__main__":
    if "POWER_BOOT" not in os.environ and "POWER_LOG" not in os.environ:
        _boot_again()
    try:
        code = main()
    finally:
        if boot_file := os.environ["POWER_BOOT"]:
            os.unlink(boot_file)
    sys.exit(code)
