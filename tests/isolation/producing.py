# SPDX-License-Identifier: Apache-2.0
"""A producing process: ``python -m tests.isolation.producing ARENA FOLDER NUMBER GROUP SIZE PLACES OPTIONS``.

It sends to its places in turn until the director ends it. A place is [topic, partition]; without a partition, the
producer chooses one for each record. A value is ``NUMBER PLACE COUNT`` and is filled up to SIZE bytes. PLACES and
OPTIONS are JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shmaccum import Producer
from shmaccum.exceptions import ShmaccumError
from tests.isolation.measurements import Control, Measurements

LATE_NS = 100_000_000
"""A producer that is later than this does not catch up."""


def produce(
    producer: Producer,
    control: memoryview,
    group: int,
    measurements: Measurements,
    number: int,
    size: int,
    places: Sequence[tuple[str, int | None]],
) -> None:
    """Send until the director ends the process."""
    due_ns = time.monotonic_ns()
    count = 0
    while True:
        now_ns = time.monotonic_ns()
        if due_ns > now_ns:
            time.sleep((due_ns - now_ns) / 1e9)
        cell = control[0]
        if cell == Control.OVER:
            return
        due_ns = max(due_ns, now_ns - LATE_NS) + control[1 + group]
        place = count % len(places)
        count += 1
        topic, partition = places[place]
        value = (b"%d %d %d " % (number, place, measurements.next_number(place))).ljust(size, b"x")
        begin_ns = time.perf_counter_ns()
        try:
            producer.send(topic, value, partition=partition)
        except ShmaccumError as error:
            measurements.add_latency(cell, time.perf_counter_ns() - begin_ns)
            measurements.add_failure(cell, error)
        else:
            measurements.add_latency(cell, time.perf_counter_ns() - begin_ns)
            measurements.add_sent(place)


def main(
    arena: str, folder: Path, number: int, group: int, size: int, places: Sequence[Any], options: Mapping[str, Any]
) -> None:
    control = Control(folder / "control")
    measurements = Measurements(folder / f"producer-{number}")
    producer = Producer(arena, **options)
    produce(producer, control.words, group, measurements, number, size, places)
    producer.close(0)


if __name__ == "__main__":
    _, name, directory, *numbers, given_places, given_options = sys.argv
    one, two, three = map(int, numbers)
    main(name, Path(directory), one, two, three, json.loads(given_places), json.loads(given_options))
