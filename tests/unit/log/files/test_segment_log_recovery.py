# SPDX-License-Identifier: Apache-2.0
"""Opening a segment log after a death: torn tails, indexes, half-rolled segments, damage, crashes of the host.

Each test damages the files of a writer as it names, and opens the log as the next writer.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from shmaccum.common.format.batch_header import read_header
from shmaccum.log.files import LogDirectory, LogReader, Rejection, check_log, recovery
from shmaccum.log.files.producer_state import ProducerState
from shmaccum.log.files.small_files import properties
from shmaccum.log.files.walk import Damage, LocatedBatch, walk
from tests.support.processes import Child, wait_until
from tests.support.segment_log import (
    TOPIC,
    MadeBatch,
    log_files,
    make_batches,
    offsets,
    open_log,
    partition_folder,
    wire_in_files,
    without_prefixes,
)
from tests.support.system_calls import SOME_OR_EACH, Interruption, some_of_all

pytestmark = pytest.mark.usefixtures("recorded_syncs")

DENSE = {"index_interval_bytes": 1}


def write(path: Path, batches: list[MadeBatch], **options: Any) -> None:
    with open_log(path, **options) as log:
        assert len(offsets(log.partition(TOPIC, 0).append(batches))) == len(batches)


def findings_of_opening(path: Path, **options: Any) -> list[str]:
    """Open as the next writer, check the log, and return the findings."""
    with open_log(path, **options) as log:
        log.partition(TOPIC, 0)
        findings = list(log.findings)
    assert check_log(path) == []
    return findings


def forget_boot(path: Path) -> None:
    """Simulate a crash of the host since the last writer."""
    (path / ".lock").write_bytes(properties({"pid": "1", "boot.id": "another"}))


def values(path: Path) -> list[bytes | None]:
    return [record.value for record in LogReader(path).partition(TOPIC, 0).records()]


def batches_in(path: Path) -> bytes:
    """Check the log. Return all batches without the 16 bytes that the log writes."""
    assert check_log(path) == []
    wire, position, parts = wire_in_files(path), 0, []
    while position < len(wire):
        size = read_header(wire, position).size
        parts.append(wire[position + 16 : position + size])
        position += size
    return b"".join(parts)


def index_contents(path: Path) -> list[bytes]:
    return [file.read_bytes() for suffix in (".index", ".timeindex") for file in log_files(path, suffix)]


# --- torn tail


@SOME_OR_EACH
@pytest.mark.parametrize("is_same_boot", [True, False])
def test_a_log_cut_at_any_byte_recovers_to_its_whole_batches(
    tmp_path: Path, stride: int, *, is_same_boot: bool
) -> None:
    batches = make_batches(5, record_count=1, value_size=10)
    size = batches[0].size
    write(tmp_path / "log", batches, segment_bytes=size * 3, **DENSE)
    last_length = 2 * size - 1
    for length in {
        0,
        size,
        last_length,
        *itertools.takewhile(lambda length: length < last_length, some_of_all(stride)),
    }:
        image = tmp_path / f"cut-{length}"
        shutil.copytree(tmp_path / "log", image)
        os.truncate(log_files(image)[-1], length)
        if not is_same_boot:
            forget_boot(image)
        whole = 3 + length // size
        findings = findings_of_opening(image, segment_bytes=size * 3, **DENSE)
        assert batches_in(image) == without_prefixes(batches[:whole])
        assert any("torn batch" in finding for finding in findings) == (length % size != 0)
        with open_log(image) as log:  # a truncated batch is no duplicate, a remaining one is
            assert offsets(log.partition(TOPIC, 0).append(batches[whole - 1 :])) == list(range(whole - 1, 5))
        shutil.rmtree(image)


@pytest.mark.parametrize("tail", [b"\0" * 7, b"\0" * 5000, b"\xff" * 300, bytes(range(256)) * 8, b"\2" * 9000])
def test_a_tail_of_anything_is_cut(tmp_path: Path, tail: bytes) -> None:
    batches = make_batches(3)
    write(tmp_path, batches)
    with open(log_files(tmp_path)[0], "ab") as file:
        file.write(tail)
    (finding,) = findings_of_opening(tmp_path)
    whole = sum(batch.size for batch in batches)
    assert f"cut from {whole + len(tail)} to {whole} bytes" in finding
    assert batches_in(tmp_path) == without_prefixes(batches)


# --- indexes


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("injury", ["missing", "empty", "torn", "short", "long", "zeros", "noise", "backwards"])
def test_an_index_that_was_injured_is_rewritten(tmp_path: Path, suffix: str, which: int, injury: str) -> None:
    batches = make_batches(12)
    write(tmp_path, batches, segment_bytes=batches[0].size * 7, **DENSE)
    sound = index_contents(tmp_path)
    file = log_files(tmp_path, suffix)[which]
    content = file.read_bytes()
    injured = {
        "empty": b"",
        "torn": content[:-3],
        "short": content[: len(content) // 2 // 24 * 24],
        "long": content + content[-12:] * 2,
        "zeros": bytes(len(content)),
        "noise": Random(7).randbytes(len(content)),
        "backwards": content[24:48] + content[:24] + content[48:],
    }
    if injury == "missing":
        file.unlink()
    else:
        file.write_bytes(injured[injury])
    findings = findings_of_opening(tmp_path, segment_bytes=batches[0].size * 7, **DENSE)
    if suffix == ".index" or which == 0 or injury != "short":  # an active time index may lag
        assert any(f"{file} was" in finding and "rewritten from the batches" in finding for finding in findings)
        assert index_contents(tmp_path) == sound
    assert batches_in(tmp_path) == without_prefixes(batches)


def test_sound_indexes_are_left_alone(tmp_path: Path) -> None:
    batches = make_batches(12)
    write(tmp_path, batches, segment_bytes=batches[0].size * 7, **DENSE)
    before = [file.stat().st_mtime_ns for file in log_files(tmp_path, ".index") + log_files(tmp_path, ".timeindex")]
    for _ in range(2):
        assert findings_of_opening(tmp_path, segment_bytes=batches[0].size * 7, **DENSE) == []
    forget_boot(tmp_path)
    assert findings_of_opening(tmp_path, segment_bytes=batches[0].size * 7, **DENSE) == []
    assert before == [
        file.stat().st_mtime_ns for file in log_files(tmp_path, ".index") + log_files(tmp_path, ".timeindex")
    ]


# --- half-rolled


def rolled(path: Path) -> tuple[list[MadeBatch], int]:
    """Write two full segments and a third with one batch. Return the size of a batch."""
    batches = make_batches(7)
    write(path, batches, segment_bytes=batches[0].size * 3, **DENSE)
    return batches, batches[0].size


def test_a_new_segment_without_indexes_is_finished(tmp_path: Path) -> None:
    batches, size = rolled(tmp_path)
    os.truncate(log_files(tmp_path)[-1], 0)
    log_files(tmp_path, ".index")[-1].unlink()
    log_files(tmp_path, ".timeindex")[-1].unlink()
    findings_of_opening(tmp_path, segment_bytes=size * 3, **DENSE)
    assert [file.name[:20] for file in log_files(tmp_path, ".timeindex")] == [f"{base:020d}" for base in (0, 9, 18)]
    assert batches_in(tmp_path) == without_prefixes(batches[:6])
    with open_log(tmp_path) as log:
        assert offsets(log.partition(TOPIC, 0).append(batches[1:])) == [3, 6, 9, 12, 15, 18]


def test_indexes_of_a_segment_that_was_never_made_are_removed(tmp_path: Path) -> None:
    batches, size = rolled(tmp_path)
    log_files(tmp_path)[-1].unlink()
    findings_of_opening(tmp_path, segment_bytes=size * 3, **DENSE)
    assert [file.name[:20] for file in log_files(tmp_path, ".index")] == [f"{base:020d}" for base in (0, 9)]
    with open_log(tmp_path, segment_bytes=size * 3) as log:
        assert offsets(log.partition(TOPIC, 0).append(batches[4:])) == [12, 15, 18]


def test_a_time_index_whose_last_entry_is_missing_is_completed(tmp_path: Path) -> None:
    _, size = rolled(tmp_path)
    file = log_files(tmp_path, ".timeindex")[0]
    sound = file.read_bytes()
    file.write_bytes(sound[:-12])
    (finding,) = findings_of_opening(tmp_path, segment_bytes=size * 3, **DENSE)
    assert str(file) in finding
    assert file.read_bytes() == sound


def test_what_retention_left_half_deleted_is_removed(tmp_path: Path) -> None:
    batches, size = rolled(tmp_path)
    log_files(tmp_path)[0].unlink()  # the log goes first
    (partition_folder(tmp_path) / "00000000000000000009.log.deleted").touch()
    (partition_folder(tmp_path) / "leader-epoch-checkpoint.tmp").touch()
    findings_of_opening(tmp_path, segment_bytes=size * 3, **DENSE)
    assert [file.name[:20] for file in log_files(tmp_path, ".index")] == [f"{base:020d}" for base in (9, 18)]
    assert not list(partition_folder(tmp_path).glob("*.deleted"))
    assert not list(partition_folder(tmp_path).glob("*.tmp"))
    assert batches_in(tmp_path) == without_prefixes(batches[3:])


# --- damage


def damage(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 0x5A
    file.write_bytes(content)


def test_damage_with_whole_batches_after_it_is_kept_and_the_log_continues_in_a_new_segment(tmp_path: Path) -> None:
    batches = make_batches(6)
    size = batches[0].size
    write(tmp_path, batches)
    damage(log_files(tmp_path)[0], 2 * size + 100)
    forget_boot(tmp_path)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        (finding,) = log.findings
        assert f"is damaged from position {2 * size} to {3 * size}" in finding
        assert partition.segments == [0, 18]
        assert offsets(partition.append([*batches[3:], *make_batches(1, first=6)])) == [9, 12, 15, 18]
    assert log_files(tmp_path)[0].stat().st_size == 6 * size
    reader = LogReader(tmp_path, on_corrupt="skip").partition(TOPIC, 0)
    assert [batch.base_offset for batch in reader.batches()] == [0, 3, 9, 12, 15, 18]
    assert [(error.position, error.resume_position) for error in reader.skipped] == [(2 * size, 3 * size)]


def test_damage_of_a_finished_segment_is_reported_and_kept(tmp_path: Path) -> None:
    _, size = rolled(tmp_path)
    damage(log_files(tmp_path)[0], size + 80)
    damage(log_files(tmp_path)[1], 3 * size - 1)
    forget_boot(tmp_path)
    with open_log(tmp_path, segment_bytes=3 * size, **DENSE) as log:
        assert [finding.partition(" (")[0] for finding in log.findings if "damaged" in finding] == [
            f"{log_files(tmp_path)[0]} is damaged from position {size} to {2 * size}",
            f"{log_files(tmp_path)[1]} is damaged from position {2 * size} to {3 * size}",
        ]
        assert log.partition(TOPIC, 0).log_end_offset == 21
    assert [file.stat().st_size for file in log_files(tmp_path)] == [3 * size, 3 * size, size]


def test_after_a_crash_of_the_host_what_was_synced_is_trusted_and_the_rest_is_read(tmp_path: Path) -> None:
    batches, size = make_batches(9), make_batches(1)[0].size
    options: dict[str, Any] = {"segment_bytes": 3 * size, **DENSE}
    with open_log(tmp_path, sync="batch", **options) as log:
        log.partition(TOPIC, 0).append(batches[:7])
    with open_log(tmp_path, **options) as log:
        log.partition(TOPIC, 0).append(batches[7:])
    damage(log_files(tmp_path)[0], size + 80)  # below the recovery point: not checked
    damage(log_files(tmp_path)[2], 2 * size + 80)
    forget_boot(tmp_path)
    with open_log(tmp_path, **options) as log:
        assert not any(str(log_files(tmp_path)[0]) in finding for finding in log.findings)
        assert any("ended in a torn batch (the CRC is" in finding for finding in log.findings)
        assert offsets(log.partition(TOPIC, 0).append(batches[7:])) == [21, 24]


def test_a_snapshot_of_more_than_the_log_has_is_removed(tmp_path: Path) -> None:
    batches = make_batches(6)
    write(tmp_path, batches)
    os.truncate(log_files(tmp_path)[0], 4 * batches[0].size)
    with open_log(tmp_path) as log:
        partition = log.partition(TOPIC, 0)
        assert any("snapshot" in finding and "removed" in finding for finding in log.findings)
        assert offsets(partition.append(batches[3:])) == [9, 12, 15]


def test_a_snapshot_cut_at_any_byte_is_damaged(tmp_path: Path) -> None:
    write(tmp_path, make_batches(2))
    content = log_files(tmp_path, ".snapshot")[-1].read_bytes()
    assert ProducerState.from_snapshot(content) is not None
    assert [size for size in range(len(content)) if ProducerState.from_snapshot(content[:size]) is not None] == []


# --- death and failure at every system call


def life(path: Path, batches: list[MadeBatch], acknowledge: Callable[[int], None]) -> None:
    """Opens, appends batches over several segments, deletes old segments, closes."""
    size = batches[0].size
    with open_log(path, segment_bytes=2 * size, retention_bytes=8 * size, **DENSE) as log:
        for index, batch in enumerate(batches):
            (outcome,) = log.partition(TOPIC, 0).append([batch])
            if outcome == index * batch.record_count:
                acknowledge(index)
        log.retain()


def check_prefix(path: Path, batches: list[MadeBatch], acknowledged: list[int]) -> None:
    """Acknowledged batches are there once or were deleted by retention. The rest can be appended."""
    with open_log(path, **DENSE) as log:
        log.create_topic(TOPIC)
        partition = log.partition(TOPIC, 0)
        count = partition.log_end_offset // batches[0].record_count
        assert acknowledged == list(range(len(acknowledged)))
        assert len(acknowledged) <= count <= len(acknowledged) + 1
        first = max(count - 5, 0)
        assert offsets(partition.append(batches[first:])) == [3 * index for index in range(first, len(batches))]
    start = partition.log_start_offset // batches[0].record_count
    assert batches_in(path) == without_prefixes(batches[start:])


@SOME_OR_EACH
def test_a_death_at_any_system_call_leaves_a_log_that_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    batches = make_batches(7)

    def live_and_die(path: Path, number: int) -> bool:
        report = os.open(path.with_suffix(".acknowledged"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        tell = os.write
        death = Interruption(number, lambda: os._exit(0))
        death.install(monkeypatch)
        life(path, batches, lambda index: (tell(report, b"%d\n" % index), None)[1])
        return death.has_acted

    for number in some_of_all(stride):
        path = tmp_path / f"death-{number}"
        survived = Child(live_and_die, path, number).join() == "False"
        told = path.with_suffix(".acknowledged").read_text().split()
        check_prefix(path, batches, [int(index) for index in told])
        shutil.rmtree(path)
        if survived:
            break
    assert number > 60


@SOME_OR_EACH
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failure_of_any_system_call_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, stride: int
) -> None:
    batches = make_batches(7)

    def fail() -> None:
        raise OSError(error, os.strerror(error))

    def keep_trying(path: Path) -> None:
        size, left = batches[0].size, list(batches)
        for _ in range(2):
            try:
                with open_log(path, segment_bytes=2 * size, sync="batch", **DENSE) as log:
                    for _ in range(20):
                        outcomes = log.partition(TOPIC, 0).append(left[:3])
                        left = [
                            *(batch for batch, out in zip(left, outcomes, strict=False) if isinstance(out, Rejection)),
                            *left[3:],
                        ]
                    assert left == []
            except OSError:
                continue
            return

    for number in some_of_all(stride):
        path = tmp_path / f"failure-{number}"
        with monkeypatch.context() as patch:
            failure = Interruption(number, fail)
            failure.install(patch)
            keep_trying(path)
        check_prefix(path, batches, list(range(7)))
        shutil.rmtree(path)
        if not failure.has_acted:
            break
    assert number > 60


# --- crash of the host: bytes that were not synced may be lost, in part, sector by sector


class Disk:
    """Records how much of each file was synced."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: dict[str, int] = {}
        for name in ("fsync", "fdatasync"):
            patch.setattr(os, name, self._wrap(getattr(os, name)))

    def _wrap(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def noted(descriptor: int) -> None:
            call(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(".tmp")
            self.synced[path] = os.fstat(descriptor).st_size

        return noted

    def image(self, source: Path, target: Path, random: Random) -> None:
        """Creates the files after a power cut. Of unsynced bytes, random sectors or the end are missing."""
        shutil.copytree(source, target)
        for file in target.rglob("*"):
            if file.is_file():
                self._injure(file, self.synced.get(str(source / file.relative_to(target)), 0), random)
        forget_boot(target)

    @staticmethod
    def _injure(file: Path, synced: int, random: Random) -> None:
        content = bytearray(file.read_bytes())
        for sector in range(-(-synced // 512) * 512, len(content), 512):
            if random.random() < 0.3:
                content[sector : sector + 512] = random.choice((bytes(512), random.randbytes(512)))
        if random.random() < 0.5:
            del content[random.randrange(synced, len(content) + 1) :]
        file.write_bytes(content)


def test_with_sync_batch_a_power_cut_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: Callable[[], Random]
) -> None:
    random = seeded()
    disk = Disk(monkeypatch)
    batches = make_batches(12, value_size=400)
    with open_log(tmp_path / "log", segment_bytes=4 * batches[0].size, sync="batch", **DENSE) as log:
        for count, batch in enumerate(batches, start=1):
            offsets(log.partition(TOPIC, 0).append([batch]))
            for number in range(4):
                image = tmp_path / f"image-{count}-{number}"
                disk.image(tmp_path / "log", image, random)
                check_power_cut(image, batches, count)
                shutil.rmtree(image)


def check_power_cut(image: Path, batches: list[MadeBatch], acknowledged_count: int) -> None:
    """Acknowledged batches are there and are recognized as duplicates. The log accepts more."""
    with open_log(image, **DENSE) as log:
        partition = log.partition(TOPIC, 0)
        assert partition.log_end_offset >= 3 * acknowledged_count
        first = max(acknowledged_count - 5, 0)
        assert offsets(partition.append(batches[first:])) == [3 * index for index in range(first, len(batches))]
    assert batches_in(image) == without_prefixes(batches)


def test_opening_creates_nothing_before_the_lock_is_held(tmp_path: Path) -> None:
    with open_log(tmp_path):
        before = sorted(path for path in tmp_path.rglob("*"))
        with pytest.raises(Exception, match="written by another process"):
            LogDirectory(tmp_path)
        assert sorted(path for path in tmp_path.rglob("*")) == before


# --- found by fuzzing (tests/fuzz/test_segment_log_fuzz.py)


def test_an_index_that_points_before_the_file_is_as_good_as_none(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", index_interval_bytes=200) as directory:
        directory.partition(TOPIC, 0).append(make_batches(10))
    (index,) = log_files(tmp_path / "log", ".index")
    entries = bytearray(index.read_bytes())
    entries[-4:] = (-(2**31)).to_bytes(4, "big", signed=True)
    index.write_bytes(entries)
    records = LogReader(tmp_path / "log").partition(TOPIC, 0).records(25)
    assert next(records).offset == 25
    with open_log(tmp_path / "log") as directory:
        assert directory.partition(TOPIC, 0).log_end_offset == 30


def test_a_file_named_by_an_offset_no_log_comes_to_is_no_segment(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append(make_batches(1))
    (segment,) = log_files(tmp_path / "log")
    segment.with_name(f"{10**19:020}.log").write_bytes(segment.read_bytes())
    with open_log(tmp_path / "log") as directory:
        assert offsets(directory.partition(TOPIC, 0).append(make_batches(1, first=1))) == [3]
    assert len(list(LogReader(tmp_path / "log").partition(TOPIC, 0).records())) == 6


def test_what_has_to_be_read_after_a_death_has_a_bound_however_often_writers_die(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers may be waiting for memory."""
    read: list[int] = []

    def counted(view: memoryview, base_offset: int, position: int = 0, **how: bool) -> Iterator[LocatedBatch | Damage]:
        for found in walk(view, base_offset, position, **how):
            read.append(position)
            yield found

    monkeypatch.setattr(recovery, "walk", counted)
    batches = make_batches(6 * 300, record_count=1)
    for first in range(0, len(batches), 300):
        read.clear()
        log = open_log(tmp_path / "log")
        assert offsets(log.partition(TOPIC, 0).append(batches[first : first + 300])) == list(range(first, first + 300))
        assert len(read) <= 2 * (300 + batches_per_index_entry(batches))
        log.abandon()
    assert len(values(tmp_path / "log")) == len(batches)


def test_an_index_that_lags_is_completed_without_reading_the_segment_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer died between a write and its index entries."""
    batches = make_batches(400)
    write(tmp_path, batches, **DENSE)
    sound = index_contents(tmp_path)
    for suffix, entry_size in ((".index", 8), (".timeindex", 12)):
        (file,) = log_files(tmp_path, suffix)
        os.truncate(file, file.stat().st_size - 7 * entry_size)
    starts: list[int] = []

    def noted(view: memoryview, base_offset: int, position: int = 0, **how: bool) -> Iterator[LocatedBatch | Damage]:
        starts.append(position)
        return walk(view, base_offset, position, **how)

    with monkeypatch.context() as patched, open_log(tmp_path, **DENSE) as log:
        patched.setattr(recovery, "walk", noted)
        log.partition(TOPIC, 0)
        assert any(".index was incomplete" in finding for finding in log.findings)
    assert min(starts) > 0
    assert check_log(tmp_path) == []
    assert index_contents(tmp_path) == sound


@pytest.mark.parametrize("last_call", ["ftruncate", "pwrite"])
def test_a_death_while_the_lock_is_signed_is_no_crash_of_the_host(tmp_path: Path, last_call: str) -> None:
    """Otherwise, the next writer would check the whole log."""
    write(tmp_path, make_batches(3))

    call = getattr(os, last_call)

    def call_and_die(*arguments: Any) -> None:
        call(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    def open_and_die() -> None:
        setattr(os, last_call, call_and_die)
        open_log(tmp_path)

    child = Child(open_and_die)
    wait_until(child.has_ended, "it is dead")
    child.kill()
    with open_log(tmp_path) as log:
        assert log._lock.is_same_boot


def batches_per_index_entry(batches: list[MadeBatch]) -> int:
    """The largest number of batches between two index entries."""
    return 4096 // min(batch.size for batch in batches) + 2


@pytest.mark.parametrize(
    ("position", "resume_position", "has_lost"),
    [
        (0, 512, True),
        (0, 511, False),
        (1, 512, True),
        (500, 512, True),
        (501, 512, False),
        (501, 1024, True),
        (501, 1023, False),
    ],
)
def test_a_lost_sector_is_zero_to_its_end(position: int, resume_position: int, has_lost: bool) -> None:
    damage = Damage(position, resume_position, "")
    assert recovery.has_lost_sector(memoryview(bytes(1024)), damage) is has_lost
    content = bytearray(1024)
    content[511] = content[1023] = 1
    assert not recovery.has_lost_sector(memoryview(content), damage)
