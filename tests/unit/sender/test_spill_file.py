# SPDX-License-Identifier: Apache-2.0
"""The file of a partition of an overflow, as a crash of the host may leave it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from shmaccum.exceptions import LogError
from shmaccum.sender.spill_file import HEAD_SIZE, ROW, ROWS_READ, OverflowBatch, OverflowPosition, SpillFile

ROWS = [OverflowBatch(3 * number, number, number, 3, 0) for number in range(5)]
POSITION = OverflowPosition(6, identity=b"i" * 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with a position and rows."""
    path = tmp_path / "t-0"
    with contextlib.closing(SpillFile(str(path), is_synced=True)) as file:
        file.write_position(POSITION)
        file.append(ROWS)
    return path


def test_a_head_that_did_not_reach_the_disk_is_written_again(path: Path) -> None:
    path.write_bytes(bytes(HEAD_SIZE))
    for _ in range(2):
        with contextlib.closing(SpillFile(str(path), is_synced=True)) as file:
            assert (file.position, file.row_count) == (OverflowPosition(), 0)


def test_a_file_that_lost_its_positions_but_no_rows_is_refused(path: Path) -> None:
    path.write_bytes(bytes(HEAD_SIZE) + path.read_bytes()[HEAD_SIZE:])
    with pytest.raises(LogError, match="is damaged"):
        SpillFile(str(path), is_synced=True)


@pytest.mark.parametrize("zeros", [1, 15, 2 * ROWS_READ])
@pytest.mark.parametrize("kept", [0, 1, len(ROWS)])
def test_rows_that_did_not_reach_the_disk_are_no_rows(path: Path, kept: int, zeros: int) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: HEAD_SIZE + kept * ROW.size] + bytes(zeros * ROW.size))
    with contextlib.closing(SpillFile(str(path), is_synced=True)) as file:
        assert list(file.rows(0)) == ROWS[:kept]
        assert file.position == POSITION
        file.append(ROWS[kept:])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("count", [len(ROWS), ROWS_READ + 1])
def test_a_row_of_which_only_a_part_was_written_is_no_row(tmp_path: Path, count: int) -> None:
    path = tmp_path / "t-0"
    with contextlib.closing(SpillFile(str(path), is_synced=True)) as file:
        file.append(ROWS[:1] * count)
    whole = path.read_bytes()
    path.write_bytes(whole + b"part")
    with contextlib.closing(SpillFile(str(path), is_synced=True)) as file:
        assert file.row_count == count
    assert path.read_bytes() == whole
