# SPDX-License-Identifier: Apache-2.0
"""The floor for a sender: a bare ``sendmsg`` of the batches of a full arena, drained before the measurement."""

from __future__ import annotations

import socket
import struct
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.harness.stopwatch import Stopwatch
from bench.parts.draining_broker import TOPIC, VERSION, draining_broker
from bench.parts.full_arenas import Emptied
from shmaccum._native import ProduceRequest
from shmaccum.arena import Arena
from shmaccum.common.format.batch_header import HEADER_SIZE
from tests.support.accumulator import Accumulator

IN_FLIGHT_MAX = 5
"""Requests without a response."""
IOV_MAX = 1024

Pieces = list[Any]
"""The buffers of a request: bytes of the request itself, and batches of the arena."""


def sent_bare(arena: Arena, partition_count: int, inspect: Callable[[memoryview], object] | None = None) -> Emptied:
    """Send every batch of a full arena, one of each partition in a request, and ignore the responses.

    Args:
        inspect: called with each batch before its request is sent.
    """
    with (
        draining_broker(partition_count) as (port, topic_id),
        _drained_requests(arena, partition_count, topic_id) as requests,
        socket.create_connection(("127.0.0.1", port)) as connection,
    ):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stopwatch = Stopwatch()
        for number, pieces in enumerate(requests):
            for piece in pieces:
                if inspect is not None and isinstance(piece, memoryview):
                    inspect(piece)
            _send(connection, pieces)
            if number >= IN_FLIGHT_MAX:
                _read_response(connection)
        for _ in requests[:IN_FLIGHT_MAX]:
            _read_response(connection)
        return Emptied(partition_count * len(requests), stopwatch.elapsed())


@contextmanager
def _drained_requests(arena: Arena, partition_count: int, topic_id: object) -> Iterator[list[Pieces]]:
    """Yield requests with every batch of a full arena, one of each partition in a request."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        requests = []
        while len(batches := _drained(accumulator)) == partition_count:
            requests.append(_request(batches, topic_id))
        yield requests
        for piece in (piece for pieces in requests for piece in pieces if isinstance(piece, memoryview)):
            piece.release()


def _drained(accumulator: Accumulator) -> Sequence[Any]:
    ready, _ = accumulator.ready(0, True, in_flight_max=1 << 20)
    batches, _ = accumulator.drain(ready, 1 << 30, 1 << 20)
    return batches


def _request(batches: Sequence[Any], topic_id: object) -> Pieces:
    assert isinstance(topic_id, uuid.UUID)
    bodies = tuple(batch.buffers for batch in batches)
    topic = (TOPIC, topic_id.bytes, tuple(batch.partition for batch in batches), bodies)
    request = ProduceRequest(VERSION, "bench", -1, 30_000, (topic,))
    pieces: Pieces = []
    for buffer in (buffer for body in bodies for buffer in body):
        encoded = request.peek()
        own_size = encoded.index(bytes(buffer[:HEADER_SIZE]))
        pieces += [encoded[:own_size], buffer]
        request.skip(own_size + len(buffer))
    return [*pieces, request.peek()]


def _send(connection: socket.socket, pieces: Pieces) -> None:
    left = list(pieces)
    while left:
        sent = connection.sendmsg(left[:IOV_MAX])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = memoryview(left[0])[sent:]


def _read_response(connection: socket.socket) -> None:
    (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
    connection.recv(size, socket.MSG_WAITALL)
