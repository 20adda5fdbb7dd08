# SPDX-License-Identifier: Apache-2.0
"""Build contenders in C with the whole core, and read their reports."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.question import Measurement
from setup import LANGUAGE_FLAGS, ROOT, python_header_flags

SOURCES = ROOT / "bench" / "native"
BUILD = ROOT / "build" / "bench"
BINDINGS = ROOT / "native" / "python"
RUN_SECONDS_MAX = 300


def native_program(name: str, extra: Sequence[str] = ()) -> Path:
    """Build ``bench/native/NAME.c`` and `extra` with the whole core, if a source is newer."""
    sources = [SOURCES / f"{stem}.c" for stem in (name, *extra)]
    core = [path for path in sorted((ROOT / "native").rglob("*.c")) if BINDINGS not in path.parents]
    headers = [*SOURCES.glob("*.h"), *(ROOT / "native").rglob("*.h")]
    target = BUILD / name
    newest = max(path.stat().st_mtime for path in (*sources, *core, *headers))
    if not target.exists() or target.stat().st_mtime < newest:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = ["gcc", *LANGUAGE_FLAGS, "-O2", f"-I{ROOT / 'native'}", f"-I{SOURCES}", "-o", str(target)]
        subprocess.run([*command, *map(str, sources), *map(str, core)], check=True)
    return target


def program_with_library(name: str, library: Path) -> Path:
    """Build ``bench/native/NAME.c``, which uses a shared library and not the core, if the source is newer."""
    source = SOURCES / f"{name}.c"
    target = BUILD / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = ["gcc", *LANGUAGE_FLAGS, "-O2", "-o", str(target), str(source), str(library)]
        subprocess.run([*command, f"-Wl,-rpath,{library.parent}"], check=True)
    return target


def native_extension(name: str) -> Any:
    """Build and import ``bench/native/NAME.c``, a Python extension that does not use the core."""
    source = SOURCES / f"{name}.c"
    target = BUILD / f"{name}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        BUILD.mkdir(parents=True, exist_ok=True)
        command = ["gcc", *python_header_flags(), *LANGUAGE_FLAGS, "-O2", "-shared", "-fPIC", "-o", str(target)]
        subprocess.run([*command, str(source)], check=True)
    specification = importlib.util.spec_from_file_location(name, target)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def run_program(program: Path, *arguments: str) -> Measurement:
    """Run a C benchmark and return the numbers in its line of JSON."""
    command = [str(program), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS_MAX)
    if result.returncode != 0:
        raise RuntimeError(f"{program.name} {' '.join(arguments)}: {result.stderr.strip()}")
    report = json.loads(result.stdout)
    return {name: float(value) for name, value in report.items() if isinstance(value, (int, float))}
