# SPDX-License-Identifier: Apache-2.0
"""The structs of an arena are frozen: processes of different builds use one arena at a time.

``frozen_layout.csv`` lists each field of each struct with its offset and size. A build that moves one would read and
write other fields than other processes do, so no row may change after a release. Instead, name a reserved word, under
a feature of the superblock, and add a row to the table (native/arena/layout.h has the rules).
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from shmaccum import _native
from shmaccum.arena import tables

FROZEN = Path(__file__).with_name("frozen_layout.csv")
STRUCTS = {
    "processes": "process_entry",
    "waiters": "waiter_entry",
    "topics": "topic_entry",
    "partitions": "partition_entry",
    "slot_headers": "slot_header",
    "completions": "completion_entry",
}
"""The structs of the regions that have numpy tables."""


def fields_of(struct: str) -> list[tuple[str, int, int]]:
    """Name, offset and size of each field of a struct; the first is the struct itself."""
    return [(field, offset, size) for name, field, offset, size in _native.layout_fields() if name == struct]


def test_every_field_is_where_it_is_frozen() -> None:
    with FROZEN.open(newline="") as file:
        frozen = [(row["struct"], row["field"], int(row["offset"]), int(row["size"])) for row in csv.DictReader(file)]
    assert _native.layout_fields() == frozen


@pytest.mark.parametrize("struct", sorted({row[0] for row in _native.layout_fields()}))
def test_every_byte_of_a_struct_has_a_name(struct: str) -> None:
    (_, _, size), *fields = fields_of(struct)
    ends = [0, *(offset + size for _, offset, size in fields)]
    assert [offset for _, offset, _ in fields] == ends[:-1]
    assert ends[-1] == size


@pytest.mark.parametrize("region", STRUCTS)
def test_numpy_sees_every_field_where_it_lies(region: str) -> None:
    native = {offset: size for _, offset, size in fields_of(STRUCTS[region])[1:]}
    dtype = tables.DTYPES[region]
    seen = [dtype.fields[name] for name in dtype.names or ()] if dtype.fields else []
    places = {place[1]: place[0].itemsize for place in seen}
    if region == "partitions":  # its lock is a struct of two words
        assert native.pop(0) == places.pop(0) + places.pop(8)
    assert places == native


def test_lines_that_different_processes_write_often_are_apart() -> None:
    """The words of openers, of waiters, of the sender and of sleepers have their own cache lines."""
    starts = {field: offset for field, offset, _ in fields_of("globals")[1:]}
    words = [
        *("pool_lock", "waiting_count", "next_ticket", "free_scan_hint", "sender_epoch", "acked_ns"),
        *("completion_tail", "sync_wanted", "sync_done", "sink_name", "delivery_clock_ns"),
    ]
    lines = [starts[word] // 64 for word in words]
    assert all(first < second for first, second in itertools.pairwise(lines))
