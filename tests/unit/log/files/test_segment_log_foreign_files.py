# SPDX-License-Identifier: Apache-2.0
"""FIFOs, sockets, devices and folders with the names of a log's files do not block any process.

Each check runs in a child, because a thread that blocks in open(2) cannot be ended.
"""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from shmaccum.exceptions import NotALogError, NotARegularFileError
from shmaccum.log.files import LogDirectory, LogReader, check_log
from shmaccum.log.files.file_names import (
    LOCK_FILE,
    META_FILE,
    PRODUCER_IDS_FILE,
    RECOVERY_POINTS_FILE,
    TEMPORARY,
    TRANSACTIONS_FOLDER,
)
from shmaccum.log.server import LogServer
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.segment_log import TOPIC, make_batches, open_log

WATCHDOG_S = 60
FOLDER = f"{TOPIC}-0"
FIRST = "00000000000000000000"

Answer = TypeVar("Answer")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_folder(path: Path) -> None:
    path.mkdir()


KINDS = (make_fifo, make_socket, link_to_a_device, make_folder)


def read_all(path: Path) -> None:
    reader = LogReader(path)
    list(reader.partition(TOPIC, 0).records())


def look_up_a_time(path: Path) -> None:
    LogReader(path).partition(TOPIC, 0).offset_for_timestamp(1)


def ask_whether_written(path: Path) -> None:
    LogReader(path).is_written()


def write(path: Path) -> None:
    with LogDirectory(path) as log:
        log.new_producer_id()
        log.partition(TOPIC, 0).append(make_batches(1))


def findings_of_opening(path: Path) -> list[str]:
    with LogDirectory(path) as log:
        return list(log.findings)


def in_child(look: Callable[[Path], Answer], path: Path) -> Answer:
    """Return the result of a child, or the exception that it raises.

    Raises:
        multiprocessing.TimeoutError: the child blocks.
    """
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply_async(look, [path]).get(WATCHDOG_S)


def sentence_of(look: Callable[[Path], None], path: Path) -> str:
    """Return the exception that a child raises."""
    with pytest.raises(NotARegularFileError) as told:
        in_child(look, path)
    return str(told.value)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Write two segments with all their files, and close the directory."""
    path = tmp_path / "log"
    batches = make_batches(4)
    with open_log(path, segment_bytes=batches[0].size * 2, index_interval_bytes=1) as log:
        log.new_producer_id()
        log.partition(TOPIC, 0).append(batches)
    return path


READ = [
    (read_all, f"{FOLDER}/{FIRST}.log"),
    (read_all, META_FILE),
    (look_up_a_time, f"{FOLDER}/{FIRST}.timeindex"),
    (ask_whether_written, LOCK_FILE),
]
WRITTEN = [
    LOCK_FILE,
    META_FILE,
    PRODUCER_IDS_FILE,
    PRODUCER_IDS_FILE + TEMPORARY,
    RECOVERY_POINTS_FILE,
    f"{FOLDER}/{FIRST}.log",
    f"{FOLDER}/{FIRST}.index",
    f"{FOLDER}/{FIRST}.timeindex",
]


@pytest.mark.parametrize("plant", KINDS)
@pytest.mark.parametrize(("look", "name"), READ)
def test_a_reader_gets_an_error_for_an_irregular_file(
    written: Path, look: Callable[[Path], None], name: str, plant: Callable[[Path], None]
) -> None:
    (written / name).unlink()
    plant(written / name)
    assert sentence_of(look, written).startswith(f"{written / name} is not a regular file")


@pytest.mark.parametrize("name", WRITTEN)
def test_a_writer_gets_an_error_for_an_irregular_file(written: Path, name: str) -> None:
    (written / name).unlink(missing_ok=True)
    os.mkfifo(written / name)
    assert sentence_of(write, written).startswith(f"{written / name} is not a regular file")


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_a_check_finds_what_is_no_regular_file(written: Path, suffix: str) -> None:
    replaced = min((written / FOLDER).glob(f"*{suffix}"))
    replaced.unlink()
    os.mkfifo(replaced)
    (finding,) = check_log(written)
    assert finding.path == str(replaced)
    assert "not a regular file" in finding.text


def test_a_transaction_that_is_a_fifo_is_reported_and_the_log_continues(written: Path) -> None:
    (written / TRANSACTIONS_FOLDER).mkdir(exist_ok=True)
    os.mkfifo(written / TRANSACTIONS_FOLDER / "job.only.decided")
    (finding,) = in_child(findings_of_opening, written)
    assert finding.startswith("transaction job.only is decided and could not be applied: ")
    assert "not a regular file" in finding


def test_a_fifo_under_another_name_is_passed_by(written: Path) -> None:
    records = list(LogReader(written).partition(TOPIC, 0).records())
    os.mkfifo(written / FOLDER / f"{FIRST}.txt")
    assert list(LogReader(written).partition(TOPIC, 0).records()) == records
    assert check_log(written) == []


def test_a_reader_follows_a_link_to_a_regular_file(written: Path, tmp_path: Path) -> None:
    records = list(LogReader(written).partition(TOPIC, 0).records())
    segment = written / FOLDER / f"{FIRST}.log"
    segment.rename(tmp_path / "elsewhere")
    segment.symlink_to(tmp_path / "elsewhere")
    assert list(LogReader(written).partition(TOPIC, 0).records()) == records


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is empty, and a read-only server creates no log: start its writer first"),
        (b"", "meta.properties has no directory.id .* restore the file from"),
        (b"directory.id=nonsense\n", "meta.properties has no directory.id .* restore the file from"),
    ],
)
def test_a_reading_server_reports_why_a_folder_is_no_log(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    if content is not None:
        (tmp_path / META_FILE).write_bytes(content)
    before = open_descriptors()
    with pytest.raises(NotALogError, match=sentence) as raised:
        LogServer(tmp_path, "127.0.0.1:0")
    await_no_other(before)  # while `raised` holds the objects of the server
    assert raised.value is not None


def test_a_writer_reports_what_to_do_without_the_id_of_its_log(tmp_path: Path) -> None:
    with open_log(tmp_path):
        pass
    meta = tmp_path / META_FILE
    meta.write_text("".join(line for line in meta.read_text().splitlines(True) if "directory.id" not in line))
    with pytest.raises(NotALogError, match=r"has no directory\.id .* restore the file from"):
        LogDirectory(tmp_path)
