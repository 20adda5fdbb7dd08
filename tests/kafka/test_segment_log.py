# SPDX-License-Identifier: Apache-2.0
"""A broker's log is read by our reader while the broker runs; our log is loaded by a broker and consumed from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from shmaccum.segment_log import LogReader, check_log
from tests.kafka.broker import Cluster, running_cluster
from tests.kafka.distribution import require
from tests.log_support import START_MS, TOPIC, log_files, make_batches, open_log, partition_folder

pytestmark = pytest.mark.kafka

RECORD_COUNT = 300
POLL_S = 30.0


@pytest.mark.timeout(300)
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
    """Offsets and values of so many records."""
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


@pytest.mark.timeout(300)
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
        theirs = partition_folder(broker.log_directory)
        for file in theirs.iterdir():
            if file.name != "partition.metadata":  # it has the topic's id
                file.unlink()
        for file in partition_folder(ours).iterdir():
            if file.name != "partition.metadata":
                shutil.copy(file, theirs)
        cluster.start()
        assert consumed(cluster, len(records)) == [(record.offset, record.value) for record in records]
        broker.stop()
        assert list(LogReader(broker.log_directory).partition(TOPIC, 0).records()) == records
    assert check_log(ours) == []
