# SPDX-License-Identifier: Apache-2.0
"""The clients of a worker in the question ``one_host``. All have the same four methods.

A client calls ``report(number)`` when the broker has acknowledged the record of that number. If ``report`` is None, or
the way to Kafka has no acks, nothing is reported.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol

from bench.parts.python_sidecar import ACK, FRAME

Report = Callable[[int], object]

CONNECT_TIMEOUT_S = 60.0
CONNECT_AGAIN_S = 0.001
FULL_POLL_S = 0.01
FLUSH_TIMEOUT_S = 60.0
READ_SIZE = 1 << 16


class Client(Protocol):
    """The client with which a worker sends to Kafka."""

    def send(self, number: int, key: bytes, value: bytes) -> None:
        """Send a record. After this call returns, a program relies on the delivery of the record."""

    def wait(self, seconds: float) -> None:
        """Wait for the time of the next send, and report acks meanwhile."""

    def flush(self) -> None:
        """Wait until all records are acknowledged, if there are acks."""

    def close(self) -> None:
        """Close the client."""


class ArenaClient:
    """shmaccum's producer. The callbacks run in a thread of the producer."""

    def __init__(self, report: Report | None, topic: str, arena: str, linger_ms: int) -> None:
        from shmaccum import Producer

        self._producer = Producer(arena, linger_ms=linger_ms)
        self._send = functools.partial(self._producer.send, topic)
        self._report = report

    def send(self, number: int, key: bytes, value: bytes) -> None:
        future = self._send(value, key)
        if self._report:
            future.add_callback(self._delivered, number)

    def _delivered(self, number: int, _metadata: object) -> None:
        assert self._report
        self._report(number)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def flush(self) -> None:
        self._producer.flush(FLUSH_TIMEOUT_S)

    def close(self) -> None:
        self._producer.close()


class ProducerClient:
    """confluent-kafka's producer, which is polled as its documentation recommends."""

    def __init__(self, report: Report | None, topic: str, options: dict[str, Any]) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(options)
        self._topic = topic
        self._report = report

    def send(self, number: int, key: bytes, value: bytes) -> None:
        report = functools.partial(self._delivered, number) if self._report else None
        while not self._is_queued(key, value, report):
            self._producer.poll(FULL_POLL_S)
        self._producer.poll(0)

    def _is_queued(self, key: bytes, value: bytes, report: Callable[..., None] | None) -> bool:
        try:
            self._producer.produce(self._topic, value, key, on_delivery=report)
        except BufferError:
            return False
        return True

    def _delivered(self, number: int, error: object, _message: object) -> None:
        if error is None and self._report:
            self._report(number)

    def wait(self, seconds: float) -> None:
        """Poll until the time has passed. One poll returns after the first callback."""
        end_s = time.perf_counter() + seconds
        while seconds > 0:
            self._producer.poll(seconds)
            seconds = end_s - time.perf_counter()

    def flush(self) -> None:
        self._producer.flush(FLUSH_TIMEOUT_S)

    def close(self) -> None:
        self.flush()


class RefusingClient(ProducerClient):
    """confluent-kafka's producer in a program that continues without a record if the queue is full."""

    def send(self, _number: int, key: bytes, value: bytes) -> None:
        self._is_queued(key, value, None)
        self._producer.poll(0)


class SidecarClient:
    """A client of a sidecar: one write for a record, and one read for the acks that have arrived.

    With acks, it keeps a frame until its ack, and writes it again after the sidecar was restarted. Without acks, it
    writes only the frame again whose write failed.
    """

    def __init__(self, report: Report | None, topic: str, path: str) -> None:
        self._report = report
        self._topic = topic.encode()
        self._path = path
        self._frames: dict[int, tuple[int, bytes]] = {}  # by the number on the connection
        self._frame_count = 0
        self._input = b""
        self._socket = connected(path, socket.SOCK_STREAM)

    def send(self, number: int, key: bytes, value: bytes) -> None:
        frame = FRAME.pack(len(self._topic), len(key), len(value)) + self._topic + key + value
        if self._report:
            self._frames[self._frame_count] = number, frame
        self._frame_count += 1
        try:
            self._socket.sendall(frame)
        except OSError:
            self._connect_again(frame)

    def _connect_again(self, frame: bytes | None = None) -> None:
        """Connect to the restarted sidecar. Write all frames without an ack again, or, without acks, only `frame`."""
        self._socket.close()
        kept = list(self._frames.values())
        while True:
            with contextlib.suppress(OSError):
                self._socket = connected(self._path, socket.SOCK_STREAM)
                self._socket.sendall(b"".join(each for _, each in kept) if self._report else frame or b"")
                break
        self._frames = dict(enumerate(kept))
        self._frame_count = len(kept)
        self._input = b""

    def wait(self, seconds: float) -> None:
        if not self._report:
            time.sleep(seconds)
            return
        end_s = time.perf_counter() + seconds
        while seconds > 0 and select.select([self._socket], [], [], seconds)[0]:
            self._read_acks()
            seconds = end_s - time.perf_counter()

    def _read_acks(self) -> None:
        try:
            received = self._socket.recv(READ_SIZE)
        except OSError:
            received = b""
        if not received:
            self._connect_again()
            return
        received = self._input + received
        end = len(received) - len(received) % ACK.size
        for frame_number, error in ACK.iter_unpack(received[:end]):
            number, _ = self._frames.pop(frame_number)
            if error == 0 and self._report:
                self._report(number)
        self._input = received[end:]

    def flush(self) -> None:
        end_s = time.monotonic() + FLUSH_TIMEOUT_S
        while self._frames and time.monotonic() < end_s:
            self.wait(FULL_POLL_S)

    def close(self) -> None:
        self._socket.close()


class SyslogClient:
    """A client of a syslog daemon: one datagram for a record, as `logging.handlers.SysLogHandler` sends it.

    The key is the name of the program. A datagram that a restarting daemon refuses is sent again.
    """

    def __init__(self, _report: Report | None, _topic: str, path: str) -> None:
        self._path = path
        self._socket = connected(path, socket.SOCK_DGRAM)

    def send(self, _number: int, key: bytes, value: bytes) -> None:
        datagram = b"<14>" + key + b": " + value
        while not self._is_sent(datagram):
            self._socket.close()
            self._socket = connected(self._path, socket.SOCK_DGRAM)

    def _is_sent(self, datagram: bytes) -> bool:
        with contextlib.suppress(OSError):
            self._socket.send(datagram)
            return True
        return False

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def flush(self) -> None:
        """Return at once: a syslog daemon acknowledges nothing."""

    def close(self) -> None:
        self._socket.close()


def connect(path: str, kind: socket.SocketKind) -> socket.socket | None:
    """Connect to a socket in the file system. If no process listens there, return None."""
    found = socket.socket(socket.AF_UNIX, kind)
    try:
        found.connect(path)
    except OSError:
        found.close()
        return None
    return found


def connected(path: str, kind: socket.SocketKind) -> socket.socket:
    """Connect to a socket in the file system as soon as a process listens there.

    Raises:
        RuntimeError: no process listened for `CONNECT_TIMEOUT_S`.
    """
    end_s = time.monotonic() + CONNECT_TIMEOUT_S
    while (found := connect(path, kind)) is None:
        if time.monotonic() > end_s:
            raise RuntimeError(f"no process listened at {path} for {CONNECT_TIMEOUT_S:g} s")
        time.sleep(CONNECT_AGAIN_S)
    return found
