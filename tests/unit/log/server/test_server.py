# SPDX-License-Identifier: Apache-2.0
"""The numbers that a server shares with its clients, the clients that it closes, and files that it reads again."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import LogServer, acceptor, settings
from shmaccum.log.server.connection import Connection
from shmaccum.log.server.consumer_group import ConsumerLimits, ConsumerMember
from shmaccum.log.server.group import GroupLimits, Join, Member
from shmaccum.log.server.list_offsets import OffsetLookup
from shmaccum.log.server.messages import BadFrameError
from shmaccum.log.server.placement import Placement
from shmaccum.log.server.requests import FETCH
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topic_requests import TopicRequests
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.users import changed_users
from tests.support.segment_log import TOPIC, make_batches, open_log

VERSIONS = {
    0: (0, 13), 1: (4, 17), 2: (1, 10), 3: (0, 13), 8: (2, 9), 9: (1, 9),
    10: (0, 6), 11: (0, 9), 12: (0, 4), 13: (0, 5), 14: (0, 5), 15: (0, 6),
    16: (0, 5), 17: (0, 1), 18: (0, 4), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 3), 25: (0, 4), 26: (0, 4), 28: (0, 4),
    32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 4), 36: (0, 2), 37: (0, 3),
    42: (0, 2), 43: (1, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0),
    60: (0, 2), 61: (0, 0), 65: (0, 0), 66: (0, 1), 68: (0, 1), 69: (0, 1),
    74: (0, 1), 75: (0, 0),
}  # fmt: skip
"""API key -> the lowest and the highest version."""
LOGIN, TRANSACTIONS = {17, 36}, {24, 25, 26, 28, 61, 65, 66}


def versions_of(server: LogServer) -> dict[int, tuple[int, int]]:
    return {key: (row.version_min, row.version_max) for key, row in server._dispatcher.table.items()}


def test_a_server_serves_these_versions(tmp_path: Path) -> None:
    """A client that uses a version keeps working with the next release."""
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server:
        assert server._coordinator.address == f"127.0.0.1:{server.address.port}"
        assert versions_of(server) == {key: row for key, row in VERSIONS.items() if key not in LOGIN}
    with LogServer(tmp_path / "log", "127.0.0.1:0") as server:
        assert versions_of(server) == {key: row for key, row in VERSIONS.items() if key not in LOGIN | TRANSACTIONS}


def test_logins_have_their_versions(tmp_path: Path) -> None:
    with changed_users(str(tmp_path / "users")):
        pass
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True, users_file=str(tmp_path / "users")) as server:
        assert versions_of(server) == VERSIONS


@pytest.mark.parametrize("is_changed", [False, True])
def test_files_that_changed_are_reported_and_take_effect(caplog: pytest.LogCaptureFixture, is_changed: bool) -> None:
    applied: list[bool] = []
    server: Any = SimpleNamespace(
        _tls=SimpleNamespace(refresh=lambda: is_changed),
        _users=SimpleNamespace(refresh=lambda: is_changed, path="/users"),
        _apply_rights=lambda: applied.append(True),
        options=SimpleNamespace(ssl_certfile="/certificate"),
    )
    with caplog.at_level(logging.INFO):
        LogServer._read_changed_files(server)
    reports = ["reloaded the certificate from /certificate for new connections", "reloaded the users from /users"]
    assert caplog.messages == (reports if is_changed else [])
    assert applied == [True] * is_changed


def test_defaults_and_codes_have_their_numbers() -> None:
    assert ConsumerLimits() == (45_000, 5_000, 10_000)
    assert GroupLimits() == (500, 1_800_000, 10_000, 200)
    assert (settings.TOPIC_RESOURCE, settings.BROKER_RESOURCE) == (2, 4)
    assert (settings.OF_THE_TOPIC, settings.OF_THE_NODE, settings.DEFAULT) == (1, 4, 5)
    assert (settings.STRING, settings.INT, settings.LONG, settings.LIST, settings.BOOLEAN) == (2, 3, 5, 7, 1)


@pytest.mark.parametrize(
    ("waits_s", "api_key", "is_busy", "has_asked", "idle_s", "rank"),
    [
        (acceptor.LONG_WAIT_S, FETCH, True, True, 1000, None),
        (acceptor.LONG_WAIT_S + 1, FETCH, True, True, 1000, 3),
        (acceptor.LONG_WAIT_S + 1, FETCH + 1, True, True, 1000, None),
        (None, FETCH, True, True, acceptor.UNREAD_S, None),
        (None, FETCH, True, True, acceptor.UNREAD_S + 1, 2),
        (None, FETCH, False, False, 0, 0),
        (None, FETCH, False, True, acceptor.IDLE_S, None),
        (None, FETCH, False, True, acceptor.IDLE_S + 1, 1),
    ],
)
def test_a_client_has_a_rank_among_those_that_are_closed(
    waits_s: float | None, api_key: int, is_busy: bool, has_asked: bool, idle_s: float, rank: int | None
) -> None:
    now_s = 10_000.0
    connection: Any = type("FakeConnection", (), {})()
    connection.is_busy, connection.has_asked, connection.active_s = is_busy, has_asked, now_s - idle_s
    waiting = {}
    if waits_s is not None:
        waiting[connection] = SimpleNamespace(request=SimpleNamespace(api_key=api_key), began_s=now_s - waits_s)
    server: Any = SimpleNamespace(_dispatcher=SimpleNamespace(waiting=waiting))
    assert acceptor.Acceptor._idle_rank(server, connection, now_s) == rank


def test_a_frame_that_is_wrong_is_a_frame() -> None:
    def refuse() -> None:
        raise BadFrameError("wrong")

    found: Any = Connection.has_frame
    assert found.fget(SimpleNamespace(_frame_end=refuse))
    assert found.fget(SimpleNamespace(_frame_end=lambda: 4))
    assert not found.fget(SimpleNamespace(_frame_end=lambda: None))


@pytest.mark.parametrize(
    ("topic", "offset", "error", "start"),
    [
        ("missing", 0, BrokerError.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (TOPIC, 7, BrokerError.OFFSET_OUT_OF_RANGE, -1),
        (TOPIC, 6, BrokerError.NONE, 6),
        (TOPIC, -1, BrokerError.NONE, 6),
    ],
)
def test_records_are_deleted_up_to_an_offset(
    tmp_path: Path, topic: str, offset: int, error: BrokerError, start: int
) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append(make_batches(2))
        requests = TopicRequests(directory, LogTopics(str(tmp_path / "log")))
        found = requests._records_deleted(topic, SimpleNamespace(partition_index=0, offset=offset))
    assert found == {"partition_index": 0, "low_watermark": start, "error_code": error}


@pytest.mark.parametrize(
    ("topic", "replicas", "error"),
    [
        ("missing", [1], BrokerError.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, None, BrokerError.NO_REASSIGNMENT_IN_PROGRESS),
        (TOPIC, [1], BrokerError.NONE),
        (TOPIC, [2], BrokerError.INVALID_REPLICA_ASSIGNMENT),
        (TOPIC, [1, 2], BrokerError.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_the_only_replica_stays_where_it_is(
    tmp_path: Path, topic: str, replicas: list[int] | None, error: BrokerError
) -> None:
    with open_log(tmp_path / "log"):
        placement = Placement(LogTopics(str(tmp_path / "log")))
        wanted = SimpleNamespace(partition_index=0, replicas=replicas)
        found, sentence = placement._reassignment_problem(topic, wanted)
        asked = placement._asked([SimpleNamespace(topic=topic, partitions=[0, 1])])
    assert (found, sentence is None) == (error, error is BrokerError.NONE)
    assert asked == ({TOPIC: {0}} if topic == TOPIC else {})


def test_a_partition_that_is_first_read_after_a_deletion_starts_at_it(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append(make_batches(2))
        topics = LogTopics(str(tmp_path / "log"))
        directory.delete_records(TOPIC, 0, 3)
        topics.retain()
        head = topics.head(TOPIC, 0)
    assert head is not None
    assert head.start_offset == 3


def test_members_with_equal_fields_are_two_members() -> None:
    join = Join("m", None, "", "", 1, 1, "consumer", ())
    assert Member("m", join) != Member("m", join)
    assert ConsumerMember("m", None, 1000) != ConsumerMember("m", None, 1000)


def test_a_topic_that_is_created_has_the_files_of_each_partition(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        take_all(TopicRequests(directory, LogTopics(str(tmp_path / "log"))).create_topic("new", 2))
        assert sorted(path.parent.name for path in (tmp_path / "log").glob("new-*/*.log")) == ["new-0", "new-1"]


@pytest.mark.parametrize(
    ("topic", "timestamp", "leader_epoch", "error"),
    [
        ("missing", -1, -1, BrokerError.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, -100, -1, BrokerError.UNSUPPORTED_VERSION),
        (TOPIC, -1, 9, BrokerError.UNKNOWN_LEADER_EPOCH),
        (TOPIC, 2**60, -1, BrokerError.NONE),
    ],
)
def test_an_offset_that_is_not_found_has_no_numbers(
    tmp_path: Path, topic: str, timestamp: int, leader_epoch: int, error: BrokerError
) -> None:
    asked = SimpleNamespace(partition_index=0, timestamp=timestamp, current_leader_epoch=leader_epoch)
    with open_log(tmp_path / "log"):
        lookup = OffsetLookup(LogTopics(str(tmp_path / "log")))
        found = take_all(lookup._listed(topic, asked, 7, is_committed=False))
    assert found == {"partition_index": 0, "error_code": error, "timestamp": -1, "offset": -1, "leader_epoch": -1}


@pytest.mark.parametrize("rank", [None, 1])
def test_idle_clients_that_are_closed_are_reported(caplog: pytest.LogCaptureFixture, rank: int | None) -> None:
    closed: list[Any] = []
    server: Any = SimpleNamespace(
        _idle_rank=lambda *_: rank, _dispatcher=SimpleNamespace(close=closed.append, connections=[])
    )
    client: Any = SimpleNamespace(active_s=0.0)
    assert acceptor.Acceptor._close_idle(server, [client]) is (rank is not None)
    assert closed == ([] if rank is None else [client])
    assert caplog.messages == ([] if rank is None else ["closed idle clients to accept others: 0 are connected"])
