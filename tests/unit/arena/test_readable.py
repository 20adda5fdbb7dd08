# SPDX-License-Identifier: Apache-2.0
"""Waiting for descriptors: low ones, and those too high for select()."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from shmaccum import Producer, ensure_sender
from shmaccum.arena import Arena
from shmaccum.arena.wake_fifo import SELECT_END, wait_readable
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.arenas import end_senders
from tests.support.processes import WATCHDOG_S, descriptor_limit

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def low() -> Iterator[Pair]:
    pair = socket.socketpair()
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    """Give files that are opened later numbers that are too high for select()."""
    with descriptor_limit(2 * SELECT_END):
        opened = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        while opened[-1] < SELECT_END:
            opened.append(os.dup(opened[0]))
        yield
        for descriptor in opened:
            os.close(descriptor)


@pytest.fixture(params=["low", "high"])
def pair(request: pytest.FixtureRequest, low: Pair) -> Iterator[Pair]:
    if request.param == "low":
        yield low
        return
    request.getfixturevalue("_many_descriptors")
    high = socket.socketpair()
    assert high[0].fileno() >= SELECT_END
    yield high
    for end in high:
        end.close()


def test_what_can_be_read_is_named_as_it_was_given(pair: Pair, low: Pair) -> None:
    reader, writer = pair
    assert wait_readable([reader], 0) == []
    assert wait_readable([reader], 0.0001) == []
    writer.send(b"x")
    assert wait_readable([reader, writer], WATCHDOG_S) == [reader]
    assert wait_readable([writer.fileno(), reader.fileno()], WATCHDOG_S) == [reader.fileno()]
    writer.close()
    reader.recv(1)
    assert wait_readable([reader], WATCHDOG_S) == [reader], "the other end is gone"


def test_one_that_cannot_be_waited_for_is_refused(pair: Pair) -> None:
    reader, _ = pair
    with pytest.raises(ValueError, match="negative"):
        wait_readable([reader], -1)
    reader.close()
    with pytest.raises(ValueError, match="negative"):
        wait_readable([reader], 0)


@pytest.mark.usefixtures("_many_descriptors")
def test_a_process_with_many_descriptors_can_be_a_sender_and_have_one(arena_name: str) -> None:
    with Arena.create(arena_name) as arena:
        sender = Sender(arena, MemorySink(), linger_ms=0)
        thread = threading.Thread(target=sender.run)
        thread.start()
        with Producer(arena, linger_ms=0) as producer:
            assert producer.send("flights", b"v").get(WATCHDOG_S).offset == 0
        sender.stop()
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
        assert ensure_sender(arena, "null:")
        end_senders(arena)
