# SPDX-License-Identifier: Apache-2.0
"""``log:DIR`` as a sink: it appends batches of an arena, and its acks and records are right."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena.results import BatchResult
from shmaccum.common.format.batch_header import ATTRIBUTES_POSITION
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import SenderOptions
from shmaccum.exceptions import InvalidArgumentError, LogBusyError, UnknownTopicError
from shmaccum.log.files import LogReader, check_log
from shmaccum.sender.sinks import Ack, Verdict, WireBatch, open_sink
from shmaccum.sender.sinks.compression import CODECS, CompressionType, Compressor
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.sink import HostTransactions
from tests.support.accumulator import Accumulator
from tests.support.processes import WATCHDOG_S

PADDING = b"." * 80


class Host:
    """A fake sender as a sink sees it, which records the reports."""

    arena_name = "none"
    permissions = os.geteuid(), os.getegid(), 0o600
    transactions: HostTransactions | None = None
    durability = "process"
    sync_interval_ms: int | None = None
    options = SenderOptions()

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.partition_counts: dict[str, int] = {}

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return "flights", partition_index

    def report(self, sentence: str) -> None:
        self.sentences.append(sentence)

    def partition_count(self, topic: str) -> int:
        return self.partition_counts.get(topic, 0)

    def end_backoff(self, partition_index: int) -> None:
        """Do nothing: this sender has no backoff."""

    def set_available(self, partition_index: int, is_available: bool) -> None:
        raise AssertionError("every partition of a log is available")

    def show_life(self) -> None:
        """Do nothing: no supervisor watches."""

    def wake(self) -> None:
        """Do nothing: this sender never sleeps."""


@pytest.fixture
def host() -> Host:
    return Host()


def opened(path: Path, host: Host, **options: Any) -> LogSink:
    sink = open_sink(f"log:{path}", **options)
    assert isinstance(sink, LogSink)
    sink.open(host)
    return sink


@pytest.fixture
def sink(tmp_path: Path, host: Host) -> Iterator[LogSink]:
    sink = opened(tmp_path, host)
    yield sink
    sink.close(0)
    assert check_log(tmp_path) == []


def wires(sender: Accumulator) -> list[WireBatch]:
    """The batches in the arena, drained as a sender does, up to five of a partition."""
    ready, _ = sender.ready(0, True)
    batches, _ = sender.drain([partition for partition in ready for _ in range(5)], 2**31)
    return [WireBatch.of(batch, (batch.topic, batch.partition), batch.buffers) for batch in batches]


def deliver(sink: LogSink, sender: Accumulator, lent: list[WireBatch]) -> list[Ack]:
    """Deliver and complete the batches. Raises if the sink still has a view of the bytes."""
    wake_read_fd, _ = os.pipe()
    sink.deliver(lent)
    acks = list(sink.poll(0, wake_read_fd))
    assert [ack.wire for ack in acks] == lent
    for ack in acks:
        for view in ack.wire.buffers:
            view.release()
        if ack.verdict is Verdict.DELIVERED:
            sender.complete(ack.wire.batch, BatchResult.SUCCEEDED, ack.base_offset)
        else:
            sender.requeue(ack.wire.batch)
    os.close(wake_read_fd)
    return acks


def deliver_all(sink: LogSink, sender: Accumulator) -> list[list[Ack]]:
    """Deliver until the arena is empty, and return the acks of each delivery."""
    deliveries = []
    while lent := wires(sender):
        deliveries.append(deliver(sink, sender, lent))
    return deliveries


def values(path: Path, topic: str = "flights", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in LogReader(path).partition(topic, partition).records()]


def append(sender: Accumulator, first: int, count: int, partition: int = 0, topic: str = "flights") -> None:
    for number in range(first, first + count):
        sender.append(topic, partition, None, b"key", b"%06d" % number + PADDING)


def test_what_was_acknowledged_can_be_read_with_its_offset(tmp_path: Path, sink: LogSink, sender: Accumulator) -> None:
    append(sender, 0, 500)
    acks = [ack for delivery in deliver_all(sink, sender) for ack in delivery]
    assert len(acks) > 10
    assert {ack.verdict for ack in acks} == {Verdict.DELIVERED}
    assert [ack.base_offset for ack in acks] == [
        sum(earlier.wire.record_count for earlier in acks[:index]) for index in range(len(acks))
    ]
    assert values(tmp_path) == [b"%06d" % number + PADDING for number in range(500)]


def test_acks_report_the_time_that_the_log_gave_to_the_records(tmp_path: Path, host: Host, sender: Accumulator) -> None:
    sink = opened(tmp_path, host, message_timestamp_type="LogAppendTime")
    append(sender, 0, 100)
    sender.append("flights", 0, None, None, b"x" * 20_000)
    acks = [ack for delivery in deliver_all(sink, sender) for ack in delivery]
    told = [ack.log_append_time_ms for ack in acks for _ in range(ack.wire.record_count)]
    assert told == [record.timestamp_ms for record in LogReader(tmp_path).partition("flights", 0).records()]
    assert time.time() * 1000 - WATCHDOG_S * 1000 < told[0] <= time.time() * 1000
    sink.close(0)
    assert check_log(tmp_path) == []


def test_a_record_larger_than_a_buffer_is_appended_in_its_pieces(
    tmp_path: Path, sink: LogSink, sender: Accumulator
) -> None:
    sender.append("flights", 0, None, None, b"x" * 20_000)
    (lent,) = wires(sender)
    assert len(lent.buffers) > 1
    deliver(sink, sender, [lent])
    assert values(tmp_path) == [b"x" * 20_000]


@pytest.mark.parametrize("codec", CODECS.values(), ids=list(CODECS))
def test_batches_are_compressed_before_their_append(
    codec: CompressionType, tmp_path: Path, host: Host, sender: Accumulator
) -> None:
    sink = opened(tmp_path, host, compression_type=codec.name)
    append(sender, 0, 300)
    sender.append("flights", 0, None, None, b"x" * 20_000)
    acks = [ack for delivery in deliver_all(sink, sender) for ack in delivery]
    assert sink.log_ends == {}, "a batch that is appended in C is not compressed"
    assert 0 < sink.metrics()["compression-rate-avg"] < 0.5
    sink.close(0)
    assert values(tmp_path) == [*(b"%06d" % number + PADDING for number in range(300)), b"x" * 20_000]
    written = (tmp_path / "flights-0" / f"{0:020}.log").read_bytes()
    assert len(written) < sum(ack.wire.size for ack in acks) / 2
    assert written[ATTRIBUTES_POSITION] == codec.number
    assert check_log(tmp_path) == []


def test_a_batch_that_would_not_become_smaller_is_appended_uncompressed(
    tmp_path: Path, host: Host, sender: Accumulator
) -> None:
    sink = opened(tmp_path, host, compression_type="gzip")
    value = os.urandom(2_000)
    sender.append("flights", 0, None, None, value)
    deliver_all(sink, sender)
    sink.close(0)
    assert values(tmp_path) == [value]
    assert (tmp_path / "flights-0" / f"{0:020}.log").read_bytes()[ATTRIBUTES_POSITION] == 0


def test_a_batch_of_a_dead_sender_is_recognised_with_another_codec(
    tmp_path: Path, host: Host, sender: Accumulator
) -> None:
    sender.set_producer_id(7, 0)
    append(sender, 0, 20)
    (lent,) = wires(sender)
    first = opened(tmp_path, host, compression_type="gzip")
    first.deliver([lent])
    first.close(0)  # its acks are lost
    second = opened(tmp_path, host, compression_type="none")
    (ack,) = deliver(second, sender, [lent])
    second.close(0)
    assert (ack.verdict, ack.base_offset) == (Verdict.DELIVERED, 0)
    assert len(values(tmp_path)) == 20


def test_a_codec_that_fails_is_reported_and_the_batch_is_appended_uncompressed(
    tmp_path: Path, host: Host, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_compressor: Compressor, _buffers: object) -> bytes:
        raise MemoryError("none left")

    monkeypatch.setattr(Compressor, "compress", fail)
    sink = opened(tmp_path, host, compression_type="gzip")
    append(sender, 0, 10)
    deliver_all(sink, sender)
    sink.close(0)
    assert len(values(tmp_path)) == 10
    assert host.sentences == ["a batch could not be compressed and was sent uncompressed: MemoryError: none left"]


def test_a_topic_has_the_partition_count_of_the_arena_and_at_least_those_of_the_option(
    tmp_path: Path, host: Host
) -> None:
    host.partition_counts = {"told": 6, "few": 2}
    sink = opened(tmp_path, host, partitions=3)
    assert [sink.partition_count(topic) for topic in ("told", "few", "untold")] == [6, 3, 3]
    host.partition_counts["untold"] = 4  # an earlier sink had more partitions, and batches may wait for any of them
    assert sink.partition_count("untold") == 4
    sink.close(0)
    sink = opened(tmp_path, host, partitions=9)  # the option is for new topics: keys keep their partitions
    assert [sink.partition_count(topic) for topic in ("told", "few", "untold")] == [6, 3, 4]
    sink.close(0)


def test_one_delivery_may_have_many_partitions(tmp_path: Path, host: Host, sender: Accumulator) -> None:
    sink = opened(tmp_path, host, partitions=3)
    assert sink.partition_count("flights") == 3
    for partition in range(3):
        append(sender, 100 * partition, 100, partition)
    append(sender, 7, 1, topic="other")
    first, *_ = deliver_all(sink, sender)
    assert {(ack.wire.topic, ack.wire.partition) for ack in first} >= {("flights", 0), ("flights", 1), ("flights", 2)}
    for partition in range(3):
        assert values(tmp_path, partition=partition) == [
            b"%06d" % (100 * partition + each) + PADDING for each in range(100)
        ]
    assert values(tmp_path, "other") == [b"000007" + PADDING]
    sink.close(0)


def test_a_full_disk_is_retried_and_nothing_is_lost(
    tmp_path: Path, sink: LogSink, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, buffers: object, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    append(sender, 0, 300)
    lent = wires(sender)
    sink.partition_count("flights")
    sink.directory.partition("flights", 0)
    with monkeypatch.context() as failing:
        failing.setattr(os, "pwritev", full)
        acks = deliver(sink, sender, lent)
    assert {ack.verdict for ack in acks} == {Verdict.RETRY}
    assert {ack.error_code for ack in acks} == {56}
    assert "No space left on device. Nothing is lost, it will be tried again" in acks[0].message
    while again := wires(sender):
        assert {ack.verdict for ack in deliver(sink, sender, again)} == {Verdict.DELIVERED}
    assert values(tmp_path) == [b"%06d" % number + PADDING for number in range(300)]


def test_what_a_dead_sender_delivered_is_recognised_by_the_next(
    tmp_path: Path, host: Host, sender: Accumulator
) -> None:
    sink = opened(tmp_path, host)
    sender.set_producer_id(*sink.new_producer_id())
    append(sender, 0, 200)
    lent = wires(sender)
    first = [ack.base_offset for ack in sink.write(lent)]
    identity = sink.identity
    sink.directory.abandon()  # it died before any completion
    sink = opened(tmp_path, host)
    assert sink.identity == identity
    assert [ack.base_offset for ack in deliver(sink, sender, lent)] == first
    deliver_all(sink, sender)
    assert values(tmp_path) == [b"%06d" % number + PADDING for number in range(200)]
    assert sink.new_producer_id() == (1, 0)
    sink.close(0)


def test_a_gap_and_a_batch_that_is_too_large_have_verdicts_of_their_own(
    tmp_path: Path, host: Host, sender: Accumulator
) -> None:
    sink = opened(tmp_path, host)
    sender.set_producer_id(*sink.new_producer_id())
    append(sender, 0, 1)
    deliver_all(sink, sender)  # several are in flight only after the first delivery
    sink.close(0)
    sink = opened(tmp_path, host, segment_bytes=2000)
    append(sender, 1, 200)
    large, *_ = lent = wires(sender)
    assert [ack.verdict for ack in sink.write([large])] == [Verdict.TOO_LARGE]
    sink.close(0)
    sink = opened(tmp_path, host)
    assert [ack.verdict for ack in sink.write([lent[0]])] == [Verdict.DELIVERED]
    (gap,) = sink.write([lent[2]])
    assert (gap.verdict, gap.error_code) == (Verdict.OUT_OF_SEQUENCE, 45)
    assert "batches in between are missing" in gap.message
    deliver(sink, sender, lent)
    sink.close(0)


def test_a_topic_that_cannot_be_the_name_of_a_folder_is_unknown(sink: LogSink, sender: Accumulator) -> None:
    with pytest.raises(UnknownTopicError, match="cannot be a topic of a segment log"):
        sink.partition_count("white space")
    append(sender, 0, 1, partition=5)
    (lent,) = wires(sender)
    (refused,) = sink.write([lent])
    assert (refused.verdict, refused.error_code) == (Verdict.REFUSED, 3)
    assert "no partition 5 of topic 'flights', which has 1" in refused.message
    lent.topic = "white space"
    (refused,) = sink.write([lent])
    assert (refused.verdict, refused.error_code) == (Verdict.REFUSED, 17)
    lent.topic, lent.partition = "flights", 0
    deliver(sink, sender, [lent])


def test_faults_that_recovery_finds_are_reported(
    tmp_path: Path, host: Host, sink: LogSink, sender: Accumulator
) -> None:
    append(sender, 0, 10)
    deliver(sink, sender, wires(sender))
    sink.close(0)
    with open(tmp_path / "flights-0" / f"{0:020d}.log", "ab") as file:
        file.write(b"torn")
    again = opened(tmp_path, host)
    append(sender, 10, 10)
    deliver(again, sender, wires(sender))
    assert "ended in a torn batch" in host.sentences[0]
    assert values(tmp_path) == [b"%06d" % number + PADDING for number in range(20)]
    again.close(0)


def test_a_sync_that_fails_is_reported_and_delays_no_ack(
    tmp_path: Path, host: Host, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    sink = opened(tmp_path, host, sync="interval", sync_interval_ms=1)
    sink.directory.create_topic("flights", 1)
    sink.directory.partition("flights", 0)
    append(sender, 0, 10)
    with monkeypatch.context() as failing:
        failing.setattr(os, "fdatasync", fail)
        deliver(sink, sender, wires(sender))
        while not host.sentences:
            assert sink.poll(0, 0) == []
    assert "Input/output error" in host.sentences[0]
    while sink.directory.partition("flights", 0).recovery_point < 10:
        sink.poll(0, 0)
    sink.close(0)


def test_two_sinks_cannot_have_one_directory(tmp_path: Path, sink: LogSink) -> None:
    with pytest.raises(LogBusyError):
        opened(tmp_path, Host())


def test_the_options_of_the_log_apply(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="segment_bytes"):
        open_sink(f"log:{tmp_path}", segmnt_bytes=1)
    with pytest.raises(InvalidArgumentError, match="needs a directory"):
        open_sink("log:")
    with pytest.raises(InvalidArgumentError, match="is not open"):
        _ = LogSink(str(tmp_path)).identity
    assert list(tmp_path.iterdir()) == []


def test_metrics_count_open_partitions_and_files(sink: LogSink, sender: Accumulator) -> None:
    append(sender, 0, 10)
    deliver(sink, sender, wires(sender))
    assert sink.metrics() == {"partition-count": 1.0, "open-partition-count": 1.0, "segment-count": 1.0}


def test_the_reason_of_an_outage_is_a_lost_file_or_else_the_last_error(tmp_path: Path, sink: Any) -> None:
    assert LogSink(str(tmp_path / "other")).outage is None
    outages = [sink.outage]
    sink._lost[TopicPartition("flights", 0)] = "flights-0 is lost"
    outages.append(sink.outage)
    sink._outage = "the disk is full"
    outages.append(sink.outage)
    sink.directory._lost = "the directory is lost"
    outages.append(sink.outage)
    assert outages == [None, "flights-0 is lost", "the disk is full", "the directory is lost"]
    sink.directory._lost = None
