# SPDX-License-Identifier: Apache-2.0
"""What every benchmark shares: building C contenders, interleaved repetitions, medians and ratios, the machine.

A *question* is a module of this package with ``TITLE``, ``FIGURES``, ``PEER``, ``REPETITIONS`` and ``contenders()``.
Contenders run in turn, A B C A B C, so that a machine that slows down slows all of them; the figures are medians with
the range beside them, and what is quoted is the ratio to the peer in the same run.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from setup import LANGUAGE_FLAGS, ROOT

BUILD = ROOT / "build" / "bench"
RUN_SECONDS_MAX = 300

Measurement = dict[str, float]


@dataclass(frozen=True)
class Contender:
    """Something that can be measured: ``run`` answers named figures, all of the same work."""

    name: str
    run: Callable[[], Measurement]


@dataclass
class Result:
    """All measurements of one contender in one question."""

    contender: str
    measurements: list[Measurement] = field(default_factory=list)

    def values(self, figure: str) -> list[float]:
        """One figure in the order it was measured."""
        return [measurement[figure] for measurement in self.measurements]

    def median(self, figure: str) -> float:
        """The figure that is quoted."""
        return statistics.median(self.values(figure))


@dataclass(frozen=True)
class Figure:
    """A column of a question's table. ``ratio_is_better`` says which way a ratio to the peer should go."""

    name: str
    unit: str
    scale: float
    ratio_is_better: str  # "higher" or "lower"


def native_program(name: str, extra: Sequence[str] = ()) -> Path:
    """Builds ``bench/native/NAME.c`` (and EXTRA beside it) with the whole core, if anything changed since."""
    folder = ROOT / "bench" / "native"
    sources = [folder / f"{stem}.c" for stem in (name, *extra)]
    core = [path for layer in ("base", "format", "shm") for path in sorted((ROOT / "native" / layer).glob("*.c"))]
    headers = [*folder.glob("*.h"), *(ROOT / "native").rglob("*.h")]
    target = BUILD / name
    newest = max(path.stat().st_mtime for path in (*sources, *core, *headers))
    if not target.exists() or target.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = ["gcc", *LANGUAGE_FLAGS, "-O2", f"-I{ROOT / 'native'}", f"-I{folder}", "-o", str(target)]
        subprocess.run([*command, *map(str, sources), *map(str, core)], check=True)
    return target


def run_program(program: Path, *arguments: str) -> Measurement:
    """Runs a C benchmark and reads its line of JSON."""
    result = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX)
    if result.returncode != 0:
        raise RuntimeError(f"{program.name} {' '.join(arguments)}: {result.stderr.strip()}")
    report = json.loads(result.stdout)
    return {name: float(value) for name, value in report.items() if isinstance(value, (int, float))}


def measure(contenders: Iterable[Contender], repetitions: int) -> list[Result]:
    """One warm-up each, then REPETITIONS rounds of all contenders in turn."""
    contenders = list(contenders)
    results = [Result(contender.name) for contender in contenders]
    for contender in contenders:
        contender.run()
    for _ in range(repetitions):
        for contender, result in zip(contenders, results, strict=True):
            result.measurements.append(contender.run())
    return results


def ratio(result: Result, peer: Result, figure: str) -> float:
    """Median of the ratios round by round: what the machine did in a round it did to both."""
    pairs = zip(result.values(figure), peer.values(figure), strict=True)
    return statistics.median(mine / theirs for mine, theirs in pairs)


@cache
def machine() -> dict[str, str]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if "model name" in line), platform.machine())
    gcc = shutil.which("gcc")
    compiler = subprocess.run([gcc, "--version"], capture_output=True, text=True).stdout if gcc else "none"
    return {
        "cpu": cpu,
        "cores": str(os.cpu_count()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "compiler": compiler.partition("\n")[0],
    }


def table(title: str, results: Sequence[Result], figures: Sequence[Figure], peer: str) -> str:
    """The question's answer as text: medians, ranges, and the ratio to the peer."""
    peer_result = next(result for result in results if result.contender == peer)
    lines = [title, "-" * len(title)]
    width = max(len(result.contender) for result in results)
    for figure in figures:
        lines.append(f"{figure.name} ({figure.unit}; {figure.ratio_is_better} is better)")
        for result in results:
            values = [value * figure.scale for value in result.values(figure.name)]
            spread = f"{min(values):.2f} to {max(values):.2f}"
            times = ratio(result, peer_result, figure.name)
            lines.append(
                f"  {result.contender:<{width}}  {statistics.median(values):>10.2f}   ({spread})   {times:.2f} x {peer}"
            )
    return "\n".join(lines)


def write_lines(path: Path, question: str, results: Sequence[Result]) -> None:
    """Appends every single measurement as a line of JSON, with the machine it was made on."""
    with path.open("a", encoding="utf-8") as file:
        for result in results:
            for measurement in result.measurements:
                line = {"question": question, "contender": result.contender, **measurement, "machine": machine()}
                file.write(json.dumps(line) + "\n")


def note(text: str) -> None:
    """Progress, beside the answers."""
    print(text, file=sys.stderr, flush=True)
