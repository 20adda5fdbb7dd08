# SPDX-License-Identifier: Apache-2.0
"""A broker that throws away what it is sent, as fast as Python can, and says that all is well.

Everything but Produce is answered by the scripted cluster of the tests. Of a Produce request only the size and the
correlation id are looked at; the answer was encoded beforehand.
"""

from __future__ import annotations

import multiprocessing
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from random import Random

from kafka.protocol.producer import ProduceResponse

from shmaccum.sinks.kafka.produce import PRODUCE_API_KEY
from tests.kafka.fake_broker import FakeBroker, FakeCluster, Reply, partition_response

TOPIC = "bench"
VERSION = 13
HEAD = struct.Struct(">ihhi")
CORRELATION_POSITION = 4
SCRATCH_SIZE = 1 << 20


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


class DrainingCluster(FakeCluster):
    """One such broker, and a topic of `partition_count` partitions."""

    broker_type = DrainingBroker

    def encoded_answer(self) -> bytes:
        """Success for every partition, in the order of a hash map, as Apache Kafka answers."""
        indices = range(self.topics[TOPIC])
        partitions = [partition_response(index, Reply()) for index in Random(0).sample(indices, len(indices))]
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


def _run(partition_count: int, pipe: Connection) -> None:
    cluster = DrainingCluster(topics={TOPIC: partition_count})
    pipe.send((cluster.brokers[0].port, cluster.topic_ids[TOPIC]))
    pipe.recv()


@contextmanager
def draining_broker(partition_count: int) -> Iterator[tuple[int, object]]:
    """Its port, in a process of its own, and the id of the topic."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(partition_count, theirs), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.kill()
        process.join()
