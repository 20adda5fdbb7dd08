# SPDX-License-Identifier: Apache-2.0
"""Open images, each in a forked child of one process that has imported everything.

The process runs with the recorder loaded before all other libraries, which gives it another boot id than the recorded
processes. Images are in memory, where a sync costs nothing.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from shmaccum.exceptions import ArenaInUseError
from tests.power_images.disk_model import Image

MEMORY = "/dev/shm"
SECONDS_MAX = 120
"""A check that uses more processor time than this counts as endless."""
PROBLEM_SIZE = 4000
assert np, "it is imported here once, because each child would take long for it"

Check = Callable[[Path], Iterator[str]]
"""A function that opens the image at a path, and yields each broken promise."""


def write_image(image: Image, place: Path) -> None:
    """Create the files of an image in an empty folder."""
    for path, mode in image.modes.items():
        target = place / path
        if stat.S_ISDIR(mode):
            target.mkdir(stat.S_IMODE(mode) | stat.S_IRWXU)
        elif stat.S_ISLNK(mode):
            target.symlink_to(os.fsdecode(image.contents[path]))
        else:
            target.write_bytes(image.contents[path])
            target.chmod(stat.S_IMODE(mode))


@contextmanager
def image_folder() -> Iterator[Path]:
    """Yield a folder for the images of this process."""
    folder = Path(tempfile.mkdtemp(dir=MEMORY, prefix=f"shmaccum-test-{os.getpid()}-images-"))
    gc.collect()
    gc.freeze()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def problems_of(image: Image, folder: Path, check: Check) -> list[str]:
    """Return the promises that an image breaks, found by a process that opens it."""
    place = folder / "image"
    place.mkdir()
    try:
        write_image(image, place)
        return _checked_in_child(place, check)
    finally:
        shutil.rmtree(place)


def _checked_in_child(place: Path, check: Check) -> list[str]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(place, check, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code:
        return [said or f"the process that opened the image ended with {code}"]
    return said.splitlines()


def _be_child(place: Path, check: Check, writer: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, SECONDS_MAX)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        text = "\n".join(sentence.replace("\n", " ") for sentence in check(place))
        os.write(writer, text[:PROBLEM_SIZE].encode(errors="replace"))
        code = 0
    except BaseException as error:  # noqa: BLE001 - it is the child's last word
        *_, frame, sentence = traceback.format_exception(_cause_of(error))
        text = f"{sentence} {frame}".replace("\n", " ")
        os.write(writer, text[:PROBLEM_SIZE].encode(errors="replace"))
    finally:
        os._exit(code)


def _cause_of(error: BaseException) -> BaseException:
    """What raised in the block of an arena. Its end raises again, because the sender in the block is still open."""
    return error.__context__ if isinstance(error, ArenaInUseError) and error.__context__ is not None else error
