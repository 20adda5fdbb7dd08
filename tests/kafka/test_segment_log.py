# SPDX-License-Identifier: Apache-2.0
"""Our reader reads the log of a running broker. A broker loads our log and serves it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shmaccum.log.files import LogReader, check_log
from shmaccum.log.files.partition_log import PartitionLog
from tests.kafka.broker import Cluster, running_cluster
from tests.kafka.distribution import require
from tests.support.segment_log import (
    START_MS,
    TOPIC,
    A,
    B,
    batch_of,
    log_files,
    make_batch,
    make_batches,
    open_log,
    partition_folder,
    values_of,
)

pytestmark = pytest.mark.kafka

RECORD_COUNT = 300
POLL_S = 30.0
ONE_BROKER = {
    "log.retention.ms": "-1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""Settings for transactions on a single broker."""


def test_our_reader_reads_what_a_running_broker_writes(tmp_path: Path) -> None:
    require()
    with running_cluster(tmp_path) as cluster:
        cluster.create_topic(TOPIC, 1)
        codecs = ("none", "gzip", "snappy", "lz4", "zstd")
        for codec in codecs:
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": codec, "linger.ms": 50})
            for number in range(RECORD_COUNT):
                value = f"{codec} {number} ".encode() * 20
                producer.produce(TOPIC, value, b"key", timestamp=START_MS + number, headers=[("h", b"v")])
            assert producer.flush(POLL_S) == 0
        reader = LogReader(cluster.brokers[0].log_directory)
        assert reader.is_written()
        records = list(reader.partition(TOPIC, 0).records())
        assert [record.offset for record in records] == list(range(len(codecs) * RECORD_COUNT))
        assert records[-1].value == f"zstd {RECORD_COUNT - 1} ".encode() * 20
        assert records[-1][1:3] == (START_MS + RECORD_COUNT - 1, b"key")
        assert records[-1].headers == (("h", b"v"),)
        found = reader.partition(TOPIC, 0).offset_for_timestamp(START_MS + 7)
        assert found == (7, START_MS + 7)


def consumed(cluster: Cluster, count: int) -> list[tuple[int | None, bytes | None]]:
    """Consume this many records, and return offsets and values."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader", "check.crcs": True})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[int | None, bytes | None]] = []
    try:
        while len(found) < count:
            message = consumer.poll(POLL_S)
            assert message is not None
            assert message.error() is None, message.error()
            found.append((message.offset(), message.value()))
    finally:
        consumer.close()
    return found


def test_a_broker_loads_our_segments_and_serves_them(tmp_path: Path) -> None:
    require()
    ours = tmp_path / "ours"
    with open_log(ours, segment_bytes=20_000) as log:
        log.partition(TOPIC, 0).append(make_batches(60, value_size=900))
    records = list(LogReader(ours).partition(TOPIC, 0).records())
    assert len(log_files(ours)) > 5
    with running_cluster(tmp_path / "kafka", properties={"log.retention.ms": "-1"}) as cluster:
        cluster.create_topic(TOPIC, 1)
        broker = cluster.brokers[0]
        broker.stop()
        replace_partition(partition_folder(broker.log_directory), partition_folder(ours))
        cluster.start()
        assert consumed(cluster, len(records)) == [(record.offset, record.value) for record in records]
        broker.stop()
        assert list(LogReader(broker.log_directory).partition(TOPIC, 0).records()) == records
    assert check_log(ours) == []


def test_a_broker_and_our_reader_see_the_same_committed_records(tmp_path: Path) -> None:
    """Read transactions of a broker's log, and load ours into a broker."""
    require()
    ours = tmp_path / "ours"
    with open_log(ours, segment_bytes=2000) as log:
        write_transactions(log.partition(TOPIC, 0))
    with running_cluster(tmp_path / "kafka", properties=ONE_BROKER) as cluster:
        cluster.create_topic(TOPIC, 1)
        produce_transactions(cluster)
        broker = cluster.brokers[0]
        theirs = values_of(broker.log_directory)
        assert theirs == [value for _, value in consumed(cluster, len(theirs))] == [b"committed 0", b"committed 1"]
        broker.stop()
        replace_partition(partition_folder(broker.log_directory), partition_folder(ours))
        cluster.start()
        committed = values_of(ours)
        assert len(committed) == 20
        assert [value for _, value in consumed(cluster, len(committed))] == committed
    assert check_log(ours) == []


def write_transactions(partition: PartitionLog) -> None:
    """Write plain records and transactions of two producers, committed and aborted. The last one is open."""
    for sequence in range(10):
        partition.append([batch_of(A, sequence, b"a%d" % sequence), batch_of(B, sequence, b"b%d" % sequence)])
        partition.append([make_batch([b"plain %d" % sequence + b"." * 200])])
        partition.end_transaction(A, 0, is_commit=True)
        partition.end_transaction(B, 0, is_commit=False)
    partition.append([batch_of(A, 10, b"open")])


def produce_transactions(cluster: Cluster) -> None:
    """Produce a committed, an aborted and another committed transaction."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "t"})
    producer.init_transactions(POLL_S)
    for text in ("committed 0", "aborted", "committed 1"):
        producer.begin_transaction()
        producer.produce(TOPIC, text.encode())
        producer.flush(POLL_S)
        (producer.abort_transaction if text == "aborted" else producer.commit_transaction)(POLL_S)


def replace_partition(theirs: Path, ours: Path) -> None:
    """Replaces a broker's files by ours. The topic keeps its id."""
    for file in theirs.iterdir():
        if file.name != "partition.metadata":
            file.unlink()
    for file in ours.iterdir():
        if file.name != "partition.metadata":
            shutil.copy(file, theirs)
