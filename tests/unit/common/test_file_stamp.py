# SPDX-License-Identifier: Apache-2.0
"""Values from files that are read again when their files have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from shmaccum.common.file_stamp import FileContents
from shmaccum.exceptions import InvalidArgumentError


class Number:
    """The number in a file. It is invalid while a second file, whose changes are not noticed, is missing.

    Attributes:
        read_count: the number of times that the file was read.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.needed = folder / "number", folder / "needed"
        self.path.write_text("1")
        self.needed.touch()
        self.read_count = 0

    def read(self) -> int:
        self.read_count += 1
        if not self.needed.exists():
            raise InvalidArgumentError("a file is missing")
        return int(self.path.read_text())


def test_a_value_is_read_again_only_after_a_change(tmp_path: Path) -> None:
    number = Number(tmp_path)
    contents = FileContents([str(number.path), None], number.read)
    assert not contents.refresh()
    assert number.read_count == 1
    number.path.write_text("22")
    assert contents.refresh()
    assert contents.value == 22
    assert not contents.refresh()
    assert number.read_count == 2


def test_an_invalid_file_is_reported_once_and_read_until_it_is_valid(tmp_path: Path) -> None:
    number = Number(tmp_path)
    contents = FileContents([str(number.path)], number.read)
    number.needed.unlink()
    for text in ("22", "333"):
        number.path.write_text(text)
        with pytest.raises(InvalidArgumentError, match="missing"):
            contents.refresh()
        assert not contents.refresh()
        assert contents.value == 1
    number.needed.touch()
    assert contents.refresh()
    assert contents.value == 333


def test_files_that_are_invalid_at_the_start_are_refused(tmp_path: Path) -> None:
    number = Number(tmp_path)
    number.needed.unlink()
    with pytest.raises(InvalidArgumentError, match="missing"):
        FileContents([str(number.path)], number.read)
