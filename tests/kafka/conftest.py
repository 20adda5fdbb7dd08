# SPDX-License-Identifier: Apache-2.0
"""Clusters for tests, and sinks that deliver to them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.sender.pump import PumpResult, PumpRunner
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.sink import BorrowedSocket
from tests.kafka.broker import LOOPBACK, Cluster, held_port, running_cluster
from tests.kafka.distribution import require
from tests.kafka.fake_broker import FakeCluster, fake_cluster
from tests.kafka.loop import Loop
from tests.kafka.proxy import RequestProxy

OpenLoop = Callable[..., Loop]
OpenFake = Callable[..., FakeCluster]


PATHS = ("pump", "python")
"""C sends ordinary batches (native/sender/pump.h). Python sends the others, for example over TLS."""
SHARED_BROKERS = ("apache", "behind_a_proxy", "secure")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests that share a broker run in one process, so that the broker is started once for all of them."""
    for name in SHARED_BROKERS:
        if name in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(name))


@pytest.fixture
def open_loop(arena: Arena) -> Iterator[OpenLoop]:
    """Opens a sink by its bootstrap list. ``sender`` has options of the sender, the other options are the sink's."""
    with contextlib.ExitStack() as stack:

        def open_one(bootstrap: str, sender: dict[str, Any] | None = None, **options: Any) -> Loop:
            of_sender = {"retry_backoff_ms": 10, **(sender or {})}
            return stack.enter_context(Loop(arena, open_sink(f"kafka:{bootstrap}", **options), **of_sender))

        yield open_one


@pytest.fixture
def open_fake() -> Iterator[OpenFake]:
    """Starts scripted clusters."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(fake_cluster(**settings))


class Calls(list[PumpResult]):
    """The outcome of each call of the pump. `is_running` is true during a call."""

    is_running = False

    @property
    def batch_count(self) -> int:
        """Batches of requests that the pump began."""
        return sum(outcome.batch_count for outcome in self)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The outcomes of the pump's calls in this test."""
    outcomes = Calls()
    run, plan = PumpRunner.run, PumpRunner._plan

    def note_begin(self: PumpRunner, handed_over: Sequence[BorrowedSocket]) -> tuple[Any, ...]:
        outcomes.is_running = True
        return plan(self, handed_over)

    def note(self: PumpRunner, ready: list[int], due_ns: int, *, is_stuck: bool) -> PumpResult | None:
        try:
            outcome = run(self, ready, due_ns, is_stuck=is_stuck)
        finally:
            outcomes.is_running = False
        if outcome is not None:
            outcomes.append(outcome)
        return outcome

    monkeypatch.setattr(PumpRunner, "run", note)
    monkeypatch.setattr(PumpRunner, "_plan", note_begin)
    return outcomes


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest, carried: Calls, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The path of the test's ordinary batches. At the end, check that some of them took it."""
    name: str = request.param
    if name == "python":
        monkeypatch.setattr(PumpRunner, "may_run", False)
    yield name
    assert (carried.batch_count > 0) is (name == "pump")


@pytest.fixture(scope="session")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One broker of Apache Kafka, shared by the tests of a process: each uses topics of its own."""
    require()
    with running_cluster(tmp_path_factory.mktemp("apache")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def behind_a_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, RequestProxy]]:
    """A broker of Apache Kafka, shared by the tests of a process, with a proxy in front."""
    require()
    with contextlib.closing(held_port()) as held:
        port = held.getsockname()[1]
        properties = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
        with (
            running_cluster(tmp_path_factory.mktemp("proxied"), properties=properties) as cluster,
            contextlib.closing(RequestProxy(cluster.brokers[0].port, port)) as between,
        ):
            yield cluster, between


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Cluster]:
    """One broker of Apache Kafka for a test that stops it."""
    require()
    with running_cluster(tmp_path) as cluster:
        yield cluster


@pytest.fixture
def three_brokers(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers of Apache Kafka, for tests that stop some of them."""
    require()
    with running_cluster(tmp_path, broker_count=3) as cluster:
        yield cluster
