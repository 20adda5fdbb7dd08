# SPDX-License-Identifier: Apache-2.0
"""Arenas for tests. Each has a unique name, must be sound at the end, and is removed."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings, strategies

from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.arena.file import ArenaFile
from shmaccum.log.server.throttle import THROTTLE
from tests.support.accumulator import Accumulator
from tests.support.arenas import (
    SHARED_MEMORY,
    check_idle,
    each_semaphore,
    left_in_shared_memory,
    list_arenas,
    remove_arenas_of_the_dead,
    remove_companions_of_listed,
)
from tests.support.rewriting import rewrite_missing
from tests.support.seeds import new_seed
from tests.support.system_calls import Forced

pytest_plugins = [
    "tests.support.other_users",
    "tests.support.run_limits",
]

NAME_PREFIX = f"shmaccum-test-{os.getpid()}-"
_numbers = itertools.count()

# A busy machine makes any example slow, which proves nothing. A failure prints the blob that repeats it.
settings.register_profile(
    "untimed",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=True,
)
settings.load_profile("untimed")


def pytest_configure() -> None:
    """Restore Ctrl-C, which a shell ignores in its background jobs. Tests send it to their own process."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Make hypothesis write its tables of characters while the workers collect. In a new clone they are missing, and
    each worker would create its own.
    """
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and session.config.getoption("dist", "no") != "no":
        strategies.text().validate()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Import the test files without garbage collections, which would visit the modules again and again."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            rewrite_missing(session.config, session.config.args)
        return (yield)
    finally:
        gc.enable()


WAITING = {ROOT / "tests" / name for name in ("kafka", "isolation", "spark", "integration", "faults")}
"""Folders whose tests wait for other programs more than they compute."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the files of `WAITING` among the others, but not at the end. If all workers waited at once, or some waited
    for the last tests, the cores would be idle.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    place: dict[Path, float] = {}
    for is_waiting, end in ((True, 0.8), (False, 1)):
        group = [path for path in files if WAITING.isdisjoint(path.parents) is not is_waiting]
        before = 0
        for path in group:
            place[path] = before
            before += len(files[path])
        for path in group:
            place[path] *= end / before
    items[:] = [item for path in sorted(files, key=place.__getitem__) for item in files[path]]


def _freeze() -> None:
    """Exclude all objects that exist now from the garbage collections that fixtures run."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude modules and tests, which live until the end, from garbage collection."""
    _freeze()


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Exclude also what the tests of a file have imported. A collection would take 60 ms in a worker's last tests."""
    yield
    if nextitem is not None and item.path != nextitem.path:
        _freeze()


@contextlib.contextmanager
def _checked_name() -> Iterator[str]:
    """A unique shared-memory name. An arena left under it must be idle and sound, and is removed."""
    name = f"{NAME_PREFIX}{next(_numbers)}"
    yield name
    if not Arena.exists(name):
        return
    gc.collect()
    try:
        with Arena.attach(name, mode=0o777) as arena:
            uuid = arena.uuid
            check_idle(arena)
    finally:
        Arena.remove(name)
    assert list(each_semaphore(uuid)) == []
    assert ArenaFile.parse(name).presences(uuid) == []


@contextlib.contextmanager
def _small_arena(name: str) -> Iterator[Arena]:
    arena = Arena.create(name, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64)
    yield arena
    gc.collect()
    arena.close()


@pytest.fixture
def arena_name() -> Iterator[str]:
    """A unique shared-memory name. An arena left under it must be idle and sound, and is removed."""
    with _checked_name() as name:
        yield name


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    """An arena with 16 buffers of 4 KiB."""
    with _small_arena(arena_name) as arena:
        yield arena


@pytest.fixture(scope="module")
def shared_arena() -> Iterator[Arena]:
    """An arena with 16 buffers of 4 KiB, for the tests of a file that only read its name and its options."""
    with _checked_name() as name, _small_arena(name) as arena:
        yield arena


@pytest.fixture
def accumulator(arena: Arena) -> Iterator[Accumulator]:
    with Accumulator(arena) as accumulator:
        yield accumulator


@pytest.fixture
def sender(arena: Arena) -> Iterator[Accumulator]:
    """An accumulator that holds the sender role."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.publish_delivery_timeout(0, counts_always=True)  # tests change only the boot clock
        yield accumulator


@pytest.fixture
def seeded() -> Callable[[], random.Random]:
    """A random generator. Its seed is printed, and SHMACCUM_SEED repeats it."""

    def make() -> random.Random:
        return random.Random(new_seed())

    return make


@pytest.fixture
def recorded_syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forced]:
    """Record syncs without making them, for tests with thousands of syncs of milliseconds each.

    At the end, check that each temporary file was forced to disk before it got its name.
    """
    forced = Forced(monkeypatch, is_real=False)
    yield forced
    assert forced.named_unsynced == []


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path: a socket address has at most 108 bytes, and TMPDIR may be longer."""
    with tempfile.TemporaryDirectory(prefix="shmaccum-test-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def own_second_of_warnings() -> None:
    """Each test has its own second of the server's throttle of warnings, which belongs to the process."""
    THROTTLE.restart()


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """At the end of the session, nothing of this process remains in shared memory."""
    remove_arenas_of_the_dead()
    uuids = SHARED_MEMORY / f"{NAME_PREFIX}uuids"
    list_arenas(uuids)
    yield
    remove_companions_of_listed(uuids)
    assert left_in_shared_memory(NAME_PREFIX) == []
