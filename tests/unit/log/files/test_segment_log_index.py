# SPDX-License-Identifier: Apache-2.0
"""Lists and arrays of index entries return the same results. A sender starts without slow imports."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.log.files import index_file
from shmaccum.log.files.index_file import (
    LARGE_COUNT,
    OFFSET_ENTRY,
    TIME_ENTRY,
    ascends,
    last_offset_for,
    last_position,
    last_position_for,
    last_timestamp,
    load_entries,
    map_entries,
    pack_offset_entry,
    pack_time_entry,
)

SLOW = ("numpy", "crc32c", "importlib.metadata", "tempfile")


def written(path: Path, count: int, chance: random.Random, *, sorted_: bool = True) -> None:
    offsets, positions = (chance.sample(range(1, 2**31), count) for _ in range(2))
    if sorted_:
        offsets.sort()
        positions.sort()
    path.write_bytes(b"".join(map(pack_offset_entry, offsets, positions)) + b"torn")


@pytest.mark.parametrize("count", [0, 1, 2, 50, LARGE_COUNT + 1])
@pytest.mark.parametrize("load", [load_entries, map_entries])
def test_lists_and_arrays_answer_alike(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seeded: Callable[[], random.Random],
    load: Callable[..., index_file.Entries],
    count: int,
) -> None:
    chance = seeded()
    path = tmp_path / "index"
    written(path, count, chance)
    asked = [0, 2**31 - 1, *(chance.randrange(2**31) for _ in range(50))]
    answers = []
    for large_count in (0, 2**31):
        monkeypatch.setattr(index_file, "LARGE_COUNT", large_count)
        entries = load(str(path), OFFSET_ENTRY)
        assert isinstance(entries.column("position"), list) == (large_count > 0)
        assert ascends(entries.column("relative_offset"))
        assert ascends(entries.column("position"))
        answers.append(
            (
                len(entries),
                last_position(entries),
                [last_position_for(entries, offset) for offset in asked],
                entries.rows()[count // 2 :] == entries.rows(count // 2),
                entries.rows(),
                entries.head(count // 2).content,
            )
        )
    assert answers[0] == answers[1]
    assert answers[0][0] == len(answers[0][4]) == count
    assert answers[0][3]


@pytest.mark.parametrize("large_count", [0, 2**31])
def test_what_does_not_ascend_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: Callable[[], random.Random], large_count: int
) -> None:
    monkeypatch.setattr(index_file, "LARGE_COUNT", large_count)
    path = tmp_path / "index"
    written(path, 50, seeded(), sorted_=False)
    assert not ascends(load_entries(str(path), OFFSET_ENTRY).column("relative_offset"))
    path.write_bytes(pack_offset_entry(5, 5) * 2)
    assert not ascends(load_entries(str(path), OFFSET_ENTRY).column("position"))


@pytest.mark.parametrize("large_count", [0, 2**31])
def test_the_time_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large_count: int) -> None:
    monkeypatch.setattr(index_file, "LARGE_COUNT", large_count)
    path = tmp_path / "index"
    assert last_timestamp(load_entries(str(path), TIME_ENTRY)) == -1
    path.write_bytes(b"".join(pack_time_entry(1_700_000_000_000 + 10 * number, number) for number in range(100)))
    entries = map_entries(str(path), TIME_ENTRY)
    assert last_timestamp(entries) == 1_700_000_000_990
    assert [last_offset_for(entries, 1_700_000_000_000 + late) for late in (0, 1, 10, 11, 10_000)] == [-1, 0, 0, 1, 99]


@pytest.mark.parametrize("sink", ["null", "log", "memory"])
def test_the_start_of_a_sender_imports_nothing_slow(sink: str) -> None:
    imports = f"import sys, shmaccum.sender.__main__, shmaccum.sender.sinks.{sink}"
    program = f"{imports}; print([m for m in {SLOW!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"
