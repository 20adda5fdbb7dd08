# SPDX-License-Identifier: Apache-2.0
"""Settings of topics are durable and apply at once. Deleted records stay deleted. A topic has one id."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import InvalidArgumentError, LogError, OffsetOutOfRangeError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.reader import LogReader
from shmaccum.log.files.small_files import read_topic_id
from shmaccum.log.files.topic_settings import SETTINGS, TEXTS, checked
from tests.support.segment_log import START_MS, TOPIC, MadeBatch, log_files, make_batches, open_log
from tests.support.system_calls import Interruption


def test_a_setting_holds_at_once_and_after_a_new_open(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0)
        directory.change_settings(TOPIC, {"segment.bytes": "1KiB"})
        directory.partition(TOPIC, 0).append(make_batches(10))
        assert len(log_files(tmp_path)) > 3
    count = len(log_files(tmp_path))
    with open_log(tmp_path) as directory:
        assert directory.settings.of(TOPIC) == {"segment.bytes": "1024"}
        directory.partition(TOPIC, 0).append(make_batches(10, first=10))
        assert len(log_files(tmp_path)) > count + 3
        directory.change_settings(TOPIC, {})
        assert directory.options_of(TOPIC) == directory.options


def test_retention_of_one_topic_deletes_nothing_of_another(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=1000) as directory:
        directory.create_topic("kept")
        for topic in (TOPIC, "kept"):
            directory.partition(topic, 0).append(make_batches(10))
        directory.change_settings(TOPIC, {"retention.bytes": "1000"})
        assert directory.retain() > 0
        assert directory.partition("kept", 0).log_start_offset == 0
        assert directory.partition(TOPIC, 0).log_start_offset > 0


def test_retention_deletes_nothing_of_a_topic_that_is_only_compacted(tmp_path: Path) -> None:
    topics = {"compact": 0, "compact,delete": 1, "delete": 1}
    policy = "cleanup.policy"
    with open_log(tmp_path, segment_bytes=1000, retention_bytes=1000, retention_ms=1) as directory:
        for number, name in enumerate(topics):
            directory.create_topic(f"{number}")
            directory.change_settings(f"{number}", {policy: name, "retention.ms": "1"})
            directory.partition(f"{number}", 0).append(make_batches(10))
    with open_log(tmp_path, segment_bytes=1000, retention_bytes=1000, retention_ms=1) as directory:
        assert directory.retain() > 0
        found = [directory.partition(f"{number}", 0).log_start_offset > 0 for number in range(len(topics))]
        assert found == list(topics.values())
        directory.change_settings("0", {policy: "delete"})
        assert directory.retain() > 0
        assert directory.partition("0", 0).log_start_offset > 0


@pytest.mark.parametrize(
    "settings", [{"segment.bytes": "-7"}, {"retention.ms": "soon"}, {"flush.ms": "1"}, {"segment.bytes": ""}]
)
def test_a_wrong_setting_changes_nothing(tmp_path: Path, settings: dict[str, str]) -> None:
    with open_log(tmp_path) as directory:
        directory.change_settings(TOPIC, {"retention.ms": "7d"})
        with pytest.raises(InvalidArgumentError):
            directory.change_settings(TOPIC, {"retention.ms": "1", **settings})
        assert directory.settings.of(TOPIC) == {"retention.ms": "604800000"}


RATIO = "min.cleanable.dirty.ratio"
NUMBERS = [name for name in SETTINGS if name not in TEXTS]
NO_NUMBERS = {
    "not a number": "nan",
    "infinite": "inf",
    "negative infinite": "-inf",
    "huge": "1e999",
    "too large": str(2**63),
    "thousands of digits": "9" * 5000,
    "underscores": "1_000_000",
    "hexadecimal": "0x100000",
    "Arabic digits": "\u0661\u0660\u0660\u0660\u0660\u0660\u0660",
    "wide digits": "\uff11\uff10\uff10\uff10\uff10\uff10\uff10",
    "superscript": "1000000\u00b2",
    "inner space": "1\u00a0000\u00a0000",
    "negative": "-2",
    "empty": " ",
    "zero byte": "1000000\0",
}


@pytest.mark.parametrize("value", NO_NUMBERS.values(), ids=NO_NUMBERS)
def test_a_value_that_is_no_number_is_refused_with_a_sentence(value: str) -> None:
    for name in NUMBERS:
        with pytest.raises(InvalidArgumentError, match=r"^[a-z._]+(:| is) ") as refused:
            checked({name: value})
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_may_have_spaces_around_it(name: str) -> None:
    given, stored = ("0.25", "0.25") if name == RATIO else ("1000000", "1000000")
    assert checked({name: f" {given}\n"}) == {name: stored}


@pytest.mark.parametrize(
    ("name", "value", "stored"),
    [
        ("cleanup.policy", "compact", "compact"),
        ("cleanup.policy", " delete , compact", "delete,compact"),
        ("cleanup.policy", "compact,compact", "compact"),
        ("cleanup.policy", "", None),
        ("cleanup.policy", "compact,", None),
        ("cleanup.policy", "Compact", None),
        ("preallocate", "TRUE", "true"),
        ("preallocate", "yes", None),
        ("min.cleanable.dirty.ratio", "1.5", None),
        ("delete.retention.ms", "1d", "86400000"),
    ],
)
def test_a_setting_is_stored_as_kafka_describes_it(name: str, value: str, stored: str | None) -> None:
    if stored is not None:
        assert checked({name: value}) == {name: stored}
        return
    with pytest.raises(InvalidArgumentError, match=name.replace(".", "[._]")):
        checked({name: value})


DAMAGED = ["{", "[]", '{"t": 5}', '{"t": {"retention.ms": "x"}}', '{"t": {"what": "1"}}', "\xff"]


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_settings_are_refused_with_advice(tmp_path: Path, content: str) -> None:
    open_log(tmp_path).close()
    (tmp_path / "topic-settings.json").write_text(content, encoding="latin-1")
    with pytest.raises(LogError, match="repair the file"):
        LogDirectory(tmp_path, LogSinkOptions())
    (tmp_path / "topic-settings.json").unlink()
    open_log(tmp_path).close()


def test_deleted_records_are_gone_for_every_reader_and_after_a_new_open(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=1000) as directory:
        directory.partition(TOPIC, 0).append(make_batches(20))
        count = len(log_files(tmp_path))
        assert directory.delete_records(TOPIC, 0, 31) == 31
        assert len(log_files(tmp_path)) < count
        assert directory.delete_records(TOPIC, 0, 7) == 31
        with pytest.raises(InvalidArgumentError, match="ends at 60"):
            directory.delete_records(TOPIC, 0, 61)
    reader = LogReader(tmp_path).partition(TOPIC, 0)
    assert (reader.log_start_offset, reader.log_end_offset) == (31, 60)
    assert reader.offset_for_timestamp(0) == (31, START_MS + 10_001)
    assert [record.offset for record in reader.records()] == list(range(31, 60))
    with pytest.raises(OffsetOutOfRangeError, match="starts at 31"):
        list(reader.records(30))
    with open_log(tmp_path) as directory:
        assert directory.partition(TOPIC, 0).log_start_offset == 31
        assert directory.delete_records(TOPIC, 0, 60) == 60
        assert sum(file.stat().st_size for file in log_files(tmp_path)) == 0
        directory.partition(TOPIC, 0).append(make_batches(1, first=20))
    assert [record.offset for record in LogReader(tmp_path).partition(TOPIC, 0).records()] == [60, 61, 62]


def batch_at(*ages_ms: int) -> MadeBatch:
    """A batch of records with these timestamps, relative to `START_MS`."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for number, age_ms in enumerate(ages_ms):
        assert builder.append(number, START_MS + age_ms, None, b"value", []) is not None
    return MadeBatch(bytes(builder.build()))


@pytest.mark.parametrize(
    ("start", "youngest"), [(0, (0, 9000)), (1, (2, 7000)), (3, (5, 4000)), (4, (5, 4000)), (6, (7, 3000)), (8, None)]
)
def test_the_largest_timestamp_is_that_of_a_record_that_is_still_there(
    tmp_path: Path, start: int, youngest: tuple[int, int] | None
) -> None:
    with open_log(tmp_path) as directory:
        log = directory.partition(TOPIC, 0)
        log.append([batch_at(9000, 1, 7000, 2), batch_at(1, 4000), batch_at(2, 3000)])
        directory.delete_records(TOPIC, 0, start)
    expected = None if youngest is None else (youngest[0], START_MS + youngest[1])
    assert LogReader(tmp_path).partition(TOPIC, 0).offset_of_max_timestamp() == expected


def test_a_topic_that_is_made_again_has_no_start_no_settings_and_another_id(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(2))
        directory.delete_records(TOPIC, 0, 4)
        directory.change_settings(TOPIC, {"retention.ms": "1"})
        former = read_topic_id(os.fspath(tmp_path / f"{TOPIC}-0"))
        directory.delete_topic(TOPIC)
        directory.create_topic(TOPIC)
        directory.partition(TOPIC, 0).append(make_batches(1))
        assert directory.partition(TOPIC, 0).log_start_offset == 0
        assert directory.settings.of(TOPIC) == {}
        assert read_topic_id(os.fspath(tmp_path / f"{TOPIC}-0")) not in {None, former}


def test_an_error_at_any_system_call_brings_no_deleted_record_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(5, "fails here")

    for number in range(1, 200):
        path = tmp_path / str(number)
        with open_log(path, segment_bytes=1000) as directory:
            directory.partition(TOPIC, 0).append(make_batches(12))
            interruption = Interruption(number, fail)
            with monkeypatch.context() as patched:
                interruption.install(patched)
                try:
                    start = directory.delete_records(TOPIC, 0, 20)
                except OSError:
                    start = directory.partition(TOPIC, 0).log_start_offset
            directory.abandon()
        reader = LogReader(path).partition(TOPIC, 0)
        assert [record.offset for record in reader.records()] == list(range(reader.log_start_offset, 36))
        assert reader.log_start_offset in {start, 20}
        if not interruption.has_acted:
            return
    raise AssertionError("there were more system calls than this test tries")


def test_all_partitions_have_one_id_and_an_existing_id_stays(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.create_topic("wide", 3)
        ids = {read_topic_id(os.fspath(tmp_path / f"wide-{number}")) for number in range(3)}
    with open_log(tmp_path) as directory:
        directory.create_topic("wide", 5)
        ids |= {read_topic_id(os.fspath(tmp_path / f"wide-{number}")) for number in range(5)}
        assert ids == {read_topic_id(os.fspath(tmp_path / "wide-0"))}
        assert read_topic_id(os.fspath(tmp_path / f"{TOPIC}-0")) not in ids
