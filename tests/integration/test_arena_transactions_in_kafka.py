# SPDX-License-Identifier: Apache-2.0
"""Transactions of an arena whose sender delivers to Kafka: here a served log with its coordinator (decision 0069)."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from shmaccum._native import ProduceRequest
from shmaccum.arena import Arena
from shmaccum.arena.reports import read_reports
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    DeliveryFailedError,
    OtherSinkError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.log.server import LogServer
from shmaccum.log.server.transactional_id import TransactionState
from shmaccum.sender.pump import PumpResult, PumpRunner
from shmaccum.sender.sinks.kafka.library.client import Client
from shmaccum.sender.sinks.kafka.produce import VERSION_EXPLICIT
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.kafka.transaction.error_effects import INVALID_PRODUCER_EPOCH
from shmaccum.sender.sinks.kafka.transaction.protocol import TransactionProtocol
from shmaccum.sender.sinks.sink import Ack, Acks, Unanswered
from tests.kafka.broker import LOOPBACK, held_port
from tests.kafka.proxy import RequestProxy
from tests.support.log_server import DEADLINE_S, address_of, running
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import values_of
from tests.support.system_calls import dies_at_system_call
from tests.support.transactions import (
    API_KEYS,
    DEATHS,
    INJURIES,
    PARTITION_COUNT,
    TOPIC,
    Injury,
    MistakeError,
    committed_twice,
    count_down,
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

INPUT = TopicPartition(TOPIC, 0)


class Cluster:
    """A served log in the role of a Kafka cluster."""

    def __init__(self, path: Path, server: LogServer) -> None:
        self.path = path
        self.server = server
        self.url = f"kafka:{address_of(server)}"

    def committed(self) -> list[bytes]:
        """The values that readers of committed records get, sorted."""
        return sorted(values_of(self.path, TOPIC))

    def offset(self, group: str = "readers") -> int | None:
        """The group's committed offset for the input, or None."""
        admin = AdminClient({"bootstrap.servers": address_of(self.server)})
        wanted = confluent_kafka.ConsumerGroupTopicPartitions(group)
        found = admin.list_consumer_group_offsets([wanted])[group].result(DEADLINE_S)
        return next((one.offset for one in found.topic_partitions or () if one.topic == INPUT.topic), None)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "log") as server:
        yield Cluster(tmp_path / "log", server)


@pytest.fixture
def transactional(arena_name: str) -> Iterator[Arena]:
    with make(arena_name) as arena:
        yield arena


# --- commit and abort


def test_records_are_visible_when_they_are_committed_and_never_when_they_are_not(
    cluster: Cluster, transactional: Arena
) -> None:
    with sending(transactional, cluster.url), producing(transactional) as producer:
        for number in range(4):
            with contextlib.suppress(MistakeError), producer.transaction():
                send_one_each(producer, b"%d" % number)
                producer.flush()
                assert cluster.committed() == sorted([b"0"] * 3 * (number > 0) + [b"2"] * 3 * (number > 2))
                if number % 2:
                    raise MistakeError
        with producer.transaction():
            pass  # an empty one sends nothing to the brokers
    assert cluster.committed() == [b"0"] * 3 + [b"2"] * 3


def test_a_consumer_of_librdkafka_gets_committed_records_alone(cluster: Cluster, transactional: Arena) -> None:
    settings = {"bootstrap.servers": address_of(cluster.server), "group.id": "g", "auto.offset.reset": "earliest"}
    with sending(transactional, cluster.url), producing(transactional) as producer:
        with contextlib.suppress(MistakeError), producer.transaction():
            producer.send(TOPIC, b"lost", partition=0)
            producer.flush()
            raise MistakeError
        with producer.transaction():
            producer.send(TOPIC, b"kept", partition=0)
    consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.value() == b"kept"
    finally:
        consumer.close()


# --- the pump


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The batch count of each pump call that carried some."""
    run = PumpRunner.run
    counts: list[int] = []

    def note(self: PumpRunner, ready: Sequence[int], due_ns: int, *, is_stuck: bool) -> PumpResult | None:
        outcome = run(self, ready, due_ns, is_stuck=is_stuck)
        if outcome is not None and outcome.batch_count:
            counts.append(outcome.batch_count)
        return outcome

    monkeypatch.setattr(PumpRunner, "run", note)
    return counts


def test_ordinary_batches_of_a_transaction_go_by_the_pump(
    cluster: Cluster, transactional: Arena, carried: list[int]
) -> None:
    with sending(transactional, cluster.url), producing(transactional) as producer:
        for number in range(6):
            with contextlib.suppress(MistakeError), producer.transaction():
                for _ in range(4):
                    send_one_each(producer, b"%d" % number)
                    producer.flush()
                if number % 2:
                    raise MistakeError
                send_one_each(producer, b"%d" % number)
    assert cluster.committed() == sorted([b"0", b"2", b"4"] * PARTITION_COUNT * 5)
    assert sum(carried) > 6 * PARTITION_COUNT


def test_a_sender_checks_its_transaction_after_the_last_batches_of_a_commit(
    cluster: Cluster, transactional: Arena, carried: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait earlier: no process wakes it for results that the pump has recorded."""
    poll = KafkaSink.poll
    are_news: list[bool] = []

    def note(self: KafkaSink, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        if len(are_news) < len(carried):
            rounds: Any = sender._rounds
            are_news.append(rounds._transaction_ender.is_requested)
        return poll(self, timeout_s, wake_fd)

    monkeypatch.setattr(KafkaSink, "poll", note)
    with producing(transactional) as producer, sender_of(transactional, cluster.url) as sender:
        sender.open()
        producer.begin_transaction()
        send_one_each(producer, b"1")
        assert survives(sender, lambda: transactional.native.completion_tail == PARTITION_COUNT)
        send_one_each(producer, b"2")
        transactional.native.commit_transaction(transactional.native.transaction[0])
        assert survives(sender, lambda: is_over(transactional))
        producer.commit_transaction()
    assert cluster.committed() == [b"1"] * PARTITION_COUNT + [b"2"] * PARTITION_COUNT
    assert sum(carried) == PARTITION_COUNT
    assert are_news
    assert all(are_news)


def test_a_request_of_a_transaction_whose_answer_is_late_is_the_sinks(
    behind_a_proxy: tuple[Cluster, RequestProxy],
    transactional: Arena,
    carried: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sink makes the same request, byte for byte, in a version in which brokers add no partition."""
    cluster, between = behind_a_proxy
    adopt = Client.adopt
    sizes: list[tuple[int, int]] = []
    versions: set[int] = set()

    def note(self: Client, node_id: int, tag: Any, request: ProduceRequest, unanswered: Unanswered) -> None:
        sizes.append((request.size, unanswered.sent_size))
        versions.add(request.version)
        between.delay_s = 0
        adopt(self, node_id, tag, request, unanswered)

    monkeypatch.setattr(Client, "adopt", note)
    with sending(transactional, cluster.url), producing(transactional) as producer, producer.transaction():
        send_one_each(producer, b"1")
        producer.flush()
        between.delay_s = 0.4  # each way; a pump call ends after half a second to check the commit
        send_one_each(producer, b"2")
    assert cluster.committed() == [b"1"] * PARTITION_COUNT + [b"2"] * PARTITION_COUNT
    assert carried
    assert sizes
    assert all(size == sent_size for size, sent_size in sizes)
    assert versions == {VERSION_EXPLICIT}


# --- offsets of groups


def test_offsets_of_a_group_are_committed_with_the_records_or_not_at_all(
    cluster: Cluster, transactional: Arena
) -> None:
    with sending(transactional, cluster.url), producing(transactional) as producer:
        with producer.transaction() as transaction:
            producer.send(TOPIC, b"1", partition=0)
            transaction.send_offsets({INPUT: 5}, "readers")
            transaction.send_offsets({INPUT: 7}, "readers")
        assert cluster.offset() == 7
        with contextlib.suppress(MistakeError), producer.transaction():
            producer.send_offsets_to_transaction({INPUT: 9}, "readers")
            producer.flush()
            raise MistakeError
        with producer.transaction() as transaction:
            transaction.send_offsets({INPUT: 3}, "others")
            transaction.send_offsets({}, "others")
        assert cluster.offset() == 7
        assert cluster.offset("others") == 3
        assert producer.metrics()["producer-metrics"]["txn-send-offsets-time-ns-total"] > 0
    assert cluster.committed() == [b"1"]


def test_a_member_of_a_group_that_does_not_exist_commits_nothing(cluster: Cluster, transactional: Arena) -> None:
    class Metadata:
        group_id, generation_id, member_id, group_instance_id = "readers", 4, "stranger", None

    with sending(transactional, cluster.url), producing(transactional) as producer:
        producer.begin_transaction()
        producer.send(TOPIC, b"1", partition=0)
        producer.send_offsets_to_transaction({INPUT: 5}, Metadata())
        with pytest.raises(TransactionEndedError, match="ILLEGAL_GENERATION"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(TOPIC, b"2", partition=0)
    assert cluster.committed() == [b"2"]
    assert cluster.offset() is None


def test_offsets_of_a_topic_that_is_gone_fail_their_transaction_in_time_and_say_why(
    cluster: Cluster, transactional: Arena
) -> None:
    """A coordinator returns only a retriable error, and Kafka's own sees no time-out after it."""
    gone = TopicPartition("gone", 0)
    with (
        sending(transactional, cluster.url, delivery_timeout_ms=1_500, request_timeout_ms=500),
        producing(transactional) as producer,
    ):
        producer.begin_transaction()
        producer.send(TOPIC, b"1", partition=0)
        producer.send_offsets_to_transaction({gone: 5}, "readers")
        with pytest.raises(TransactionEndedError, match=r"expired.*UNKNOWN_TOPIC_OR_PARTITION"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction() as transaction:
            producer.send(TOPIC, b"2", partition=0)
            transaction.send_offsets({INPUT: 5}, "readers")
    assert cluster.committed() == [b"2"]
    assert cluster.offset() == 5


def test_a_record_that_only_looks_like_offsets_fails_its_transaction(cluster: Cluster, transactional: Arena) -> None:
    with sending(transactional, cluster.url), producing(transactional) as producer:
        producer.begin_transaction()
        producer.send("__consumer_offsets", b"{}", partition=0)
        with pytest.raises(TransactionEndedError, match="is not one of send_offsets_to_transaction"):
            producer.commit_transaction()
        producer.abort_transaction()
        with producer.transaction():
            producer.send(TOPIC, b"1", partition=0)
    assert cluster.committed() == [b"1"]


# --- deaths


@pytest.mark.parametrize(("owner", "name", "is_commit"), DEATHS)
def test_a_sender_that_dies_at_any_request_or_answer_is_followed_by_one_that_continues(
    cluster: Cluster, transactional: Arena, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, is_commit: bool
) -> None:
    count = survive_deaths(transactional, cluster.url, monkeypatch, owner, name, is_commit=is_commit)
    wanted = range(count) if is_commit else ()
    assert cluster.committed() == sorted(b"%d" % one for one in wanted for _ in range(PARTITION_COUNT))
    assert cluster.offset("orders-1") == (count - 1 if is_commit else None)
    assert count > 1, "no sender died"


def about_to_end(name: str, url: str) -> Callable[[], object]:
    """A sender before a transaction that is being committed."""
    sender = sender_of(Arena.attach(name), url)
    sender.open()
    return lambda: survives(sender, lambda: is_over(sender.arena))


@pytest.mark.parametrize("stride", [60, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sender_that_dies_at_any_system_call_is_followed_by_one_that_continues(
    cluster: Cluster, transactional: Arena, seeded: Callable[[], random.Random], stride: int
) -> None:
    steps, call, count, has_died = seeded(), 0, 0, True
    with producing(transactional) as producer:
        while has_died:
            call += steps.randint(1, stride)
            with producer.transaction() as transaction:
                send_one_each(producer, b"%d" % count)
                transaction.send_offsets({INPUT: count}, "readers")
                transactional.native.commit_transaction(transaction.number)
                has_died = dies_at_system_call(functools.partial(about_to_end, transactional.name, cluster.url), call)
                with sending(transactional, cluster.url):
                    transaction.commit()
            count += 1
    assert cluster.committed() == sorted(b"%d" % number for number in range(count) for _ in range(PARTITION_COUNT))
    assert cluster.offset() == count - 1
    assert count > 1, "no sender died"


@pytest.fixture
def behind_a_proxy(tmp_path: Path) -> Iterator[tuple[Cluster, RequestProxy]]:
    """A served log whose clients connect through a proxy."""
    with contextlib.closing(held_port()) as held:
        port = held.getsockname()[1]
        with (
            running(tmp_path / "log", advertised_listener=f"{LOOPBACK}:{port}") as server,
            contextlib.closing(RequestProxy(server.address.port, port)) as between,
        ):
            cluster = Cluster(tmp_path / "log", server)
            cluster.url = f"kafka:{LOOPBACK}:{port}"
            yield cluster, between


@pytest.mark.parametrize("is_thorough", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "each"])
@pytest.mark.parametrize("is_answer", [False, True], ids=["request", "answer"])
@pytest.mark.parametrize("injury", INJURIES)
def test_a_sender_is_cut_off_or_killed_in_front_of_a_request_or_an_answer(
    behind_a_proxy: tuple[Cluster, RequestProxy],
    transactional: Arena,
    injury: Injury,
    is_answer: bool,
    is_thorough: bool,
) -> None:
    cluster, between = behind_a_proxy
    hits, count = survive_injuries(
        transactional, cluster.url, between, injury, is_answer=is_answer, is_thorough=is_thorough
    )
    assert cluster.committed() == committed_twice(count)
    assert [cluster.offset(f"orders-1-{number}") for number in range(count)] == [*range(count)]
    assert all(hits[name] for name in API_KEYS), hits


def test_a_sender_continues_with_the_transaction_that_is_open(cluster: Cluster, transactional: Arena) -> None:
    with producing(transactional) as producer:
        producer.begin_transaction()
        for number in range(3):
            with sending(transactional, cluster.url):
                producer.send(TOPIC, b"%d" % number, partition=number).get(WATCHDOG_S)
            assert cluster.committed() == []
        with sending(transactional, cluster.url):
            producer.commit_transaction()
    assert cluster.committed() == [b"0", b"1", b"2"]


# --- rivals and time


def test_another_arena_with_the_id_fences_this_one_until_it_takes_the_id_back(
    cluster: Cluster, transactional: Arena
) -> None:
    name = f"{transactional.name}-rival"
    try:
        with (
            make(name) as rival,
            producing(transactional) as producer,
            producing(rival) as other,
            sending(transactional, cluster.url),
        ):
            producer.begin_transaction()
            producer.send(TOPIC, b"of the first", partition=0).get(WATCHDOG_S)
            with sending(rival, cluster.url):
                with other.transaction():
                    other.send(TOPIC, b"of the rival", partition=0)
                with pytest.raises(ProducerFencedError, match="init_transactions"):
                    producer.commit_transaction()
                producer.abort_transaction()
                wait_until(lambda: is_over(transactional), "the fenced transaction is over")
                with pytest.raises(ProducerFencedError, match="has the transactional_id 'orders-1'"):
                    producer.begin_transaction()
                producer.init_transactions()
                with producer.transaction():
                    producer.send(TOPIC, b"of the first again", partition=0)
                with pytest.raises(ProducerFencedError), other.transaction():
                    other.send(TOPIC, b"of the rival again", partition=0)
    finally:
        Arena.remove(name)
    assert cluster.committed() == [b"of the first again", b"of the rival"]


def test_an_arena_stays_fenced_when_its_sender_is_another_one(cluster: Cluster, transactional: Arena) -> None:
    with producing(transactional) as producer, transactional_producer(cluster) as theirs:
        with sending(transactional, cluster.url), producer.transaction():
            producer.send(TOPIC, b"1", partition=0)
        theirs.init_transactions(DEADLINE_S)
        with sending(transactional, cluster.url), pytest.raises(ProducerFencedError), producer.transaction():
            producer.send(TOPIC, b"2", partition=0)
        with sending(transactional, cluster.url):
            with pytest.raises(ProducerFencedError):
                producer.begin_transaction()
            producer.init_transactions()
            with producer.transaction():
                producer.send(TOPIC, b"3", partition=0)
    assert cluster.committed() == [b"1", b"3"]


def test_a_batch_of_a_fenced_arena_leaves_an_abort_which_finds_the_fence(
    cluster: Cluster, transactional: Arena
) -> None:
    with (
        producing(transactional) as producer,
        producing(transactional) as worker,
        transactional_producer(cluster) as theirs,
        sending(transactional, cluster.url),
    ):
        producer.begin_transaction()
        producer.send(TOPIC, b"1", partition=0).get(WATCHDOG_S)
        theirs.init_transactions(DEADLINE_S)
        late = producer.send(TOPIC, b"2", partition=0)
        with pytest.raises(DeliveryFailedError) as refused:
            late.get(WATCHDOG_S)
        assert refused.value.error_code == INVALID_PRODUCER_EPOCH
        with pytest.raises(TransactionEndedError, match=r"INVALID_PRODUCER_EPOCH.*; abort it"):
            producer.commit_transaction()
        producer.abort_transaction()
        wait_until(lambda: is_over(transactional), "the abort has its answer")
        with pytest.raises(ProducerFencedError):
            producer.begin_transaction()
        with pytest.raises(ProducerFencedError, match="init_transactions"):
            worker.send(TOPIC, b"3", partition=0)
    assert cluster.committed() == []


@contextlib.contextmanager
def transactional_producer(cluster: Cluster) -> Iterator[confluent_kafka.Producer]:
    """librdkafka's, with the same id."""
    yield confluent_kafka.Producer({"bootstrap.servers": address_of(cluster.server), "transactional.id": "orders-1"})


def test_a_transaction_that_the_brokers_abort_for_its_time_is_not_committed(
    cluster: Cluster, transactional: Arena
) -> None:
    with producing(transactional) as producer:
        sender = sender_of(transactional, cluster.url)
        sender.open()
        sender.sink._arena_transactions._protocol._timeout_ms = 100  # type: ignore[attr-defined]
        producer.begin_transaction()
        late = producer.send(TOPIC, b"late", partition=0)
        assert survives(sender, late.done)
        transactional.native.commit_transaction(transactional.native.transaction[0])
        sender.close()
        ids = cluster.server._write_handlers.transactions._file.ids  # type: ignore[union-attr]
        wait_until(lambda: ids["orders-1"].state is TransactionState.COMPLETE_ABORT, "the server aborts it")
        with sending(transactional, cluster.url):
            with pytest.raises(ProducerFencedError, match="the brokers aborted the transaction after a timeout"):
                producer.commit_transaction()
            producer.abort_transaction()
            producer.init_transactions()
            with producer.transaction():
                producer.send(TOPIC, b"in time", partition=0)
    assert cluster.committed() == [b"in time"]


def test_a_commit_without_an_answer_that_is_fenced_later_has_no_known_outcome(
    cluster: Cluster, transactional: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    with producing(transactional) as producer, transactional_producer(cluster) as theirs:
        sender = sender_of(transactional, cluster.url)
        sender.open()
        producer.begin_transaction()
        sent = producer.send(TOPIC, b"1", partition=0)
        assert survives(sender, sent.done)
        transactional.native.commit_transaction(transactional.native.transaction[0])
        with monkeypatch.context() as patch:
            count_down(patch, TransactionProtocol, "answered", 0)
            assert not survives(sender, lambda: is_over(transactional))
        theirs.init_transactions(DEADLINE_S)
        with (
            sending(transactional, cluster.url),
            pytest.raises(TransactionOutcomeUnknownError, match="may be committed or not"),
        ):
            producer.commit_transaction()
    assert cluster.committed() == [b"1"], "this one was committed"


def test_a_commit_of_a_transaction_that_the_coordinator_has_forgotten_is_refused(
    cluster: Cluster, transactional: Arena
) -> None:
    with sending(transactional, cluster.url), producing(transactional) as producer:
        producer.begin_transaction()
        producer.send(TOPIC, b"1", partition=0).get(WATCHDOG_S)
        cluster.server._write_handlers.transactions._file.ids.pop("orders-1")  # type: ignore[union-attr]
        with pytest.raises(TransactionEndedError, match="INVALID_PRODUCER_ID_MAPPING"):
            producer.commit_transaction(WATCHDOG_S)
        producer.abort_transaction()
        with producer.transaction():
            producer.send(TOPIC, b"2", partition=1)
    assert cluster.committed() == [b"2"]


# --- wrong use


def test_a_time_that_the_brokers_do_not_allow_is_reported_at_once(cluster: Cluster, arena_name: str) -> None:
    with (
        make(arena_name, transaction_timeout_ms=3_600_000) as arena,
        sending(arena, cluster.url),
        producing(arena) as producer,
        pytest.raises(TransactionEndedError, match=r"INVALID_TRANSACTION_TIMEOUT.*shorten it"),
        producer.transaction(),
    ):
        producer.send(TOPIC, b"1", partition=0)


def test_a_transaction_is_ended_in_the_cluster_where_it_began(
    cluster: Cluster, transactional: Arena, tmp_path: Path
) -> None:
    with producing(transactional) as producer, running(tmp_path / "other") as other:
        producer.begin_transaction()
        with sending(transactional, cluster.url):
            producer.send(TOPIC, b"1", partition=0).get(WATCHDOG_S)
        with sending(transactional, f"kafka:{address_of(other)}"):
            wait_until(lambda: told(transactional, "is open in another sink"), "the sender reports it")
        with pytest.raises(OtherSinkError), sending(transactional, "memory:"):
            pass
        with sending(transactional, cluster.url):
            producer.commit_transaction()
        with sending(transactional, f"kafka:{address_of(other)}"), producer.transaction():
            producer.send(TOPIC, b"2", partition=0)
    assert cluster.committed() == [b"1"]
    assert Cluster(tmp_path / "other", other).committed() == [b"2"]


def told(arena: Arena, words: str) -> bool:
    return any(words in report.sentence for report in read_reports(arena.native))


def test_no_broker_is_no_reason_to_abort(cluster: Cluster, transactional: Arena) -> None:
    with producing(transactional) as producer:
        with sending(transactional, "kafka:127.0.0.1:1") as sender:
            producer.begin_transaction()
            producer.send(TOPIC, b"1", partition=0)
            with pytest.raises(TransactionOutcomeUnknownError, match="call commit_transaction"):
                producer.commit_transaction(0.05)
            sender.stop(0)
        with sending(transactional, cluster.url):
            producer.commit_transaction()
    assert cluster.committed() == [b"1"]
