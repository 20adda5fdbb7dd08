# SPDX-License-Identifier: Apache-2.0
"""The places in the code that force changes to disk. For each, an image shows what would be lost without its sync.

The name of a site has the line that requests the sync, and the helpers of `shmaccum.common.durability` and
`shmaccum.log.files.small_files` between this line and the system call. A sync of the core is named by its C function.
"""

from __future__ import annotations

import ast
import functools
import linecache
import random
import re
import subprocess
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.power_images.checking import problems_of
from tests.power_images.disk_model import Disk, Image, Unit, newest
from tests.power_images.recording import ROOT, Entry, Kind
from tests.power_images.scenario import Marks, Scenario

PACKAGE = ROOT / "shmaccum"
HELPERS = {"common/durability.py", "log/files/small_files.py"}
NATIVE = re.compile(r"native:(?P<path>.*)\+0x(?P<offset>[0-9a-f]+)")
UNITS_MAX = 1
"""The number of units of each cut that are omitted one at a time."""


def site_of(entry: Entry) -> str:
    """Return the name of the site of a sync."""
    return _site_named(entry.site)


def ending_of(site: str) -> str:
    """Return the name of a site without the helpers that it calls."""
    return site.rsplit(" < ", maxsplit=1)[-1]


def key_of(site: str) -> str:
    """Return the name of a site with only the innermost helper."""
    helper, _, _ = site.partition(":")
    return site if site == ending_of(site) else f"{helper} < {ending_of(site)}"


@functools.cache
def _site_named(stack: str) -> str:
    names: list[str] = []
    for frame in stack.split("|"):
        if (native := NATIVE.fullmatch(frame)) is not None:
            return f"native: {_function_at(native['path'], int(native['offset'], 16))}"
        file, _, rest = frame.partition(":")
        line, _, function = rest.partition(":")
        if not Path(file).is_relative_to(PACKAGE):
            continue
        module = str(Path(file).relative_to(PACKAGE))
        source = linecache.getline(file, int(line)).strip()
        if module not in HELPERS:
            return " < ".join([*names, f"{module} {function}: {source}"])
        names.append(f"{function}: {source}")
    return " < ".join(names) or "no frame of shmaccum"


def _function_at(library: str, offset: int) -> str:
    starts, names = _functions(library)
    return names[bisect_right(starts, offset - 1) - 1].partition(".")[0]


@functools.cache
def _functions(library: str) -> tuple[list[int], list[str]]:
    listed = subprocess.run(["nm", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    rows = sorted((int(row[0], 16), row[2]) for row in map(str.split, listed.splitlines()) if row[1] in "tT")
    return [start for start, _ in rows], [name for _, name in rows]


def sites_in(entries: Sequence[Entry]) -> list[str]:
    """Return all sites of a recording."""
    return sorted({site_of(entry) for entry in entries if entry.kind == Kind.SYNC})


def problem_without(
    site: str,
    scenario: Scenario,
    entries: Sequence[Entry],
    folder: Path,
    chance: random.Random,
    *,
    position_max: int | None = None,
) -> str | None:
    """Return a promise that is broken if a site forces nothing, or None if no image shows that.

    Args:
        folder: the folder for the images.
        position_max: the largest number of cuts that are checked. None means all cuts.
    """
    seen: set[bytes] = set()
    for position, image in _images_without(site, entries, chance, position_max):
        if image.digest in seen:
            continue
        seen.add(image.digest)
        problems = problems_of(image, folder, scenario.checker(Marks(entries[:position])))
        if problems:
            return problems[0]
    return None


def _images_without(
    site: str, entries: Sequence[Entry], chance: random.Random, position_max: int | None
) -> Iterator[tuple[int, Image]]:
    """Yield the images that exist only because a site forces nothing, beginning with the most incomplete ones."""
    places = [position for position, _, _ in _disks_without(site, entries)]
    chosen = set(chance.sample(places, min(len(places), position_max or len(places))))
    for is_alone in (False, True):
        for position, disk, owed in _disks_without(site, entries):
            if position not in chosen:
                continue
            units = disk.units()
            if not is_alone:
                yield position, disk.image(units, _missing_partitions(units, owed, range(len(units))))
                yield position, disk.image(units, [0] * len(units))
                continue
            for index in chance.sample(sorted(owed), min(UNITS_MAX, len(owed))):
                yield position, disk.image(units, _missing_partitions(units, owed, [index]))


def _missing_partitions(units: Sequence[Unit], owed: dict[int, int], indices: Sequence[int] | range) -> list[int]:
    choice = newest(units)
    for index in set(indices) & owed.keys():
        choice[index] = 0
    return choice


def _disks_without(site: str, entries: Sequence[Entry]) -> Iterator[tuple[int, Disk, dict[int, int]]]:
    """Yield the position and the disk before each later sync, and at the end, with the units that the site would force.

    The units are a map from the index of a unit to the number of the version that would be on disk.
    """
    disk, whole = Disk(), Disk()
    is_later = False
    for position, entry in enumerate([*entries, None]):
        is_sync = entry is None or entry.kind == Kind.SYNC
        if is_sync and is_later and (owed := _owed(disk, whole)):
            yield position, disk, owed
        if entry is None or entry.kind in {Kind.MARK, Kind.RANGE}:
            continue
        whole.take(entry)
        if is_sync and site_of(entry) == site:
            is_later = True
            disk.skip()
        else:
            disk.take(entry)


def _owed(disk: Disk, whole: Disk) -> dict[int, int]:
    certain = whole.undecided()
    owed = {}
    for index, unit in enumerate(disk.units()):
        missing = [moment for moment in unit.moments if moment not in certain.get(disk.key(unit), ())]
        if missing:
            owed[index] = len(missing)
    return owed


SYNCS = frozenset(
    {
        "fsync",
        "fdatasync",
        "sync_folder",
        "sync_path",
        "sync_file",
        "replace_file_synced",
        "append_or_cut",
        "make_partition_files",
    }
)
"""The functions that force something to disk, or may do so."""


def calls_in_package() -> list[str]:
    """Return the end of the name of each site in the Python sources, as `site_of` names them."""
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        module = str(path.relative_to(PACKAGE))
        if module in HELPERS:
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        for function, line in _calls(ast.parse("\n".join(lines))):
            found.add(f"{module} {function}: {lines[line - 1].strip()}")
    return sorted(found)


def _calls(module: ast.Module) -> Iterator[tuple[str, int]]:
    for function in ast.walk(module):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if isinstance(call, ast.Call):
                name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
                if name in SYNCS:
                    yield function.name, call.lineno
