# SPDX-License-Identifier: Apache-2.0
"""The processes and files of a question outside of its own process, and their removal when the question is killed.

The process that starts a question gives it a mark. The question's processes have the mark in their environment, even
those in a session of their own. Its names in shared memory and in `BUILD` begin with the mark. Temporary folders,
including those of JVMs and of Spark, are in one folder. A question that ends by itself removes all of this. If it is
killed, the starting process removes everything with its mark. It also does so when a signal ends it. Only SIGKILL of
the starting process leaves files or processes.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench.harness.native import BUILD
from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.exceptions import NotAnArenaError

VARIABLE = "SHMACCUM_BENCH_MARK"
UNMARKED = "shmaccum-bench"
SHARED_MEMORY = Path("/dev/shm")
CHECK_AGAIN_S = 0.001

_numbers = itertools.count()


def new_name() -> str:
    """Return a new name for something in shared memory or in `BUILD`."""
    return f"{os.environ.get(VARIABLE, UNMARKED)}-{os.getpid()}-{next(_numbers)}"


@contextmanager
def marked() -> Iterator[dict[str, str]]:
    """Yield an environment for a question. On exit, remove every process and file that began in it.

    Meanwhile SIGTERM and SIGHUP end this process cleanly, as Ctrl-C does.
    """
    mark = new_name()
    temporary = tempfile.TemporaryDirectory(prefix=f"{mark}-", ignore_cleanup_errors=True)
    with _clean_exit_on_signals(), temporary as folder:
        try:
            yield {**_with_compiled_modules(os.environ), VARIABLE: mark, **_temporary(folder)}
        finally:
            _kill(mark)
            for place in (SHARED_MEMORY, BUILD):
                for path in place.glob(f"*{mark}-*"):  # sem.NAME is a semaphore
                    _remove(path)


@contextmanager
def _clean_exit_on_signals() -> Iterator[None]:
    """Raise SystemExit in the block for a signal that ends the process. An ignored signal stays ignored."""
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ending = [number for number, handler in former.items() if handler is signal.SIG_DFL]
    for number in ending:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _with_compiled_modules(environment: Mapping[str, str]) -> dict[str, str]:
    """Let Python compile the project's modules once, as for an installed package, not at each start."""
    kept = {name: value for name, value in environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache")}


def _temporary(folder: str) -> dict[str, str]:
    """Return the variables that name the folder for temporary files to Python, the JVM and Spark."""
    jvm = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} -Djava.io.tmpdir={folder}".strip()
    return {"TMPDIR": folder, "JDK_JAVA_OPTIONS": jvm, "SPARK_LOCAL_DIRS": folder}


def _kill(mark: str) -> None:
    """Kill the marked processes until there are none. One may have started another before its death, so one pass is not
    enough.
    """
    while found := list(_processes(mark)):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(CHECK_AGAIN_S)


def _processes(mark: str) -> Iterator[int]:
    """Yield the processes with the mark. Forked children inherit it. A dead process has no environment."""
    words = f"{VARIABLE}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if words in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)


def _remove(path: Path) -> None:
    """Remove a folder with its arenas, or a file; of an arena also the semaphores and the FIFO."""
    if path.is_dir():
        for arena in path.glob("*.arena"):
            Arena.remove(arena, missing_ok=True)
        shutil.rmtree(path, ignore_errors=True)
        return
    with contextlib.suppress(NotAnArenaError):
        if path.parent == SHARED_MEMORY:
            Arena.remove(path.name, missing_ok=True)
    path.unlink(missing_ok=True)
