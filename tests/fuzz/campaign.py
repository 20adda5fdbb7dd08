# SPDX-License-Identifier: Apache-2.0
"""``make fuzz`` runs the targets under libFuzzer (clang), one after another, and prints the number of covered edges.

The last target is ``frames``: requests with faults under a server, without clang (`frames_campaign`).

    python -m tests.fuzz.campaign                     every target for a minute
    python -m tests.fuzz.campaign --seconds 600 arena
    python -m tests.fuzz.campaign --keep              afterwards, store the smallest set of inputs that covers as much

New inputs stay in build/fuzz/NAME. An input that makes the target fail ends the campaign, which prints its path. Run
build/fuzz/NAME_fuzz with that path to repeat the failure. After the fix, put the input into the folder of inputs before
the next ``--keep``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from setup import LANGUAGE_FLAGS, ROOT, sanitize_flags
from tests.fuzz import frames_campaign, targets
from tests.native.c_build import TESTS, layer_sources

PLACE = ROOT / "build" / "fuzz"
# The mutators know the format, so libFuzzer need not trace comparisons. This doubles the speed.
COVERAGE_FLAGS = ("-fsanitize-coverage=inline-8bit-counters,pc-table", "-fno-sanitize-coverage=trace-cmp")
HANG_SECONDS = 20
INPUT_SIZE_MAX = 1024  # as in fuzzing.h
KEPT_BYTES_MAX = 60_000


@dataclass(frozen=True)
class Outcome:
    """The result of one run of a target."""

    input_count: int
    covered_edge_count: int
    found: Path | None
    log: str


def build(name: str) -> Path:
    """Build the target with libFuzzer, and return its path."""
    PLACE.mkdir(parents=True, exist_ok=True)
    program = PLACE / f"{name}_fuzz"
    parts = targets.parts_of(name)
    flags = [*LANGUAGE_FLAGS, "-O2", *sanitize_flags("fuzzer,address,undefined"), *COVERAGE_FLAGS, "-DCHECK_LEVEL=1"]
    places = ["-DSHMACCUM_POINTS", f"-I{ROOT / 'native'}", f"-I{TESTS}", *parts.flags]
    layers = [source for layer in parts.layers for source in layer_sources(layer)]
    sources = [targets.source_of(name), *parts.sources, *layers, *parts.libraries]
    command = [os.environ.get("FUZZ_CC", "clang"), *flags, *places, *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def folder(name: str) -> Path:
    """Return the folder of the target's inputs, which include the stored ones."""
    place = PLACE / name
    place.mkdir(parents=True, exist_ok=True)
    for each in targets.unpack(targets.corpus_read(name)):
        (place / hashlib.sha1(each, usedforsecurity=False).hexdigest()).write_bytes(each)
    return place


def last_number(pattern: str, log: str) -> int:
    found = re.findall(pattern, log)
    return int(found[-1]) if found else 0


def run(name: str, program: Path, *arguments: str) -> Outcome:
    found = PLACE / "found" / f"{name}-"
    found.parent.mkdir(exist_ok=True)
    before = set(found.parent.iterdir())
    command = [str(program), f"-artifact_prefix={found}", "-print_final_stats=1", f"-max_len={INPUT_SIZE_MAX}"]
    environment = {**os.environ, "ASAN_OPTIONS": "malloc_context_size=4"}
    ended = subprocess.run(
        [*command, f"-timeout={HANG_SECONDS}", *arguments],
        stderr=subprocess.PIPE, text=True, errors="replace", env=environment,
    )  # fmt: skip
    new = sorted(set(found.parent.iterdir()) - before)
    count = last_number(r"number_of_executed_units: (\d+)", ended.stderr)
    outcome = Outcome(count, last_number(r"cov: (\d+)", ended.stderr), new[0] if new else None, ended.stderr)
    if ended.returncode != 0 and outcome.found is None:
        raise RuntimeError(f"{name}_fuzz ended with {ended.returncode}\n{ended.stderr[-4000:]}")
    return outcome


def explore(name: str, seconds: int) -> bool:
    """Fuzz one target. Return True if no input made it fail."""
    if name == frames_campaign.NAME:
        return frames_campaign.explore(seconds)
    if (lack := targets.lack_of(name)) is not None:
        print(f"{name}: left out: {lack}")
        return True
    outcome = run(name, build(name), f"-max_total_time={seconds}", str(folder(name)))
    print(f"{name}: {outcome.input_count:,} inputs, {outcome.covered_edge_count} edges covered", flush=True)
    if outcome.found is not None:
        print(f"{outcome.log[-6000:]}\nnot survived: {outcome.found}")
    return outcome.found is None


def keep(name: str) -> None:
    """Store the smallest set of inputs that covers as much as the folder does, without large inputs."""
    smallest = PLACE / f"{name}-smallest"
    shutil.rmtree(smallest, ignore_errors=True)
    smallest.mkdir()
    run(name, PLACE / f"{name}_fuzz", "-merge=1", str(smallest), str(folder(name)))
    inputs = sorted((path.read_bytes() for path in smallest.iterdir()), key=len)
    kept: list[bytes] = []
    for each in inputs:
        if sum(map(len, kept)) + len(each) <= KEPT_BYTES_MAX:
            kept.append(each)
    targets.corpus_write(name, kept)
    print(f"{name}: kept {len(kept)} of {len(inputs)} inputs, {targets.corpus_path(name).stat().st_size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[*targets.NAMES, frames_campaign.NAME], metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--keep", action="store_true", help="rewrite the corpora of the project")
    given = parser.parse_args()
    for name in given.names:
        if not explore(name, given.seconds):
            return 1
        if given.keep and name in targets.NAMES:
            keep(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
