# SPDX-License-Identifier: Apache-2.0
"""The open files that a process may have, and the part of them that clients never get.

Rules: a process that serves clients raises its limit of open files as far as the host allows. The log, the files of
groups, and everything else of the process have `reserve` descriptors that no client takes. The kernel gives the lowest
free number to each new file, so at least as many files are open as the number of a new file.
"""

from __future__ import annotations

import os
import resource

LIMIT_WANTED = 65_536
BASE = 64
"""Descriptors of a process without partitions and clients."""
FILES_OF_PARTITION = 3
RESERVED_SHARE_MAX = 4
"""The reserve is at most the limit divided by this."""


def raise_limit() -> None:
    """Raises the limit of open files as far as the host allows, up to `LIMIT_WANTED`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = LIMIT_WANTED if hard == resource.RLIM_INFINITY else min(LIMIT_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def limit() -> int:
    """Returns the maximum number of open files of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return LIMIT_WANTED if soft == resource.RLIM_INFINITY else min(soft, LIMIT_WANTED)


def share(wanted: int, parts: int) -> int:
    """Returns `wanted`, but at most the limit of open files divided by `parts`, and at least one."""
    return max(min(wanted, limit() // parts), 1)


def reserve(partition_count: int) -> int:
    """Returns the number of descriptors that clients never get.

    Args:
        partition_count: the number of partitions of the log.
    """
    return min(BASE + FILES_OF_PARTITION * partition_count, limit() // RESERVED_SHARE_MAX)


def lowest_free() -> int:
    """Returns the number that the next open file gets, or the limit if there is none."""
    try:
        descriptor = os.dup(0)
    except OSError:
        return limit()
    os.close(descriptor)
    return descriptor
