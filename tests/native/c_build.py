# SPDX-License-Identifier: Apache-2.0
"""Build C test programs in several variants. A program has one test file, its folder of native/, and lower folders.

The core is built as a library per folder, so that a test of a lower folder proves that this folder does not depend on
higher ones. A test that includes a header of ``core`` uses the whole core.

Objects are named by a hash of their inputs (source and its path, headers, flags, compiler), so that they are built
once, never become stale, and can be shared by parallel test workers. A lock file per output prevents two workers from
building the same one.

``python -m tests.native.c_build tests/native/FOLDER/NAME_test.c`` builds one program for a debugger and
prints its path.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import random
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from setup import LANGUAGE_FLAGS, ROOT, WARNING_FLAGS, sanitize_flags

TESTS = ROOT / "tests" / "native"
CACHE = ROOT / "build" / "native-tests"
LAYERS = ("base", "format", "broker", "log", "arena", "producer", "sender")
BELOW = ("arena", "format", "base")
WHOLE_CORE = ("sender", "producer", "log", "broker", *BELOW)
LAYERS_OF_TESTS = {
    "base": ("base",),
    "format": ("format", "base"),
    "log": ("log", "format", "base"),
    "broker": ("broker", "format", "base"),
    "arena": BELOW,
    "producer": ("producer", *BELOW),
    "sender": ("sender", "log", "broker", *BELOW),
    "core": WHOLE_CORE,
}
CORE_INCLUDE = '#include "core/'
COMMON_FLAGS = (
    *LANGUAGE_FLAGS,
    *WARNING_FLAGS,
    f"-I{ROOT / 'native'}",
    f"-I{TESTS}",
    "-DSHMACCUM_POINTS",
)
# Symbols are bound before main: where instructions are counted, a first call must not be longer than the next one.
LINK_FLAGS = ("-Wl,-z,now",)
TSAN_LINE = "/* runs under: tsan */"
RUN_SECONDS_MAX = 600
BUILD_AND_RUN_SECONDS_MAX = 720
"""It is longer than a program's own limit, whose message has more details. It suffices to build the core on a busy
machine.
"""


class BuildError(Exception):
    """A program cannot be built. The message is the output of the compiler."""


@dataclass(frozen=True)
class Variant:
    """One way to build and run a test program."""

    name: str
    flags: tuple[str, ...]
    sanitizers: str = ""


def _sanitized(name: str, optimization: str, sanitizers: str, check_level: int) -> Variant:
    """Return a variant with sanitizers. Its reports name functions and lines (-g1); a compilation with -g takes a
    quarter longer.
    """
    flags = (optimization, f"-DCHECK_LEVEL={check_level}", *sanitize_flags(sanitizers), "-g1")
    return Variant(name, flags, sanitizers)


PLAIN = Variant("plain", ("-O2",))
DEBUG = Variant("debug", ("-O0", "-g", "-DCHECK_LEVEL=2"))
"""The variant for a debugger or valgrind, with symbols and every check, and without optimization."""
ASAN = _sanitized("asan", "-O0", "address,undefined", check_level=2)
"""It is not optimized, because it is then built in half the time, and a program runs for only a fraction of a
second.
"""
TSAN = _sanitized("tsan", "-O1", "thread", check_level=1)


def variants_of(test: Path) -> list[Variant]:
    """Return the variants of a test: plain, ASan with UBSan, and TSan if the test has a line `TSAN_LINE`."""
    runs_under_tsan = TSAN_LINE in test.read_text(encoding="utf-8").splitlines()
    return [PLAIN, ASAN, TSAN] if runs_under_tsan else [PLAIN, ASAN]


def compiler() -> list[str]:
    """Return the beginning of a command line with the C compiler."""
    return shlex.split(os.environ.get("CC", "gcc"))


def layers_of(test: Path) -> tuple[str, ...]:
    """Return the folders of native/ that a test may use, the highest first: the one of its name, and lower ones."""
    own = test.parent.name
    if own not in LAYERS_OF_TESTS:
        folders = ", ".join(LAYERS_OF_TESTS)
        raise BuildError(f"{test} is in none of the folders {folders}: move it into a folder of that name")
    uses_core = test.exists() and CORE_INCLUDE in test.read_text(encoding="utf-8")
    return WHOLE_CORE if uses_core else LAYERS_OF_TESTS[own]


def layer_sources(layer: str) -> list[Path]:
    """Return every C file of a folder of native/."""
    return sorted((ROOT / "native" / layer).glob("**/*.c"))


@functools.cache
def _surroundings() -> bytes:
    """Return the bytes on which every object depends, besides its source and flags: the compiler and all headers."""
    headers = sorted([*(ROOT / "native").rglob("*.h"), *(ROOT / "tests").rglob("*.h")])
    version = subprocess.run([*compiler(), "--version"], capture_output=True, check=True).stdout
    return version + b"".join(str(path.relative_to(ROOT)).encode() + path.read_bytes() for path in headers)


def _key(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()[:16]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    folder = path.parent / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / path.name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def check_syntax(source: Path, flags: Iterable[str] = ()) -> None:
    """Compile a C file or a header, and write no output.

    Raises:
        BuildError: it does not compile.
    """
    command = [*compiler(), *COMMON_FLAGS, *flags, "-fsyntax-only", "-Wno-unused-function", "-x", "c", str(source)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise BuildError(f"{shlex.join(command)}\n{result.stderr}")


def _make(target: Path, command: list[str], inputs: Iterable[Path]) -> Path:
    """Run `command target inputs` unless the target exists. The target appears completely or not at all."""
    with _locked(target):
        if not target.exists():
            unfinished = target.with_name(f"{target.name}.unfinished")
            unfinished.unlink(missing_ok=True)
            whole_command = [*command, str(unfinished), *map(str, inputs)]
            result = subprocess.run(whole_command, capture_output=True, text=True)
            if result.returncode != 0:
                raise BuildError(f"{shlex.join(whole_command)}\n{result.stderr}")
            unfinished.rename(target)
    return target


def write_whole(source: Path, text: str) -> None:
    """Write a source. It appears completely, because other workers may write and compile it at the same time."""
    source.parent.mkdir(parents=True, exist_ok=True)
    unfinished = source.with_name(f"{source.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.rename(source)


def build_object(source: Path, variant: Variant) -> Path:
    """Compile one file, unless its object exists. A test file is not optimized, so that it compiles in a third of the
    time.
    """
    flags = [*COMMON_FLAGS, *variant.flags, *(["-O0"] if source.name.endswith("_test.c") else [])]
    key = _key([_surroundings(), " ".join(flags).encode(), str(source).encode(), source.read_bytes()])
    target = CACHE / variant.name / f"{source.parent.name}-{source.stem}-{key}.o"
    return _make(target, [*compiler(), *flags, "-c", "-o"], [source])


def build_objects(sources: Sequence[Path], variant: Variant) -> list[Path]:
    """Compile files, unless their objects exist.

    The order is random: processes that need the same files at the same time compile different ones.
    """
    built = {source: build_object(source, variant) for source in random.sample(sources, len(sources))}
    return [built[source] for source in sources]


def build_library(layer: str, variant: Variant) -> Path:
    """Compile a folder of native/ into a static library, unless it exists."""
    objects = build_objects(layer_sources(layer), variant)
    key = _key(path.name.encode() for path in objects)
    return _make(CACHE / variant.name / f"{layer}-{key}.a", ["ar", "rcs"], objects)


def link(name: str, parts: Sequence[Path], variant: Variant) -> Path:
    """Link objects and libraries to a program, unless it exists."""
    flags = [*LANGUAGE_FLAGS, *variant.flags, *LINK_FLAGS]
    key = _key([" ".join(flags).encode(), *(path.name.encode() for path in parts)])
    return _make(CACHE / variant.name / f"{name}-{key}", [*compiler(), *flags, "-o"], parts)


def build_preloaded(source: Path) -> Path:
    """Compile a file into a library for LD_PRELOAD, unless it exists."""
    flags = [*LANGUAGE_FLAGS, *WARNING_FLAGS, "-O1", "-shared", "-fPIC", "-fvisibility=default"]
    key = _key([_surroundings(), " ".join(flags).encode(), source.read_bytes()])
    return _make(CACHE / "plain" / f"{source.stem}-{key}.so", [*compiler(), *flags, "-o"], [source])


def build_program(test: Path, variant: Variant) -> Path:
    """Compile a test file and link it with the folders that it uses, unless the program exists."""
    parts = [build_object(test, variant), *(build_library(layer, variant) for layer in layers_of(test))]
    return link(f"{test.parent.name}-{test.stem}", parts, variant)


def including(header: Path, sources: Iterable[Path]) -> list[Path]:
    """Return the sources that include the header, directly or through other headers."""
    command = [*compiler(), *COMMON_FLAGS, "-MM", *map(str, sources)]
    rules = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = rules.replace("\\\n", " ").splitlines()  # a rule is TARGET: SOURCE HEADER...
    read = [line.partition(":")[2].split() for line in lines]
    return [Path(source) for source, *headers in read if str(header) in headers]


def core_sources() -> list[Path]:
    """Return every C file of the core."""
    return [source for layer in LAYERS for source in layer_sources(layer)]


def build_tool(name: str, sources: Sequence[Path], variant: Variant, stand_ins: Mapping[Path, Path]) -> Path:
    """Compile files and link them with the whole core, unless the program exists.

    `stand_ins` maps files of the tool or the core to objects that are linked in their place.
    """
    ours = [source for source in [*sources, *core_sources()] if source not in stand_ins]
    return link(name, [*stand_ins.values(), *build_objects(ours, variant)], variant)


def _build_probe(variant: Variant) -> Path:
    source = CACHE / variant.name / "probe.c"
    write_whole(source, "int main(void) { return 0; }\n")
    target = source.with_name(f"probe-{_key([_surroundings()])}")
    return _make(target, [*compiler(), *variant.flags, "-o"], [source])


@functools.cache
def runner(variant: Variant) -> list[str] | None:
    """Return the command prefix of a program of this variant, or None if its sanitizers are missing or cannot run.

    Sanitizers need their shadow memory at fixed addresses, which the kernel's address randomization may take first.
    `setarch -R` disables that. If a container forbids it, the program runs without it.
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


def main(arguments: Sequence[str]) -> int:
    """Build the test program of a file for a debugger, and print its path. Return the exit code."""
    if len(arguments) != 1:
        print("usage: python -m tests.native.c_build tests/native/FOLDER/NAME_test.c", file=sys.stderr)
        return 2
    try:
        print(build_program(Path(arguments[0]).resolve(), DEBUG))
    except (BuildError, OSError) as error:
        print(f"{arguments[0]} cannot be built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
