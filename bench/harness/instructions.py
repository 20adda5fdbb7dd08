# SPDX-License-Identifier: Apache-2.0
"""Instructions, counted by callgrind: the same on a busy machine as on a quiet one, where times are too noisy.

They cannot see the cost of a cache line that another core has; and valgrind has no AVX-512, so that a checksum
takes the path of older processors.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

from bench.harness.native import BUILD, SOURCES
from bench.harness.question import UnavailableError
from setup import ROOT

SECONDS_MAX = 100
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


def instructions(command: Sequence[str], *, is_whole: bool = True) -> int:
    """Of the command and all processes that it forks; `is_whole` False: only what it encloses itself (`ENCLOSED`).

    Raises:
        UnavailableError: valgrind is not installed.
    """
    if shutil.which("valgrind") is None:
        raise UnavailableError("valgrind is not installed: apt-get install valgrind")
    with tempfile.TemporaryDirectory(prefix="shmaccum-bench-") as folder:
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # else no two runs of Python are the same
        start = f"--instr-atstart={'yes' if is_whole else 'no'}"
        words = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/%p", start, *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=ROOT, env=environment)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[:3])} failed under valgrind: {done.stderr[-500:]}")
        outputs = [path.read_text(encoding="utf-8") for path in Path(folder).iterdir()]
    count = sum(int(total) for output in outputs for total in TOTALS.findall(output))
    if count == 0:
        raise RuntimeError(f"callgrind counted nothing of {' '.join(command[:3])}")
    return count


def _marks() -> Path:
    """The library that tells callgrind when to count."""
    target = BUILD / "callgrind.so"
    source = SOURCES / "callgrind.c"
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        if not Path("/usr/include/valgrind/callgrind.h").exists():
            raise UnavailableError("valgrind's headers are not installed: apt-get install valgrind")
        BUILD.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(target), str(source)], check=True)
    return target


ENCLOSED = """
import ctypes
marks = ctypes.CDLL({marks!r})
begin, end = marks.instructions_begin, marks.instructions_end
{prepare}
def work():
{work}
begin()
work()
end()
{finish}
"""
"""The work is in a function, as a program's loop is: code of a module looks each of its names up in a dict."""


def python_instructions(prepare: str, work: str, finish: str = "") -> int:
    """Those of `work` alone, a piece of Python that becomes the body of a function."""
    code = ENCLOSED.format(marks=str(_marks()), prepare=prepare, work=textwrap.indent(work, "    "), finish=finish)
    return instructions([sys.executable, "-c", code], is_whole=False)
