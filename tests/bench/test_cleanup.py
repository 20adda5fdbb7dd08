# SPDX-License-Identifier: Apache-2.0
"""A killed question leaves nothing: no process, no arena with its companions, no folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.harness import cleanup, runner
from bench.harness.runner import Allowed
from setup import ROOT
from tests.bench.limits import limit_counts_from
from tests.support.processes import WATCHDOG_S, wait_until

MAKES_EVERYTHING = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
from bench.parts.arenas import temporary_arena
from bench.harness.cleanup import BUILD, new_name
from bench.parts.segments import lasting_folder
from shmaccum.sender import Sender

BUILD.mkdir(parents=True, exist_ok=True)
on_disk = tempfile.TemporaryDirectory(dir=BUILD, prefix=new_name() + "-")
in_memory = lasting_folder()
other = tempfile.mkdtemp()
with temporary_arena() as arena, Sender(arena, "null:") as sender:
    sender.open()
    (fifo,) = {{descriptor for path in Path("/proc/self/fd").iterdir()
               if (descriptor := os.path.realpath(path)).endswith(".bell")}}
    apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    left = ["/dev/shm/" + arena.name, fifo, on_disk.name, in_memory.name, other]
    assert all(map(os.path.exists, left)), left
    Path({said!r} + ".new").write_text(chr(10).join([str(apart.pid), *left]))
    os.rename({said!r} + ".new", {said!r})
    {end}
"""


# A shell makes its background processes ignore these signals.
ASKS = """
import signal
import sys
from pathlib import Path
from bench.harness import runner

signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
runner.command = lambda *_: [sys.executable, "-c", {code!r}]
runner.answer_apart("planted", runner.Allowed(1.0, 1.0, 1000.0), None, Path({folder!r}))
"""


def is_running(pid: int) -> bool:
    """False for a dead process, even if its parent has not waited for it."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("end", "limit_s", "message"),
    [
        ("time.sleep(1000)", 0.5, "was not answered within"),
        ("os.kill(os.getpid(), 9)", WATCHDOG_S, "ended with -9"),
        ("1 / 0", WATCHDOG_S, "ended with 1"),
    ],
)
def test_nothing_is_left_of_a_question_that_hangs_dies_or_fails(
    end: str, limit_s: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    code = MAKES_EVERYTHING.format(said=str(said), end=end)
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", code])
    limit_counts_from(said, monkeypatch)
    with pytest.raises(RuntimeError, match=message):
        runner.answer_apart("planted", Allowed(1.0, 1.0, limit_s), None, tmp_path)
    pid, *paths = said.read_text().splitlines()
    wait_until(lambda: not is_running(int(pid)), "the process in a session of its own has been killed")
    assert len(paths) == 5
    assert [path for path in paths if os.path.exists(path)] == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_nothing_is_left_of_a_question_whose_asker_is_ended_by_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = MAKES_EVERYTHING.format(said=str(said), end="time.sleep(1000)")
    asker = subprocess.Popen([sys.executable, "-c", ASKS.format(code=code, folder=str(tmp_path))], cwd=ROOT)
    wait_until(said.exists, "everything is made")
    try:
        asker.send_signal(number)
        assert asker.wait(WATCHDOG_S) != 0
    finally:
        asker.kill()
    pid, *paths = said.read_text().splitlines()
    wait_until(lambda: not is_running(int(pid)), "the process in a session of its own has been killed")
    assert [path for path in paths if os.path.exists(path)] == []


def test_a_signal_that_is_ignored_ends_no_question() -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as with nohup
    try:
        with cleanup.marked():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, former)


@pytest.fixture
def strangers_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"{cleanup.new_name()}-") as folder:
        yield Path(folder)


def test_what_others_made_stays(strangers_folder: Path) -> None:
    with cleanup.marked() as environment:
        mine = Path(f"/dev/shm/{environment[cleanup.VARIABLE]}-1")
        mine.touch()
    assert not mine.exists()
    assert strangers_folder.exists()


def test_the_processes_of_a_question_find_compiled_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    with cleanup.marked() as environment:
        assert "PYTHONDONTWRITEBYTECODE" not in environment
        assert environment["PYTHONPYCACHEPREFIX"].endswith("build/pycache")
