# SPDX-License-Identifier: Apache-2.0
"""Transactions of an arena in Apache Kafka, checked by a librdkafka consumer of committed records."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError

from shmaccum.arena import Arena
from shmaccum.exceptions import ProducerFencedError, TransactionEndedError
from tests.kafka.broker import LOOPBACK, Cluster
from tests.kafka.proxy import RequestProxy
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.transactions import (
    API_KEYS,
    DEATHS,
    INJURIES,
    PARTITION_COUNT,
    Injury,
    MistakeError,
    committed_twice,
    input_of,
    is_over,
    make,
    producing,
    send_one_each,
    sender_of,
    sending,
    survive_deaths,
    survive_injuries,
    survives,
)

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic() -> str:
    """A unique topic name."""
    return f"flights-{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=[1, 2], ids=["explicit", "implicit"])
def version(request: pytest.FixtureRequest, apache: Cluster) -> int:
    """The cluster's transaction.version. With 2, brokers add partitions themselves (KIP-890)."""
    apache.set_transaction_version(request.param)
    number: int = request.param
    return number


@pytest.fixture
def transactional(apache: Cluster, version: int, topic: str, arena_name: str) -> Iterator[Arena]:
    apache.create_topic(topic, PARTITION_COUNT)
    with make(arena_name, topic, f"id-{topic}") as arena:
        yield arena


def committed(cluster: Cluster, topic: str) -> list[bytes]:
    """The values up to the last stable offsets, sorted."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": f"judge-{topic}", "enable.partition.eof": True}
    settings |= {"isolation.level": "read_committed", "enable.auto.commit": False, "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    found, ends = [], 0
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(PARTITION_COUNT)])
        while ends < PARTITION_COUNT:
            for message in consumer.consume(100, timeout=1):
                error = message.error()
                if error is None:
                    found.append(message.value() or b"")
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ends += 1
    finally:
        consumer.close()
    return sorted(found)


def offset(cluster: Cluster, group: str) -> int | None:
    """The committed offset of the group for the input, or None."""
    admin = cluster.admin()  # ends its requests when it is collected
    found = admin.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(group)])
    places = found[group].result(WATCHDOG_S).topic_partitions or ()
    return next((one.offset for one in places if one.offset >= 0), None)


def url_of(cluster: Cluster) -> str:
    return f"kafka:{cluster.bootstrap}"


def test_records_and_offsets_are_committed_together_or_not_at_all(
    apache: Cluster, transactional: Arena, topic: str
) -> None:
    with sending(transactional, url_of(apache)), producing(transactional) as producer:
        for number in range(6):
            with contextlib.suppress(MistakeError), producer.transaction() as transaction:
                send_one_each(producer, b"%d" % number)
                transaction.send_offsets({input_of(transactional): number}, f"id-{topic}")
                if number % 2:
                    producer.flush()
                    raise MistakeError
        assert offset(apache, f"id-{topic}") == 4
        assert committed(apache, topic) == sorted([b"0", b"2", b"4"] * PARTITION_COUNT)


@pytest.mark.parametrize(("owner", "name", "is_commit"), DEATHS)
def test_a_sender_that_dies_at_any_request_or_answer_is_followed_by_one_that_continues(
    apache: Cluster,
    transactional: Arena,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
    is_commit: bool,
) -> None:
    count = survive_deaths(transactional, url_of(apache), monkeypatch, owner, name, is_commit=is_commit)
    wanted = range(count) if is_commit else ()
    assert committed(apache, topic) == sorted(b"%d" % one for one in wanted for _ in range(PARTITION_COUNT))
    assert offset(apache, f"id-{topic}") == (count - 1 if is_commit else None)
    assert count > 1, "no death was survived"


@pytest.mark.parametrize("number", [1, 2], ids=["explicit", "implicit"])
@pytest.mark.parametrize("is_answer", [False, True], ids=["request", "answer"])
@pytest.mark.parametrize("injury", INJURIES)
def test_a_sender_is_cut_off_or_killed_in_front_of_each_request_and_answer(
    behind_a_proxy: tuple[Cluster, RequestProxy],
    topic: str,
    arena_name: str,
    injury: Injury,
    is_answer: bool,
    number: int,
) -> None:
    cluster, between = behind_a_proxy
    cluster.set_transaction_version(number)
    cluster.create_topic(topic, PARTITION_COUNT)
    url = f"kafka:{LOOPBACK}:{between.port}"
    with make(arena_name, topic, f"id-{topic}") as arena:
        hits, count = survive_injuries(arena, url, between, injury, is_answer=is_answer, is_thorough=True)
    by_the_broker = {"AddPartitionsToTxn", "AddOffsetsToTxn"} if number == 2 else set()
    assert committed(cluster, topic) == committed_twice(count)
    assert [offset(cluster, f"id-{topic}-{one}") for one in range(count)] == [*range(count)]
    assert all(hits[name] for name in API_KEYS.keys() - by_the_broker), hits


def test_another_arena_with_the_id_fences_this_one_until_it_takes_the_id_back(
    apache: Cluster, transactional: Arena, version: int, topic: str
) -> None:
    """With version 2, a batch is fenced first. It causes an abort, which the coordinator rejects."""
    name = f"{transactional.name}-rival"
    try:
        with (
            make(name, topic, f"id-{topic}") as rival,
            producing(transactional) as producer,
            producing(rival) as other,
            sending(transactional, url_of(apache)),
        ):
            producer.begin_transaction()
            producer.send(topic, b"of the first", partition=0).get(WATCHDOG_S)
            with sending(rival, url_of(apache)):
                with other.transaction():
                    other.send(topic, b"of the rival", partition=0)
                with pytest.raises(ProducerFencedError, match="init_transactions"):
                    producer.commit_transaction()
                producer.abort_transaction()
                wait_until(lambda: is_over(transactional), "the fenced transaction is over")
                with pytest.raises(ProducerFencedError):
                    producer.begin_transaction()
                producer.init_transactions()
                with producer.transaction():
                    producer.send(topic, b"of the first again", partition=0)
                first = ProducerFencedError if version == 1 else TransactionEndedError
                with pytest.raises(first, match=r"another producer|INVALID_PRODUCER_EPOCH"), other.transaction():
                    other.send(topic, b"of the rival again", partition=0)
                wait_until(lambda: is_over(rival), "the transaction of the rival is over")
                with pytest.raises(ProducerFencedError):
                    other.begin_transaction()
    finally:
        Arena.remove(name)
    assert committed(apache, topic) == [b"of the first again", b"of the rival"]


def test_a_transaction_that_the_brokers_abort_for_its_time_is_not_committed(
    apache: Cluster, transactional: Arena, topic: str
) -> None:
    with producing(transactional) as producer:
        sender = sender_of(transactional, url_of(apache))
        sender.open()
        sink: Any = sender.sink
        sink._arena_transactions._protocol._timeout_ms = 1000
        producer.begin_transaction()
        late = producer.send(topic, b"late", partition=0)
        assert survives(sender, late.done)
        transactional.native.commit_transaction(transactional.native.transaction[0])
        sender.close()
        plain = confluent_kafka.Producer({"bootstrap.servers": apache.bootstrap})
        plain.produce(topic, b"plain", partition=0)
        plain.flush(WATCHDOG_S)
        wait_until(lambda: committed(apache, topic) == [b"plain"], "the broker aborts it")
        with sending(transactional, url_of(apache)):
            with pytest.raises(
                (ProducerFencedError, TransactionEndedError), match=r"after a timeout|INVALID_TXN_STATE"
            ):
                producer.commit_transaction()
            producer.abort_transaction()
            producer.init_transactions()
            with producer.transaction():
                producer.send(topic, b"in time", partition=0)
    assert committed(apache, topic) == [b"in time", b"plain"]


def test_a_transaction_outlives_its_broker(own_broker: Cluster, topic: str, arena_name: str) -> None:
    own_broker.create_topic(topic, PARTITION_COUNT)
    (broker,) = own_broker.brokers
    with (
        make(arena_name, topic, f"id-{topic}") as arena,
        producing(arena) as producer,
        sending(arena, url_of(own_broker)),
    ):
        for number in range(3):
            with producer.transaction():
                send_one_each(producer, b"%d" % number)
                producer.flush()
                broker.kill()
                own_broker.start()
    assert committed(own_broker, topic) == sorted(b"%d" % one for one in range(3) for _ in range(PARTITION_COUNT))
