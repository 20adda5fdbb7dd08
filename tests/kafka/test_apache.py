# SPDX-License-Identifier: Apache-2.0
"""The sink delivers to Apache Kafka. confluent-kafka and Kafka's tools read the records."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.log.files.reader import LogReader
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.sink import Verdict
from tests.kafka.broker import Cluster
from tests.kafka.conftest import OpenLoop
from tests.kafka.distribution import run_tool
from tests.kafka.dumping import dump
from tests.kafka.loop import Loop
from tests.kafka.reading import consume, consume_records
from tests.support.accumulator import Accumulator
from tests.support.processes import wait_until

RECORD_COUNT = 600
HOUR_MS = 3_600_000


@pytest.fixture
def topic() -> str:
    """A unique topic name."""
    return f"flights-{uuid.uuid4().hex[:8]}"


def append_numbered(arena: Arena, topic: str, numbers: Sequence[int], partition_count: int) -> dict[int, list[bytes]]:
    """Appends a record per number and returns the numbers of each partition."""
    sent: dict[int, list[bytes]] = {partition: [] for partition in range(partition_count)}
    with Accumulator(arena) as accumulator:
        for number in numbers:
            value = b"value %d " % number * 3
            accumulator.append(topic, number % partition_count, None, b"key %d" % number, value, [("source", b"web")])
            sent[number % partition_count].append(value)
    return sent


def wait_for_partitions(loop: Loop, topic: str) -> int:
    loop.run_until(lambda: loop.sink.partition_count(topic) is not None, f"{topic} is there")
    count = loop.sink.partition_count(topic)
    assert count is not None
    return count


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_created_on_first_use_has_everything_once_and_in_order(
    compression: str, apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop
) -> None:
    loop = open_loop(apache.bootstrap, compression_type=compression)
    partition_count = wait_for_partitions(loop, topic)
    assert partition_count == 6
    sent = append_numbered(arena, topic, range(RECORD_COUNT), partition_count)
    loop.run_until_idle()
    # RETRY is no fault: the broker may not lead a new partition yet.
    assert {ack.verdict for ack in loop.acks} <= {Verdict.DELIVERED, Verdict.RETRY}
    assert consume(apache.bootstrap, topic, partition_count, RECORD_COUNT) == sent


def test_everything_arrives_once_and_in_order(path: str, apache: Cluster, topic: str, arena: Arena) -> None:
    """Send keys, headers and null values in consecutive batches."""
    apache.create_topic(topic, 2)
    options: dict[str, Any] = {"linger_ms": 0}
    with Sender(arena, f"kafka:{apache.bootstrap}", **options) as sender, Accumulator(arena) as accumulator:
        sender.open()
        for turn in range(5):
            append_numbered(arena, topic, range(100 * turn, 100 * turn + 100), 2)
            for partition in range(2):
                run_until_found(sender, accumulator, accumulator.append(topic, partition, None, b"null", None))
    arrived = consume_records(apache.bootstrap, topic, 2, 510)
    for partition, records in arrived.items():
        numbers = [int(key.split()[1]) for key, _ in records if key is not None and key != b"null"]
        assert numbers == list(range(partition, 500, 2))
        assert [value for key, value in records if key == b"null"] == [None] * 5
        assert all(value == b"value %d " % int(key[4:]) * 3 for key, value in records if key is not None and value)


def test_with_fewer_acks_it_arrives_too(apache: Cluster, topic: str, arena: Arena) -> None:
    """Start with acks=1: a new partition may have no leader yet, which acks=0 would hide."""
    apache.create_topic(topic, 1)
    for acks, numbers in (("1", range(300)), ("0", range(300, RECORD_COUNT))):
        sink = open_sink(f"kafka:{apache.bootstrap}")
        with Loop(arena, sink, acks=acks, enable_idempotence=False) as loop:
            append_numbered(arena, topic, numbers, 1)
            loop.run_until_idle()
    arrived = consume(apache.bootstrap, topic, 1, RECORD_COUNT)
    assert arrived == {0: [b"value %d " % number * 3 for number in range(RECORD_COUNT)]}


def test_bytes_sent_twice_are_there_once(apache: Cluster, topic: str, arena: Arena) -> None:
    """A sender dies with a batch in flight. The next one resends it with the same producer id and sequence."""
    apache.create_topic(topic, 1)
    append_numbered(arena, topic, range(3), 1)
    with Loop(arena, open_sink(f"kafka:{apache.bootstrap}")) as loop:
        loop.forgets_acks = True
        loop.run_until(lambda: bool(loop.acks))
        (first,) = loop.acks
    with Loop(arena, open_sink(f"kafka:{apache.bootstrap}"), has_producer_id=True) as loop:
        loop.run_until_idle()
        (second,) = loop.acks
    assert (first.verdict, first.base_offset) == (second.verdict, second.base_offset) == (Verdict.DELIVERED, 0)
    assert first.wire.base_sequence == second.wire.base_sequence
    assert len(consume(apache.bootstrap, topic, 1, 3)[0]) == 3


def test_kafka_s_own_tools_read_it(apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop) -> None:
    apache.create_topic(topic, 1)
    loop = open_loop(apache.bootstrap, compression_type="zstd")
    sent = append_numbered(arena, topic, range(50), 1)
    loop.run_until_idle()
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    options = ["--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", "50"]
    read = run_tool(consumer, "--bootstrap-server", apache.bootstrap, *options)
    assert [line.encode() for line in read.splitlines()] == sent[0]
    segment = apache.brokers[0].log_directory / f"{topic}-0" / "00000000000000000000.log"
    dumped = run_tool("kafka.tools.DumpLogSegments", "--files", str(segment), "--deep-iteration", "--print-data-log")
    assert dumped.count("compresscodec: zstd") == len(loop.acks)
    assert dumped.count("isvalid: true") == len(loop.acks)
    assert dumped.count("key: key") == 50


@pytest.mark.parametrize("max_message_bytes", ["1000"])
def test_a_batch_the_topic_finds_too_large_is_for_the_sender_to_split(
    max_message_bytes: str, apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop
) -> None:
    apache.create_topic(topic, 1, max_message_bytes=max_message_bytes)
    loop = open_loop(apache.bootstrap)
    append_numbered(arena, topic, range(50), 1)
    loop.run_until_idle()
    assert {ack.verdict for ack in loop.acks} == {Verdict.TOO_LARGE}
    assert "max.message.bytes" in loop.acks[0].message


def test_a_batch_the_topic_finds_too_large_arrives_in_parts(
    path: str,
    apache: Cluster,
    topic: str,
    arena: Arena,
) -> None:
    apache.create_topic(topic, 1, max_message_bytes="1000")
    values = [b"value %d " % number * 6 for number in range(50)]
    with Sender(arena, f"kafka:{apache.bootstrap}", linger_ms=0) as sender, Accumulator(arena) as accumulator:
        sender.open()
        run_until_found(sender, accumulator, accumulator.append(topic, 0, None, b"key", values[0]))
        tokens = [accumulator.append(topic, 0, None, b"key", value) for value in values[1:]]
        run_until_found(sender, accumulator, tokens[-1])
        completion = accumulator.find(tokens[-1])
        assert completion is not None
        assert completion.result is BatchResult.SUCCEEDED
        assert sender.metrics()["batch-split-total"] > 1
        assert arena.native.producer_identity[1] == 0
    assert consume(apache.bootstrap, topic, 1, len(values)) == {0: values}


def run_until_found(sender: Sender, accumulator: Accumulator, token: Token) -> None:
    """Runs rounds of the real sender until a record has its result."""

    def is_found() -> bool:
        sender.run_once()
        return accumulator.find(token) is not None

    wait_until(is_found, "the record has a result")


def test_after_a_gap_the_partition_starts_over_in_a_new_epoch(
    path: str,
    apache: Cluster,
    topic: str,
    arena: Arena,
) -> None:
    """The broker rejects the middle record. Without its sequence, it accepts no later one (KIP-360)."""
    apache.create_topic(topic, 1, max_message_bytes="1000")
    found: list[tuple[BatchResult, int]] = []
    with Sender(arena, f"kafka:{apache.bootstrap}") as sender, Accumulator(arena) as accumulator:
        sender.open()
        for value in (b"before", bytes(2_000), b"after"):
            token = accumulator.append(topic, 0, None, None, value)
            accumulator.flush_begin()
            run_until_found(sender, accumulator, token)
            completion = accumulator.find(token)
            assert completion is not None
            found.append((completion.result, completion.error_code))
        _, epoch, _ = arena.native.producer_identity
    assert found == [(BatchResult.SUCCEEDED, 0), (BatchResult.FAILED, 10), (BatchResult.SUCCEEDED, 0)]
    assert epoch == 1
    assert consume(apache.bootstrap, topic, 1, 2) == {0: [b"before", b"after"]}


def test_a_record_the_broker_refuses_names_itself(
    apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop
) -> None:
    apache.create_topic(topic, 1, cleanup_policy="compact")
    loop = open_loop(apache.bootstrap)
    with Accumulator(arena) as accumulator:
        accumulator.append(topic, 0, None, b"key", b"good")
        accumulator.append(topic, 0, None, None, b"no key")
    loop.run_until_idle()
    (ack,) = loop.acks
    assert (ack.verdict, ack.error_code, ack.record_errors) == (Verdict.REFUSED, 87, [1])


def test_a_record_from_the_future_names_itself(apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop) -> None:
    """The broker rejects times over an hour ahead of its own (message.timestamp.after.max.ms)."""
    apache.create_topic(topic, 1)
    loop = open_loop(apache.bootstrap)
    now_ms = time.time_ns() // 10**6
    with Accumulator(arena) as accumulator:
        for timestamp_ms in (now_ms, now_ms + 2 * HOUR_MS):
            accumulator.append(topic, 0, timestamp_ms, None, b"value")
    loop.run_until_idle()
    (ack,) = loop.acks
    assert (ack.verdict, ack.error_code, ack.record_errors) == (Verdict.REFUSED, 32, [1])
    assert "message.timestamp.after.max.ms" in ack.message


def test_the_time_at_which_the_broker_appended_is_reported(
    apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop
) -> None:
    apache.create_topic(topic, 1, message_timestamp_type="LogAppendTime")
    loop = open_loop(apache.bootstrap)
    before_ms = time.time_ns() // 10**6
    append_numbered(arena, topic, range(3), 1)
    loop.run_until_idle()
    assert before_ms <= loop.acks[-1].log_append_time_ms <= time.time_ns() // 10**6


def test_the_broker_is_stopped_and_started_again(
    topic: str, arena: Arena, open_loop: OpenLoop, own_broker: Cluster
) -> None:
    own_broker.create_topic(topic, 2)
    loop = open_loop(own_broker.bootstrap)
    before = append_numbered(arena, topic, range(50), 2)
    loop.run_until_idle()
    own_broker.brokers[0].kill()
    after = append_numbered(arena, topic, range(50, 100), 2)
    for _ in range(20):
        loop.run_once(0.01)
    own_broker.start()
    loop.run_until_idle()
    sent = {partition: before[partition] + after[partition] for partition in before}
    assert consume(own_broker.bootstrap, topic, 2, 100) == sent


def test_keys_and_null_values_arrive(apache: Cluster, topic: str, arena: Arena, open_loop: OpenLoop) -> None:
    apache.create_topic(topic, 1)
    loop = open_loop(apache.bootstrap)
    records = [(b"a", b"1"), (b"a", None), (None, b""), (b"", b"2")]
    with Accumulator(arena) as accumulator:
        for key, value in records:
            accumulator.append(topic, 0, None, key, value)
    loop.run_until_idle()
    assert consume_records(apache.bootstrap, topic, 1, len(records)) == {0: records}


def test_what_the_broker_refuses_is_a_dead_letter_that_kafkas_own_tool_shows(
    path: str,
    apache: Cluster,
    topic: str,
    arena: Arena,
    tmp_path: Path,
) -> None:
    apache.create_topic(topic, 1, max_message_bytes="1000")
    options: dict[str, Any] = {"linger_ms": 0, "dead_letter": f"log:{tmp_path}/failed"}
    with Sender(arena, f"kafka:{apache.bootstrap}", **options) as sender, Accumulator(arena) as accumulator:
        sender.open()
        for value in (b"first", b"x" * 2000, b"small"):
            run_until_found(sender, accumulator, accumulator.append(topic, 0, None, b"key", value, [("own", b"1")]))
    (letter,) = LogReader(tmp_path / "failed").partition(topic, 0).records()
    headers = dict(letter.headers)
    assert (letter.key, letter.value, headers["own"]) == (b"key", b"x" * 2000, b"1")
    assert headers["__shmaccum.errors.code"] == b"10"
    assert b"max.message.bytes" in (headers["__shmaccum.errors.message"] or b"")
    assert consume(apache.bootstrap, topic, 1, 2) == {0: [b"first", b"small"]}
    assert "__shmaccum.errors.code" in dump(tmp_path / "failed" / f"{topic}-0", "--print-data-log")
