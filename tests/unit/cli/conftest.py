# SPDX-License-Identifier: Apache-2.0
"""Arenas to inspect, and the command run in this process."""

from __future__ import annotations

import contextlib
import gc
import json
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from shmaccum.arena import Arena
from shmaccum.cli import live, main
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain

RECORD_COUNT = 40
MOMENT_S = 0.01
"""Seconds between the two samples of a command that prints one view."""


@contextlib.contextmanager
def own_process() -> Iterator[None]:
    """Restore the name and the signal handlers of this process, which a command may change."""
    comm = Path("/proc/self/comm")
    name = comm.read_text().rstrip("\n")
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        comm.write_text(name)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class Shell:
    """Runs ``shmaccum ...`` and checks its exit code. With code=None, only an exception fails."""

    def __call__(self, *arguments: str, code: int | None = 0, columns: int = 100) -> Result:
        with own_process():
            result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert code is None or result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return result

    def json(self, *arguments: str, code: int | None = 0) -> Any:
        """The document that the command printed."""
        return json.loads(self(*arguments, "--json", code=code).stdout)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.setattr(live, "ONE_SHOT_S", MOMENT_S)
    yield Shell()
    gc.collect()


def fill(arena: Arena) -> None:
    """Append two topics, an oversized record, results and an error, and detach."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        for number in range(RECORD_COUNT):
            accumulator.append("done", 0, 1_700_000_000_000 + number, b"key", b"delivered")
        for batch in drain(accumulator):
            accumulator.complete(batch, 1, 500)
        for number in range(RECORD_COUNT):
            accumulator.append(
                "flights", number % 2, 1_700_000_000_000 + number, b"key-%d" % number, b"value", [("h", b"x")]
            )
        accumulator.append("cargo", 0, 1_700_000_000_000, None, bytes(10_000))
        arena.native.set_topic_partition_count("flights", 2)
        arena.native.record_error("the log is full: No space left on device")


def damage_region(path: Path, region: str, seed: str) -> bytes:
    """Write random bytes to a region of an arena's file. Return the new content of the file."""
    with Arena.open_read_only(path) as arena:
        layout = arena.native.layout
    data = bytearray(path.read_bytes())
    start = layout[region]
    end = min(place for place in (*layout.values(), len(data)) if place > start)
    data[start:end] = random.Random(seed).randbytes(end - start)
    path.write_bytes(data)
    return bytes(data)


@pytest.fixture
def filled(arena: Arena) -> str:
    """The name of a live arena of 16 buffers of 4 KiB with records in it."""
    fill(arena)
    return arena.name


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[[], Path]:
    """Return a function that creates the file of such an arena, to which no process is attached."""

    def make() -> Path:
        path = tmp_path / "events.arena"
        with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64) as arena:
            fill(arena)
        return path

    return make
