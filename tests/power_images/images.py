# SPDX-License-Identifier: Apache-2.0
"""Choose the images to check, for all power cuts during a recording.

A power cut is between two entries. Each entry adds images, until a sync makes some units certain. If there are at most
`UNITS_MAX` units, all choices are made, at the last position before a sync or before more units exist. Otherwise,
choices are drawn at random. A random choice has everything up to some moment, but some units are older or newer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from tests.power_images.disk_model import Disk, Image, Sector, Size, Unit, as_of, image_count, newest
from tests.power_images.recording import Entry, Kind

UNITS_MAX = 12
CHOICES_MAX = 1 << UNITS_MAX
SOME = (0.0, 0.02, 0.1, 0.5)
"""The shares of units that are drawn separately."""


def is_small(units: Sequence[Unit]) -> bool:
    """Return True if there are so few units that every choice is made."""
    return len(units) <= UNITS_MAX and image_count(units) <= CHOICES_MAX


class Position(NamedTuple):
    """A position for a power cut.

    Attributes:
        is_small: True if every choice is made there.
    """

    number: int
    is_small: bool


def positions(entries: Sequence[Entry]) -> list[Position]:
    """Return the positions to check: those before a sync that makes something certain, before units become many, and
    the last.
    """
    disk = Disk()
    found: list[Position] = []
    was_small = True
    for number, entry in enumerate(entries):
        if entry.kind == Kind.SYNC and disk.is_changed_by(entry):
            found.append(Position(number, was_small))
        if _changes(entry):
            disk.take(entry)
            is_small_now = is_small(disk.units())
            if was_small and not is_small_now:
                found.append(Position(number, is_small=True))
            was_small = is_small_now
    return [*found, Position(len(entries), was_small)]


def _changes(entry: Entry) -> bool:
    return entry.kind not in {Kind.MARK, Kind.RANGE}


def disks_at(entries: Sequence[Entry], places: Sequence[Position]) -> Iterator[tuple[Position, Disk]]:
    """Yield the disk at each of these positions, which must ascend."""
    disk, taken = Disk(), 0
    for place in places:
        for entry in entries[taken : place.number]:
            if _changes(entry):
                disk.take(entry)
        taken = place.number
        yield place, disk


def every_image(disk: Disk) -> Iterator[Image]:
    """Yield all images of a disk with few units."""
    units = disk.units()
    for choice in product(*(range(len(unit.moments) + 1) for unit in units)):
        yield disk.image(units, choice)


def some_images(disk: Disk, count: int, chance: random.Random) -> Iterator[Image]:
    """Yield the oldest and the newest image, and some in between."""
    units = disk.units()
    yield disk.image(units, [0] * len(units))
    yield disk.image(units, newest(units))
    for _ in range(count - 2):
        yield disk.image(units, _drawn(units, chance))


def _drawn(units: Sequence[Unit], chance: random.Random) -> list[int]:
    """Return a choice in which everything is as of one moment, but some units, or the units of some files, are as of
    another one.
    """
    moments = sorted({moment for unit in units for moment in unit.moments})
    choice = as_of(units, chance.choice([*moments, moments[-1]]))
    other = chance.choice([as_of(units, chance.choice(moments)), [0] * len(units), newest(units)])
    if chance.random() < 0.3:
        files = sorted({id(unit.file) for unit in units if isinstance(unit, (Sector, Size))})
        replaced = {file for file in files if chance.random() < 0.3}
        return [
            new if isinstance(unit, (Sector, Size)) and id(unit.file) in replaced else old
            for unit, old, new in zip(units, choice, other, strict=True)
        ]
    if chance.random() < 0.3:
        place = chance.randrange(len(units))
        return [*choice[:place], other[place], *choice[place + 1 :]]
    share = chance.choice(SOME)
    return [
        chance.randint(0, len(unit.moments)) if chance.random() < share else number
        for unit, number in zip(units, choice, strict=True)
    ]
