# SPDX-License-Identifier: Apache-2.0
"""If the cluster lacks a partition of an arena, it is named, and its records expire like an unknown topic's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from shmaccum.arena import Arena
from shmaccum.exceptions import DeliveryTimeoutError
from shmaccum.log.files import LogReader
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.support.log_server import served
from tests.support.processes import WATCHDOG_S
from tests.unit.producer.test_new_partitions import running

TOPIC = "words"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A broker whose topic has one partition, while the arena has two."""
    with served(tmp_path / "log") as address:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
            admin.create_topics([NewTopic(TOPIC, 1, 1)])
        yield address


def test_records_of_a_partition_that_the_cluster_lacks_expire_and_are_reported(
    arena: Arena, address: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arena.declare_topic(TOPIC, 2)
    letters = tmp_path / "letters"
    options: dict[str, Any] = {"delivery_timeout_ms": 2000, "request_timeout_ms": 500, "dead_letter": f"log:{letters}"}
    with Producer(arena, linger_ms=0) as producer, Sender(arena, f"kafka:{address}", **options) as sender:
        lost, kept = producer.send(TOPIC, b"lost", partition=1), producer.send(TOPIC, b"kept", partition=0)
        sender.open()
        with running(sender):
            assert kept.get(WATCHDOG_S).partition == 0
            with pytest.raises(DeliveryTimeoutError):
                lost.get(WATCHDOG_S)
            producer.flush(WATCHDOG_S)
    told = f"{TOPIC}-1 does not exist: the cluster's topic {TOPIC} has 1 partition"
    assert any(told in str(error) for error in arena.native.errors())
    assert told in caplog.text
    (letter,) = LogReader(letters).partition(TOPIC, 1).records(0)
    assert letter.value == b"lost"
    assert any(told.encode() in (value or b"") for _, value in letter.headers)


def test_the_partition_is_delivered_to_as_soon_as_the_cluster_has_it(arena: Arena, address: str) -> None:
    arena.declare_topic(TOPIC, 2)
    with Producer(arena, linger_ms=0) as producer, Sender(arena, f"kafka:{address}") as sender:
        late = producer.send(TOPIC, b"late", partition=1)
        sender.open()
        with running(sender):
            producer.send(TOPIC, b"now", partition=0).get(WATCHDOG_S)
            with contextlib.closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
                admin.create_partitions({TOPIC: {"count": 2, "assignments": [[1]]}})
            assert late.get(WATCHDOG_S).partition == 1
