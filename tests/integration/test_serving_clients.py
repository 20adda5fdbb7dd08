# SPDX-License-Identifier: Apache-2.0
"""Clients of other libraries consume from a served log, produce to it, and share its partitions in groups."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaAdminClient

from shmaccum.exceptions import InvalidArgumentError, LogBusyError
from shmaccum.log.files.reader import LogReader
from shmaccum.log.server import LogServer
from tests.support.log_server import (
    DEADLINE_S,
    PARTITION_COUNT,
    confluent_consumer,
    consume_with_confluent,
    consume_with_kafka_python,
    produce,
    served,
)
from tests.support.segment_log import TOPIC, make_batches, open_log


def test_what_kafka_python_produces_each_client_and_our_reader_consume_once(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(3000))
        assert sorted(consume_with_kafka_python(address, 3000, group_id="python")) == list(range(3000))
        with contextlib.closing(confluent_consumer(address, "confluent")) as consumer:
            assert sorted(consume_with_confluent(consumer, 3000)) == list(range(3000))
    reader = LogReader(tmp_path / "log")
    found = [
        int(record.value or b"")
        for part in range(PARTITION_COUNT)
        for record in reader.partition(TOPIC, part).records()
    ]
    assert sorted(found) == list(range(3000))


def test_what_confluent_produces_with_idempotence_is_there_once(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        errors: list[object] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "enable.idempotence": True})
        for number in range(3000):
            producer.produce(TOPIC, b"%d" % number, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
        assert errors == [None] * 3000
        assert sorted(consume_with_kafka_python(address, 3000)) == list(range(3000))


def test_a_consumer_beside_a_writer_in_another_directory_handle_sees_each_append(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory, served(tmp_path / "log", is_writable=False) as address:
        consumer = confluent_consumer(address, "g", **{"fetch.wait.max.ms": 10_000})
        with contextlib.closing(consumer):
            seen = 0
            for batch in make_batches(20):
                directory.partition(TOPIC, 0).append([batch])
                values: list[bytes] = []
                while len(values) < 3:
                    values += [message.value() or b"" for message in consumer.consume(3, DEADLINE_S)]
                assert [int(value[:8]) for value in values] == [seen, seen + 1, seen + 2]
                seen += 3


def test_committed_offsets_survive_the_server(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(300))
        with contextlib.closing(confluent_consumer(address, "g", **{"enable.auto.commit": False})) as consumer:
            first = consume_with_confluent(consumer, 100)
            consumer.commit(asynchronous=False)
    with served(tmp_path / "log") as address, contextlib.closing(confluent_consumer(address, "g")) as consumer:
        assert sorted(first + consume_with_confluent(consumer, 200)) == list(range(300))


def test_tools_see_topics_groups_and_lag(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(300))
        with contextlib.closing(confluent_consumer(address, "g")) as consumer:
            consume_with_confluent(consumer, 300)
            consumer.commit(asynchronous=False)
            admin = KafkaAdminClient(bootstrap_servers=address)
            with contextlib.closing(admin):
                assert admin.list_topics() == [TOPIC]
                (group,) = admin.list_groups()
                assert (group["group_id"], group["group_state"]) == ("g", "Stable")
                committed = confluent_kafka.TopicPartition
                found = consumer.committed([committed(TOPIC, part) for part in range(PARTITION_COUNT)], DEADLINE_S)
                ends = [
                    consumer.get_watermark_offsets(committed(TOPIC, part), DEADLINE_S)[1]
                    for part in range(PARTITION_COUNT)
                ]
                assert [one.offset for one in found] == ends


def test_librdkafka_lists_all_topics(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(3))
        producer = confluent_kafka.Producer({"bootstrap.servers": address})
        assert set(producer.list_topics(timeout=DEADLINE_S).topics) == {TOPIC}


def test_a_server_that_only_reads_refuses_to_write_with_a_sentence(tmp_path: Path) -> None:
    with open_log(tmp_path / "log"), served(tmp_path / "log", is_writable=False) as address:
        errors: list[Any] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": address, "message.timeout.ms": 5000})
        producer.produce(TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(DEADLINE_S)
        assert errors[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_writable_server_and_a_sender_exclude_each_other(tmp_path: Path) -> None:
    with open_log(tmp_path / "log"), pytest.raises(LogBusyError):
        LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "example.org:9092"])
def test_a_server_without_tls_stays_on_this_host(tmp_path: Path, listen: str) -> None:
    with pytest.raises(InvalidArgumentError, match="--insecure"):
        LogServer(tmp_path / "log", listen, is_writable=True)


@pytest.mark.parametrize("listen", ["nothing", "host:", ":70000", "host:port"])
def test_what_is_no_address_is_refused(tmp_path: Path, listen: str) -> None:
    with pytest.raises(InvalidArgumentError):
        LogServer(tmp_path / "log", listen, is_writable=True, insecure=True)


HOSTILE = {
    "a size of 2 GiB": struct.pack(">ihh", 2**31 - 1, 3, 9),
    "a negative size": struct.pack(">ihh", -1, 3, 9),
    "an unknown api": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "a version from the future": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "an old produce": struct.pack(">ihhih", 10, 0, 2, 1, -1),
    "a client id beyond the frame": struct.pack(">ihhih", 10, 3, 1, 1, 200),
    "an array of a billion": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**30),
    "bytes after the request": struct.pack(">ihhihi", 18, 3, 1, 1, -1, 0) + b"more",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_costs_its_own_connection_alone(tmp_path: Path, name: str) -> None:
    with served(tmp_path / "log") as address:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as stranger:
            stranger.sendall(HOSTILE[name])
            assert stranger.recv(1) == b""
        produce(address, range(3))
        assert sorted(consume_with_kafka_python(address, 3)) == [0, 1, 2]


def test_requests_that_come_together_are_answered_in_order(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as client:
            client.sendall(b"".join(struct.pack(">ihhih", 10, 18, 0, number, -1) for number in range(100)))
            with client.makefile("rb") as answers:
                for number in range(100):
                    (size,) = struct.unpack(">i", answers.read(4))
                    assert struct.unpack_from(">i", answers.read(size)) == (number,)


def test_a_client_that_never_reads_stops_no_other(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address:
        produce(address, range(3))
        host, _, port = address.partition(":")
        with socket.create_connection((host, int(port)), DEADLINE_S) as lazy:
            lazy.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    lazy.send(struct.pack(">ihhih", 10, 18, 0, 1, -1) * 1000)
            assert sorted(consume_with_kafka_python(address, 3)) == [0, 1, 2]
