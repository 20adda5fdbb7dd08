# SPDX-License-Identifier: Apache-2.0
"""Only an open that may have lost records raises the leader epoch."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.common.format.batch_header import read_header
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import LOCK_FILE
from shmaccum.log.files.leader_epochs import LeaderEpochs
from shmaccum.log.files.lock_file import boot_id
from tests.support.segment_log import TOPIC, log_files, make_batches, open_log, partition_folder
from tests.support.system_calls import Interruption

CHECKPOINT = "leader-epoch-checkpoint"


def epochs(path: Path) -> list[tuple[int, int]]:
    return LeaderEpochs(os.fspath(partition_folder(path))).entries


def append(path: Path, first: int, count: int) -> None:
    with open_log(path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(count, first=first))


def stamps(path: Path) -> list[int]:
    """The leader epoch of each batch."""
    found, position = [], 0
    content = b"".join(file.read_bytes() for file in log_files(path))
    while position < len(content):
        header = read_header(content, position)
        found.append(header.leader_epoch)
        position += header.size
    return found


def tear(path: Path, size: int = 7) -> None:
    log = log_files(path)[-1]
    os.truncate(log, log.stat().st_size - size)


def test_an_open_without_loss_keeps_the_epoch(tmp_path: Path) -> None:
    append(tmp_path, 0, 2)
    append(tmp_path, 2, 2)
    assert (epochs(tmp_path), stamps(tmp_path)) == ([(0, 0)], [0, 0, 0, 0])


def test_a_cut_raises_the_epoch_of_the_batches_after_it(tmp_path: Path) -> None:
    append(tmp_path, 0, 3)
    tear(tmp_path)
    append(tmp_path, 2, 1)
    assert (epochs(tmp_path), stamps(tmp_path)) == ([(0, 0), (1, 6)], [0, 0, 1])
    append(tmp_path, 3, 1)
    assert stamps(tmp_path) == [0, 0, 1, 1]


def forget_boot(path: Path) -> None:
    """Simulate a crash of the host since the last writer."""
    lock = path / LOCK_FILE
    lock.write_text(lock.read_text(encoding="ascii").replace(boot_id(), "0" * len(boot_id())), encoding="ascii")


def test_a_crash_of_the_host_raises_the_epoch(tmp_path: Path) -> None:
    append(tmp_path, 0, 3)
    forget_boot(tmp_path)
    append(tmp_path, 3, 1)
    assert (epochs(tmp_path), stamps(tmp_path)) == ([(0, 0), (1, 9)], [0, 0, 0, 1])


def test_a_crash_of_the_host_raises_the_epoch_once(tmp_path: Path) -> None:
    """A writer with many partitions closes some of them and opens them again."""
    append(tmp_path, 0, 3)
    forget_boot(tmp_path)
    with open_log(tmp_path) as directory:
        directory.create_topic("other")
        directory._open_max = 1
        for first in (3, 4):
            directory.partition(TOPIC, 0).append(make_batches(1, first=first))
            directory.partition("other", 0)
    assert (epochs(tmp_path), stamps(tmp_path)) == ([(0, 0), (1, 9)], [0, 0, 0, 1, 1])


def test_a_new_log_begins_with_the_first_epoch(tmp_path: Path) -> None:
    append(tmp_path, 0, 0)
    assert epochs(tmp_path) == [(0, 0)]


DAMAGED = ["", "0\n1\n", "1\n1\n0 0\n", "0\n2\n1 0\n0 5\n", "0\n1\n-1 0\n", "nonsense", "0\n9\n0 0\n"]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_checkpoint_never_lowers_the_epoch(tmp_path: Path, content: str) -> None:
    append(tmp_path, 0, 3)
    tear(tmp_path)
    append(tmp_path, 2, 1)
    (partition_folder(tmp_path) / CHECKPOINT).write_text(content, encoding="ascii")
    append(tmp_path, 3, 1)
    assert stamps(tmp_path) == [0, 0, 1, 1]
    tear(tmp_path)
    append(tmp_path, 3, 1)
    assert stamps(tmp_path) == [0, 0, 1, 2]


def test_after_an_error_at_any_system_call_of_the_open_a_cut_raises_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(5, "fails here")

    opened: list[LogDirectory] = []
    for number in range(1, 200):
        path = tmp_path / str(number)
        append(path, 0, 3)
        tear(path)
        interruption = Interruption(number, fail)
        with monkeypatch.context() as patched:
            interruption.install(patched)
            with contextlib.suppress(OSError):
                opened.append(open_log(path))
                opened[-1].partition(TOPIC, 0)
        while opened:
            opened.pop().abandon()
        append(path, 2, 1)
        assert stamps(path)[-1] > 0
        if not interruption.has_acted:
            return
    raise AssertionError("there were more system calls than this test tries")


def test_the_end_of_an_epoch_is_where_the_next_one_begins(tmp_path: Path) -> None:
    found = LeaderEpochs(os.fspath(tmp_path))
    found.raise_at(10)
    found.learn(5, 20)
    assert found.entries == LeaderEpochs(os.fspath(tmp_path)).entries == [(0, 0), (1, 10), (5, 20)]
    ends = {epoch: found.end_of(epoch, 33) for epoch in range(-1, 7)}
    assert ends == {-1: (-1, -1), 0: (0, 10), 1: (1, 20), 2: (1, 20), 3: (1, 20), 4: (1, 20), 5: (5, 33), 6: (-1, -1)}
    assert [found.at(offset) for offset in (0, 9, 10, 19, 20, 99)] == [0, 0, 1, 1, 5, 5]


def test_any_order_of_raises_leaves_both_columns_ascending(tmp_path: Path, seeded: Callable[[], random.Random]) -> None:
    chance = seeded()
    found = LeaderEpochs(os.fspath(tmp_path))
    for _ in range(200):
        found.raise_at(chance.randrange(100))
        assert found.entries == sorted(found.entries)
        assert [start for _, start in found.entries] == sorted({start for _, start in found.entries})
    assert found.latest == 200
    assert LeaderEpochs(os.fspath(tmp_path)).entries == found.entries
