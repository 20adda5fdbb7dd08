# SPDX-License-Identifier: Apache-2.0
"""Commands that find and check arenas: ``ls``, ``health``, and the completion of names."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from setup import ROOT
from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.cli import main
from shmaccum.cli.group import COMMANDS
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.accumulator import Accumulator
from tests.support.processes import Child
from tests.unit.cli.conftest import Shell, damage_region

TIMEOUT_S = 600
ALTERNATE_SCREEN = b"\x1b[?1049h"


def listed(shell: Shell, name: str) -> dict[str, Any]:
    """Return the row of an arena. Other arenas of the host may appear and disappear."""
    (row,) = [row for row in shell.json("ls") if row["name"] == name]
    found: dict[str, Any] = row
    return found


# --- ls


def test_ls_has_a_row_with_size_fill_sender_and_trouble(shell: Shell, filled: str) -> None:
    row = listed(shell, filled)
    assert row["buffer_memory"] == 64 << 10
    assert 0 < row["fill"] < 1
    assert row["queued_record_count"] > 0
    assert row["sender"]["is_alive"] is False
    assert [trouble["kind"] for trouble in row["troubles"]] == ["no_sender"]
    assert row["error"] is None


def test_an_idle_arena_has_no_trouble(shell: Shell, arena: Arena) -> None:
    """No sender started, or an idle one left cleanly. The arena is ready only with a sender."""
    for _ in range(2):
        assert listed(shell, arena.name)["troubles"] == []
        assert f"{arena.name}: " not in shell("ls", columns=200).stdout
        assert shell("health", arena.name).stdout == f"{arena.name} is well\n"
        assert "no sender is running, and 0 records wait" in shell("health", arena.name, "--ready", code=1).stdout
        sender = Sender(arena, MemorySink(), idle_exit_ms=1)
        sender.run()
        assert sender.has_left_idle


def test_an_arena_without_its_expected_sender_has_a_fault(shell: Shell, arena_name: str) -> None:
    with Arena.create(arena_name, external_sender=True, buffer_memory="64KiB", batch_size="4KiB"):
        assert [found["kind"] for found in listed(shell, arena_name)["troubles"]] == ["no_sender"]
    Arena.remove(arena_name)
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB"):
        Child(lambda: die_as_sender(arena_name)).join()
        assert [found["kind"] for found in listed(shell, arena_name)["troubles"]] == ["no_sender"]
        assert "no sender is running" in shell("health", arena_name, code=1).stdout


def die_as_sender(name: str) -> None:
    half = SenderHalf(Arena.attach(name).native)
    half.become_sender()


def test_ls_names_sender_and_sink(shell: Shell, arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        row = listed(shell, arena.name)
        assert row["sender"]["pid"] == os.getpid()
        assert row["process_count"] == 1
        assert row["troubles"] == []
        lines = shell("ls", columns=160).stdout.splitlines()
    assert lines[0].split() == ["arena", "size", "fill", "records", "processes", "sender", "sink"]
    (line,) = [line for line in lines if line.startswith(f"{arena.name} ")]
    assert line.split()[1:7] == ["64", "KiB", "0.0%", "0", "1", str(os.getpid())]


def test_ls_reports_an_arena_that_it_cannot_read(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "events"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB"):
        data = bytearray(path.read_bytes())
        data[8:64] = bytes(56)
        path.write_bytes(data)
        row = listed(shell, str(path))
        assert row["error"]
        assert row["fill"] is None
        assert "events" in shell("ls", columns=300).stdout


def test_ls_escapes_control_characters_of_a_name(shell: Shell, arena_name: str) -> None:
    name = f"{arena_name}\x1b[2J"
    with Arena.create(name, buffer_memory="64KiB", batch_size="4KiB"):
        try:
            assert "\x1b" not in shell("ls", columns=300).stdout
        finally:
            Arena.remove(name)


# --- health


def test_health_without_a_sender_is_live_but_neither_ready_nor_healthy(shell: Shell, filled: str) -> None:
    assert shell("health", filled, "--live").stdout == f"{filled} is live\n"
    for question in (["--ready"], []):
        told = shell("health", filled, *question, code=1).stdout
        assert told.startswith(f"{filled}: no sender is running, and ")
        assert len(told.splitlines()) == 1


def test_health_with_a_sender_is_well(shell: Shell, arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        assert shell("health", arena.name).stdout == f"{arena.name} is well\n"
        document = shell.json("health", arena.name, "--ready")
    assert document == {"name": arena.name, "question": "ready", "answer": True, "troubles": []}


def test_health_of_a_missing_arena_cannot_be_reported(shell: Shell, arena_name: str) -> None:
    assert "there is no arena" in shell("health", arena_name, code=2).stderr


@pytest.mark.parametrize("region", ["globals", "processes", "slot_headers", "partitions", "names", "counters"])
def test_health_of_a_damaged_arena_is_reported_or_refused(
    shell: Shell, make_file: Callable[[], Path], region: str
) -> None:
    path = make_file()
    data = damage_region(path, region, region)
    assert shell("health", str(path), code=None).exit_code in {1, 2}
    assert path.read_bytes() == data


# --- completion


def completed(kind: str, *words: str) -> list[str]:
    """The reply of click to a shell that completes the last word, in the protocol of that shell."""
    variables = {"_SHMACCUM_COMPLETE": f"{kind}_complete"}
    if kind == "fish":
        variables |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": words[-1]}
    else:
        variables |= {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner(env=variables).invoke(main, prog_name="shmaccum")
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
@pytest.mark.parametrize("command", ["stat", "top", "health", "sender", "remove", "check"])
def test_the_name_of_an_arena_is_completed(arena: Arena, kind: str, command: str) -> None:
    assert any(arena.name in line for line in completed(kind, "shmaccum", command, arena.name[:-1]))
    assert not any(completed(kind, "shmaccum", command, "no-arena-begins-so"))


def test_commands_are_completed_without_an_import_of_their_modules() -> None:
    code = "import sys; from shmaccum.cli import main\ntry: main(prog_name='shmaccum')\n"
    code += "finally: print(*(name for name in sys.modules if 'numpy' in name or 'rich' in name), file=sys.stderr)"
    variables = {"_SHMACCUM_COMPLETE": "zsh_complete", "COMP_WORDS": "shmaccum ", "COMP_CWORD": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert set(COMMANDS) <= set(result.stdout.split())
    assert result.stderr.strip() == ""


def test_a_path_is_completed_by_files_and_by_arenas(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB"):
        lines = completed("bash", "shmaccum", "stat", f"{tmp_path}/")
    assert f"plain,{path}" in lines
    assert f"file,{tmp_path}/" in lines


def test_bash_completes_the_name_of_an_arena(arena: Arena, tmp_path: Path) -> None:
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    (tmp_path / "shmaccum").write_text(f'#!/bin/sh\nexec {sys.executable} -m shmaccum "$@"\n')
    (tmp_path / "shmaccum").chmod(0o755)
    script = f"""
        source <(_SHMACCUM_COMPLETE=bash_source shmaccum)
        COMP_WORDS=(shmaccum stat {arena.name[:-1]}); COMP_CWORD=2
        _shmaccum_completion shmaccum
        echo "${{COMPREPLY[@]}}"
    """
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert arena.name in result.stdout.split(), result.stderr


# --- leaving by a key


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_a_key_leaves_top_and_the_terminal_is_as_before(arena: Arena, key: bytes) -> None:
    command = [sys.executable, "-m", "shmaccum", "top", arena.name, "--interval", "1000"]
    child, terminal = pty.fork()
    if child == 0:
        os.execve(sys.executable, command, os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)})
    try:
        before = termios.tcgetattr(terminal)
        painted = b""
        while ALTERNATE_SCREEN not in painted:
            painted += os.read(terminal, 4096)
        assert termios.tcgetattr(terminal) != before, "keys come only with the end of a line"
        os.write(terminal, key)
        _read_to_the_end(terminal)
        _, status = os.waitpid(child, 0)
        child = 0
        assert os.waitstatus_to_exitcode(status) == 0
        assert termios.tcgetattr(terminal) == before
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(terminal)


def _read_to_the_end(terminal: int) -> None:
    """Read the rest. A terminal whose processes have ended raises."""
    with contextlib.suppress(OSError):
        while os.read(terminal, 4096):
            pass
