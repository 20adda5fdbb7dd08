# SPDX-License-Identifier: Apache-2.0
"""Look-ups of offsets while the topic, or its oldest segment, is deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.reader import PartitionReader
from shmaccum.log.server.list_offsets import MAX_TIMESTAMP, OffsetLookup
from tests.support.segment_log import START_MS, TOPIC, log_files, make_batches, offsets, open_log, partition_folder


@pytest.fixture
def lookup(tmp_path: Path) -> OffsetLookup:
    """A server's view of a log of many segments."""
    with open_log(tmp_path, segment_bytes="1KiB") as log:
        offsets(log.partition(TOPIC, 0).append(make_batches(20)))
    topics: Any = SimpleNamespace(directory=str(tmp_path))
    return OffsetLookup(topics)


def look_up(
    lookup: OffsetLookup, timestamp_ms: int, delete: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int] | None:
    """Look a time up. Files are deleted after the segments are first listed."""
    deletions, segments = [delete], PartitionReader.segments

    def deleting(partition: PartitionReader) -> list[int]:
        found = segments(partition)
        if deletions:
            deletions.pop()()
        return found

    monkeypatch.setattr(PartitionReader, "segments", deleting)
    return lookup._offset_of_record(TopicPartition(TOPIC, 0), timestamp_ms)


@pytest.mark.parametrize("timestamp_ms", [START_MS, MAX_TIMESTAMP])
def test_the_records_of_a_topic_that_is_being_deleted_have_no_offset(
    lookup: OffsetLookup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timestamp_ms: int
) -> None:
    assert look_up(lookup, timestamp_ms, lambda: shutil.rmtree(partition_folder(tmp_path)), monkeypatch) is None


def test_a_look_up_continues_where_retention_deletes_a_segment(
    lookup: OffsetLookup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oldest, second = log_files(tmp_path)[:2]
    found = look_up(lookup, START_MS, oldest.unlink, monkeypatch)
    assert found is not None
    assert found[0] == int(second.stem)
