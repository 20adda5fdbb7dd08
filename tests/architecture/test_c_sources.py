# SPDX-License-Identifier: Apache-2.0
"""Every C file of tests and bench compiles with the headers of native/."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup import ROOT, python_header_flags
from tests.fuzz import targets
from tests.native import c_build

SOURCES = sorted(source for folder in ("tests", "bench") for source in (ROOT / folder).rglob("*.c"))


def flags_of(source: Path) -> list[str]:
    """Return the compiler flags of a program that includes the file. A fuzz target adds its own."""
    name = source.name.removesuffix("_fuzz.c")
    own = targets.parts_of(name).flags if name in targets.NAMES else ()
    return [*c_build.COMMON_FLAGS, *python_header_flags(), *own]


def problems_of(source: Path) -> str:
    """Return the messages of the compiler for a file. An empty string means none."""
    command = [*c_build.compiler(), "-fsyntax-only", *flags_of(source), str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else result.stderr


def test_every_c_file_compiles() -> None:
    assert len(SOURCES) > 50
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        found = [problems for problems in threads.map(problems_of, SOURCES) if problems]
    assert found == [], "\n".join(found)


def test_a_name_that_does_not_exist_is_found(tmp_path: Path) -> None:
    source = tmp_path / "stale.c"
    source.write_text('#include "sender/pump.h"\nint none(void) { return no_such_name; }\n')
    assert "no_such_name" in problems_of(source)
