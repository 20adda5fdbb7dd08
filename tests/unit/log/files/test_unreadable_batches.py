# SPDX-License-Identifier: Apache-2.0
"""No reader can read a batch despite its right CRC. The error names the offset at which a reader can continue."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from shmaccum.common.format.batch_header import HEADER_SIZE, read_header, sealed_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import CorruptLogError
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogReader
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_batch import LogBatch
from tests.support.segment_log import START_MS, TOPIC, make_batch


def made(records: bytes | None = None, **fields: Any) -> LogBatch:
    """A batch of two records, or of these bytes. The given header fields may contradict the records."""
    wire = make_batch([b"a", b"b"]).wire
    content = wire[HEADER_SIZE:] if records is None else records
    whole = sealed_header(read_header(wire)._replace(**fields), content) + content
    return LogBatch(read_header(whole), memoryview(whole), "", 0)


KINDS = {
    "garbage": made(b"\xff" * 40),
    "fewer records than stated": made(record_count=3, last_offset_delta=2),
    "more records than stated": made(record_count=1, last_offset_delta=0),
    "a codec that does not exist": made(attributes=5),
    "invalid gzip": made(attributes=1),
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def written(path: Path, kind: str) -> tuple[list[int], int]:
    """Write a log, and return the offsets of readable records and the first one after the unreadable batch."""
    unreadable = KINDS[kind]
    with LogDirectory(path, LogSinkOptions()) as log:
        log.create_topic(TOPIC)
        log.partition(TOPIC, 0).append([made(), unreadable, made()])
    after = 2 + unreadable.record_count
    return [0, 1, after, after + 1], after


@each_kind
def test_a_reader_names_it_or_passes_over_it(tmp_path: Path, kind: str) -> None:
    readable, after = written(tmp_path, kind)
    with pytest.raises(CorruptLogError, match=f"seek to offset {after}") as caught:
        list(LogReader(tmp_path).partition(TOPIC, 0).records(0))
    assert pickle.loads(pickle.dumps(caught.value)).next_offset == after
    partition = LogReader(tmp_path, on_corrupt="skip").partition(TOPIC, 0)
    assert [record.offset for record in partition.records(0)] == readable
    assert [error.next_offset for error in partition.skipped] == [after]
    assert partition.offset_for_timestamp(START_MS + 1) is not None


def offsets_of(consumer: Consumer) -> list[int]:
    """Poll once, and return the offsets of the records."""
    return [record.offset for records in consumer.poll(10_000).values() for record in records]


@each_kind
def test_a_consumer_continues_after_it(tmp_path: Path, kind: str) -> None:
    readable, after = written(tmp_path, kind)
    with Consumer(tmp_path, TOPIC, auto_offset_reset="earliest") as consumer:
        offsets = offsets_of(consumer)
        with pytest.raises(CorruptLogError, match=f"seek to offset {after}") as caught:
            offsets += offsets_of(consumer)
        assert caught.value.next_offset == after
        consumer.seek(TopicPartition(TOPIC, 0), after)
        offsets += offsets_of(consumer)
    assert offsets == readable
