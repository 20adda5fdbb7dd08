# SPDX-License-Identifier: Apache-2.0
"""How many bytes per second does the Kafka sink put into a socket whose other end throws them away?

Requests of 1 MiB, at most five without an answer; in batches of 16 KiB (Kafka's batch.size) and of 128 KiB. The peer
sends the same buffers by a bare ``sendmsg`` and reads the answers without looking at them. The sink adds
Python work per batch (its object, its place in the request, its answer, its ack), so larger batches come closer.
"""

from __future__ import annotations

import os
import socket
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bench.arenas import temporary_arena
from bench.draining_broker import TOPIC, VERSION, draining_broker
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.stopwatch import Stopwatch
from shmaccum._native import ProduceRequest
from shmaccum.arena import Arena
from shmaccum.config import SenderOptions
from shmaccum.format.batch_header import HEADER_SIZE
from shmaccum.sinks import open_sink
from shmaccum.sinks.sink import Acks, Sink, WireBatch
from tests.accumulator import Accumulator

OURS, PEER = "shmaccum, batches of 16 KiB", "bare sendmsg, batches of 16 KiB"
PEER_OF_LARGE = "bare sendmsg, batches of 128 KiB"
SMALL, LARGE = 16 << 10, 128 << 10
REQUEST_SIZE = 1 << 20
VALUE_SIZE = 100
RECORD_SIZE = 110
REQUEST_COUNT = 500
IN_FLIGHT_MAX = 5
IOV_MAX = 1024


@contextmanager
def full_batches(batch_size: int) -> Iterator[tuple[Arena, list[WireBatch]]]:
    """A drained batch for each partition, nearly full; together they are a request."""
    options = {"buffer_memory": 4 * REQUEST_SIZE, "batch_size": batch_size}
    with temporary_arena(**options) as arena, Accumulator(arena) as accumulator:
        for partition in range(REQUEST_SIZE // batch_size):
            accumulator.append_many(TOPIC, partition, [b"x" * VALUE_SIZE] * (batch_size // RECORD_SIZE - 1))
        accumulator.become_sender()
        ready, _ = accumulator.ready(0, True)
        batches, _ = accumulator.drain(ready, 1 << 30)
        wires = [_wire(batch) for batch in batches]
        yield arena, wires
        for wire in wires:
            for buffer in wire.buffers:
                buffer.release()


def _wire(batch: Any) -> WireBatch:
    numbers = (batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.max_timestamp_ms, 1)
    place = (batch.topic, batch.partition, batch.partition_index)
    return WireBatch(*place, batch.buffers, batch.size, batch.record_count, *numbers, batch)


def _measure(send_all: Callable[[], object], size: int) -> Measurement:
    stopwatch = Stopwatch()
    send_all()
    elapsed = stopwatch.elapsed()
    return {
        "bytes_per_s": size * REQUEST_COUNT / elapsed.wall_s,
        "cpu_us_per_request": elapsed.cpu_s * 1e6 / REQUEST_COUNT,
    }


# --- the peer


def _bare(batch_size: int) -> Measurement:
    with full_batches(batch_size) as (_, wires), draining_broker(len(wires)) as (port, topic_id):
        pieces = _request(wires, topic_id)
        size = sum(map(len, pieces))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            measured = _measure(lambda: _send_bare(connection, pieces), size)
        pieces.clear()
    return measured


def _request(wires: Sequence[WireBatch], topic_id: object) -> list[bytes | memoryview]:
    """The buffers of a request, as the sink hands them to the kernel."""
    assert isinstance(topic_id, uuid.UUID)
    bodies = tuple(wire.buffers for wire in wires)
    topic = (TOPIC, topic_id.bytes, tuple(wire.partition for wire in wires), bodies)
    request = ProduceRequest(VERSION, "bench", -1, 30_000, (topic,))
    pieces: list[bytes | memoryview] = []
    for buffer in (buffer for body in bodies for buffer in body):
        encoded = request.peek()
        own_size = encoded.index(bytes(buffer[:HEADER_SIZE]))
        pieces += [encoded[:own_size], buffer]
        request.skip(own_size + len(buffer))
    return [*pieces, request.peek()]


def _send_bare(connection: socket.socket, pieces: list[bytes | memoryview]) -> None:
    for number in range(REQUEST_COUNT):
        left = list(pieces)
        while left:
            sent = connection.sendmsg(left[:IOV_MAX])
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = memoryview(left[0])[sent:]
        if number >= IN_FLIGHT_MAX:
            _read_answer(connection)
    for _ in range(IN_FLIGHT_MAX):
        _read_answer(connection)


def _read_answer(connection: socket.socket) -> None:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    connection.recv(size, socket.MSG_WAITALL)


# --- the sink


class _Host:
    """The host that the sink asks for."""

    transactions = None

    def __init__(self, arena: Arena, places: Sequence[tuple[str, int]]) -> None:
        self.arena_name = arena.name
        self.batch_size_max = 1 << 20
        self.options = SenderOptions(enable_idempotence=False)
        self._places = places

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return self._places[partition_index]

    def partition_count(self, topic: str) -> int:
        return sum(place[0] == topic for place in self._places)

    def report(self, sentence: str) -> None:
        print(sentence)

    def end_backoff(self, partition_index: int) -> None: ...

    def set_available(self, partition_index: int, is_available: bool) -> None: ...

    def show_life(self) -> None: ...

    def wake(self) -> None: ...


def _through_the_sink(batch_size: int) -> Measurement:
    bell, rope = os.pipe()
    with full_batches(batch_size) as (arena, wires), draining_broker(len(wires)) as (port, topic_id):
        sink = open_sink(f"kafka:127.0.0.1:{port}")
        sink.open(_Host(arena, arena.native.partitions()))
        by_index = {wire.partition_index: wire for wire in wires}
        while sink.partition_count(TOPIC) is None or not sink.plan(list(by_index)):
            sink.poll(0.05, bell)
        size = sum(map(len, _request(wires, topic_id)))
        measured = _measure(lambda: _send_through(sink, by_index, bell), size)
        sink.close(1)
    os.close(bell)
    os.close(rope)
    return measured


def _send_through(sink: Sink, by_index: Mapping[int, WireBatch], bell: int) -> None:
    """A batch may go again as soon as it is delivered: the arena has one for each partition, and they never change."""
    ready = list(by_index)
    sent, acked = 0, 0
    while acked < REQUEST_COUNT * len(ready):
        plan = sink.plan(ready) if sent < REQUEST_COUNT else ()
        for planned in plan:
            sink.deliver([by_index[index] for index in planned])
            sent += 1
        acked += sum(len(ack.wires) if isinstance(ack, Acks) else 1 for ack in sink.poll(0 if plan else 1, bell))


def contenders() -> list[Contender]:
    """The sink and its peer."""
    return [
        Contender(OURS, lambda: _through_the_sink(SMALL)),
        Contender(PEER, lambda: _bare(SMALL)),
        Contender("shmaccum, batches of 128 KiB", lambda: _through_the_sink(LARGE), peer=PEER_OF_LARGE),
        Contender(PEER_OF_LARGE, lambda: _bare(LARGE)),
    ]


QUESTION = Question(
    title="bytes to a draining loopback socket, requests of 1 MiB",
    figures=(
        Figure("bytes_per_s", "GB/s", 1e-9, "higher"),
        Figure("cpu_us_per_request", "µs", 1, "lower", "processor time of the sender, per request"),
    ),
    contenders=contenders,
    peer=PEER,
    goals=(Goal("drain to a loopback socket, of a bare ``sendmsg``", OURS, "bytes_per_s", 0.8, is_ratio=True),),
)
