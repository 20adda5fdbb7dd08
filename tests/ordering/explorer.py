# SPDX-License-Identifier: Apache-2.0
"""Build the models in ``src`` with cargo, and explore them with loom. An order may be weakened."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MANIFEST = HERE / "Cargo.toml"
TARGET = HERE.parents[1] / "build" / "ordering"
SECONDS_MAX = 1800
RUST_MIN = (1, 78)
SHORT_PREEMPTIONS = 3
FULL_PREEMPTIONS = 5
FINDINGS = ("broken: ", "Causality violation: ")
"""The beginnings of a panic for a wrong order, raised by a model or by loom. Any other panic is a mistake in a
model.
"""


@dataclass(frozen=True)
class Outcome:
    """The result of the exploration of a model."""

    executions: int
    halves: frozenset[str]
    problem: str | None


@dataclass(frozen=True)
class Weakening:
    """One order of one model that was weakened."""

    model: str
    half: str
    problem: str | None


def why_not() -> str | None:
    """Return the reason why the models cannot be built here, or None."""
    if shutil.which("cargo") is None:
        return f"cargo is missing: install Rust {RUST_MIN[0]}.{RUST_MIN[1]} or later (the package cargo, or rustup)"
    found = subprocess.run(["cargo", "--version"], check=False, capture_output=True, text=True)
    if found.returncode != 0:  # rustup is installed, but no toolchain
        return f"cargo does not run: {(found.stderr or 'it says nothing').splitlines()[0]}"
    version = found.stdout.split()[1]
    if tuple(map(int, version.split(".")[:2])) < RUST_MIN:
        return f"cargo is {version}: install Rust {RUST_MIN[0]}.{RUST_MIN[1]} or later (rustup)"
    if cargo("fetch").returncode != 0:
        return f"loom cannot be fetched: run cargo fetch --locked --manifest-path {MANIFEST} once, with a network"
    return None


def cargo(*command: str) -> subprocess.CompletedProcess[str]:
    """Return a command of cargo on the models. It uses the network only for crates that are missing."""
    environment = {**os.environ, "CARGO_TARGET_DIR": str(TARGET)}
    full = ["cargo", *command, "--locked", "--manifest-path", str(MANIFEST)]
    return subprocess.run(full, env=environment, check=False, capture_output=True, text=True)


@functools.cache
def program() -> Path:
    """Build the program that explores a model, and return its path."""
    if (built := cargo("build", "--release")).returncode != 0:
        raise RuntimeError(built.stderr)
    return TARGET / "release" / "ordering"


def models() -> list[str]:
    """The names of the models."""
    return subprocess.run([program()], check=True, capture_output=True, text=True).stdout.split()


def explore(model: str, preemptions: int, weakened: Iterable[str] = ()) -> Outcome:
    """Explore every execution with at most this many preemptions. The halves of labels in `weakened` are relaxed."""
    command = [str(program()), model, str(preemptions), *filter(None, ["+".join(weakened)])]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS_MAX)
    facts = [line.partition(" ") for line in ran.stdout.splitlines()]
    problems = [value for name, _, value in facts if name == "panic"]
    if ran.returncode not in (0, 1) or any(not problem.startswith(FINDINGS) for problem in problems):
        raise RuntimeError(f"{' '.join(command)} ended with {ran.returncode}: {problems} {ran.stderr}")
    return Outcome(
        executions=next(int(value) for name, _, value in facts if name == "executions"),
        halves=frozenset(value for name, _, value in facts if name == "label"),
        problem=problems[0] if problems else None,
    )


def weaken_each(preemptions: int, only: Iterable[str] = ()) -> Iterator[Weakening]:
    """Weaken each half of each label in each model, one at a time."""
    chosen = list(only) or models()
    tasks = [(model, half) for model in chosen for half in sorted(explore(model, 1).halves)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(lambda task: explore(task[0], preemptions, [task[1]]), tasks)
        for (model, half), outcome in zip(tasks, outcomes, strict=True):
            yield Weakening(model, half, outcome.problem)
