# SPDX-License-Identifier: Apache-2.0
"""The parts of the example pipeline: the events of the flights, and the ledger that finds errors."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable

import msgpack
import numpy as np
import pytest

from examples.flights.data import Event, events, topics
from examples.flights.verification import Ledger

SAMPLE_COUNT = 5000
WORKER_COUNT = 4


@pytest.fixture(scope="module")
def sample() -> list[Event]:
    """The first events of the file."""
    return list(events(flight_count=SAMPLE_COUNT))


def ledger_of(sample: Iterable[Event]) -> Ledger:
    """A ledger that expects only the sample."""
    return Ledger(np.array([zlib.crc32(event.value) for event in sample], dtype=np.uint32))


def test_an_event_is_a_row_with_its_types(sample: list[Event]) -> None:
    first = sample[0]
    assert (first.row, first.topic, first.key) == (0, "flights.EWR", b"N14228")
    flight = msgpack.unpackb(first.value)
    assert flight["row"] == 0
    assert flight["dep_delay"] == 2
    assert flight["carrier"] == "UA"
    assert flight["time_hour"] == "2013-01-01T10:00:00Z"


def test_what_the_data_lacks_is_none(sample: list[Event]) -> None:
    late = next(event for event in sample if msgpack.unpackb(event.value)["air_time"] is None)
    assert msgpack.unpackb(late.value)["arr_delay"] is None


def test_rows_count_up_and_topics_are_known(sample: list[Event]) -> None:
    assert [event.row for event in sample] == list(range(SAMPLE_COUNT))
    assert {event.topic for event in sample} == set(topics())


def test_workers_share_the_rows_and_an_aircraft_has_one_worker(sample: list[Event]) -> None:
    shares = [list(events(worker, WORKER_COUNT, flight_count=SAMPLE_COUNT)) for worker in range(WORKER_COUNT)]
    assert sorted(itertools.chain(*shares)) == sample
    keys = [{event.key for event in share} - {None} for share in shares]
    assert sum(map(len, keys)) == len(set().union(*keys))


def test_a_worker_continues_at_a_row() -> None:
    later = next(events(1, WORKER_COUNT, first_row=3000))
    assert later.row >= 3000
    assert later in itertools.islice(events(1, WORKER_COUNT), 3000)


def test_a_full_ledger_finds_nothing(sample: list[Event]) -> None:
    ledger = ledger_of(sample)
    for event in sample:
        ledger.enter(event.topic, event.key, event.value)
    assert ledger.findings() == []


def test_a_ledger_finds_what_is_missing_repeated_changed_and_out_of_order(sample: list[Event]) -> None:
    ledger = ledger_of(sample)
    aircraft = next(event.key for event in reversed(sample) if event.key and event.topic == sample[0].topic)
    own = [event for event in sample if (event.topic, event.key) == (sample[0].topic, aircraft)]
    assert len(own) > 1
    first = own[0]
    entered = [*own[1:], first, first._replace(value=msgpack.packb({"row": first.row, "carrier": "none"}))]
    for event in entered:
        ledger.enter(event.topic, event.key, event.value)
    findings = ledger.findings()
    assert findings[0] == f"{SAMPLE_COUNT - len(own):,} flights are missing"
    assert findings[1] == "1 flights are there more than once"
    assert f"flight {first.row} of aircraft {aircraft.decode()} came after a later one" in findings
    assert f"flight {first.row} is not what was sent" in findings
