# SPDX-License-Identifier: Apache-2.0
"""Reading a segment log: by offset, by timestamp, following a writer, over damage, under retention, compressed."""

from __future__ import annotations

import gc
import importlib
import os
import struct
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from shmaccum import _native
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.exceptions import (
    CodecMissingError,
    CorruptArenaError,
    CorruptLogError,
    InvalidArgumentError,
    LogPartitionNotFoundError,
    NotALogError,
    OffsetOutOfRangeError,
)
from shmaccum.log.files import (
    LogDirectory,
    LogReader,
    LogRecord,
    OffsetAndTimestamp,
    check_log,
    partition_folders,
    segment_view,
    walk,
)
from shmaccum.log.files.codecs import decompress
from shmaccum.log.files.partition_folders import make_partition_folder
from shmaccum.log.files.reader import POLL_INTERVAL_S_MAX, POLL_INTERVAL_S_MIN, OnCorrupt, PartitionReader
from shmaccum.log.files.segment_view import HEADERS_SIZE, SegmentView
from shmaccum.log.files.walk import exactly
from shmaccum.sender.sinks.compression import CODECS as COMPRESSIONS
from shmaccum.sender.sinks.compression import Compressor
from tests.support.segment_log import (
    START_MS,
    TOPIC,
    MadeBatch,
    log_files,
    make_batch,
    make_batches,
    offsets,
    open_log,
    partition_folder,
)


def reader_of(path: Path, *, verify_crc: bool = True, on_corrupt: OnCorrupt = "raise") -> PartitionReader:
    return LogReader(path, verify_crc=verify_crc, on_corrupt=on_corrupt).partition(TOPIC, 0)


@pytest.fixture
def batches() -> list[MadeBatch]:
    """Ten batches of three records."""
    return make_batches(10)


@pytest.fixture
def written(tmp_path: Path, batches: list[MadeBatch]) -> Path:
    """Three segments of three batches, and one of a single batch."""
    with open_log(tmp_path, segment_bytes=batches[0].size * 3, index_interval_bytes=1) as log:
        log.partition(TOPIC, 0).append(batches)
    assert check_log(tmp_path) == []
    return tmp_path


# --- offsets


def test_records_come_in_order_with_offset_timestamp_key_value_and_headers(tmp_path: Path) -> None:
    headers = [("a", b"1"), ("a", None), ("ü", b"")]
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([make_batch([b"one", None], headers=headers), make_batch([b"three"])])
    assert list(reader_of(tmp_path).records()) == [
        LogRecord(0, START_MS, None, b"one", tuple(headers)),
        LogRecord(1, START_MS + 1, None, None, tuple(headers)),
        LogRecord(2, START_MS, None, b"three", ()),
    ]


def test_reading_begins_at_any_offset(written: Path) -> None:
    partition = reader_of(written)
    assert (partition.log_start_offset, partition.log_end_offset) == (0, 30)
    for offset in range(31):
        assert [record.offset for record in partition.records(offset)] == list(range(offset, 30))
        assert [batch.base_offset for batch in partition.batches(offset)] == list(range(offset - offset % 3, 30, 3))


def test_offsets_outside_are_refused(written: Path) -> None:
    for base in (0, 9):
        for suffix in (".log", ".index", ".timeindex"):
            (written / f"{TOPIC}-0" / f"{base:020d}{suffix}").unlink()
    partition = reader_of(written)
    with pytest.raises(OffsetOutOfRangeError, match="17 of flights-0 was deleted by retention: the log starts at 18"):
        next(partition.batches(17))
    with pytest.raises(OffsetOutOfRangeError, match="offset 31 of flights-0 does not exist yet: the log ends at 30"):
        next(partition.batches(31))


def test_a_partition_without_records_is_empty(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        assert list(reader_of(tmp_path).records()) == []
        log.partition(TOPIC, 0)
        assert list(reader_of(tmp_path).records()) == []
        assert reader_of(tmp_path).log_end_offset == 0
        assert reader_of(tmp_path).offset_for_timestamp(0) is None


def test_topics_and_partitions_follow_from_the_folders(written: Path) -> None:
    make_partition_folder(str(written / "other-3"), bytes(range(16)))
    (written / "notes").mkdir()
    (written / "file-7").touch()
    reader = LogReader(written)
    assert reader.topics() == [TOPIC, "other"]
    assert reader.partitions("other") == [0, 1, 2, 3]
    with pytest.raises(LogPartitionNotFoundError, match=f"has no topic 'flihgts'; it has {TOPIC}, other"):
        reader.partitions("flihgts")
    with pytest.raises(LogPartitionNotFoundError, match="no partition 4 of topic 'other'"):
        reader.partition("other", 4)


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALogError, match="is not a directory"):
        LogReader(tmp_path / "missing")
    with pytest.raises(InvalidArgumentError, match='on_corrupt must be "raise" or "skip"'):
        LogReader(tmp_path, on_corrupt="ignore")  # type: ignore[arg-type]


def test_a_batch_is_a_view_that_outlives_its_cursor_and_its_file(written: Path, batches: list[MadeBatch]) -> None:
    (first, *_) = reader_of(written).batches()
    assert first.view.readonly
    for file in (written / f"{TOPIC}-0").iterdir():
        file.unlink()
    gc.collect()
    assert bytes(first.view[16:]) == batches[0].wire[16:]
    assert first.crc_problem() is None
    assert [record.offset for record in first.records()] == [0, 1, 2]


def test_batches_can_be_appended_to_another_log(written: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    target = tmp_path_factory.mktemp("copy")
    with open_log(target) as log:
        assert offsets(log.partition(TOPIC, 0).append(list(reader_of(written).batches(9)))) == list(range(0, 21, 3))
    assert [record.value for record in reader_of(target).records()] == [
        record.value for record in reader_of(written).records(9)
    ]


# --- time


def test_the_first_record_that_is_not_older_is_found(tmp_path: Path) -> None:
    ages = [10, 30, 20, 20, 50, 40, 90, 60, 70]
    batches = [make_batch([b"x" * 50, b"y" * 50], timestamp_ms=START_MS + age) for age in ages]
    with open_log(tmp_path, segment_bytes=batches[0].size * 3, index_interval_bytes=1) as log:
        log.partition(TOPIC, 0).append(batches)
    partition = reader_of(tmp_path)
    records = list(partition.records())
    for age in range(-1, 100):
        expected = next((record for record in records if record.timestamp_ms >= START_MS + age), None)
        found = partition.offset_for_timestamp(START_MS + age)
        assert found == (expected and OffsetAndTimestamp(expected.offset, expected.timestamp_ms)), age


# --- indexes are hints


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x00" * 64, bytes(range(64)), struct.pack(">ii", 8, 61)])
def test_a_wrong_index_costs_time_and_no_record(written: Path, content: bytes) -> None:
    for suffix in (".index", ".timeindex"):
        for file in log_files(written, suffix):
            file.write_bytes(content)
    partition = reader_of(written)
    for offset in (0, 8, 9, 14, 29):
        assert [record.offset for record in partition.records(offset)] == list(range(offset, 30))
    assert partition.log_end_offset == 30


@pytest.mark.parametrize("size", [HEADER_SIZE, 100, 1000, 100_000])
def test_batches_may_end_anywhere_in_what_is_read_ahead(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_view, "READ_AHEAD_SIZE", size)
    values = [b"x" * (length**2) for length in range(60)]
    with open_log(tmp_path, segment_bytes=20_000) as log:
        log.partition(TOPIC, 0).append([make_batch([value, b"small"]) for value in values])
    found = [record.value for record in reader_of(tmp_path).records()]
    assert found == [value for large in values for value in (large, b"small")]


# --- a concurrent writer


def test_a_cursor_reads_on_as_the_log_grows_rolls_and_is_opened_again(tmp_path: Path) -> None:
    batches = make_batches(12)
    seen: list[int] = []
    cursor = None
    for first in range(0, 12, 4):
        with open_log(tmp_path, segment_bytes=batches[0].size * 3) as log:
            cursor = cursor or reader_of(tmp_path).cursor()
            for batch in batches[first : first + 4]:
                log.partition(TOPIC, 0).append([batch])
                seen += [found.base_offset for found in cursor.poll()]
    assert seen == list(range(0, 36, 3))


def test_follow_waits_longer_and_longer_and_starts_over_when_something_came(tmp_path: Path) -> None:
    waits: list[float] = []
    batches = iter(make_batches(2))
    with open_log(tmp_path) as log:

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) in {3, 14}:
                log.partition(TOPIC, 0).append([next(batches)])

        followed = list(reader_of(tmp_path).follow(sleep=sleep, is_over=lambda: len(waits) >= 15))
    assert [batch.base_offset for batch in followed] == [0, 3]
    doubling = [POLL_INTERVAL_S_MIN * 2**n for n in range(7)]
    assert waits == [*doubling[:3], *doubling, *[POLL_INTERVAL_S_MAX] * 4, POLL_INTERVAL_S_MIN]


def test_a_batch_that_is_being_written_is_not_seen_at_any_length(tmp_path: Path) -> None:
    one, two = make_batches(2)
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([one])
        (file,) = log_files(tmp_path)
        partition = reader_of(tmp_path)
        for length in range(two.size):
            file.write_bytes(file.read_bytes()[: one.size] + two.wire[:length])
            assert [batch.base_offset for batch in partition.batches()] == [0], length
        file.write_bytes(file.read_bytes()[: one.size])
        cursor = partition.cursor(0)
        assert len(list(cursor.poll())) == 1
        file.write_bytes(file.read_bytes() + make_batch([b"of a failed write" * 9]).wire[:70])
        assert list(cursor.poll()) == []
        file.write_bytes(file.read_bytes()[: one.size])
        log.partition(TOPIC, 0).append([two])
        assert [batch.base_offset for batch in cursor.poll()] == [3]


def test_a_tail_that_a_dead_writer_tore_is_the_end(written: Path, batches: list[MadeBatch]) -> None:
    last = log_files(written)[-1]
    whole = last.read_bytes()
    for tail in (batches[0].wire[:40], batches[0].wire[:100], b"\x00" * 500, b"\xff" * 500, whole[:70] * 3):
        last.write_bytes(whole + tail)
        assert reader_of(written).log_end_offset == 30
        assert len(list(reader_of(written).records())) == 30


def test_a_reader_waits_at_the_end_of_a_file_that_was_cut(tmp_path: Path, batches: list[MadeBatch]) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(batches[:3])
        cursor = reader_of(tmp_path).cursor()
        assert [found.base_offset for found in cursor.poll()] == [0, 3, 6]
        os.truncate(log_files(tmp_path)[0], batches[0].size)
        assert list(cursor.poll()) == []


def test_retention_under_a_reader_is_reported(tmp_path: Path) -> None:
    batches = make_batches(9)
    with open_log(tmp_path, segment_bytes=batches[0].size * 2, retention_bytes=0) as log:
        partition = log.partition(TOPIC, 0)
        partition.append(batches)
        reading = reader_of(tmp_path).batches()
        assert next(reading).base_offset == 0
        partition.retain()
        assert next(reading).base_offset == 3  # the reader has that segment open
        with pytest.raises(
            OffsetOutOfRangeError, match="offset 6 of flights-0 was deleted by retention: the log starts at 24"
        ):
            next(reading)
        assert [batch.base_offset for batch in reader_of(tmp_path).batches()] == [24]


# --- damage


def damage(file: Path, position: int, count: int = 1) -> None:
    content = bytearray(file.read_bytes())
    for index in range(position, position + count):
        content[index] ^= 0x5A
    file.write_bytes(content)


@pytest.mark.parametrize("place", [0, 5, 7, 8, 11, 16, 17, 21, 23, 57, 61, 150])
@pytest.mark.parametrize("batch_index", [0, 1, 4])
def test_damage_is_reported_with_its_place_and_can_be_skipped(
    written: Path, batches: list[MadeBatch], batch_index: int, place: int
) -> None:
    size = batches[0].size
    file = log_files(written)[batch_index // 3]
    position = batch_index % 3 * size
    damage(file, position + place)
    with pytest.raises(CorruptLogError, match=r'is damaged from position .* on_corrupt="skip"') as caught:
        list(reader_of(written).batches())
    assert (caught.value.segment, caught.value.position) == (str(file), position)
    assert caught.value.resume_position == position + size
    skipping = reader_of(written, on_corrupt="skip")
    assert [batch.base_offset for batch in skipping.batches()] == [
        3 * index for index in range(10) if index != batch_index
    ]
    assert [(error.segment, error.position) for error in skipping.skipped] == [(str(file), position)]


def test_damage_that_no_append_explains_is_reported_while_a_writer_lives(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(make_batches(2))
        damage(log_files(tmp_path)[0], 150)
        with pytest.raises(CorruptLogError):
            list(reader_of(tmp_path).batches())


def test_damage_over_several_batches_and_at_the_end_of_a_segment_is_skipped(
    written: Path, batches: list[MadeBatch]
) -> None:
    size = batches[0].size
    damage(log_files(written)[0], size - 10, 2 * size)
    damage(log_files(written)[2], 2 * size + 70, 20)
    partition = reader_of(written, on_corrupt="skip")
    assert [batch.base_offset for batch in partition.batches()] == [9, 12, 15, 18, 21, 27]
    assert [(error.position, error.resume_position) for error in partition.skipped] == [
        (0, 3 * size),
        (2 * size, 3 * size),
    ]


PART = 1000


def log_of(path: Path, content: bytes) -> Path:
    """A log with these bytes in its only segment."""
    with open_log(path) as log:
        log.partition(TOPIC, 0).append(make_batches(1))
    (file,) = log_files(path)
    file.write_bytes(content)
    return file


def at_offset(offset: int, value: bytes) -> bytes:
    return struct.pack(">q", offset) + make_batch([value]).wire[8:]


@pytest.mark.parametrize("distance", [PART + each for each in (-HEADER_SIZE, 1 - HEADER_SIZE, -1, 0, 1, 2)])
@pytest.mark.parametrize("value_size", [1, 3 * PART])
def test_a_batch_after_damage_is_found_wherever_the_parts_that_are_read_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distance: int, value_size: int
) -> None:
    monkeypatch.setattr(walk, "SEARCH_SIZE", PART)
    file = log_of(tmp_path, bytes(1 + distance) + at_offset(7, b"x" * value_size))
    with pytest.raises(CorruptLogError) as caught:
        list(reader_of(tmp_path).batches())
    assert (caught.value.position, caught.value.resume_position) == (0, 1 + distance)
    damage(file, 1 + distance + HEADER_SIZE)
    assert list(reader_of(tmp_path).batches()) == []


def test_the_search_after_damage_reads_a_part_of_the_segment_at_a_time(tmp_path: Path) -> None:
    file, size = log_of(tmp_path, b"damage"), 64 << 20
    with file.open("r+b") as gap:
        gap.seek(size)
        gap.write(at_offset(7, b"x"))
    reader = reader_of(tmp_path)
    gc.collect()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptLogError) as caught:
            list(reader.batches())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.resume_position == size
    assert peak < 8 << 20


def test_without_crcs_only_the_structure_is_looked_at(written: Path) -> None:
    damage(log_files(written)[0], 100)
    assert len(list(reader_of(written, verify_crc=False).batches())) == 10


def test_a_record_that_cannot_be_read_is_damage_too(written: Path, batches: list[MadeBatch]) -> None:
    damage(log_files(written)[0], HEADER_SIZE)
    batch = next(reader_of(written, verify_crc=False).batches())
    with pytest.raises(CorruptLogError, match="record 0 of the batch cannot be read"):
        batch.records()


# --- compressed


@pytest.mark.parametrize("name", ["gzip", "snappy", "lz4", "zstd"])
def test_what_the_sender_may_compress_is_read(tmp_path: Path, name: str) -> None:
    plain = make_batch([b"x" * 1000] * 50)
    form = Compressor(COMPRESSIONS[name]).compress(plain.buffers)
    assert form is not None
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([MadeBatch(b"".join(form)), make_batch([b"plain"])])
    records = list(reader_of(tmp_path).records())
    assert len(records) == 51
    assert records[49] == LogRecord(49, START_MS + 49, None, b"x" * 1000, ())
    assert next(reader_of(tmp_path).batches(50)).records()[0].value == b"plain"


def test_snappy_without_framing_is_read_too() -> None:
    snappy = importlib.import_module("snappy")
    assert decompress(2, memoryview(snappy.compress(b"x" * 100))) == b"x" * 100


@pytest.mark.parametrize(("codec", "name"), [(2, "snappy"), (3, "lz4"), (4, "zstd")])
def test_a_codec_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: int, name: str
) -> None:
    for module in ("snappy", "lz4.frame", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    made = bytearray(make_batch([b"v"]).wire)
    made[22] = codec
    made[17:21] = _crc(bytes(made))
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([MadeBatch(bytes(made))])
    with pytest.raises(CodecMissingError, match=name):
        list(reader_of(tmp_path).records())


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_damaged_compression_is_damage(tmp_path: Path, codec: int) -> None:
    made = bytearray(make_batch([b"no compression at all"]).wire)
    made[22] = codec
    made[17:21] = _crc(bytes(made))
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([MadeBatch(bytes(made))])
    with pytest.raises(CorruptLogError, match="compression is damaged"):
        list(reader_of(tmp_path).records())


def _crc(wire: bytes) -> bytes:
    from crc32c import crc32c

    return crc32c(wire[21:]).to_bytes(4, "big")


# --- logs of brokers


def test_log_append_time_holds_for_all_records(tmp_path: Path) -> None:
    made = bytearray(make_batch([b"a", b"b"]).wire)
    made[22] |= 0x08
    made[35:43] = (START_MS + 77).to_bytes(8, "big")
    made[17:21] = _crc(bytes(made))
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([MadeBatch(bytes(made))])
    assert [record.timestamp_ms for record in reader_of(tmp_path).records()] == [START_MS + 77] * 2


def test_transaction_markers_are_batches_without_records(tmp_path: Path) -> None:
    made = bytearray(make_batch([b"\0\0\0\0\0\1"]).wire)
    made[22] |= 0x30
    made[17:21] = _crc(bytes(made))
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append([MadeBatch(bytes(made)), make_batch([b"v"])])
    assert [record.offset for record in reader_of(tmp_path).records()] == [1]
    assert [batch.is_control for batch in reader_of(tmp_path).batches()] == [True, False]


def test_the_directory_of_a_broker_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "events-2"
    folder.mkdir()
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\n")
    (folder / f"{7:020d}.log").write_bytes((7).to_bytes(8, "big") + make_batch([b"v"]).wire[8:])
    (folder / f"{7:020d}.index").write_bytes(bytes(10 << 20))  # like a running broker
    (folder / f"{7:020d}.timeindex").write_bytes(bytes(10 << 20))
    partition = LogReader(tmp_path).partition("events", 2)
    assert [record.offset for record in partition.records()] == [7]
    assert partition.offset_for_timestamp(START_MS) == OffsetAndTimestamp(7, START_MS)


# --- the native core


def decoded(records: bytes, count: int, record_type: type[tuple[object, ...]] = LogRecord) -> list[tuple[object, ...]]:
    return _native.decode_records(records, record_type, 100, START_MS, count)


def test_decoding_any_cut_of_records_raises_and_never_reads_beyond() -> None:
    records = make_batch([b"a" * 40, None, b"c" * 300], headers=[("k", b"v"), ("n", None)]).wire[HEADER_SIZE:]
    assert [record[0] for record in decoded(records, 3)] == [100, 101, 102]
    for size in range(len(records)):
        with pytest.raises(CorruptArenaError):
            decoded(records[:size], 3)
    for count in (0, 1, 2, 4, 2**31 - 1):
        with pytest.raises(CorruptArenaError):
            decoded(records, count)


def test_decoding_makes_only_tuples() -> None:
    class WithDict(tuple[object, ...]):
        """Its instances' dict follows the fields until Python 3.11, and precedes the object later."""

    records = make_batch([b"a"]).wire[HEADER_SIZE:]
    assert type(decoded(records, 1)[0]) is LogRecord
    assert decoded(records, 1, tuple) == [(100, START_MS, None, b"a", ())]
    for wrong in (list, WithDict) if sys.version_info < (3, 12) else (list,):
        with pytest.raises(TypeError, match="subclass of tuple"):
            decoded(records, 1, wrong)  # type: ignore[arg-type]


def test_decoded_records_are_let_go_of() -> None:
    """Each record has a reference to its type."""
    kind: Any = type("Kind", (tuple,), {"__slots__": ()})  # a type of this test alone
    before = sys.getrefcount(kind)
    for _ in range(20):
        assert len(decoded(make_batch([b"a" * 40] * 100).wire[HEADER_SIZE:], 100, kind)) == 100
    gc.collect()
    assert sys.getrefcount(kind) == before


def test_is_written_reports_whether_a_writer_lives(written: Path) -> None:
    reader = LogReader(written)
    assert not reader.is_written()
    with LogDirectory(written):
        assert reader.is_written()
    assert not reader.is_written()


def test_a_directory_that_has_not_changed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(number: int, time_ns: int) -> None:
        (tmp_path / f"flights-{number}").mkdir()
        os.utime(tmp_path, ns=(time_ns, time_ns))

    now_ns = time.time_ns()
    make(0, now_ns - 3 * partition_folders.SETTLED_NS)
    assert partition_folders.partitions_of(str(tmp_path)) == [("flights", 0)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", None)
        assert partition_folders.partitions_of(str(tmp_path)) == [("flights", 0)]
    for number in (1, 2):  # changes within the resolution of the clock
        make(number, now_ns)
        assert len(partition_folders.partitions_of(str(tmp_path))) == number + 1


def test_headers_of_batches_are_read_one_after_another(tmp_path: Path) -> None:
    """Each read of the file has a few of them."""
    batches = make_batches(50)
    with open_log(tmp_path) as log:
        log.partition(TOPIC, 0).append(batches)
    view = SegmentView(os.fspath(partition_folder(tmp_path)), 0, is_finished=True, is_crc_checked=True)
    position = 0
    for number, batch in enumerate(batches):
        found = view.unread_batch(position, exactly(3 * number))
        assert found is not None
        assert (found.base_offset, found.size) == (3 * number, batch.size)
        position += batch.size
    assert position > 3 * HEADERS_SIZE
    assert view.unread_batch(0, exactly(0)) is not None
    assert view.unread_batch(position, exactly(150)) is None
    view.close()
