# SPDX-License-Identifier: Apache-2.0
"""Consumes the flights again, from the sender's own server, with a group of kafka-python consumers.

Each consumer is a process. Its records go to this process through a queue. The offset shows whether a record was
delivered twice or sent twice.
"""

from __future__ import annotations

import multiprocessing
import queue
from collections import defaultdict
from contextlib import closing
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import NamedTuple

from examples.flights.data import topics
from examples.flights.verification import Ledger
from shmaccum.exceptions import ShmaccumError

GROUP_SIZE = 3
GROUP = "flights-readers"
POLL_MS = 200
PATIENCE_S = 60.0
"""The group has stopped if nothing arrives for this time."""
CHECK_S = 0.5

Portion = tuple[str, int, list[tuple[int, bytes | None, bytes]]]
"""Topic, partition, and records as offset, key and value."""
Place = tuple[str, int]


class Consumed(NamedTuple):
    """All records that a group has read.

    Attributes:
        records: key and value by offset, for each partition.
        repeated_count: records that were delivered again, as is possible after a rebalance.
    """

    records: dict[Place, dict[int, tuple[bytes | None, bytes]]]
    repeated_count: int

    def enter(self, ledger: Ledger) -> None:
        """Enters each record once, in the order of its partition."""
        for (topic, _), records in self.records.items():
            for _, (key, value) in sorted(records.items()):
                ledger.enter(topic, key, value)


def _consume(address: str, portions: Queue[Portion], is_over: Event) -> None:
    """Runs one member of the group."""
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(*topics(), bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest")
    with closing(consumer):
        while not is_over.is_set():
            for place, records in consumer.poll(timeout_ms=POLL_MS).items():
                rows = [(record.offset, record.key, record.value) for record in records]
                portions.put((place.topic, place.partition, rows))
    portions.cancel_join_thread()


def consume(address: str, record_count: int) -> Consumed:
    """Reads with a group until all records have arrived, or no more arrive.

    Args:
        address: HOST:PORT of the server.
        record_count: the number of records.

    Raises:
        ShmaccumError: a consumer ended unexpectedly.
    """
    context = multiprocessing.get_context("spawn")
    portions: Queue[Portion] = context.Queue()
    is_over = context.Event()
    members = [
        context.Process(target=_consume, args=(address, portions, is_over), name=f"consumer-{number}", daemon=True)
        for number in range(GROUP_SIZE)
    ]
    for member in members:
        member.start()
    try:
        return _collect(portions, members, record_count)
    finally:
        is_over.set()
        for member in members:
            member.join(PATIENCE_S)
            member.kill()


def _collect(portions: Queue[Portion], members: list[SpawnProcess], record_count: int) -> Consumed:
    found: defaultdict[Place, dict[int, tuple[bytes | None, bytes]]] = defaultdict(dict)
    count, waited_s = 0, 0.0
    while sum(map(len, found.values())) < record_count and waited_s < PATIENCE_S:
        for member in members:
            if member.exitcode is not None:
                raise ShmaccumError(f"{member.name} ended with exit code {member.exitcode}")
        try:
            topic, partition, rows = portions.get(timeout=CHECK_S)
        except queue.Empty:
            waited_s += CHECK_S
            continue
        waited_s = 0.0
        count += len(rows)
        found[topic, partition].update({offset: (key, value) for offset, key, value in rows})
    return Consumed(dict(found), count - sum(map(len, found.values())))
