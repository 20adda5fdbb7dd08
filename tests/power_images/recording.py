# SPDX-License-Identifier: Apache-2.0
"""The changes of a process tree, as `recorder.c` writes them down."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tests.native.c_build import build_preloaded

ROOT = Path(__file__).parents[2]
RECORDER = Path(__file__).with_name("recorder.c")
ENTRY = struct.Struct("=6I3QqQ")


class Kind(IntEnum):
    """The kind of an entry."""

    WRITE = 1
    STORE = 2
    SIZE = 3
    SYNC = 4
    RANGE = 5
    CREATE = 6
    LINK = 7
    UNLINK = 8
    RENAME = 9
    MODE = 10
    MARK = 11


class Entry(NamedTuple):
    """One change, sync or mark.

    Attributes:
        inode: the number of the file or folder. A new file may have the number of a removed one.
        folder: the inode of the folder that has `name`.
        other_folder: the folder of `other`, the new name of a rename.
        offset: where the data begins; the size of the file, for SIZE.
        site: the frames that called a sync, the innermost first.
    """

    kind: Kind
    mode: int
    process: int
    inode: int
    folder: int
    other_folder: int
    offset: int
    name: str
    other: str
    site: str
    data: bytes


def recorder() -> Path:
    """Return the library, which is compiled if it has changed."""
    return build_preloaded(RECORDER)


def record(root: Path, log: Path, command: list[str], python: str = sys.executable, home: Path = ROOT) -> None:
    """Run a command, and record its changes below a folder.

    Args:
        root: the folder, which is created here.
        log: the file for the entries.
        command: the arguments of Python.
        python: the interpreter of the build.
        home: the folder from which it imports the tests.

    Raises:
        AssertionError: the command failed.
    """
    root.mkdir(parents=True)
    recorded = {
        "LD_PRELOAD": str(recorder()),
        "POWER_ROOT": os.path.realpath(root),
        "POWER_LOG": str(log),
        "POWER_BOOT": "",  # the boot of this host, and not that of a process that opens images
    }
    done = subprocess.run(
        [python, *command],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(home), **recorded},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def read_entries(log: Path) -> Iterator[Entry]:
    """Yield the entries of a log, in their order."""
    content = log.read_bytes()
    position = 0
    while position < len(content):
        kind, mode, process, *sizes, inode, folder, other_folder, offset, data_size = ENTRY.unpack_from(
            content, position
        )
        position += ENTRY.size
        texts: list[str] = []
        for size in sizes:
            texts.append(os.fsdecode(content[position : position + size]))
            position += size
        name, other, site = texts
        data = content[position : position + data_size]
        position += data_size
        yield Entry(Kind(kind), mode, process, inode, folder, other_folder, offset, name, other, site, data)
