# SPDX-License-Identifier: Apache-2.0
"""Strangers of the listeners of one host: the presence socket of a sender, and the wake FIFOs.

A standby that cannot connect to the presence socket polls the role by itself. If a stranger reads a wake call, the
sender wakes one tick later, which is at most a second. Neither stops a delivery.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import shmaccum
from shmaccum.arena.file import ArenaFile
from tests.strangers.check import VALUE, waits_of
from tests.strangers.crowd import NONE, STRANGER_COUNT, Crowd, many_descriptors
from tests.strangers.listeners import MATCHED, TIMEOUT_S, sender, started
from tests.support.processes import wait_until

TICK_S = 1.0
"""The longest time for which a sender sleeps without a wake call."""


def check_presence(folder: Path, name: str, dice: random.Random) -> str:
    """While strangers fill its presence socket, the sender is killed. Its standby delivers."""
    with many_descriptors(), sender(folder, name, MATCHED) as (process, _, producer):
        producer.send("t", VALUE).get(timeout=TIMEOUT_S)
        with shmaccum.Arena.attach(name) as arena:
            path = ArenaFile.parse(name).presence(arena.uuid, arena.native.presence)
        crowd = Crowd(path, NONE, dice)
        try:
            command = ["sender", name, "--sink", f"log:{folder / 'log'}", "--standby", "-v"]
            with started(command, folder, MATCHED) as (_, said):
                wait_until(lambda: "standby" in said.read_text(), said.read_text(), TIMEOUT_S)
                stayed = crowd.connected_count()
                process.kill()
                waits = waits_of(lambda: producer.send("t", VALUE).get(timeout=TIMEOUT_S))
        finally:
            crowd.close()
    return f"presence socket: {STRANGER_COUNT} strangers came, {stayed} stayed; the standby delivered after {waits}"


def check_fifos(folder: Path, name: str, _dice: random.Random) -> str:
    """Strangers open both FIFOs, fill them and empty them. The sender delivers, and results are reported."""
    with many_descriptors(), sender(folder, name, MATCHED) as (_, _, producer):

        def send() -> None:
            producer.send("t", VALUE).get(timeout=TIMEOUT_S)

        send()
        quiet = waits_of(send)
        with shmaccum.Arena.attach(name) as arena:
            file = ArenaFile.parse(name)
            paths = [
                path for path in (file.wake_fifo(arena.uuid), file.results_fifo(arena.uuid)) if os.path.exists(path)
            ]
        with _held(paths):
            waits = waits_of(send)
    sentence = f"FIFOs: {STRANGER_COUNT} strangers hold each; a send waited {quiet} before, {waits} with them"
    assert waits.median_s <= quiet.median_s + TICK_S, sentence
    return sentence


@contextlib.contextmanager
def _held(paths: list[str]) -> Iterator[None]:
    """Open every FIFO many times, and repeatedly read and write its bytes."""
    count = STRANGER_COUNT // len(paths)
    descriptors = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths for _ in range(count)]
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.wait(0.001):
            for descriptor in descriptors[::count]:
                with contextlib.suppress(BlockingIOError):
                    os.read(descriptor, 1 << 16)
                with contextlib.suppress(BlockingIOError):
                    os.write(descriptor, bytes(1 << 16))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        for descriptor in descriptors:
            os.close(descriptor)


LOCAL: Mapping[str, Callable[[Path, str, random.Random], str]] = {"presence": check_presence, "fifos": check_fifos}
