# SPDX-License-Identifier: Apache-2.0
"""Arenas for tests: a name of its own for each, sound to the last byte at the end, and nothing left behind."""

from __future__ import annotations

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

from shmaccum.arena import Arena
from shmaccum.arena.file import ArenaFile
from tests.support.accumulator import Accumulator
from tests.support.arenas import check_idle, each_semaphore, left_in_shared_memory, remove_arenas_of_the_dead
from tests.support.seeds import new_seed
from tests.support.system_calls import Forced

pytest_plugins = [
    "tests.support.other_users",
    "tests.support.run_limits",
]

NAME_PREFIX = f"shmaccum-test-{os.getpid()}-"
_numbers = itertools.count()

# A busy machine makes any example slow, and proves nothing by it. A failure is told with the blob that repeats it.
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
    """Has hypothesis write its tables of characters while the workers collect. In a new clone there are none, and each
    worker would make them for itself."""
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker and session.config.getoption("dist", "no") != "no":
        strategies.text().validate()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Takes modules and tests, which live until the end, out of the sight of the collector that fixtures run."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def arena_name() -> Iterator[str]:
    """A shared-memory name nobody else uses. An arena left under it must be idle and sound, and is removed."""
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


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    """16 buffers of 4 KiB."""
    arena = Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64)
    yield arena
    gc.collect()
    arena.close()


@pytest.fixture
def accumulator(arena: Arena) -> Iterator[Accumulator]:
    with Accumulator(arena) as accumulator:
        yield accumulator


@pytest.fixture
def sender(arena: Arena) -> Iterator[Accumulator]:
    """An accumulator that holds the sender role."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.publish_delivery_timeout(0, counts_always=True)  # tests turn the boot clock alone
        yield accumulator


@pytest.fixture
def seeded() -> Callable[[], random.Random]:
    """A random generator whose seed is printed, and can be given back as SHMACCUM_SEED."""

    def make() -> random.Random:
        return random.Random(new_seed())

    return make


@pytest.fixture
def recorded_syncs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Forced]:
    """Records syncs and makes none, for tests with thousands of them, each of which would take milliseconds.

    At the end, each temporary file was forced to disk before it got its name.
    """
    forced = Forced(monkeypatch, is_real=False)
    yield forced
    assert forced.named_unsynced == []


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short path: the address of a socket has 108 bytes, and TMPDIR may be longer."""
    with tempfile.TemporaryDirectory(prefix="shmaccum-test-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left() -> Iterator[None]:
    """At the end of the session no arena of this process is left in shared memory."""
    remove_arenas_of_the_dead()
    yield
    assert left_in_shared_memory(NAME_PREFIX) == []
