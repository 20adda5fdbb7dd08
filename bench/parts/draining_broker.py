# SPDX-License-Identifier: Apache-2.0
"""A broker that discards records as fast as Python can, and responds with success.

The scripted cluster of the tests handles every request but Produce. Of a Produce request, the broker reads only the
size and the correlation id. It encoded the response before. `draining_broker` with `answers_each` reads the partitions
of a request, and responds for them.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from random import Random

from kafka.protocol.producer import ProduceResponse

from shmaccum.sender.sinks.kafka.produce import PRODUCE_API_KEY
from tests.kafka.fake_broker import FakeBroker, FakeCluster, Reply, partition_response

TOPIC = "bench"
VERSION = 13
HEAD = struct.Struct(">ihhi")
CORRELATION_POSITION = 4
SCRATCH_SIZE = 1 << 20
REQUEST_SIZE_MAX = 8 << 20
TOPIC_ID_SIZE = 16


class DrainingBroker(FakeBroker):
    """Reads Produce requests without parsing them."""

    def _serve(self, connection: socket.socket) -> None:
        scratch = memoryview(bytearray(SCRATCH_SIZE))
        answer = bytearray(self.cluster.encoded_answer())  # type: ignore[attr-defined]
        while _read_exactly(connection, scratch[: HEAD.size]):
            size, key, _, correlation_id = HEAD.unpack_from(scratch)
            left = size + 4 - HEAD.size
            if key != PRODUCE_API_KEY:
                _read_exactly(connection, scratch[HEAD.size : HEAD.size + left])
                reply = self._answer(bytes(scratch[4 : HEAD.size + left]))
                assert reply is not None
                connection.sendall(reply)
                continue
            while left:
                left -= connection.recv_into(scratch[: min(left, SCRATCH_SIZE)])
            struct.pack_into(">i", answer, CORRELATION_POSITION, correlation_id)
            connection.sendall(answer)


class AnsweringBroker(DrainingBroker):
    """Reads Produce requests, and parses their partitions."""

    def _serve(self, connection: socket.socket) -> None:
        buffer = memoryview(bytearray(REQUEST_SIZE_MAX))
        answers: dict[tuple[int, ...], bytearray] = {}
        while _read_exactly(connection, buffer[: HEAD.size]):
            size, key, _, correlation_id = HEAD.unpack_from(buffer)
            request = buffer[: size + 4]
            _read_exactly(connection, request[HEAD.size :])
            if key != PRODUCE_API_KEY:
                reply = self._answer(bytes(request[4:]))
                assert reply is not None
                connection.sendall(reply)
                continue
            indices = tuple(_partitions(request))
            if indices not in answers:
                answers[indices] = bytearray(self.cluster.encoded_answer(indices))  # type: ignore[attr-defined]
            struct.pack_into(">i", answers[indices], CORRELATION_POSITION, correlation_id)
            connection.sendall(answers[indices])


def _partitions(request: memoryview) -> Iterator[int]:
    """Yield the partitions of a request for one topic (ProduceRequest.json, version 13)."""
    (client_size,) = struct.unpack_from(">h", request, HEAD.size)
    place = HEAD.size + 2 + max(client_size, 0) + 1 + 1 + 2 + 4 + 1 + TOPIC_ID_SIZE
    count, place = _number(request, place)
    for _ in range(count - 1):
        yield struct.unpack_from(">i", request, place)[0]
        size, place = _number(request, place + 4)
        place += size  # the varint is one more than the size, for the byte of the empty tagged fields


def _number(request: memoryview, place: int) -> tuple[int, int]:
    """Return an unsigned varint, and the position after it."""
    number = shift = 0
    while request[place] & 0x80:
        number |= (request[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | request[place] << shift, place + 1


class DrainingCluster(FakeCluster):
    """A cluster with one `DrainingBroker`."""

    broker_type = DrainingBroker

    def encoded_answer(self, indices: Sequence[int] | None = None) -> bytes:
        """Encode success for these partitions. The default is all partitions in the order of a hash map, as Apache
        Kafka encodes them.
        """
        if indices is None:
            every = range(self.topics[TOPIC])
            indices = Random(0).sample(every, len(every))
        partitions = [partition_response(index, Reply()) for index in indices]
        topic = ProduceResponse.TopicProduceResponse(
            name=TOPIC, topic_id=self.topic_ids[TOPIC], partition_responses=partitions
        )
        response = ProduceResponse(responses=[topic], throttle_time_ms=0)
        response.API_VERSION = VERSION
        response.with_header(correlation_id=0)
        return bytes(response.encode(header=True, framed=True))


def _read_exactly(connection: socket.socket, target: memoryview) -> bool:
    """Fill `target`. Return False at the end of the stream."""
    while target:
        count = connection.recv_into(target)
        if count == 0:
            return False
        target = target[count:]
    return True


class AnsweringCluster(DrainingCluster):
    """A cluster with one `AnsweringBroker`."""

    broker_type = AnsweringBroker


def _run(partition_count: int, answers_each: bool, pipe: Connection) -> None:
    cluster_type = AnsweringCluster if answers_each else DrainingCluster
    cluster = cluster_type(topics={TOPIC: partition_count})
    pipe.send((cluster.brokers[0].port, cluster.topic_ids[TOPIC]))
    pipe.recv()


@contextmanager
def draining_broker(partition_count: int, *, answers_each: bool = False) -> Iterator[tuple[int, object]]:
    """Run a broker in a new process; yield its port and the id of the topic.

    Args:
        answers_each: parse each request, because it may have batches of only some partitions.
    """
    with draining_process(partition_count, answers_each=answers_each) as (port, topic_id, _):
        yield port, topic_id


@contextmanager
def draining_process(partition_count: int, *, answers_each: bool = False) -> Iterator[tuple[int, object, int]]:
    """Run a broker as `draining_broker` does; yield its port, the id of the topic, and the id of the process."""
    ours, theirs = multiprocessing.Pipe()
    arguments = partition_count, answers_each, theirs
    process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments, daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield *ours.recv(), process.pid
    finally:
        process.kill()
        process.join()
