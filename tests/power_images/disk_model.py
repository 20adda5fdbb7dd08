# SPDX-License-Identifier: Apache-2.0
"""Compute the images that a disk may have after a power cut from the recorded changes.

On disk, each sector of 512 bytes has the content that it had at the last sync of its file, or at some later moment. The
same is true for the size of a file, which grows by sectors or by whole writes, and for each change of names in a
folder. A rename is one change. So a name may exist without the content of its file, and content without a name. A sync
of a file covers its bytes and its size, but not its names. A sync of a folder covers the names in it.

A unit is something that differs between the images of a power cut: a sector or a size with several versions, or a
change of a name. A choice selects a version of each unit by number. Version 0 is certainly on disk, and the last
version is the newest.

The model omits permissions and times (they are on disk at once) and torn sectors.
"""

from __future__ import annotations

import bisect
import hashlib
import math
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.power_images.recording import Entry, Kind

SECTOR = 512


@dataclass(eq=False)
class File:
    """A regular file or a symbolic link."""

    mode: int
    number: int = 0
    """The moment of its creation, which is unique."""
    forced: bytes = b""
    """The content that is certainly on disk."""
    current: bytearray = field(default_factory=bytearray)
    sectors: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict)
    """Later versions of sectors with their moments, the oldest first."""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """Later sizes with their moments."""

    def write(self, moment: int, offset: int, data: bytes) -> None:
        """Change bytes."""
        former_size, end = len(self.current), offset + len(data)
        if end > former_size:
            self.current.extend(bytes(end - former_size))
        self.current[offset:end] = data
        self._note(moment, range(offset // SECTOR, -(-end // SECTOR)))
        if end > former_size:
            first = former_size // SECTOR + 1
            self.sizes += [(moment, number * SECTOR) for number in range(first, -(-end // SECTOR))]
            self.sizes.append((moment, end))

    def resize(self, moment: int, size: int) -> None:
        """Truncate the file, or add zeros."""
        former_size = len(self.current)
        if size == former_size:
            return
        if size < former_size:
            del self.current[size:]
        else:
            self.current.extend(bytes(size - former_size))
        if size < former_size:
            self._note(moment, range(size // SECTOR, -(-former_size // SECTOR)))
        self.sizes.append((moment, size))

    def _note(self, moment: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            version = bytes(self.current[number * SECTOR : (number + 1) * SECTOR]).ljust(SECTOR, b"\0")
            versions = self.sectors.get(number)
            if versions is None:
                if version != self._forced_sector(number):
                    self.sectors[number] = [(moment, version)]
            elif version != versions[-1][1]:
                versions.append((moment, version))

    def _forced_sector(self, number: int) -> bytes:
        return self.forced[number * SECTOR : (number + 1) * SECTOR].ljust(SECTOR, b"\0")

    def force(self) -> None:
        """Make the present content certain to be on disk."""
        if self.sectors or self.sizes:
            self.forced = bytes(self.current)
            self.sectors, self.sizes = {}, []

    @property
    def is_forced(self) -> bool:
        """Return True if a power cut can change nothing."""
        return not (self.sectors or self.sizes)


@dataclass(eq=False)
class Folder:
    """A folder; `names` are the names that are certainly on disk."""

    mode: int
    names: dict[str, Node] = field(default_factory=dict)
    current: dict[str, Node] = field(default_factory=dict)


Node = File | Folder


@dataclass(eq=False)
class Change:
    """A change of names: a node gets a name, loses one, or both."""

    moment: int
    node: Node
    lost: tuple[Folder, str] | None
    gained: tuple[Folder, str] | None

    def is_in(self, folder: Folder) -> bool:
        """Return True if the folder has one of the names."""
        return any(place is not None and place[0] is folder for place in (self.lost, self.gained))

    def apply(self, names_of: Callable[[Folder], dict[str, Node]]) -> None:
        """Change the names of folders."""
        if self.lost is not None:
            names = names_of(self.lost[0])
            if names.get(self.lost[1]) is self.node:
                del names[self.lost[1]]
        if self.gained is not None:
            names_of(self.gained[0])[self.gained[1]] = self.node


class Sector(NamedTuple):
    """A unit: the versions of a sector."""

    file: File
    number: int
    moments: tuple[int, ...]


class Size(NamedTuple):
    """A unit: the sizes of a file."""

    file: File
    moments: tuple[int, ...]


class Name(NamedTuple):
    """A unit: a change of names that is on disk or not."""

    change: Change
    moments: tuple[int, ...]


Unit = Sector | Size | Name
Choice = Sequence[int]


class Image(NamedTuple):
    """A tree of folders and files.

    Attributes:
        modes: the modes by path, folders before their contents.
        contents: the contents of the files.
    """

    modes: dict[str, int]
    contents: dict[str, bytes]

    @property
    def digest(self) -> bytes:
        """Return a digest, which is the same for equal images."""
        found = hashlib.blake2b(digest_size=16)
        for path, mode in sorted(self.modes.items()):
            content = self.contents.get(path, b"")
            found.update(f"{path}\0{mode}\0{len(content)}\0".encode(errors="surrogateescape"))
            found.update(content)
        return found.digest()


class Disk:
    """A disk at one moment of a recording."""

    def __init__(self) -> None:
        self.root = Folder(stat.S_IFDIR | 0o755)
        self._nodes: dict[int, Node] = {}
        self.changes: list[Change] = []
        """The changes of names that are not certainly on disk, in their order."""
        self._moment = 0

    def _folder(self, inode: int) -> Folder:
        """Return a folder. One that was created before the recording is the root."""
        node = self._nodes.setdefault(inode, self.root)
        assert isinstance(node, Folder)
        return node

    def _file(self, inode: int) -> File | None:
        node = self._nodes.get(inode)
        return node if isinstance(node, File) else None

    def take(self, entry: Entry) -> None:
        """Apply a change."""
        self._moment += 1
        if entry.kind in {Kind.WRITE, Kind.STORE, Kind.SIZE}:
            file = self._file(entry.inode)
            assert file is not None, f"a file without a name is written: {entry.inode}"
            if entry.kind == Kind.SIZE:
                file.resize(self._moment, entry.offset)
            else:
                file.write(self._moment, entry.offset, entry.data)
        elif entry.kind == Kind.SYNC:
            self._force(entry)
        elif entry.kind == Kind.MODE and entry.inode in self._nodes:
            self._nodes[entry.inode].mode = entry.mode
        elif entry.kind in {Kind.CREATE, Kind.LINK, Kind.UNLINK, Kind.RENAME}:
            self._name(entry)

    def skip(self) -> None:
        """Skip a change. Later changes have the same moments as on a disk to which it was applied."""
        self._moment += 1

    def _name(self, entry: Entry) -> None:
        folder = self._folder(entry.folder)
        if entry.kind == Kind.CREATE:
            self._change(Change(self._moment, self._new(entry), None, (folder, entry.name)))
        elif entry.kind == Kind.LINK:
            self._change(Change(self._moment, self._nodes[entry.inode], None, (folder, entry.name)))
        elif (node := folder.current.get(entry.name)) is not None:  # the model has no sockets and FIFOs
            gained = (self._folder(entry.other_folder), entry.other) if entry.kind == Kind.RENAME else None
            self._change(Change(self._moment, node, (folder, entry.name), gained))

    def _new(self, entry: Entry) -> Node:
        node: Node = Folder(entry.mode) if stat.S_ISDIR(entry.mode) else File(entry.mode, self._moment)
        if isinstance(node, File) and entry.data:
            node.forced, node.current = entry.data, bytearray(entry.data)
        self._nodes[entry.inode] = node
        return node

    def _change(self, change: Change) -> None:
        change.apply(lambda folder: folder.current)
        self.changes.append(change)

    def _force(self, entry: Entry) -> None:
        if stat.S_ISDIR(entry.mode):
            folder = self._folder(entry.inode)
            for change in [change for change in self.changes if change.is_in(folder)]:
                change.apply(lambda each: each.names)
                self.changes.remove(change)
        elif (file := self._file(entry.inode)) is not None:
            file.force()

    def is_changed_by(self, entry: Entry) -> bool:
        """Return True for a sync that makes something certain."""
        if entry.kind != Kind.SYNC:
            return False
        if stat.S_ISDIR(entry.mode):
            return any(change.is_in(self._folder(entry.inode)) for change in self.changes)
        file = self._file(entry.inode)
        return file is not None and not file.is_forced

    # --- images

    def _possible_files(self) -> Iterator[File]:
        """Yield every file that has a name in some image."""
        seen: set[int] = set()
        gained: dict[int, list[Node]] = {}
        for change in self.changes:
            if change.gained is not None:
                gained.setdefault(id(change.gained[0]), []).append(change.node)
        left: list[Node] = [self.root]
        while left:
            node = left.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, File):
                yield node
            else:
                left += [*node.names.values(), *gained.get(id(node), [])]

    def units(self) -> list[Unit]:
        """Return the units at this moment."""
        units: list[Unit] = [Name(change, (change.moment,)) for change in self.changes]
        for file in self._possible_files():
            units += [Sector(file, number, _moments(versions)) for number, versions in file.sectors.items()]
            if file.sizes:
                units.append(Size(file, _moments(file.sizes)))
        return units

    @staticmethod
    def key(unit: Unit) -> tuple[int, int]:
        """Return the name of a unit. It is the same on two disks to which the same changes were applied."""
        if isinstance(unit, Name):
            return -1, unit.change.moment
        return unit.file.number, unit.number if isinstance(unit, Sector) else -1

    def undecided(self) -> dict[tuple[int, int], tuple[int, ...]]:
        """Return the moments of the versions of each unit."""
        return {self.key(unit): unit.moments for unit in self.units()}

    def image(self, units: Sequence[Unit], choice: Choice) -> Image:
        """Return the image of a choice."""
        names: dict[int, dict[str, Node]] = {}
        sizes: dict[int, int] = {}
        sectors: dict[int, list[tuple[int, bytes]]] = {}

        def names_of(folder: Folder) -> dict[str, Node]:
            return names.setdefault(id(folder), dict(folder.names))

        for unit, number in zip(units, choice, strict=True):
            if number == 0:
                continue
            if isinstance(unit, Name):
                unit.change.apply(names_of)
            elif isinstance(unit, Size):
                sizes[id(unit.file)] = unit.file.sizes[number - 1][1]
            else:
                version = unit.file.sectors[unit.number][number - 1][1]
                sectors.setdefault(id(unit.file), []).append((unit.number, version))
        image = Image({}, {})
        self._fill(image, "", self.root, names, lambda file: _content(file, sizes, sectors))
        return image

    def _fill(
        self,
        image: Image,
        path: str,
        folder: Folder,
        names: dict[int, dict[str, Node]],
        content_of: Callable[[File], bytes],
    ) -> None:
        for name, node in names.get(id(folder), folder.names).items():
            below = f"{path}/{name}" if path else name
            image.modes[below] = node.mode
            if isinstance(node, Folder):
                self._fill(image, below, node, names, content_of)
            else:
                image.contents[below] = content_of(node)


def _content(file: File, sizes: dict[int, int], sectors: dict[int, list[tuple[int, bytes]]]) -> bytes:
    size = sizes.get(id(file), len(file.forced))
    changed = sectors.get(id(file))
    if changed is None:
        return file.forced[:size].ljust(size, b"\0")
    content = bytearray(file.forced[:size].ljust(size, b"\0"))
    for number, version in changed:
        if number * SECTOR < size:
            content[number * SECTOR : (number + 1) * SECTOR] = version[: size - number * SECTOR]
    return bytes(content)


def _moments(versions: Sequence[tuple[int, object]]) -> tuple[int, ...]:
    return tuple(moment for moment, _ in versions)


def image_count(units: Sequence[Unit]) -> int:
    """Return the number of choices."""
    return math.prod(len(unit.moments) + 1 for unit in units)


def newest(units: Sequence[Unit]) -> list[int]:
    """Return the choice that an orderly shutdown leaves."""
    return [len(unit.moments) for unit in units]


def as_of(units: Sequence[Unit], moment: int) -> list[int]:
    """Return the choice in which exactly the changes up to a moment are on disk."""
    return [bisect.bisect_right(unit.moments, moment) for unit in units]
