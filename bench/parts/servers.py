# SPDX-License-Identifier: Apache-2.0
"""A served log and Apache Kafka as processes, and a client that fetches the same bytes from both.

Kafka's JVM has the options of kafka-server-start.sh. Both servers have the same batches of 100-byte records in one
partition, produced by the same requests, in the page cache. The client reads responses into one buffer and parses only
their sizes, so its cost is the same for both.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import final

import psutil
from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.parts.apache_kafka import cluster
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.messages import encode_request

TOPIC = "flights"
VALUE = b"x" * 100
BATCH_SIZE = 16 << 10
LOG_SIZE = 16 << 20
START_TIMEOUT_S = 60.0
LOOPBACK = "127.0.0.1"
PRODUCE, FETCH, API_VERSIONS, CREATE_TOPICS = 0, 1, 18, 19
FETCH_VERSION = 12
"""The last version with topic names."""
ANY_OFFSET = 0x1122334455667788
SIZE = struct.Struct(">i")
OFFSET = struct.Struct(">q")
ANSWER_SIZE_MAX = 4 << 20


@dataclass(frozen=True)
class Server:
    """A running server with one topic.

    Attributes:
        address: HOST:PORT.
        process: the process of the server.
    """

    address: str
    process: psutil.Process

    def cpu_s(self) -> float:
        """Return the processor time of the server in seconds."""
        times = self.process.cpu_times()
        return float(times.user + times.system)


Starter = Callable[[], Server]
"""A function that starts a server, or returns the running one."""


# --- the servers


def free_port() -> int:
    """Return a port of the loopback that is not in use."""
    with socket.create_server((LOOPBACK, 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def served_command(folder: str | Path, port: int, *more: str) -> list[str]:
    """Return the command line of ``shmaccum serve``."""
    return [sys.executable, "-m", "shmaccum", "serve", str(folder), "--listen", f"{LOOPBACK}:{port}", "-q", *more]


def wait_until_served(address: str) -> None:
    """Wait until a server responds to a request.

    Raises:
        TimeoutError: it did not.
    """
    host, _, port = address.rpartition(":")
    end_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), START_TIMEOUT_S) as client:
            client.sendall(encode_request(API_VERSIONS, 0, {}))
            if client.recv(SIZE.size):
                return
        time.sleep(0.005)
    raise TimeoutError(f"the server at {address} did not respond within {START_TIMEOUT_S:g} s")


@cache
def served_log() -> Server:
    """Run ``shmaccum serve --writable`` for the lifetime of this process."""
    folder = tempfile.mkdtemp(prefix="shmaccum-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    address = f"{LOOPBACK}:{(port := free_port())}"
    process = subprocess.Popen(
        served_command(folder, port, "--writable", "-X", "connection_count_per_address_max=2000")
    )
    atexit.register(_end, process)
    wait_until_served(address)
    return _with_topic(Server(address, psutil.Process(process.pid)))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


@cache
def apache_kafka() -> Server:
    """Run Apache Kafka for the lifetime of this process.

    Raises:
        UnavailableError: Kafka is not available.
    """
    running = cluster(has_kafkas_jvm=True)
    (broker,) = running.brokers
    assert broker.process is not None
    return _with_topic(Server(running.bootstrap, psutil.Process(broker.process.pid)))


def kafka_version() -> str:
    """Return the version of Kafka with the options of its JVM."""
    from tests.kafka.distribution import KAFKAS_JVM, version

    return f"Apache Kafka {version()}, java {' '.join(KAFKAS_JVM)}"


# --- the log


@cache
def batch() -> tuple[bytes, int]:
    """Return a record batch of nearly `BATCH_SIZE` bytes, and its number of records."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_SIZE)
    count = 0
    now_ms = int(time.time() * 1000)  # Kafka's retention deletes old records
    while builder.append(count, now_ms, None, VALUE, []) is not None:
        count += 1
    return bytes(builder.build()), count


def _with_topic(server: Server) -> Server:
    """Create a topic of one partition, and return the server."""
    topic = {"name": TOPIC, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with ClientConnection(server.address) as client:
        client.ask(CREATE_TOPICS, 5, {"topics": [topic], "timeout_ms": 30_000, "validate_only": False})
    return server


@cache
def filled(start: Starter) -> Server:
    """Produce the same batch until the log has `LOG_SIZE` bytes, and return the server."""
    records, _ = batch()
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": records}]}
    produce = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": [data]}
    server = start()
    with ClientConnection(server.address) as client:
        left = LOG_SIZE // len(records)
        while left:
            answer = client.ask(PRODUCE, 7, produce)
            error = answer.responses[0].partition_responses[0].error_code
            left -= error == 0  # a new topic has no leader at first
    return server


# --- the client


@final
class FetchClient:
    """Fetches one partition repeatedly, from its beginning to its end.

    Args:
        server: a server whose log is filled (`filled`).
        fetch_size: the maximum number of bytes in a response.
    """

    def __init__(self, server: Server, fetch_size: int) -> None:
        host, _, port = server.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request = bytearray(encode_request(FETCH, FETCH_VERSION, _fetch_values(fetch_size)))
        self._place = self._request.index(OFFSET.pack(ANY_OFFSET))
        self._answer = memoryview(bytearray(ANSWER_SIZE_MAX))
        records, count = batch()
        self._step = max(fetch_size // len(records), 1) * count
        self._end = (LOG_SIZE // len(records)) * count - self._step
        self._offset = 0

    def ask(self) -> None:
        """Send the next request."""
        OFFSET.pack_into(self._request, self._place, self._offset)
        self._offset = self._offset + self._step if self._offset + self._step <= self._end else 0
        self.socket.sendall(self._request)

    def take(self) -> int:
        """Read a response, and return its size.

        Raises:
            RuntimeError: it has no records.
        """
        received = 0
        while received < SIZE.size:
            received += self._receive(received)
        size = SIZE.size + int(SIZE.unpack_from(self._answer)[0])
        while received < size:
            received += self._receive(received)
        if size < len(VALUE):
            raise RuntimeError(f"a response of {size} bytes has no records")
        return size

    def _receive(self, received: int) -> int:
        size = self.socket.recv_into(self._answer[received:])
        if not size:
            raise ConnectionError("the server closed the connection")
        return size

    def __enter__(self) -> FetchClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.socket.close()


def _fetch_values(fetch_size: int) -> dict[str, object]:
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": ANY_OFFSET,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": fetch_size,
    }
    limits = {"replica_id": -1, "max_wait_ms": 500, "min_bytes": 1, "max_bytes": fetch_size, "isolation_level": 0}
    session = {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    return {**limits, **session, "topics": [{"topic": TOPIC, "partitions": [partition]}]}
