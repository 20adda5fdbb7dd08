# SPDX-License-Identifier: Apache-2.0
"""A process raises its limit of open files as far as it may, and clients get only a part of it."""

from __future__ import annotations

import errno
import os
import resource
from resource import RLIM_INFINITY

import pytest

from shmaccum.common import descriptors
from shmaccum.common.descriptors import LIMIT_WANTED


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of this process, the present one last."""
    known = [(1000, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: known[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: known.append(limits))
    return known


@pytest.mark.parametrize(
    ("before", "after", "limit"),
    [
        ((1000, 4096), (4096, 4096), 4096),
        ((1000, RLIM_INFINITY), (LIMIT_WANTED, RLIM_INFINITY), LIMIT_WANTED),
        ((1000, 2 * LIMIT_WANTED), (LIMIT_WANTED, 2 * LIMIT_WANTED), LIMIT_WANTED),
        ((4096, 4096), None, 4096),
        ((2 * LIMIT_WANTED, RLIM_INFINITY), None, LIMIT_WANTED),
        ((RLIM_INFINITY, RLIM_INFINITY), None, LIMIT_WANTED),
    ],
)
def test_the_limit_is_raised_as_far_as_the_host_allows(
    limits: list[tuple[int, int]], before: tuple[int, int], after: tuple[int, int] | None, limit: int
) -> None:
    limits[:] = [before]
    descriptors.raise_limit()
    assert limits[1:] == ([] if after is None else [after])
    assert descriptors.limit() == limit


@pytest.mark.usefixtures("limits")
def test_shares_and_the_reserve_are_parts_of_the_limit() -> None:
    assert [descriptors.share(wanted, 4) for wanted in (249, 250, 251)] == [249, 250, 250]
    assert descriptors.share(5, 1001) == 1
    assert [descriptors.reserve(count) for count in (0, 2, 62, 63)] == [64, 70, 250, 250]


def test_the_lowest_free_number_is_that_of_the_next_file(monkeypatch: pytest.MonkeyPatch) -> None:
    lowest = descriptors.lowest_free()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    assert lowest == descriptor == descriptors.lowest_free()

    def fail(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", fail)
    assert descriptors.lowest_free() == descriptors.limit()
