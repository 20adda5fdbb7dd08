# SPDX-License-Identifier: Apache-2.0
"""What tests of the Python layer share: small arenas, a sender in three lines, children that report what they saw."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shmaccum._native import Batch
from shmaccum.accumulator import Accumulator, BatchResult
from shmaccum.arena import Arena, VerifyDepth

SHARED_MEMORY = Path("/dev/shm")
WATCHDOG_S = 60.0


def drain(accumulator: Accumulator) -> list[Batch]:
    """Everything that can be drained now, nothing lingering."""
    partitions, _ = accumulator.ready(0, True)
    batches, _ = accumulator.drain(partitions, 2**31)
    return batches


def deliver_all(accumulator: Accumulator) -> list[bytes | None]:
    """Drains and completes until nothing is left; the values in the order they were delivered."""
    values: list[bytes | None] = []
    while batches := drain(accumulator):
        for batch in batches:
            values += [record[3] for record in batch.decode()]
            accumulator.complete(batch, BatchResult.SUCCEEDED)
    return values


def check_idle(arena: Arena) -> None:
    """Nobody works on the arena: it is sound to the last byte, and nothing is held by anybody."""
    assert arena.verify(VerifyDepth.DEEP, is_idle=True) == []
    counts = arena.native.state_counts()
    assert counts["GRANT"] == counts["OWNED"] == counts["DONE"] == 0, counts
    assert sum(counts.values()) == arena.geometry["slot_count"]


def left_in_shared_memory(*fragments: str) -> list[str]:
    return [path.name for path in SHARED_MEMORY.iterdir() if any(fragment in path.name for fragment in fragments)]


def wait_until(is_true: Callable[[], bool], what: str) -> None:
    """Looks again and again; the watchdog is for a test that would hang."""
    deadline = time.monotonic() + WATCHDOG_S
    while not is_true():
        assert time.monotonic() < deadline, f"still waiting until {what}"
        time.sleep(0.001)


class Child:
    """A forked child that runs a function and reports its result or its traceback."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            self._run(function, arguments, writer)
        os.close(writer)
        self._reader = reader

    @staticmethod
    def _run(function: Callable[..., Any], arguments: tuple[Any, ...], writer: int) -> None:
        code = 1
        try:
            try:
                report = repr(function(*arguments))
                code = 0
            except BaseException:  # noqa: BLE001 - whatever it was, the parent is to read it
                report = traceback.format_exc()
            os.write(writer, report.encode())
        finally:
            os._exit(code)

    def join(self) -> str:
        """The repr of what the function returned; AssertionError with its traceback when it raised."""
        with open(self._reader) as stream:
            report = stream.read()
        _, status = os.waitpid(self.pid, 0)
        assert status == 0, report
        return report


def run_in_child(function: Callable[..., Any], *arguments: Any) -> str:
    return Child(function, *arguments).join()


def _send_result(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    connection.send(function(*arguments))


def run_in_process(method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The same through multiprocessing, started by fork, spawn or forkserver."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, function, arguments))  # type: ignore[attr-defined]
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join(WATCHDOG_S)


def each_semaphore(uuid: bytes) -> Iterator[str]:
    yield from left_in_shared_memory(f"shmaccum-{uuid.hex()[:12]}.w")
