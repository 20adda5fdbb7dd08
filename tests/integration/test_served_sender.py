# SPDX-License-Identifier: Apache-2.0
"""A sender serves the log that it writes: immediately, to any client, and with options from any source."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import ArenaBusyError, InvalidArgumentError
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.files.reader import LogReader
from shmaccum.log.server.server import LogServer
from shmaccum.observe.health import troubles
from shmaccum.observe.observation import Observer
from shmaccum.sender import Sender
from tests.support.arenas import end_senders, sender_pid
from tests.support.log_server import port_of
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "flights"
FETCH_WAIT_MS = int(2 * WATCHDOG_S * 1000)
"""A fetch that is not woken outlasts its test."""


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    with Arena.create(arena_name, buffer_memory="4MiB") as arena:
        yield arena


@contextlib.contextmanager
def served(arena: Arena, path: Path) -> Iterator[str]:
    """Run a sender in a thread that serves its log. Return its address."""
    with Sender(arena, f"log:{path}", listen="127.0.0.1:0", linger_ms=0) as sender:
        assert sender.open()
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            yield f"127.0.0.1:{port_of(sender)}"
        finally:
            sender.stop()
            thread.join()


@pytest.mark.parametrize("is_ended", [False, True])
def test_health_reports_a_server_that_does_not_work(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    def fail(_server: LogServer) -> None:
        raise OSError("broken")

    def impaired() -> list[str]:
        return [each.sentence for each in troubles(Observer(arena).observe()) if each.kind == "impaired"]

    with served(arena, tmp_path / "log"):
        assert impaired() == []
        monkeypatch.setattr(LogServer, "run_once", fail)
        if is_ended:
            monkeypatch.setattr(threading.Thread, "is_alive", lambda thread: thread.name != "shmaccum-server")
        wait_until(lambda: impaired() != [], "the trouble is reported")
        (sentence,) = impaired()
        assert ("has ended" if is_ended else "OSError('broken')") in sentence
        monkeypatch.undo()


@contextlib.contextmanager
def consumer(address: str) -> Iterator[confluent_kafka.Consumer]:
    settings = {
        "bootstrap.servers": address,
        "group.id": "readers",
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "socket.timeout.ms": 2 * FETCH_WAIT_MS,
        "topic.metadata.refresh.interval.ms": 100,
        "allow.auto.create.topics": False,
    }
    with contextlib.closing(confluent_kafka.Consumer(settings)) as found:
        found.subscribe([TOPIC])
        yield found


def next_value(consumer: confluent_kafka.Consumer) -> bytes:
    end_s = time.monotonic() + WATCHDOG_S
    while time.monotonic() < end_s:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            return message.value() or b""
    raise AssertionError("nothing came")


def send(producer: Producer, value: bytes) -> None:
    producer.send(TOPIC, value).get(WATCHDOG_S)


def test_a_parked_fetch_is_woken_by_the_append_and_not_by_the_kernel(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogWatch, "__init__", None)  # any use of inotify fails
    with served(arena, tmp_path / "log") as address, Producer(arena) as producer:
        send(producer, b"first")
        with consumer(address) as readers:
            assert next_value(readers) == b"first"
            for number in range(20):
                send(producer, b"%d" % number)
                assert next_value(readers) == b"%d" % number


def test_hostile_and_slow_clients_hold_the_sender_up_in_no_way(arena: Arena, tmp_path: Path) -> None:
    with served(arena, tmp_path / "log") as address, Producer(arena) as producer, contextlib.ExitStack() as clients:
        host, _, port = address.partition(":")
        for content in (struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**30), struct.pack(">i", 2**31 - 1), b"\0"):
            client = clients.enter_context(socket.create_connection((host, int(port)), WATCHDOG_S))
            client.sendall(content)
        lazy = clients.enter_context(socket.create_connection((host, int(port)), WATCHDOG_S))
        lazy.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                lazy.send(struct.pack(">ihhih", 10, 18, 0, 1, -1) * 1000)
        for number in range(100):
            send(producer, b"%d" % number)
    assert [record.value for record in LogReader(tmp_path / "log").partition(TOPIC, 0).records()] == [
        b"%d" % number for number in range(100)
    ]


def test_a_mistake_of_the_server_ends_neither_the_sender_nor_the_server(
    arena: Arena, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run_once, has_failed = LogServer.run_once, threading.Event()

    def fail_once(server: LogServer) -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("a mistake of ours")
        run_once(server)

    monkeypatch.setattr(LogServer, "run_once", fail_once)
    with served(arena, tmp_path / "log") as address, Producer(arena) as producer, consumer(address) as readers:
        send(producer, b"x")
        assert next_value(readers) == b"x"
    assert "a mistake of ours" in caplog.text


def test_a_taken_port_is_refused_and_leaves_the_role_and_the_log_free(arena: Arena, tmp_path: Path) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with (
            pytest.raises(InvalidArgumentError, match="Choose another port"),
            Sender(arena, f"log:{tmp_path / 'log'}", listen=listen) as sender,
        ):
            sender.open()
    assert not arena.native.sender_is_alive
    assert not LogReader(tmp_path / "log").is_written()


def test_a_sink_that_keeps_no_log_is_refused(arena: Arena) -> None:
    with (
        pytest.raises(InvalidArgumentError, match="deliver to log:DIR"),
        Sender(arena, "memory:", listen="127.0.0.1:0") as sender,
    ):
        sender.open()


def free_port() -> int:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as found:
        return int(found.getsockname()[1])


def test_a_producer_keeps_a_sender_that_serves(arena: Arena, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Producer(arena, sink=f"log:{tmp_path / 'log'}", listen=address, idle_exit_ms=1000) as producer:
        send(producer, b"x")
        with consumer(address) as readers:
            assert next_value(readers) == b"x"
        os.kill(sender_pid(arena) or 0, signal.SIGKILL)
        send(producer, b"y")
        with consumer(address) as readers:
            assert next_value(readers) in {b"x", b"y"}
    end_senders(arena)


def test_the_command_serves_and_a_second_sender_is_refused(arena: Arena, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "shmaccum", "sender", arena.name, "--sink", f"log:{tmp_path / 'log'}"]
    process = subprocess.Popen([*command, "--listen", address], stderr=subprocess.PIPE)
    try:
        wait_until(lambda: arena.native.sender_is_alive, "a sender")
        with Producer(arena) as producer:
            send(producer, b"x")
        with consumer(address) as readers:
            assert next_value(readers) == b"x"
        with pytest.raises(ArenaBusyError), Sender(arena, f"log:{tmp_path / 'log'}") as second:
            second.open()
        process.terminate()
        assert process.wait(WATCHDOG_S) == 0
        assert process.stderr is not None
        assert f"at {address}, read-only" in process.stderr.read().decode()
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
