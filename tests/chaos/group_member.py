# SPDX-License-Identifier: Apache-2.0
"""A consumer process that is killed: it records what it consumed, then commits it.

Run as ``python -m tests.chaos.group_member CLIENT ADDRESS TOPIC GROUP LEDGER``. SIGTERM ends it cleanly. CLIENT is
kafka-python, confluent, or confluent-848, which is confluent-kafka with ``group.protocol=consumer``.

Each record is a line of the ledger: partition, offset and value.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, NamedTuple, Protocol

SESSION_MS, HEARTBEAT_MS = 1500, 200
POLL_S = 0.1
RECORDS_MAX = 100


class Consumed(NamedTuple):
    """A record in the ledger."""

    partition: int
    offset: int
    value: bytes

    def line(self) -> bytes:
        return b"%d %d %s\n" % self


class Client(Protocol):
    """A group member of one of the client libraries."""

    def poll(self) -> Sequence[Consumed]:
        """Return the next records, if any."""

    def commit(self) -> None:
        """Commit the polled records. If that fails, another member consumes them again."""

    def close(self) -> None:
        """Leave the group."""


class KafkaPython:
    """kafka-python."""

    def __init__(self, address: str, topic: str, group: str) -> None:
        from kafka import KafkaConsumer

        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_records=RECORDS_MAX,
            reconnect_backoff_max_ms=200,
        )

    def poll(self) -> list[Consumed]:
        found = self._consumer.poll(timeout_ms=int(POLL_S * 1000)).values()
        return [Consumed(one.partition, one.offset, one.value) for records in found for one in records]

    def commit(self) -> None:
        from kafka.errors import KafkaError

        with contextlib.suppress(KafkaError):
            self._consumer.commit()

    def close(self) -> None:
        self._consumer.close(autocommit=False)


class Confluent:
    """confluent-kafka, with either group protocol."""

    def __init__(self, address: str, topic: str, group: str, settings: dict[str, Any]) -> None:
        import confluent_kafka

        self._library = confluent_kafka
        common = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
        waits = {"reconnect.backoff.max.ms": 200, "log_level": 0}
        self._consumer = confluent_kafka.Consumer({**common, **waits, "enable.auto.commit": False, **settings})
        self._consumer.subscribe([topic])

    def poll(self) -> list[Consumed]:
        found = [one for one in self._consumer.consume(RECORDS_MAX, POLL_S) if one.error() is None]
        return [Consumed(one.partition() or 0, one.offset() or 0, one.value() or b"") for one in found]

    def commit(self) -> None:
        with contextlib.suppress(self._library.KafkaException):
            self._consumer.commit(asynchronous=False)

    def close(self) -> None:
        self._consumer.close()


def new_client(kind: str, address: str, topic: str, group: str) -> Client:
    """Return a member of the group."""
    if kind == "kafka-python":
        return KafkaPython(address, topic, group)
    classic = {"session.timeout.ms": SESSION_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
    settings: dict[str, Any] = {"group.protocol": "consumer"} if kind == "confluent-848" else classic
    return Confluent(address, topic, group, settings)


class Member:
    """Consumes until it has to end."""

    def __init__(self, client: Client, ledger: str) -> None:
        self._client = client
        self._is_over = False
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        self._is_over = True

    def run(self) -> None:
        while not self._is_over:
            records = self._client.poll()
            if records:
                os.write(self._ledger, b"".join(one.line() for one in records))
                self._client.commit()
        self._client.close()


if __name__ == "__main__":
    Member(new_client(*sys.argv[1:5]), sys.argv[5]).run()
