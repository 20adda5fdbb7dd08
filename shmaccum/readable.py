# SPDX-License-Identifier: Apache-2.0
"""Waiting until one of a few descriptors can be read, in any process.

``select`` knows microseconds, which a napping sender needs, but no descriptor from 1,024 on, which a server with many
connections has. ``poll`` knows all descriptors, but waits in whole milliseconds. So the one stands in where the other
cannot.
"""

from __future__ import annotations

import math
import select
from collections.abc import Sequence
from typing import Protocol, TypeVar

SELECT_END = 1024
"""FD_SETSIZE of Linux."""


class HasFileno(Protocol):
    """What can be waited for, beside a bare descriptor."""

    def fileno(self) -> int: ...


File = TypeVar("File", bound=int | HasFileno)


def wait_readable(files: Sequence[File], timeout_s: float) -> list[File]:
    """Those of `files` that can be read, or whose other end is gone; empty when time was over.

    Args:
        files: descriptors, or what has one.
        timeout_s: seconds; rounded up to a millisecond where a descriptor is 1,024 or more.

    Raises:
        ValueError: a file is closed, or the time is negative.
    """
    descriptors = [file if isinstance(file, int) else file.fileno() for file in files]
    if max(descriptors) < SELECT_END:
        ready = set(select.select(descriptors, [], [], timeout_s)[0])
    else:
        ready = _polled(descriptors, timeout_s)
    return [file for file, descriptor in zip(files, descriptors, strict=True) if descriptor in ready]


def _polled(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    if timeout_s < 0:
        raise ValueError("timeout must be non-negative")  # to poll it would be for ever
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}
