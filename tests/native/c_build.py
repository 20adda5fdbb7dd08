# SPDX-License-Identifier: Apache-2.0
"""Builds C test programs: the core without Python (base, format, shm) plus one test file, in several variants.

Objects are named by a hash of all that shapes them (source, headers, flags, compiler), so that they are built once,
are right for ever, and can be shared by parallel test workers; a lock file per output keeps two workers from building
the same one.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from setup import LANGUAGE_FLAGS, ROOT, WARNING_FLAGS, sanitize_flags

TESTS = ROOT / "tests" / "native"
CACHE = ROOT / "build" / "native-tests"
LAYERS = ("base", "format", "shm")
COMMON_FLAGS = (
    *LANGUAGE_FLAGS,
    *WARNING_FLAGS,
    f"-I{ROOT / 'native'}",
    f"-I{TESTS}",
    "-DSHMACCUM_POINTS",
)
TSAN_LINE = "/* runs under: tsan */"
RUN_SECONDS_MAX = 120


@dataclass(frozen=True)
class Variant:
    """One way to build and run a test program."""

    name: str
    flags: tuple[str, ...]
    sanitizers: str = ""


def _sanitized(name: str, sanitizers: str, check_level: int) -> Variant:
    return Variant(name, ("-O1", f"-DCHECK_LEVEL={check_level}", *sanitize_flags(sanitizers)), sanitizers)


PLAIN = Variant("plain", ("-O2",))
ASAN = _sanitized("asan", "address,undefined", check_level=2)
TSAN = _sanitized("tsan", "thread", check_level=1)


def variants_of(test: Path) -> list[Variant]:
    """Every test runs plain and under ASan+UBSan; under TSan those that say so in a line of their own."""
    runs_under_tsan = TSAN_LINE in test.read_text(encoding="utf-8").splitlines()
    return [PLAIN, ASAN, TSAN] if runs_under_tsan else [PLAIN, ASAN]


def compiler() -> list[str]:
    """The C compiler as the beginning of a command line."""
    return shlex.split(os.environ.get("CC", "gcc"))


def core_sources() -> list[Path]:
    """Every C file that compiles without Python.h."""
    return sorted(path for layer in LAYERS for path in (ROOT / "native" / layer).glob("**/*.c"))


@functools.cache
def _surroundings() -> bytes:
    """What every object depends on besides its own source and flags: the compiler and all headers."""
    headers = sorted([*(ROOT / "native").rglob("*.h"), *TESTS.rglob("*.h")])
    version = subprocess.run([*compiler(), "--version"], capture_output=True, check=True).stdout
    return version + b"".join(str(path.relative_to(ROOT)).encode() + path.read_bytes() for path in headers)


def _key(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class BuildError(Exception):
    """The compiler refused; the message is what it said."""


def _run_compiler(arguments: Iterable[str | Path], target: Path) -> None:
    """Makes `target` if it is not there yet, whole or not at all."""
    with _locked(target):
        if target.exists():
            return
        unfinished = target.with_suffix(".unfinished")
        command = [*compiler(), *map(str, arguments), "-o", str(unfinished)]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            raise BuildError(f"{shlex.join(command)}\n{result.stderr}")
        unfinished.rename(target)


def build_object(source: Path, variant: Variant) -> Path:
    """Compiles one file, or finds it compiled."""
    flags = (*COMMON_FLAGS, *variant.flags)
    key = _key([_surroundings(), " ".join(flags).encode(), source.read_bytes()])
    target = CACHE / variant.name / f"{source.parent.name}-{source.stem}-{key}.o"
    _run_compiler([*flags, "-c", source], target)
    return target


def build_program(test: Path, variant: Variant) -> Path:
    """Compiles a test file and links it with the core, or finds it built."""
    objects = [build_object(source, variant) for source in (test, *core_sources())]
    key = _key(path.name.encode() for path in objects)
    target = CACHE / variant.name / f"{test.parent.name}-{test.stem}-{key}"
    _run_compiler([*LANGUAGE_FLAGS, *variant.flags, *objects], target)
    return target


def _build_probe(variant: Variant) -> Path:
    source = CACHE / variant.name / "probe.c"
    with _locked(source):
        source.write_text("int main(void) { return 0; }\n", encoding="ascii")
    target = source.with_name(f"probe-{_key([_surroundings()])}")
    _run_compiler([*variant.flags, source], target)
    return target


@functools.cache
def runner(variant: Variant) -> list[str] | None:
    """What to put before a program of this variant; None where its sanitizers are missing or cannot run.

    Sanitizers want their shadow memory at fixed addresses, which the kernel's address randomization may take first;
    `setarch -R` switches that off. Where a container forbids it, the program must do without.
    """
    if not variant.sanitizers:
        return []
    try:
        probe = _build_probe(variant)
    except BuildError:
        return None
    prefixes = [["setarch", "-R"], []] if shutil.which("setarch") else [[]]
    runs = (prefix for prefix in prefixes if subprocess.run([*prefix, probe], capture_output=True).returncode == 0)
    return next(runs, None)
