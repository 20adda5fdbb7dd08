# SPDX-License-Identifier: Apache-2.0
"""Record a scenario once, and open images of its power cuts."""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.power_images.checking import problems_of
from tests.power_images.disk_model import Image, image_count
from tests.power_images.images import Position, disks_at, every_image, positions, some_images
from tests.power_images.recording import ROOT, Entry, Kind, read_entries, record
from tests.power_images.scenario import Marks, Scenario
from tests.skew.builds import later_build

PROBLEMS_SHOWN = 5


@dataclass
class Figures:
    """The outcome of a trial.

    Attributes:
        image_count: the number of different images.
        whole_count: the number of positions of which all images were opened.
        drawn_count: the number of positions of which only some images were opened.
    """

    entry_count: int = 0
    sync_count: int = 0
    image_count: int = 0
    whole_count: int = 0
    drawn_count: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if no promise was broken."""
        return not self.problems

    def __str__(self) -> str:
        counts = (
            f"{self.image_count:,} images, {self.sync_count:,} syncs, {self.whole_count:,} cuts with all images, "
            f"{self.drawn_count:,} with some, {len(self.problems):,} broken"
        )
        return "\n    ".join([counts, *self.problems[:PROBLEMS_SHOWN]])


def recorded(scenario: Scenario) -> list[Entry]:
    """Record a scenario, and return the entries."""
    with tempfile.TemporaryDirectory(prefix="shmaccum-power-") as folder:
        log = Path(folder, "entries")
        build = later_build() if scenario.is_of_later_build else None
        python, home = (build.python, build.folder) if build else (sys.executable, ROOT)
        root = Path(folder, "root")
        record(root, log, ["-m", "tests.power_images", "record", str(scenario), str(root)], python, home)
        return list(read_entries(log))


def run_trial(
    scenario: Scenario, image_max: int, chance: random.Random, folder: Path, *, is_exhaustive: bool = False
) -> Figures:
    """Record a scenario, and open at most `image_max` images.

    Args:
        folder: the folder for the images.
        is_exhaustive: open all images of each position with few units, however many there are.
    """
    entries = recorded(scenario)
    figures = Figures(len(entries), sum(entry.kind == Kind.SYNC for entry in entries))
    seen: set[bytes] = set()
    for position, image in _images(entries, image_max, chance, figures, is_exhaustive=is_exhaustive):
        digest = image.digest + position.number.to_bytes(4, "big")
        if digest in seen:
            continue
        seen.add(digest)
        figures.image_count += 1
        marks = Marks(entries[: position.number])
        figures.problems += [
            f"cut before entry {position.number}: {problem}"
            for problem in problems_of(image, folder, scenario.checker(marks))
        ]
    return figures


def _images(
    entries: Sequence[Entry], image_max: int, chance: random.Random, figures: Figures, *, is_exhaustive: bool
) -> Iterator[tuple[Position, Image]]:
    """Yield all images of a position if it has few units and its share of the number suffices. Otherwise, draw some."""
    places = positions(entries)
    for index, (place, disk) in enumerate(disks_at(entries, places)):
        share = max((image_max - figures.image_count) // (len(places) - index), 2)
        if place.is_small and (is_exhaustive or image_count(disk.units()) <= share):
            figures.whole_count += 1
            images = every_image(disk)
        else:
            figures.drawn_count += 1
            images = some_images(disk, share, chance)
        for image in images:
            yield place, image
