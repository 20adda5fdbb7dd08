# SPDX-License-Identifier: Apache-2.0
"""Commands that work with an arena, on damaged ones: they do it or say why not, and come back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from tests.unit.cli.conftest import damage_region

WATCHDOG_S = 60
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


def run(command: list[str], path: Path) -> subprocess.CompletedProcess[str]:
    arguments = [part.format(path) for part in command]
    result = subprocess.run(
        [sys.executable, "-m", "shmaccum", *arguments],
        input="line\n",
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
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
