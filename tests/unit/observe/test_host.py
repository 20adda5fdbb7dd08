# SPDX-License-Identifier: Apache-2.0
"""The arenas of a host: in shared memory they are found by their first bytes, as files by their mappings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.file import MAGIC, is_arena
from shmaccum.observe.host import arena_names


def test_an_arena_in_shared_memory_is_found_by_its_name(arena: Arena) -> None:
    assert arena.name in arena_names()


def test_a_file_is_found_while_a_process_has_it_mapped(tmp_path: Path) -> None:
    path = tmp_path / "an arena with blanks"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB"):
        assert str(path) in arena_names()
    assert str(path) not in arena_names()


def test_a_file_that_lost_its_name_is_not_listed(tmp_path: Path) -> None:
    path = tmp_path / "events"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB"):
        path.unlink()
        assert [name for name in arena_names() if str(tmp_path) in name] == []


@pytest.mark.parametrize("kind", ["something else", "empty", "folder", "fifo", "link", "missing"])
def test_a_file_of_another_kind_is_no_arena(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    if kind == "something else":
        path.write_bytes(b"x" + MAGIC)
    elif kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "arena").write_bytes(MAGIC)
        path.symlink_to(tmp_path / "arena")
    assert not is_arena(str(path))


def test_a_file_that_begins_as_an_arena_is_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(MAGIC + b"of any layout")
    assert is_arena(str(path))
