# SPDX-License-Identifier: Apache-2.0
"""Shipping a log to brokers: killed shippers, lost connections, and Apache Kafka."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import ssl
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.log.files.shipping_positions import read_shipped
from shmaccum.sender.send_window import SendWindow
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.shipping.log_stream import LogStream, ShippedBatch
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Verdict
from shmaccum.sender.sinks.stream_end import NOT_SYNCED, StreamEnd
from tests.kafka.broker import Cluster
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import LOOPBACK, Arrived, Cut, FakeCluster, Reply
from tests.kafka.proxy import Proxy, proxied_broker
from tests.kafka.reading import consume
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC, log_files, make_batch, make_batches, offsets
from tests.support.system_calls import dies_at_system_call

BATCH_COUNT = 30
WINDOW = 5
OPTIONS: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 10}
SINK_OPTIONS = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 10}
CORRUPT_MESSAGE, OUT_OF_ORDER, INVALID_RECORD = 2, 45, 87

HOUR_MS = 3_600_000
RECENT_MS = time.time_ns() // 1_000_000 - HOUR_MS
"""When a broker starts, it forgets producers whose records are older than a day."""


def make_log(
    path: Path, topic: str, partition_count: int, batch_count: int, **options: Any
) -> dict[int, list[bytes | None]]:
    """Makes a log of small segments, and returns the values of each partition."""
    with LogDirectory(path, LogSinkOptions.parse(options)) as directory:
        directory.create_topic(topic, partition_count)
        for partition in range(partition_count):
            batches = make_batches(batch_count, first=partition * batch_count, start_ms=RECENT_MS)
            offsets(directory.partition(topic, partition).append(batches))
    reader = LogReader(path)
    return {
        partition: [record.value for record in reader.partition(topic, partition).records()]
        for partition in range(partition_count)
    }


class Broker:
    """The memory of a broker: appended batches, and the last batches of producers."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.taken = MemorySink()
        self._lock = threading.Lock()
        cluster.on_produce = self.take

    def take(self, arrived: Arrived) -> Reply:
        """Checks and appends a batch as Kafka's ProducerStateManager does."""
        with self._lock:
            (ack,) = self.taken.write([arrived.wire_batch()])
        return Reply(0, ack.base_offset) if ack.verdict is Verdict.DELIVERED else Reply(OUT_OF_ORDER)

    def values(self) -> dict[int, list[bytes | None]]:
        return {partition: self.taken.values(topic, partition) for topic, partition in self.taken.topic_partitions()}


@contextlib.contextmanager
def shipping_child(log: Path, bootstrap: str) -> Iterator[int]:
    """Ships the log in a child, which is killed at the end, and yields its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            Shipper(log, f"kafka:{bootstrap}", sink_options=SINK_OPTIONS, **OPTIONS).run(follow=False)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ship(log: Path, bootstrap: str, **options: Any) -> Any:
    return Shipper(log, f"kafka:{bootstrap}", sink_options=SINK_OPTIONS, **OPTIONS, **options).run(follow=False)


def test_shippers_that_are_killed_send_each_record_once_and_in_order(tmp_path: Path, open_fake: OpenFake) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 2, BATCH_COUNT)
    cluster = open_fake(broker_count=2, topics={TOPIC: 2})
    broker = Broker(cluster)
    for _ in range(4):
        wanted = len(cluster.arrived) + chance.randint(1, 14)
        with shipping_child(log, cluster.bootstrap):
            wait_until(lambda: len(cluster.arrived) >= wanted or broker.values() == made, "they arrive")  # noqa: B023
    ship(log, cluster.bootstrap)
    assert broker.values() == made
    assert len({arrived.sequence[0] for arrived in cluster.arrived}) == 1
    assert {position.producer_epoch for position in read_shipped(str(log)).positions.values()} == {0}


def test_connections_that_are_cut_repeat_and_lose_nothing(tmp_path: Path, open_fake: OpenFake) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 2, BATCH_COUNT)
    cluster = open_fake(topics={TOPIC: 2})
    broker = Broker(cluster)

    def take_or_cut(arrived: Arrived) -> Reply:
        draw = chance.random()
        if draw < 0.05:
            raise Cut
        reply = broker.take(arrived)
        if draw < 0.1:
            raise Cut
        return reply

    cluster.on_produce = take_or_cut
    ship(log, cluster.bootstrap)
    assert broker.values() == made


@pytest.mark.parametrize(("code", "words"), [(29, "TOPIC_AUTHORIZATION_FAILED"), (10, "MESSAGE_TOO_LARGE")])
def test_a_refusal_is_reported_with_the_brokers_reason(
    tmp_path: Path, open_fake: OpenFake, code: int, words: str
) -> None:
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, 3)
    cluster = open_fake(topics={TOPIC: 1})
    cluster.on_produce = lambda arrived: Reply(code)  # noqa: ARG005
    progress = ship(log, cluster.bootstrap)
    assert words in "".join(progress.refusals.values())
    assert progress.left_record_count == 9
    broker = Broker(cluster)
    ship(log, cluster.bootstrap)
    assert broker.values() == made


@pytest.mark.parametrize("code", [CORRUPT_MESSAGE, INVALID_RECORD])
@pytest.mark.parametrize(
    ("place", "bit"),
    [
        pytest.param(7, 4, id="base offset"),
        pytest.param(11, 1, id="batch length"),
        pytest.param(16, 1, id="magic"),
        pytest.param(25, 1, id="last offset delta, 256 too many"),
        pytest.param(26, 1, id="last offset delta, one too many"),
        pytest.param(50, 1, id="producer id"),
        pytest.param(60, 1, id="record count"),
        pytest.param(100, 8, id="records"),
    ],
)
def test_damage_that_the_broker_finds_is_reported_and_the_rest_is_shipped(
    tmp_path: Path, open_fake: OpenFake, caplog: pytest.LogCaptureFixture, place: int, bit: int, code: int
) -> None:
    """No record after a damaged header is lost, whatever length the header states."""
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, 20)[0]
    batches = list(LogReader(log).partition(TOPIC, 0).batches())
    (file,) = log_files(log)
    content = bytearray(file.read_bytes())
    content[batches[7].position + place] ^= bit
    file.write_bytes(content)
    cluster = open_fake(topics={TOPIC: 1})
    broker = Broker(cluster)
    cluster.on_damage = lambda arrived: Reply(code)  # noqa: ARG005
    progress = ship(log, cluster.bootstrap)
    assert broker.values() == {0: made[:21] + made[24:]}
    assert (progress.damage_count, progress.left_record_count, progress.refusals) == (1, 0, {})
    assert sum("is damaged" in message for message in caplog.messages) == 1
    position = read_shipped(str(log)).positions[TopicPartition(TOPIC, 0)]
    assert (position.producer_epoch, position.origin) == (1, 24)


def test_over_a_plain_connection_a_segment_goes_unread_and_in_a_batch_loop_from_its_second_window_on(
    tmp_path: Path, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, BATCH_COUNT)
    cluster = open_fake(topics={TOPIC: 1})
    broker = Broker(cluster)
    are_unread, sent = [], SendWindow.sent

    def note(window: SendWindow[ShippedBatch], shipment: ShippedBatch) -> None:
        are_unread.append(shipment.wire.records is not None)
        sent(window, shipment)

    monkeypatch.setattr(SendWindow, "sent", note)
    ship(log, cluster.bootstrap)
    assert broker.values() == made
    assert are_unread == [False] + [True] * (WINDOW - 1)


@pytest.mark.parametrize("sync", ["none", "batch"])
def test_a_batch_loop_forces_a_durable_log_to_disk(
    tmp_path: Path, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, BATCH_COUNT, sync=sync)
    cluster = open_fake(topics={TOPIC: 1})
    broker = Broker(cluster)
    ends: list[StreamEnd] = []
    take = LogStream.take

    def note(stream: LogStream, end: StreamEnd) -> None:
        ends.append(end)
        take(stream, end)

    monkeypatch.setattr(LogStream, "take", note)
    ship(log, cluster.bootstrap)
    assert broker.values() == made
    assert {end.synced_size for end in ends} == {NOT_SYNCED if sync == "none" else size_of(log)}


def size_of(log: Path) -> int:
    """The size of the only segment."""
    (file,) = log_files(log)
    return file.stat().st_size


def test_over_tls_a_log_is_read_and_its_damage_found_before_a_broker_sees_it(
    tmp_path: Path, open_fake: OpenFake
) -> None:
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, 20)[0]
    (file,) = log_files(log)
    content = bytearray(file.read_bytes())
    content[list(LogReader(log).partition(TOPIC, 0).batches())[7].position + 100] ^= 8
    file.write_bytes(content)
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    cluster = open_fake(topics={TOPIC: 1}, tls=context)
    broker = Broker(cluster)
    of_tls = {**SINK_OPTIONS, "security_protocol": "SSL", "ssl_cafile": str(tmp_path / "ca.pem")}
    shipper = Shipper(log, f"kafka:{cluster.bootstrap}", sink_options=of_tls, **OPTIONS)
    assert not shipper.sink.limits.takes_files
    assert shipper.run(follow=False).damage_count == 1
    assert broker.values() == {0: made[:21] + made[24:]}


def test_a_batch_that_arrives_damaged_and_is_sound_in_the_log_is_sent_again(
    tmp_path: Path, open_fake: OpenFake, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 2, 10)
    cluster = open_fake(topics={TOPIC: 2})
    broker = Broker(cluster)
    verdicts = iter([CORRUPT_MESSAGE] * 3)
    cluster.on_produce = lambda arrived: Reply(code) if (code := next(verdicts, 0)) else broker.take(arrived)
    progress = ship(log, cluster.bootstrap)
    assert broker.values() == made
    assert progress.damage_count == 0
    assert any("CORRUPT_MESSAGE" in message for message in caplog.messages)


def test_a_segment_that_is_cut_while_it_is_shipped_costs_what_is_cut_off(tmp_path: Path, open_fake: OpenFake) -> None:
    """sendfile meets the end of the file inside a request. Nothing is repeated."""
    log = tmp_path / "log"
    with LogDirectory(log) as directory:
        directory.create_topic(TOPIC, 1)
        offsets(directory.partition(TOPIC, 0).append(make_batches(6, value_size=500_000)))
    made = [record.value for record in LogReader(log).partition(TOPIC, 0).records()]
    batches = list(LogReader(log).partition(TOPIC, 0).batches())
    cluster = open_fake(topics={TOPIC: 1}, receive_buffer=4096)
    broker = Broker(cluster)

    def cut_and_take(arrived: Arrived) -> Reply:
        if arrived.sequence[2] == 3:
            os.truncate(log_files(log)[0], batches[4].position + 1000)
        return broker.take(arrived)

    cluster.on_produce = cut_and_take
    progress = ship(log, cluster.bootstrap)
    assert broker.values() == {0: made[:12]}
    assert progress.refusals == {}


@pytest.mark.parametrize("stride", [pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]), 120])
def test_a_shipper_that_dies_at_any_system_call_sends_each_record_once(
    tmp_path: Path, open_fake: OpenFake, stride: int
) -> None:
    """Kill before every system call, or about every 120th. The next shipper continues."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, 8)
    cluster = open_fake(topics={TOPIC: 1})

    def prepare() -> Callable[[], object]:
        return lambda: ship(log, cluster.bootstrap)

    number, death_count, is_dying = chance.randint(1, stride), 0, True
    while is_dying:
        shutil.rmtree(log / ".shipping", ignore_errors=True)
        broker = Broker(cluster)
        is_dying = dies_at_system_call(prepare, number)
        if is_dying:
            death_count += 1
            ship(log, cluster.bootstrap)
        assert broker.values() == made, f"killed before system call {number}"
        assert read_shipped(str(log)).positions[TopicPartition(TOPIC, 0)].offset == 24
        number += chance.randint(1, 2 * stride - 1)
    assert death_count > 0


def test_a_shipper_that_finds_no_broker_waits_and_can_be_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log, TOPIC, 1, 1)
    shipper = Shipper(log, "kafka:127.0.0.1:1", sink_options=SINK_OPTIONS, **OPTIONS)
    thread = threading.Thread(target=shipper.run)
    thread.start()
    shipper.stop()
    thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    assert read_shipped(str(log)).shipped_to is None


# --- Apache Kafka


def test_apache_kafka_has_each_record_once_after_kills_of_the_shipper(apache: Cluster, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    log = tmp_path / "log"
    made = make_log(log, topic, 3, 300)
    with LogDirectory(log) as directory:  # compressed batches are sent unchanged, too
        offsets(directory.partition(topic, 1).append([make_batch([b"z" * 500] * 3, codec=1)]))
    made[1] += [b"z" * 500] * 3
    apache.create_topic(topic, 3)

    def shipped() -> int:
        return sum(position.offset for position in read_shipped(str(log)).positions.values())

    count = sum(map(len, made.values()))
    for _ in range(4):
        wanted = min(shipped() + chance.randint(1, count // 5), count)
        with shipping_child(log, apache.bootstrap):
            wait_until(lambda: shipped() >= wanted, "positions move")  # noqa: B023
    progress = ship(log, apache.bootstrap)
    assert (progress.left_record_count, progress.refusals) == (0, {})
    assert consume(apache.bootstrap, topic, 3, count) == made


def shipped_offset(log: Path, topic: str) -> int:
    """The shipping position of partition 0, or -1."""
    position = read_shipped(str(log)).positions.get(TopicPartition(topic, 0))
    return -1 if position is None else position.offset


def test_apache_kafka_and_a_log_that_is_written_meanwhile(own_broker: Cluster, tmp_path: Path) -> None:
    """Kill and restart the broker while the log is written and shipped."""
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    log = tmp_path / "log"
    make_log(log, topic, 1, 10)
    own_broker.create_topic(topic, 1)
    shipper = Shipper(log, f"kafka:{own_broker.bootstrap}", sink_options=SINK_OPTIONS, **OPTIONS)
    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        with LogDirectory(log) as directory:
            for first in range(10, 40):
                offsets(directory.partition(topic, 0).append(make_batches(1, first=first, start_ms=RECENT_MS)))
            wait_until(lambda: shipped_offset(log, topic) > 0, "some of it is shipped")
            own_broker.brokers[0].kill()
            for first in range(40, 80):
                offsets(directory.partition(topic, 0).append(make_batches(1, first=first, start_ms=RECENT_MS)))
            own_broker.start()
            own_broker.wait_until_up()
            wait_until(lambda: shipped_offset(log, topic) == 240, "all is shipped")
    finally:
        shipper.stop()
        thread.join(WATCHDOG_S)
    made = [record.value for record in LogReader(log).partition(topic, 0).records()]
    assert consume(own_broker.bootstrap, topic, 1, 240) == {0: made}


@pytest.mark.kafka
def test_outages_of_any_length_before_apache_kafka_cost_and_repeat_nothing(tmp_path: Path) -> None:
    """The proxy rejects, discards or cuts for a random time, while shippers are killed."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    log = tmp_path / "log"
    made = make_log(log, topic, 2, 400)
    count = sum(map(len, made.values()))

    def shipped() -> int:
        return sum(position.offset for position in read_shipped(str(log)).positions.values())

    with proxied_broker(tmp_path / "cluster") as (between, bootstrap):
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(WATCHDOG_S)
        for outage in (away, silent, Proxy.cut, away, silent):
            wanted = min(shipped() + chance.randint(1, count // 6), count)
            with shipping_child(log, bootstrap):
                wait_until(lambda: shipped() >= wanted, "positions move")  # noqa: B023
                outage(between)
                time.sleep(chance.uniform(0, 2))  # the outage itself is what is tested
                is_killed = chance.random() < 0.5
                between.is_away = between.is_silent = False
                before = shipped()
                wait_until(lambda: is_killed or before < shipped() or shipped() == count, "it continues")  # noqa: B023
            between.cut()
        progress = ship(log, bootstrap)
        assert (progress.left_record_count, progress.refusals) == (0, {})
        assert consume(bootstrap, topic, 2, count) == made


def away(between: Proxy) -> None:
    """Close connections, and reject new ones."""
    between.is_away = True
    between.cut()


def silent(between: Proxy) -> None:
    between.is_silent = True
