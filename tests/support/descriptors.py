# SPDX-License-Identifier: Apache-2.0
"""The open descriptors of this process. Threads and objects of earlier tests may open and close other descriptors
meanwhile.
"""

from __future__ import annotations

import contextlib
import os

from tests.support.processes import wait_until

Descriptors = set[tuple[int, str]]
"""Numbers and targets, so that another file under a reused number differs."""


def open_descriptors() -> Descriptors:
    """Return the descriptors that are open now."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # it lists the folder, or was closed
            found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


def open_files(path: str | os.PathLike[str]) -> list[int]:
    """Return the descriptors of a file."""
    return [number for number, target in open_descriptors() if target == os.fspath(path)]


def await_no_other(before: Descriptors) -> None:
    """Wait until each open descriptor is one of `before`."""
    wait_until(lambda: open_descriptors() <= before, "the descriptors are closed")
