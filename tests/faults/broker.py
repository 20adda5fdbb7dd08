# SPDX-License-Identifier: Apache-2.0
"""A broker in a separate process, in which no system call fails."""

from __future__ import annotations

import itertools
import multiprocessing
import uuid
from multiprocessing.connection import Connection
from typing import Any

from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Verdict
from tests.kafka.fake_broker import Arrived, FakeCluster, Reply

OUT_OF_ORDER_SEQUENCE_NUMBER = 45


class AnyTopicCluster(FakeCluster):
    """Creates a topic of one partition at its first request, and writes batches in sequence."""

    def __init__(self) -> None:
        self.log = MemorySink(partitions=1)
        super().__init__()
        self.producer_ids = itertools.count(7_000)
        self.on_produce = self._keep

    def _topic_metadata(self, topic: str) -> Any:
        self.topics.setdefault(topic, 1)
        self.topic_ids.setdefault(topic, uuid.uuid4())
        self.leaders.setdefault((topic, 0), 0)
        return super()._topic_metadata(topic)

    def _keep(self, arrived: Arrived) -> Reply:
        (ack,) = self.log.write([arrived.wire_batch()])
        return Reply(0 if ack.verdict is Verdict.DELIVERED else OUT_OF_ORDER_SEQUENCE_NUMBER, ack.base_offset)


def _serve(pipe: Connection) -> None:
    cluster = AnyTopicCluster()
    pipe.send(cluster.bootstrap)
    while topic := pipe.recv():
        pipe.send([record.value for record in cluster.log.records(topic, 0)])


class BrokerProcess:
    """The broker's process, with the address `bootstrap`."""

    def __init__(self) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self.bootstrap: str = self._pipe.recv()

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values of a topic in the order of its log."""
        self._pipe.send(topic)
        found: list[bytes | None] = self._pipe.recv()
        return found

    def close(self) -> None:
        self._pipe.send("")
        self._process.join()
        self._pipe.close()
