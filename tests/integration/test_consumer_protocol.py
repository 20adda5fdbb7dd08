# SPDX-License-Identifier: Apache-2.0
"""librdkafka's consumers share a served log by KIP-848 (group.protocol=consumer)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, NewTopic  # type: ignore[attr-defined]

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.groups.offsets_file import OffsetsFile
from shmaccum.log.server import LogServer
from shmaccum.log.server.client_connection import ClientConnection
from tests.support.log_server import DEADLINE_S, PARTITION_COUNT, produce, served
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC

GROUP = "g"
HEARTBEAT_MS = 100
RECORD_COUNT = 300


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """A served log with records, whose members soon learn of changes."""
    with served(tmp_path / "log", group_consumer_heartbeat_interval_ms=HEARTBEAT_MS) as address:
        produce(address, range(RECORD_COUNT))
        yield address


class Members:
    """Consumers of one group, each polled in turn."""

    def __init__(self, address: str) -> None:
        self._settings = {"bootstrap.servers": address, "group.id": GROUP, "auto.offset.reset": "earliest"}
        self.consumers: list[confluent_kafka.Consumer] = []
        self.values: list[int] = []

    def add(self, protocol: str = "consumer", **more: object) -> confluent_kafka.Consumer:
        settings: dict[str, Any] = {**self._settings, "group.protocol": protocol, **more}
        self.consumers.append(confluent_kafka.Consumer(settings))
        self.consumers[-1].subscribe([TOPIC])
        return self.consumers[-1]

    def shares(self) -> list[int]:
        """How many partitions each member has, largest first."""
        return sorted((len(consumer.assignment()) for consumer in self.consumers), reverse=True)

    def poll_until(self, is_true: Callable[[], bool]) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not is_true():
            assert time.monotonic() < end_s, f"the shares are {self.shares()}"
            for consumer in self.consumers:
                for message in consumer.consume(100, 0.02):
                    assert message.error() is None
                    self.values.append(int(message.value() or b""))

    def settle(self, shares: list[int]) -> None:
        self.poll_until(lambda: self.shares() == shares)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()
        self.consumers.clear()


def described(address: str) -> ConsumerGroupDescription:
    admin = AdminClient({"bootstrap.servers": address})
    description: ConsumerGroupDescription = admin.describe_consumer_groups([GROUP])[GROUP].result(DEADLINE_S)
    return description


def test_three_partitions_are_shared_by_one_two_three_and_four_consumers(address: str) -> None:
    with contextlib.closing(Members(address)) as members:
        for shares in ([3], [2, 1], [1, 1, 1], [1, 1, 1, 0]):
            members.add()
            members.settle(shares)
        members.poll_until(lambda: set(members.values) == set(range(RECORD_COUNT)))
        members.poll_until(lambda: len(described(address).members) == len(members.consumers))
        told = described(address)
        assert (told.type.name, told.partition_assignor) == ("CONSUMER", "uniform")
        members.consumers.pop().close()
        members.consumers.pop().close()
        members.settle([2, 1])


def test_a_group_without_members_continues_with_the_other_protocol_and_its_offsets(address: str) -> None:
    with contextlib.closing(Members(address)) as members:
        consumed: list[int] = []
        for protocol in ("classic", "consumer", "classic"):
            consumer = members.add(protocol, **{"enable.auto.commit": False})
            members.settle([PARTITION_COUNT])
            while len(members.values) < 50:
                members.values += [int(one.value() or b"") for one in consumer.consume(10, 1.0)]
            consumer.commit(asynchronous=False)
            consumed += members.values
            members.values.clear()
            members.close()
        members.add()
        members.poll_until(lambda: len(consumed) + len(members.values) >= RECORD_COUNT)
        assert sorted(consumed + members.values) == list(range(RECORD_COUNT))


def test_a_member_of_the_other_protocol_is_refused_while_members_live(address: str) -> None:
    with contextlib.closing(Members(address)) as members:
        members.add()
        members.settle([PARTITION_COUNT])
        stranger = Members(address)
        with contextlib.closing(stranger):
            consumer = stranger.add("classic")
            error = next(filter(None, (consumer.poll(1.0) for _ in range(60)))).error()
            assert error is not None
            assert error.code() == confluent_kafka.KafkaError.INCONSISTENT_GROUP_PROTOCOL


def assigned_topics(consumer: confluent_kafka.Consumer) -> set[str]:
    return {place.topic for place in consumer.assignment()}


def test_a_pattern_that_the_server_resolves_follows_topics_that_come_and_go(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    with contextlib.closing(Members(address)) as members:
        consumer = members.add()
        consumer.subscribe(["^fl.ght.*", "weather"])
        members.poll_until(lambda: assigned_topics(consumer) == {TOPIC})
        admin.create_topics([NewTopic("flight-times", 1), NewTopic("weather", 1), NewTopic("trains", 1)])
        members.poll_until(lambda: assigned_topics(consumer) == {TOPIC, "flight-times", "weather"})
        members.poll_until(lambda: set(members.values) == set(range(RECORD_COUNT)))
        admin.delete_topics(["flight-times"])

        def has_given_the_deleted_one_up() -> bool:
            consumer.poll(0.02)  # may report that the topic was deleted
            return assigned_topics(consumer) == {TOPIC, "weather"}

        wait_until(has_given_the_deleted_one_up, "the deleted topic is given up")


HEARTBEAT = 68
JOINING = {
    "group_id": GROUP,
    "member_id": "m",
    "member_epoch": 0,
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout_ms": 1000,
    "subscribed_topic_names": None,
    "server_assignor": None,
    "topic_partitions": [],
}


def test_a_pattern_that_is_none_gets_kafkas_error_and_is_described_else(address: str) -> None:
    with ClientConnection(address) as server:
        refused = server.ask(HEARTBEAT, 1, {**JOINING, "subscribed_topic_regex": "("})
        assert refused.error_code == BrokerError.INVALID_REGULAR_EXPRESSION
        assert "missing )" in refused.error_message
        assert server.ask(HEARTBEAT, 1, {**JOINING, "subscribed_topic_regex": "fli.*"}).error_code == 0
        asked = {"group_ids": [GROUP], "include_authorized_operations": False}
        (group,) = server.ask(69, 1, asked).groups
    assert [member.subscribed_topic_regex for member in group.members] == ["fli.*"]


@contextlib.contextmanager
def served_at(path: Path, port: int) -> Iterator[int]:
    """Run a server in a thread at the given port, or at any. Return its port."""
    options: dict[str, Any] = {"partitions": PARTITION_COUNT, "group_consumer_heartbeat_interval_ms": HEARTBEAT_MS}
    with LogServer(path, f"127.0.0.1:{port}", is_writable=True, **options) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server.address.port
        finally:
            server.stop()
            thread.join()


def test_living_members_join_again_after_a_restart_and_the_epoch_continues(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with served_at(tmp_path / "log", 0) as port:
            address = f"127.0.0.1:{port}"
            produce(address, range(RECORD_COUNT))
            members = stack.enter_context(contextlib.closing(Members(address)))
            members.add()
            members.add()
            members.poll_until(lambda: members.shares() == [2, 1] and len(members.values) >= RECORD_COUNT)
            epoch = OffsetsFile(str(tmp_path / "log"), GROUP, is_writer=False).generation
            assert epoch > 0
        stack.enter_context(served_at(tmp_path / "log", port))
        stack.callback(members.close)
        produce(address, range(RECORD_COUNT, 2 * RECORD_COUNT))
        members.poll_until(lambda: members.shares() == [2, 1] and set(members.values) == set(range(2 * RECORD_COUNT)))
        assert OffsetsFile(str(tmp_path / "log"), GROUP, is_writer=False).generation > epoch
