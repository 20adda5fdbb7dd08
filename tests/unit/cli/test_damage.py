# SPDX-License-Identifier: Apache-2.0
"""Commands on damaged arenas do their work or report why they cannot. Each of them returns."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from shmaccum.arena import Arena
from shmaccum.cli import main
from tests.support.processes import Child
from tests.unit.cli.conftest import damage_region

WORKING = {
    "create": ["create", "{}", "--exist-ok"],
    "produce": ["produce", "{}", "-t", "flights", "--timeout", "50ms", "-X", "max_block_ms=50"],
    "sender": ["sender", "{}", "--sink", "null:", "--idle-exit", "50ms", "-q"],
    "recover": ["recover", "{}"],
    "remove": ["remove", "{}", "--force"],
}
each_command = pytest.mark.parametrize("command", WORKING.values(), ids=WORKING)
REGIONS = [
    *("globals", "processes", "waiters", "topics", "partitions", "names", "slot_headers", "completions", "error_log"),
    "slot_data",
]


def run_main(arguments: list[str], streams: list[IO[str]]) -> int:
    """Run ``shmaccum`` in this child process on these streams. Return its exit code."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode) for number, mode in enumerate("rww"))
    try:
        main(arguments)
    except SystemExit as leaving:
        return int(leaving.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def run(command: list[str], path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a forked child, which has loaded everything: a new Python would take three times as long."""
    arguments = [part.format(path) for part in command]
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        streams[0].write("line\n")
        streams[0].seek(0)
        child = Child(run_main, arguments, streams)
        stack.callback(child.kill)
        code = int(child.join())
        for stream in streams:
            stream.seek(0)
        result = subprocess.CompletedProcess(arguments, code, streams[1].read(), streams[2].read())
    assert "Traceback" not in result.stderr
    assert result.returncode in {0, 1, 2}, result.stderr
    assert result.returncode == 0 or result.stderr.startswith("shmaccum: ") or result.stdout
    return result


@each_command
@pytest.mark.parametrize("region", REGIONS)
def test_random_damage_ends_no_command_but_with_a_sentence(
    make_file: Callable[[], Path], command: list[str], region: str
) -> None:
    path = make_file()
    damage_region(path, region, f"{region} {command}")
    run(command, path)
    assert path.exists() == (command[0] != "remove")


@each_command
def test_a_truncated_arena_is_refused_or_removed(make_file: Callable[[], Path], command: list[str]) -> None:
    path = make_file()
    path.write_bytes(path.read_bytes()[:5000])
    result = run(command, path)
    assert result.returncode == (0 if command[0] == "remove" else 2)


@each_command
def test_an_empty_arena_is_worked_with(tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "empty.arena"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB") as arena:
        arena.native.set_topic_partition_count("flights", 1)
    assert run(command, path).returncode == (1 if command[0] == "produce" else 0)
