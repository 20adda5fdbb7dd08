# SPDX-License-Identifier: Apache-2.0
"""A broker that throws away what it is sent, as fast as Python can, and says that all is well.

Everything but Produce is answered by the scripted cluster of the tests. Of a Produce request only the size and the
correlation id are looked at; the answer was encoded beforehand. `draining_broker` with `answers_each` looks for the
partitions of a request, too, and answers for those.
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
    """Reads Produce requests without looking at them."""

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
    """Reads Produce requests as far as the partitions in them."""

    def _serve(self, connection: socket.socket) -> None:
        room = memoryview(bytearray(REQUEST_SIZE_MAX))
        answers: dict[tuple[int, ...], bytearray] = {}
        while _read_exactly(connection, room[: HEAD.size]):
            size, key, _, correlation_id = HEAD.unpack_from(room)
            request = room[: size + 4]
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
    """The partitions of a request for one topic (ProduceRequest.json, version 13)."""
    (client_size,) = struct.unpack_from(">h", request, HEAD.size)
    place = HEAD.size + 2 + max(client_size, 0) + 1 + 1 + 2 + 4 + 1 + TOPIC_ID_SIZE
    count, place = _number(request, place)
    for _ in range(count - 1):
        yield struct.unpack_from(">i", request, place)[0]
        size, place = _number(request, place + 4)
        place += size  # one more than the records have, and the tagged fields


def _number(request: memoryview, place: int) -> tuple[int, int]:
    """An unsigned varint, and the place behind it."""
    number = shift = 0
    while request[place] & 0x80:
        number |= (request[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | request[place] << shift, place + 1


class DrainingCluster(FakeCluster):
    """One such broker, and a topic of `partition_count` partitions."""

    broker_type = DrainingBroker

    def encoded_answer(self, indices: Sequence[int] | None = None) -> bytes:
        """Success for these partitions; for every one in the order of a hash map, as Apache Kafka answers."""
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
    """False at the end of the stream."""
    while target:
        count = connection.recv_into(target)
        if count == 0:
            return False
        target = target[count:]
    return True


class AnsweringCluster(DrainingCluster):
    """The same with a broker that answers for the partitions of a request."""

    broker_type = AnsweringBroker


def _run(partition_count: int, answers_each: bool, pipe: Connection) -> None:
    cluster_type = AnsweringCluster if answers_each else DrainingCluster
    cluster = cluster_type(topics={TOPIC: partition_count})
    pipe.send((cluster.brokers[0].port, cluster.topic_ids[TOPIC]))
    pipe.recv()


@contextmanager
def draining_broker(partition_count: int, *, answers_each: bool = False) -> Iterator[tuple[int, object]]:
    """Its port, in a process of its own, and the id of the topic.

    Args:
        answers_each: requests need not have a batch of every partition.
    """
    ours, theirs = multiprocessing.Pipe()
    arguments = partition_count, answers_each, theirs
    process = multiprocessing.get_context("spawn").Process(target=_run, args=arguments, daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
