# SPDX-License-Identifier: Apache-2.0
"""A topic that is deleted and created again is another one. No state of the former topic applies to it."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum import Consumer, ConsumerStateError, OffsetOutOfRangeError, TopicPartition
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.log.files.file_names import (
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    START_OFFSETS_FILE,
    TOPIC_SETTINGS_FILE,
)
from shmaccum.log.files.small_files import read_offsets_checkpoint
from shmaccum.log.files.topic_ids import TopicIds
from shmaccum.log.files.topic_settings import TopicSettings
from shmaccum.log.groups.offsets_file import Committed, OffsetsFile
from shmaccum.log.server.topics import LogTopics
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC, make_batch, open_log

PLACE = TopicPartition(TOPIC, 0)
PLACES = [TopicPartition(TOPIC, number) for number in range(2)]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogDirectory]:
    with open_log(tmp_path / "log", partitions=2) as directory:
        append(directory, b"old 0", b"old 1", b"old 2")
        yield directory


def append(log: LogDirectory, *values: bytes) -> None:
    log.create_topic(TOPIC)
    log.partition(TOPIC, 1)
    log.partition(TOPIC, 0).append([make_batch(values)])


def delete(log: LogDirectory) -> None:
    log.delete_topic(TOPIC)


def delete_by_hand(log: LogDirectory) -> None:
    """Remove the folders and restart the writer, as the error message advises."""
    log.close()
    for place in PLACES:
        shutil.rmtree(os.path.join(log.path, str(place)))
    log.__init__(log.path, log.options)


WAYS = [delete, delete_by_hand]
Delete = Callable[[LogDirectory], None]


def committed(offset: int) -> Committed:
    return Committed(offset, -1, "", 1_700_000_000_000)


def offsets_of(log: LogDirectory, *, is_writer: bool) -> OffsetsFile:
    return OffsetsFile(log.path, "g", is_writer=is_writer)


# --- offsets of groups


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_again", [False, True])
def test_offsets_end_with_their_topic(log: LogDirectory, way: Delete, is_again: bool) -> None:
    """A running coordinator and a new reader see no offsets, even if the deletion is not announced."""
    file = offsets_of(log, is_writer=True)
    file.commit({PLACE: committed(3), TopicPartition("other", 0): committed(7)})
    way(log)
    if is_again:
        append(log, b"new 0")
    for found in (file, offsets_of(log, is_writer=False)):
        assert dict(found.offsets) == {TopicPartition("other", 0): committed(7)}
    file.close()


def test_an_offset_of_the_new_topic_takes_the_place_of_all_former_ones(log: LogDirectory) -> None:
    file = offsets_of(log, is_writer=True)
    file.commit({place: committed(3) for place in PLACES})
    delete(log)
    append(log, b"new 0", b"new 1")
    file.commit({PLACE: committed(1)})
    file._rewrite()
    for found in (file, offsets_of(log, is_writer=False)):
        assert dict(found.offsets) == {PLACE: committed(1)}
    file.close()


@pytest.mark.parametrize("has_new_commit", [False, True])
def test_staged_offsets_end_with_their_topic(log: LogDirectory, has_new_commit: bool) -> None:
    file = offsets_of(log, is_writer=True)
    file.commit_pending(5, {PLACE: committed(3)})
    delete(log)
    append(log, b"new 0")
    assert not file.is_pending(PLACE)
    if has_new_commit:
        file.commit({PLACES[1]: committed(1)})
    file.end_pending(5, is_commit=True)
    expected = {PLACES[1]: committed(1)} if has_new_commit else {}
    for found in (file, offsets_of(log, is_writer=False)):
        assert dict(found.offsets) == expected
    file.close()


def test_offsets_are_there_again_with_a_folder_that_was_away(log: LogDirectory, tmp_path: Path) -> None:
    file = offsets_of(log, is_writer=True)
    file.commit({PLACE: committed(3)})
    path = Path(log.path)
    path.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        _ = file.offsets
    (tmp_path / "away").rename(path)
    assert dict(file.offsets) == {PLACE: committed(3)}
    file.close()


WITHOUT_ID = [None, b"", b"version: 0\n", b"version: 0\ntopic_id: AAAA\n"]
"""Contents of the id's file without an id. None stands for a missing file."""


def damage_ids(log: LogDirectory, content: bytes | None) -> None:
    for place in PLACES:
        path = Path(log.path, str(place), PARTITION_METADATA_FILE)
        path.unlink()
        if content is not None:
            path.write_bytes(content)


@pytest.mark.parametrize("content", WITHOUT_ID)
def test_offsets_hold_while_the_id_of_their_topic_cannot_be_read(log: LogDirectory, content: bytes | None) -> None:
    """Without the id, the topic may be the same."""
    file = offsets_of(log, is_writer=True)
    file.commit({PLACE: committed(3)})
    file.commit_pending(5, {PLACES[1]: committed(1)})
    damage_ids(log, content)
    for found in (file, offsets_of(log, is_writer=False)):
        assert dict(found.offsets) == {PLACE: committed(3)}
        assert found.is_pending(PLACES[1])
    file.close()


def test_a_topic_that_is_made_between_two_looks_is_judged_by_its_id(
    log: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = TopicIds(log.path)
    former_id = ids.of(TOPIC)
    assert former_id is not None
    delete(log)
    assert ids.is_another(TOPIC, former_id)
    real_of = TopicIds.of

    def of(self: TopicIds, topic: str) -> bytes | None:
        monkeypatch.undo()
        found = real_of(self, topic)
        append(log, b"new 0")
        return found

    monkeypatch.setattr(TopicIds, "of", of)
    assert ids.is_another(TOPIC, former_id)
    new_id = ids.of(TOPIC)
    assert new_id is not None
    assert not ids.is_another(TOPIC, new_id)


def offsets_of_the_former_version(log: LogDirectory) -> None:
    file = offsets_of(log, is_writer=True)
    file._append(["commit", 1_700_000_000_000, [[TOPIC, 0, 3, -1, ""]]])
    file.close()


def test_offsets_without_an_id_end_with_the_topic_once_a_writer_has_opened_them(log: LogDirectory) -> None:
    offsets_of_the_former_version(log)
    offsets_of(log, is_writer=True).close()
    delete(log)
    append(log, b"new 0")
    assert dict(offsets_of(log, is_writer=False).offsets) == {}


def test_offsets_without_an_id_hold_as_before(log: LogDirectory) -> None:
    """The former version wrote none. The next writer, or the first commit, adds the id."""
    offsets_of_the_former_version(log)
    file = offsets_of(log, is_writer=True)
    assert dict(file.offsets) == {PLACE: committed(3)}
    file.commit({PLACES[1]: committed(1)})
    assert dict(file.offsets) == {PLACE: committed(3), PLACES[1]: committed(1)}
    file.close()


# --- consumers


def consumer_of(log: LogDirectory, **options: Any) -> Consumer:
    fields = {"auto_offset_reset": "earliest", "group_id": "g", "enable_auto_commit": False}
    return Consumer(f"log:{log.path}", **{**fields, **options})


def read_until(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []

    def read() -> bool:
        found.extend(record.value for records in consumer.poll(100).values() for record in records)
        return len(found) >= count

    wait_until(read, f"{count} records are read")
    return found


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("is_by_hand", [False, True])
@pytest.mark.parametrize("is_in_group", [False, True])
def test_a_consumer_reads_the_new_topic(
    log: LogDirectory, caplog: pytest.LogCaptureFixture, count: int, is_by_hand: bool, is_in_group: bool
) -> None:
    """The topic has fewer records than before, as many, or more."""
    options = {} if is_in_group else {"group_id": None}
    with consumer_of(log, **options) as consumer:
        consumer.assign([PLACE]) if is_by_hand else consumer.subscribe([TOPIC])
        assert len(read_until(consumer, 3)) == 3
        delete(log)
        new = [b"new %d" % number for number in range(count)]
        append(log, *new)
        with caplog.at_level(logging.WARNING):
            assert read_until(consumer, count) == new
        assert "deleted and created again" in caplog.text
        append(log, b"more")
        assert read_until(consumer, 1) == [b"more"]


def test_a_consumer_that_may_not_start_again_is_reported(log: LogDirectory) -> None:
    with consumer_of(log, group_id=None) as consumer:
        consumer.assign([PLACE])
        read_until(consumer, 3)
        consumer.options = type(consumer.options).parse({"auto_offset_reset": "none"})
        delete(log)
        append(log, b"new 0")
        with pytest.raises(ConsumerStateError, match="deleted and created again"):
            wait_until(lambda: bool(consumer.poll(100)), "the error")


@pytest.mark.parametrize("is_again", [False, True])
@pytest.mark.parametrize("has_commit", [False, True])
def test_a_position_in_the_former_topic_is_not_committed(log: LogDirectory, is_again: bool, has_commit: bool) -> None:
    consumer = consumer_of(log, enable_auto_commit=True)
    consumer.subscribe([TOPIC])
    read_until(consumer, 3)
    if has_commit:
        consumer.commit()
    delete(log)
    if is_again:
        append(log, b"new 0")
    with pytest.raises(ConsumerStateError, match="deleted"):
        consumer.commit({PLACE: 3})
    consumer.close()
    append(log, b"new 1")
    assert dict(offsets_of(log, is_writer=False).offsets) == {}
    with consumer_of(log) as following:
        following.subscribe([TOPIC])
        assert read_until(following, 1 + is_again)[-1] == b"new 1"


@pytest.mark.parametrize("content", WITHOUT_ID)
def test_a_group_continues_while_the_id_of_its_topic_cannot_be_read(log: LogDirectory, content: bytes | None) -> None:
    with consumer_of(log) as consumer:
        consumer.subscribe([TOPIC])
        read_until(consumer, 3)
        consumer.commit({PLACE: 1})
        damage_ids(log, content)
        consumer.commit({PLACE: 2})
    with consumer_of(log) as following:
        following.subscribe([TOPIC])
        assert read_until(following, 1) == [b"old 2"]


# --- other readers


def test_a_cursor_at_a_replaced_file_ends_with_an_error(log: LogDirectory) -> None:
    """This also holds for log cat --follow, which uses a cursor."""
    partition = LogReader(log.path).partition(*PLACE)
    follow = partition.follow()
    assert next(follow).record_count == 3
    delete(log)
    append(log, b"new 0", b"new 1", b"new 2")
    with pytest.raises(OffsetOutOfRangeError, match="former log"):
        next(follow)


@pytest.mark.parametrize("is_by_id", [False, True])
def test_a_server_that_only_reads_serves_the_new_topic(log: LogDirectory, is_by_id: bool) -> None:
    topics = LogTopics(log.path)
    former_id = topics.topic_id(TOPIC)
    head = topics.head(former_id.bytes if is_by_id else TOPIC, 0)
    assert head is not None
    assert head.end_offset == 3
    delete(log)
    append(log, b"new 0")
    topics.retain()
    assert topics.topic_id(TOPIC) != former_id
    found = topics.head(TOPIC, 0)
    assert found is not None
    assert found.end_offset == 1
    assert topics.name_of(former_id) is None


def test_an_id_is_read_again_when_its_file_is_another_one(log: LogDirectory) -> None:
    ids = TopicIds(log.path)
    former_id = ids.of(TOPIC)
    assert former_id is not None
    delete(log)
    assert ids.of(TOPIC) is None
    append(log, b"new 0")
    assert ids.of(TOPIC) not in (None, former_id)


def test_a_shipper_ships_the_new_topic(log: LogDirectory) -> None:
    sink = MemorySink(partitions=2)
    with Shipper(log.path, sink) as shipper:
        shipper.open()

        def has_shipped(values: list[bytes]) -> bool:
            shipper.run_once()
            return sink.values(TOPIC, 0)[-len(values) :] == values

        wait_until(lambda: has_shipped([b"old 0", b"old 1", b"old 2"]), "the former topic is shipped")
        delete(log)
        append(log, b"new 0", b"new 1", b"new 2")
        wait_until(lambda: has_shipped([b"new 0", b"new 1", b"new 2"]), "the new topic is shipped")


# --- checkpoints


def points(log: LogDirectory, name: str) -> dict[TopicPartition, int]:
    return read_offsets_checkpoint(os.path.join(log.path, name))


def checkpointed(log: LogDirectory) -> None:
    """Write checkpoint files with a line of the topic each."""
    log.partition(*PLACE).sync()
    log.checkpoint()
    log.delete_records(*PLACE, 2)
    log.change_settings(TOPIC, {"retention.ms": "1000"})
    assert points(log, RECOVERY_POINTS_FILE)[PLACE] == 3
    assert points(log, START_OFFSETS_FILE)[PLACE] == 2


def test_no_line_of_a_topic_is_left_on_disk_when_its_folders_go(
    log: LogDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointed(log)
    left: list[Any] = []

    def check(path: str, *_: Any) -> None:
        left.append((points(log, RECOVERY_POINTS_FILE), TopicSettings(f"{log.path}/{TOPIC_SETTINGS_FILE}").of(TOPIC)))
        left.append(points(log, START_OFFSETS_FILE))
        raise OSError("killed")

    monkeypatch.setattr(shutil, "rmtree", check)
    with pytest.raises(OSError, match="killed"):
        delete(log)
    assert left == [({}, {}), {}]


def test_a_new_topic_has_no_line_of_one_that_was_deleted_by_hand(log: LogDirectory) -> None:
    checkpointed(log)
    delete_by_hand(log)
    log.create_topic(TOPIC)
    assert points(log, RECOVERY_POINTS_FILE) == {}
    assert points(log, START_OFFSETS_FILE) == {}
    assert log.settings.of(TOPIC) == {}
    append(log, b"new 0", b"new 1", b"new 2")
    assert log.partition(*PLACE).log_start_offset == 0
    assert [record.value for record in LogReader(log.path).partition(*PLACE).records()] == [
        b"new 0",
        b"new 1",
        b"new 2",
    ]
