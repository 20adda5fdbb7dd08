# SPDX-License-Identifier: Apache-2.0
"""A rejected request creates no group, no topic, no transactional id, and no file for any of them."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.file_names import GROUPS_FOLDER
from shmaccum.log.server import coordinator
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.client_settings import PLAIN_CONNECTION
from tests.support.log_server import served

TOPIC = "t"
GROUP = "g"
NO_MEMBER: dict[str, Any] = {"member_id": "", "group_instance_id": None}
STRANGER: dict[str, Any] = {"member_id": "nobody", "group_instance_id": None}
UNKNOWN, ILLEGAL = BrokerError.UNKNOWN_MEMBER_ID, BrokerError.ILLEGAL_GENERATION


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def asking(log: Path) -> Iterator[ClientConnection]:
    with served(log) as address, ClientConnection(address, PLAIN_CONNECTION) as client:
        client.ask(3, 1, {"topics": [{"name": TOPIC}]})
        yield client


def place(topic: str = TOPIC, metadata: str = "") -> dict[str, Any]:
    one = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": metadata}
    return {"name": topic, "partitions": [one]}


def join(version: int = 5, **more: Any) -> tuple[int, int, dict[str, Any]]:
    times = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 9000, "protocol_type": "consumer"}
    return 11, version, {**times, "protocols": [{"name": "range", "metadata": b""}], **STRANGER, **more}


def heartbeat(**more: Any) -> tuple[int, int, dict[str, Any]]:
    values = {
        "member_id": str(uuid.uuid4()),
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout_ms": 9000,
        "subscribed_topic_names": [TOPIC],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    }
    return 68, 1, {**values, **more}


REFUSED = {
    "JoinGroup of an unknown member": (join(), UNKNOWN),
    "JoinGroup with a session that is too short": (
        join(**NO_MEMBER, session_timeout_ms=1),
        BrokerError.INVALID_SESSION_TIMEOUT,
    ),
    "JoinGroup without protocols": (join(**NO_MEMBER, protocols=[]), BrokerError.INCONSISTENT_GROUP_PROTOCOL),
    "JoinGroup that is too large": (
        join(**NO_MEMBER, protocols=[{"name": "range", "metadata": bytes(20_000)}]),
        BrokerError.GROUP_MAX_SIZE_REACHED,
    ),
    "SyncGroup": ((14, 3, {**STRANGER, "generation_id": 1, "assignments": []}), UNKNOWN),
    "Heartbeat": ((12, 3, {**STRANGER, "generation_id": 1}), UNKNOWN),
    "LeaveGroup": ((13, 2, {"member_id": "nobody"}), UNKNOWN),
    "OffsetCommit of a member": (
        (8, 7, {**STRANGER, "generation_id_or_member_epoch": 5, "topics": [place()]}),
        ILLEGAL,
    ),
    "OffsetCommit of a member, version 9": (
        (8, 9, {**STRANGER, "generation_id_or_member_epoch": 5, "topics": [place()]}),
        BrokerError.GROUP_ID_NOT_FOUND,
    ),
    "OffsetCommit for no topic": (
        (8, 7, {**NO_MEMBER, "generation_id_or_member_epoch": -1, "topics": [place("missing")]}),
        BrokerError.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "OffsetCommit with too much metadata": (
        (8, 7, {**NO_MEMBER, "generation_id_or_member_epoch": -1, "topics": [place(metadata="x" * 5000)]}),
        BrokerError.OFFSET_METADATA_TOO_LARGE,
    ),
    "OffsetDelete": (
        (47, 0, {"topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]}),
        BrokerError.GROUP_ID_NOT_FOUND,
    ),
    "ConsumerGroupHeartbeat of an unknown member": (heartbeat(member_epoch=3, subscribed_topic_names=None), UNKNOWN),
    "ConsumerGroupHeartbeat without topics": (
        heartbeat(subscribed_topic_names=None),
        BrokerError.INVALID_REQUEST,
    ),
    "ConsumerGroupHeartbeat with an unknown assignor": (
        heartbeat(server_assignor="none"),
        BrokerError.UNSUPPORTED_ASSIGNOR,
    ),
    "ConsumerGroupHeartbeat with an invalid pattern": (
        heartbeat(subscribed_topic_names=None, subscribed_topic_regex="("),
        BrokerError.INVALID_REGULAR_EXPRESSION,
    ),
}


def error_of(answer: Any) -> int:
    """The error of a response, or of its only partition."""
    if getattr(answer, "error_code", 0) or not hasattr(answer, "topics"):
        return int(answer.error_code)
    return int(answer.topics[0].partitions[0].error_code)


def group_files(log: Path) -> list[str]:
    folder = log / GROUPS_FOLDER
    return os.listdir(folder) if folder.exists() else []


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_creates_no_group(log: Path, name: str) -> None:
    (key, version, values), error = REFUSED[name]
    with served(log, group_memory_max=40_000) as address, ClientConnection(address, PLAIN_CONNECTION) as asking:
        asking.ask(3, 1, {"topics": [{"name": TOPIC}]})
        assert error_of(asking.ask(key, version, {"group_id": GROUP, **values})) == error
        assert asking.ask(16, 4, {"states_filter": []}).groups == []
        assert group_files(log) == []


def test_a_member_id_that_is_never_used_leaves_no_group(log: Path, asking: ClientConnection) -> None:
    values = join(**NO_MEMBER, session_timeout_ms=500)[2]
    assert asking.ask(11, 5, {"group_id": GROUP, **values}).error_code == BrokerError.MEMBER_ID_REQUIRED
    assert [one.group_id for one in asking.ask(16, 4, {"states_filter": []}).groups] == [GROUP]
    end_s = time.monotonic() + 60
    while group_files(log):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    assert asking.ask(16, 4, {"states_filter": []}).groups == []


def test_a_transactional_id_that_is_refused_is_not_kept(asking: ClientConnection) -> None:
    asked = {"transactional_id": "id", "transaction_timeout_ms": 10**9, "producer_id": -1, "producer_epoch": -1}
    assert asking.ask(22, 3, asked).error_code == BrokerError.INVALID_TRANSACTION_TIMEOUT
    assert asking.ask(66, 0, {"state_filters": [], "producer_id_filters": []}).transaction_states == []


def test_a_topic_that_is_refused_leaves_no_folder(log: Path, asking: ClientConnection) -> None:
    before = sorted(os.listdir(log))
    for name in ("..", "a/b", "x" * 300, ""):
        assert asking.ask(3, 1, {"topics": [{"name": name}]}).topics[0].error_code != BrokerError.NONE
    wanted = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": []}
    for refused in (
        {**wanted, "configs": [{"name": "retention.ms", "value": "soon"}]},
        {**wanted, "num_partitions": 0, "configs": []},
        {**wanted, "replication_factor": 3, "configs": []},
    ):
        answer = asking.ask(19, 5, {"topics": [refused], "timeout_ms": 1, "validate_only": False})
        assert answer.topics[0].error_code != BrokerError.NONE
    assert sorted(os.listdir(log)) == before


# --- the end of groups


def commit(asking: ClientConnection, group_id: str) -> int:
    values = {**NO_MEMBER, "generation_id_or_member_epoch": -1, "topics": [place()]}
    return error_of(asking.ask(8, 7, {"group_id": group_id, **values}))


def delete_offsets(asking: ClientConnection, group_id: str) -> int:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
    return int(asking.ask(47, 0, {"group_id": group_id, "topics": topics}).error_code)


def age(log: Path, group_id: str, seconds: float) -> None:
    then_s = time.time() - seconds
    os.utime(log / GROUPS_FOLDER / f"{group_id}.offsets", (then_s, then_s))


def test_groups_that_are_not_used_are_deleted_as_in_kafka(log: Path, asking: ClientConnection) -> None:
    for group_id in ("old", "young", "empty", "busy"):
        assert commit(asking, group_id) == BrokerError.NONE
    assert delete_offsets(asking, "empty") == BrokerError.NONE
    joined = asking.ask(11, 3, {"group_id": "busy", **join(**NO_MEMBER)[2]})
    assert joined.error_code == BrokerError.NONE
    for group_id, seconds in (("old", 8 * 86400), ("busy", 8 * 86400), ("young", 6 * 86400), ("empty", 700)):
        age(log, group_id, seconds)
    end_s = time.monotonic() + 60
    while {one.group_id for one in asking.ask(16, 4, {"states_filter": []}).groups} != {"busy", "young"}:
        assert time.monotonic() < end_s
        values = {"member_id": joined.member_id, "group_instance_id": None, "generation_id": joined.generation_id}
        asking.ask(12, 3, {"group_id": "busy", **values})
        time.sleep(0.05)
    assert {name.partition(".")[0] for name in group_files(log)} == {"busy", "young"}


def test_the_number_of_groups_is_bounded(log: Path, asking: ClientConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "GROUP_COUNT_MAX", 2)
    assert [commit(asking, group_id) for group_id in "abcab"] == [0, 0, BrokerError.GROUP_MAX_SIZE_REACHED, 0, 0]
    assert asking.ask(42, 1, {"groups_names": ["a"]}).results[0].error_code == BrokerError.NONE
    assert commit(asking, "c") == BrokerError.NONE
    assert commit(asking, "d") == BrokerError.GROUP_MAX_SIZE_REACHED
