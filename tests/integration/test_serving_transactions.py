# SPDX-License-Identifier: Apache-2.0
"""Transactional producers of several libraries with a served log, and consumers of committed records."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

from shmaccum.log.files import LogReader, check_log
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import LogServer
from shmaccum.log.server.client_connection import ClientConnection
from tests.support.log_server import DEADLINE_S, address_of, running, served, transactional
from tests.support.segment_log import TOPIC, values_of

OTHER = "others"


def test_librdkafka_commits_and_aborts_over_several_partitions(tmp_path: Path) -> None:
    with served(tmp_path) as address, transactional(address) as producer:
        for number in range(6):
            producer.begin_transaction()
            for topic in (TOPIC, OTHER):
                for partition in range(3):
                    producer.produce(topic, b"%d" % number, partition=partition)
            producer.flush(DEADLINE_S)
            (producer.commit_transaction if number % 2 else producer.abort_transaction)(DEADLINE_S)
    assert set(values_of(tmp_path)) == set(values_of(tmp_path, OTHER)) == {b"1", b"3", b"5"}
    assert check_log(tmp_path) == []


def test_kafka_python_consumes_transforms_and_produces(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        producer = KafkaProducer(bootstrap_servers=address, transactional_id="loop")
        place = KafkaTopicPartition(TOPIC, 1)
        try:
            producer.init_transactions()
            for number in range(4):
                producer.begin_transaction()
                producer.send(TOPIC, b"%d" % number, partition=0)
                producer.send_offsets_to_transaction({place: OffsetAndMetadata(10 + number, "", -1)}, "readers")
                (producer.commit_transaction if number != 3 else producer.abort_transaction)()
        finally:
            producer.close()
        assert set(values_of(tmp_path)) == {b"0", b"1", b"2"}
        admin = AdminClient({"bootstrap.servers": address})
        wanted = confluent_kafka.ConsumerGroupTopicPartitions("readers")
        found = admin.list_consumer_group_offsets([wanted])["readers"].result(DEADLINE_S)
        assert [(one.topic, one.partition, one.offset) for one in found.topic_partitions] == [(TOPIC, 1, 12)]


def test_a_second_producer_with_the_id_fences_the_first(tmp_path: Path) -> None:
    with served(tmp_path) as address, transactional(address) as first:
        first.begin_transaction()
        first.produce(TOPIC, b"of the first", partition=0)
        first.flush(DEADLINE_S)
        with transactional(address) as second:
            second.begin_transaction()
            second.produce(TOPIC, b"of the second", partition=0)
            with pytest.raises(confluent_kafka.KafkaException) as caught:
                first.commit_transaction(DEADLINE_S)
            assert caught.value.args[0].fatal()
            second.commit_transaction(DEADLINE_S)
    assert set(values_of(tmp_path)) == {b"of the second"}


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    with served(tmp_path) as address, transactional(address, timeout_ms=1000) as producer:
        producer.begin_transaction()
        producer.produce(TOPIC, b"late", partition=0)
        producer.flush(DEADLINE_S)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_committed"}
        )
        try:
            consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
            plain = confluent_kafka.Producer({"bootstrap.servers": address})
            plain.produce(TOPIC, b"plain", partition=0)
            plain.flush(DEADLINE_S)
            message = consumer.poll(DEADLINE_S)  # it arrives when the earlier transaction is aborted
            assert message is not None
            assert message.value() == b"plain"
        finally:
            consumer.close()
        with pytest.raises(confluent_kafka.KafkaException):
            producer.commit_transaction(DEADLINE_S)


# --- single requests

INIT, ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS, FETCH_OFFSETS = 22, 24, 25, 26, 28, 9


class Client:
    """A transactional producer that sends single requests."""

    def __init__(self, server: ClientConnection, name: str = "etl") -> None:
        self.server = server
        self.key: dict[str, Any] = {"transactional_id": name, "producer_id": -1, "producer_epoch": -1}

    def begin(self, timeout_ms: int = 60_000) -> BrokerError:
        found = self.server.ask(INIT, 4, {**self.key, "transaction_timeout_ms": timeout_ms})
        if not found.error_code:
            self.key |= {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
        return BrokerError(found.error_code)

    def begin_anew(self) -> BrokerError:
        self.key |= {"producer_id": -1, "producer_epoch": -1}
        return self.begin()

    def add(self, *partitions: int, topic: str = TOPIC) -> list[BrokerError]:
        values = {f"v3_and_below_{name}": value for name, value in self.key.items()}
        topics = [{"name": topic, "partitions": list(partitions)}]
        found = self.server.ask(ADD_PARTITIONS, 3, {**values, "v3_and_below_topics": topics})
        results = found.results_by_topic_v3_and_below[0].results_by_partition
        return [BrokerError(one.partition_error_code) for one in results]

    def add_group(self, group_id: str = "readers") -> BrokerError:
        return BrokerError(self.server.ask(ADD_OFFSETS, 3, {**self.key, "group_id": group_id}).error_code)

    def commit_offset(self, offset: int, group_id: str = "readers", **member: Any) -> BrokerError:
        partition = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        nobody = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": TOPIC, "partitions": [partition]}]
        values = {**self.key, "group_id": group_id, **nobody, **member, "topics": topics}
        return BrokerError(self.server.ask(COMMIT_OFFSETS, 3, values).topics[0].partitions[0].error_code)

    def end(self, *, is_commit: bool) -> BrokerError:
        return BrokerError(self.server.ask(END, 3, {**self.key, "committed": is_commit}).error_code)

    def offset(self, *, is_stable: bool, group_id: str = "readers") -> tuple[int, BrokerError]:
        """The committed offset of the group, and its error."""
        topics = [{"name": TOPIC, "partition_indexes": [0]}]
        found = self.server.ask(
            FETCH_OFFSETS, 7, {"group_id": group_id, "topics": topics, "require_stable": is_stable}
        ).topics[0]
        return found.partitions[0].committed_offset, BrokerError(found.partitions[0].error_code)


@contextlib.contextmanager
def asked(path: Path) -> Iterator[Client]:
    """A client of a server that has the topic."""
    with running(path) as server, ClientConnection(address_of(server)) as asking:
        assert server._log is not None
        server._log.create_topic(TOPIC, 3)
        yield Client(asking)


def test_offsets_of_a_transaction_count_from_its_commit_on(tmp_path: Path) -> None:
    with asked(tmp_path) as client:
        assert client.begin() is BrokerError.NONE
        assert client.commit_offset(5) is BrokerError.INVALID_TXN_STATE, "the group was not added"
        assert client.add_group() is BrokerError.NONE
        assert client.commit_offset(5) is BrokerError.NONE
        assert client.offset(is_stable=False) == (-1, BrokerError.NONE)
        assert client.offset(is_stable=True) == (-1, BrokerError.UNSTABLE_OFFSET_COMMIT)
        assert client.end(is_commit=True) is BrokerError.NONE
        assert client.offset(is_stable=True) == (5, BrokerError.NONE)
        assert client.add_group() is BrokerError.NONE
        assert client.commit_offset(9) is BrokerError.NONE
        assert client.end(is_commit=False) is BrokerError.NONE
        assert client.offset(is_stable=True) == (5, BrokerError.NONE)
        assert client.commit_offset(9, member_id="stranger") is BrokerError.INVALID_TXN_STATE
        assert client.add_group() is BrokerError.NONE
        assert client.commit_offset(9, member_id="stranger", generation_id=3) is BrokerError.UNKNOWN_MEMBER_ID


def test_requests_out_of_order_are_refused_as_kafka_does(tmp_path: Path) -> None:
    with asked(tmp_path) as client:
        assert client.add(0) == [BrokerError.INVALID_PRODUCER_ID_MAPPING]
        assert client.begin(0) is client.begin(10**9) is BrokerError.INVALID_TRANSACTION_TIMEOUT
        assert client.begin() is BrokerError.NONE
        assert client.end(is_commit=True) is client.end(is_commit=False) is BrokerError.INVALID_TXN_STATE
        assert client.add(0, 7) == [BrokerError.OPERATION_NOT_ATTEMPTED, BrokerError.UNKNOWN_TOPIC_OR_PARTITION]
        assert client.add(0, 1) == [BrokerError.NONE] * 2
        assert client.end(is_commit=True) is BrokerError.NONE
        assert client.end(is_commit=True) is BrokerError.NONE, "the answer may have been lost"
        assert client.end(is_commit=False) is BrokerError.INVALID_TXN_STATE
        former = dict(client.key)
        assert client.begin() is BrokerError.NONE, "a producer may raise its own epoch (KIP-360)"
        assert client.key["producer_epoch"] == former["producer_epoch"] + 1
        client.key = dict(former)
        assert client.add(0) == [BrokerError.PRODUCER_FENCED]
        assert client.end(is_commit=True) is client.add_group() is BrokerError.PRODUCER_FENCED
        assert client.begin() is BrokerError.NONE, "the answer to its own request may have been lost"
        assert client.begin_anew() is BrokerError.NONE
        client.key = dict(former)
        assert client.begin() is BrokerError.PRODUCER_FENCED
        assert Client(client.server, "").begin() is BrokerError.INVALID_REQUEST


def test_an_open_transaction_ends_when_the_next_producer_begins(tmp_path: Path) -> None:
    with asked(tmp_path) as client:
        client.begin()
        client.add(0)
        client.add_group()
        client.commit_offset(5)
        former = dict(client.key)
        assert client.begin_anew() is BrokerError.NONE
        assert client.key["producer_epoch"] == former["producer_epoch"] + 2
        assert client.offset(is_stable=True) == (-1, BrokerError.NONE)


# --- deaths


@contextlib.contextmanager
def program(*command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program until the end of the block. A fork of this worker would contain threads of librdkafka."""
    with subprocess.Popen([sys.executable, "-m", *command], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def partition_values(path: Path) -> list[list[bytes | None]]:
    reader = LogReader(path, isolation_level="read_committed")
    return [[record.value for record in reader.partition(TOPIC, number).records()] for number in range(3)]


def test_a_death_of_the_server_leaves_all_of_a_transaction_or_nothing(tmp_path: Path) -> None:
    """The server is killed while a producer commits. The next one completes what was decided."""
    with LogServer(tmp_path, "127.0.0.1:0", is_writable=True, partitions=3) as reserved:
        address = address_of(reserved)
    serve = ["shmaccum", "serve", str(tmp_path), "--listen", address, "--writable", "-X", "partitions=3"]
    with program("tests.support.transactional_producer", address) as life, program(*serve):
        assert life.stdout is not None
        last = [int(life.stdout.readline()) for _ in range(3)][-1]
        # The end of the block kills the server, then the producer.
    with served(tmp_path) as again, transactional(again):
        values = partition_values(tmp_path)
    assert values[0] == values[1] == values[2] == [b"%d" % number for number in range(len(values[0]))]
    assert len(values[0]) > last
    assert check_log(tmp_path) == []
