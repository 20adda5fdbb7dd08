# SPDX-License-Identifier: Apache-2.0
"""The recorder records every change. The model has exactly the images that a power cut may leave.

If a sync is removed, the images of every later cut are checked. If a check fails, its first error is reported.
"""

from __future__ import annotations

import contextlib
import random
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from shmaccum.exceptions import ArenaInUseError
from tests.power_images import checking, sites
from tests.power_images.disk_model import SECTOR, Disk, Image
from tests.power_images.images import every_image
from tests.power_images.recording import Entry, Kind, read_entries, record
from tests.power_images.scenarios import scenario_named

PROGRAM = """
import ctypes, mmap, os, sys
os.chdir(sys.argv[1])
library = ctypes.CDLL(None)
library.power_mark(b"begin")
os.mkdir("folder")
file = os.open("folder/one.tmp", os.O_RDWR | os.O_CREAT, 0o600)
os.write(file, b"written ")
os.pwrite(file, b"W", 0)
os.writev(file, [b"more ", b"parts"])
os.pwritev(file, [b"V"], 1)
os.fdatasync(file)
os.rename("folder/one.tmp", "folder/one")
os.fsync(os.open("folder", os.O_RDONLY))
os.link("folder/one", "two")
os.symlink("two", "three")
os.truncate("two", 4)
os.ftruncate(file, 3)
os.posix_fallocate(file, 0, 2000)
copy = os.open("copy", os.O_RDWR | os.O_CREAT)
os.copy_file_range(file, copy, 3, 0)
os.sendfile(copy, file, 0, 2)
os.close(os.open("copy", os.O_WRONLY | os.O_TRUNC))
with mmap.mmap(file, 2000) as mapped:
    mapped[1000:1003] = b"map"
    os.fsync(file)
    mapped[1500:1503] = b"MAP"
    if (child := os.fork()) == 0:
        mapped[0:3] = b"sub"
        synced = os.open("child", os.O_WRONLY | os.O_CREAT | os.O_DSYNC)
        os.write(synced, b"child")
        os._exit(0)
    os.waitpid(child, 0)
os.unlink("two")
os.mkdir("empty")
os.rmdir("empty")
os.write(os.open("/dev/null", os.O_WRONLY), b"elsewhere")
library.power_mark(b"end")
"""


def test_the_recorder_sees_every_change(tmp_path: Path) -> None:
    record(tmp_path / "root", tmp_path / "log", ["-c", PROGRAM, str(tmp_path / "root")])
    entries = list(read_entries(tmp_path / "log"))
    kinds = {entry.kind for entry in entries}
    assert kinds == set(Kind) - {Kind.MODE, Kind.RANGE}
    written = [entry.data for entry in entries if entry.kind == Kind.WRITE]
    assert written == [b"written ", b"W", b"more parts", b"V", b"WVi", b"WV", b"child"]
    sizes = [entry.offset for entry in entries if entry.kind == Kind.SIZE]
    assert sizes == [4, 3, 2000, 0]
    names = [entry.other or entry.name for entry in entries if entry.name]
    assert names == ["folder", "one.tmp", "one", "two", "three", "copy", "child", "two", "empty", "empty"]
    stores = [entry for entry in entries if entry.kind == Kind.STORE]
    assert b"map" in stores[0].data
    assert [entry.kind for entry in entries][entries.index(stores[0]) + 1] == Kind.SYNC
    assert [each for each in (b"MAP", b"sub") if not any(each in entry.data for entry in stores[1:])] == []
    assert len({entry.process for entry in entries}) == 2
    syncs = [entry for entry in entries if entry.kind == Kind.SYNC]
    assert len(syncs) == 4
    assert all(":<module>" in entry.site for entry in syncs)


def test_a_recording_ends_with_the_disk_that_it_made(tmp_path: Path) -> None:
    root = tmp_path / "root"
    record(root, tmp_path / "log", ["-c", PROGRAM, str(root)])
    disk = Disk()
    for entry in read_entries(tmp_path / "log"):
        disk.take(entry)
    units = disk.units()
    image = disk.image(units, [len(unit.moments) for unit in units])
    found = {str(path.relative_to(root)): path for path in root.rglob("*")}
    assert image.modes == {name: path.lstat().st_mode for name, path in found.items()}
    files = {name: path.read_bytes() for name, path in found.items() if path.is_file() and not path.is_symlink()}
    assert {name: content for name, content in image.contents.items() if name != "three"} == files


# --- the model

ROOT, FILE, FOLDER = 1, 2, 3


def entry(kind: Kind, inode: int = FILE, **fields: object) -> Entry:
    values: dict[str, object] = {"mode": 0, "process": 1, "folder": 0, "other_folder": 0, "offset": 0}
    values |= {"name": "", "other": "", "site": "", "data": b"", **fields}
    return Entry(kind=kind, inode=inode, **values)  # type: ignore[arg-type]


def create(name: str, inode: int = FILE, mode: int = stat.S_IFREG | 0o600, folder: int = ROOT) -> Entry:
    return entry(Kind.CREATE, inode, folder=folder, name=name, mode=mode)


def write(offset: int, data: bytes, inode: int = FILE) -> Entry:
    return entry(Kind.WRITE, inode, offset=offset, data=data)


SYNC_FILE = entry(Kind.SYNC, FILE, mode=stat.S_IFREG)
SYNC_ROOT = entry(Kind.SYNC, ROOT, mode=stat.S_IFDIR)


def images_after(*entries: Entry) -> list[Image]:
    disk = Disk()
    for each in entries:
        disk.take(each)
    return list(every_image(disk))


def contents_after(*entries: Entry) -> set[tuple[tuple[str, bytes], ...]]:
    return {tuple(sorted(image.contents.items())) for image in images_after(*entries)}


def test_a_file_without_syncs_may_be_missing_empty_or_there() -> None:
    found = contents_after(create("a"), write(0, b"data"))
    assert found == {(), (("a", b""),), (("a", bytes(4)),), (("a", b"data"),)}


def test_a_synced_file_whose_folder_is_not_synced_may_be_missing() -> None:
    assert contents_after(create("a"), write(0, b"data"), SYNC_FILE) == {(), (("a", b"data"),)}


def test_a_synced_file_in_a_synced_folder_is_there() -> None:
    assert contents_after(create("a"), write(0, b"data"), SYNC_FILE, SYNC_ROOT) == {(("a", b"data"),)}


def test_each_sector_has_one_of_its_versions() -> None:
    begin = [create("a"), write(0, b"0" * 2 * SECTOR), SYNC_FILE, SYNC_ROOT]
    found = contents_after(*begin, write(0, b"1" * 2 * SECTOR), write(10, b"2"))
    first = b"1" * SECTOR
    changed = b"1" * 10 + b"2" + b"1" * (SECTOR - 11)
    sectors = product((b"0" * SECTOR, first, changed), (b"0" * SECTOR, b"1" * SECTOR))
    assert found == {(("a", one + other),) for one, other in sectors}


def test_a_file_grows_by_sectors() -> None:
    begin = [create("a"), SYNC_FILE, SYNC_ROOT]
    sizes = {len(dict(found)["a"]) for found in contents_after(*begin, write(0, b"1" * 1200))}
    assert sizes == {0, 512, 1024, 1200}


def test_a_rename_is_on_disk_as_a_whole_or_not() -> None:
    begin = [create("a"), create("b", 9), write(0, b"new"), SYNC_FILE, SYNC_ROOT]
    rename = entry(Kind.RENAME, FILE, folder=ROOT, name="a", other_folder=ROOT, other="b")
    assert contents_after(*begin, rename) == {(("a", b"new"), ("b", b"")), (("b", b"new"),)}
    assert contents_after(*begin, rename, SYNC_ROOT) == {(("b", b"new"),)}


def test_a_removed_name_may_be_back() -> None:
    begin = [create("a"), write(0, b"x"), SYNC_FILE, SYNC_ROOT]
    assert contents_after(*begin, entry(Kind.UNLINK, FILE, folder=ROOT, name="a")) == {(), (("a", b"x"),)}


def test_names_of_a_folder_are_on_disk_in_any_order() -> None:
    found = contents_after(create("a"), create("b", 9))
    assert found == {(), (("a", b""),), (("b", b""),), (("a", b""), ("b", b""))}


def test_a_number_of_a_removed_file_may_be_that_of_a_new_one() -> None:
    begin = [create("a"), write(0, b"old"), SYNC_FILE, SYNC_ROOT, entry(Kind.UNLINK, FILE, folder=ROOT, name="a")]
    again = [SYNC_ROOT, create("b"), write(0, b"new"), SYNC_FILE, SYNC_ROOT]
    assert contents_after(*begin, *again) == {(("b", b"new"),)}


def test_a_synced_folder_is_there_when_its_parent_is_synced() -> None:
    folder = create("f", FOLDER, stat.S_IFDIR | 0o755)
    inner = create("a", folder=FOLDER)
    sync_folder = entry(Kind.SYNC, FOLDER, mode=stat.S_IFDIR)
    assert {tuple(image.modes) for image in images_after(folder, inner, sync_folder)} == {(), ("f", "f/a")}
    assert {tuple(image.modes) for image in images_after(folder, inner, SYNC_ROOT)} == {("f",), ("f", "f/a")}


# --- without a sync

CUTS = 40


def made_names(image: Image) -> int:
    return sum(name.startswith("later") for name in image.modes)


@pytest.mark.parametrize("cut", [0, CUTS // 2, CUTS - 1])
def test_a_lack_that_one_cut_shows_is_found(cut: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site = f"{sites.PACKAGE}/log/files/segment.py:0:sync"
    other = entry(Kind.SYNC, ROOT, mode=stat.S_IFDIR, site=f"{sites.PACKAGE}/log/files/directory.py:0:sync")
    entries = [create("a"), write(0, b"data"), other, entry(Kind.SYNC, FILE, mode=stat.S_IFREG, site=site)]
    for number in range(CUTS):
        entries += [create(f"later {number}", 10 + number), other]

    def check(image: Image) -> Iterator[str]:
        if made_names(image) == cut and image.contents["a"] != b"data":
            yield "the data are lost"

    scenario = scenario_named("users:always")
    monkeypatch.setattr(sites, "problems_of", lambda image, _, checked: list(checked(image)))
    monkeypatch.setattr(scenario, "checker", lambda _: check)
    name = sites.site_of(entries[3])
    assert sites.problem_without(name, scenario, entries, tmp_path, random.Random(1)) == "the data are lost"


def close_with_open_sender() -> None:
    raise ArenaInUseError("the arena cannot be closed yet")


def test_a_check_that_fails_inside_of_an_arena_tells_why(tmp_path: Path) -> None:
    def check(_: Path) -> Iterator[str]:
        yield from ()
        with contextlib.ExitStack() as arena:
            arena.callback(close_with_open_sender)
            raise LookupError("the log is gone")

    (problem,) = checking.problems_of(Image({}, {}), tmp_path, check)
    assert problem.startswith("LookupError: the log is gone")
