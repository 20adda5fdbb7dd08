# SPDX-License-Identifier: Apache-2.0
"""Small inputs of clients, and the responses of Apache Kafka 4.1 to them."""

from __future__ import annotations

import socket
import struct
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.messages import decode_answer, encode_request
from tests.support.log_server import answer_of, served, stranger
from tests.support.segment_log import make_batch

TOPIC = "words"
NO_ID = uuid.UUID(int=0)
OFFSET_COMMIT, LIST_OFFSETS, METADATA, LEAVE, CREATE, DELETE, DESCRIBE, GROW = 8, 2, 3, 13, 19, 20, 32, 37
INCREMENTAL, TOPIC_PARTITIONS, DELETE_GROUPS, PRODUCE = 44, 75, 42, 0
OUTSIDE = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}


class Client:
    """Sends requests and decodes the responses."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        self._connection.sendall(encode_request(key, version, values))
        return decode_answer(key, version, answer_of(self._connection))

    def commit(self, group: str, metadata: str = "", offset: int = 1) -> int:
        one = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": metadata,
        }
        topics = [{"name": TOPIC, "partitions": [one]}]
        answer = self.ask(OFFSET_COMMIT, 7, {"group_id": group, **OUTSIDE, "topics": topics})
        return int(answer.topics[0].partitions[0].error_code)

    def create(self, *topics: dict[str, Any]) -> list[int]:
        answer = self.ask(CREATE, 5, {"topics": list(topics), "timeout_ms": 9000, "validate_only": False})
        return [one.error_code for one in answer.topics]

    def error_of_time(self, version: int, timestamp_ms: int) -> int:
        one = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp_ms}
        topics = [{"name": TOPIC, "partitions": [one]}]
        values = {"replica_id": -1, "isolation_level": 0, "timeout_ms": 1000, "topics": topics}
        return int(self.ask(LIST_OFFSETS, version, values).topics[0].partitions[0].error_code)

    def settings(self, kind: int, name: str, keys: list[str] | None) -> Any:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        return self.ask(DESCRIBE, 1, {"resources": [resource], "include_synonyms": False}).results[0]


def plain(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
        **changed,
    }


def assigned(name: str, *places: tuple[int, list[int]], **changed: Any) -> dict[str, Any]:
    assignments = [{"partition_index": number, "broker_ids": brokers} for number, brokers in places]
    return plain(name, **{"num_partitions": -1, "replication_factor": -1, "assignments": assignments, **changed})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with served(tmp_path / "log") as address, stranger(address) as connection:
        client = Client(connection)
        assert client.create(plain(TOPIC)) == [0]
        yield client


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        ("ü" * 4096, 0),
        ("ü" * 4097, BrokerError.OFFSET_METADATA_TOO_LARGE),
        ("\U0001f600" * 2048, 0),
        ("\U0001f600" * 2049, BrokerError.OFFSET_METADATA_TOO_LARGE),
    ],
)
def test_metadata_of_an_offset_is_counted_in_characters_of_java(client: Client, metadata: str, error: int) -> None:
    assert client.commit("readers", metadata) == error


def test_the_group_without_a_name_has_offsets(client: Client) -> None:
    assert client.commit("", offset=7) == 0
    asked = {"group_id": "", "topics": [{"name": TOPIC, "partition_indexes": [0]}], "require_stable": False}
    assert client.ask(9, 7, asked).topics[0].partitions[0].committed_offset == 7
    joined = client.ask(
        11,
        5,
        {
            "group_id": "",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 10_000,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
        },
    )
    assert joined.error_code == BrokerError.INVALID_GROUP_ID
    assert [one.error_code for one in client.ask(DELETE_GROUPS, 1, {"groups_names": [""]}).results] == [0]


@pytest.mark.parametrize("version", [1, 6, 7, 8, 9])
@pytest.mark.parametrize("timestamp_ms", [-1, -2, -3, -4, -5, -6, -100, -(2**63)])
def test_a_negative_time_means_something_from_a_version_on(client: Client, version: int, timestamp_ms: int) -> None:
    begins = {-1: 1, -2: 1, -3: 7, -4: 8, -5: 9}.get(timestamp_ms, 99)
    error = client.error_of_time(version, timestamp_ms)
    assert error == (BrokerError.NONE if version >= begins else BrokerError.UNSUPPORTED_VERSION)


@pytest.mark.parametrize("name", ["2", "-1", "one"])
def test_the_settings_of_a_node_that_does_not_exist_are_refused(client: Client, name: str) -> None:
    assert client.settings(4, name, None).error_code == BrokerError.INVALID_REQUEST


@pytest.mark.parametrize("keys", [None, [], ["retention.ms"]])
def test_no_names_of_settings_stand_for_all(client: Client, keys: list[str] | None) -> None:
    found = {one.name for one in client.settings(2, TOPIC, keys).configs}
    assert found == {"retention.ms"} if keys else len(found) > 5


def test_an_element_that_a_request_names_twice_is_refused(client: Client) -> None:
    assert client.create(plain("twice"), plain("once"), plain("twice")) == [0, BrokerError.INVALID_REQUEST]
    growth = {"name": TOPIC, "count": 2, "assignments": None}
    grown = client.ask(GROW, 1, {"topics": [growth, growth], "timeout_ms": 9000, "validate_only": False})
    assert [one.error_code for one in grown.results] == [BrokerError.INVALID_REQUEST]
    deleted = client.ask(DELETE, 5, {"topic_names": [TOPIC, TOPIC], "timeout_ms": 9000})
    assert [one.error_code for one in deleted.responses] == [BrokerError.INVALID_REQUEST]
    change = {"name": "retention.ms", "config_operation": 0, "value": "1"}
    resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [change]}
    altered = client.ask(INCREMENTAL, 1, {"resources": [resource, resource], "validate_only": False})
    assert [one.error_code for one in altered.responses] == [BrokerError.INVALID_REQUEST]


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (assigned("a", (0, [5])), BrokerError.INVALID_REPLICA_ASSIGNMENT),
        (assigned("a", (0, [1]), (1, [])), BrokerError.INVALID_REPLICA_ASSIGNMENT),
        (assigned("a", (0, [1, 1])), BrokerError.INVALID_REPLICA_ASSIGNMENT),
        (assigned("a", (1, [1])), BrokerError.INVALID_REPLICA_ASSIGNMENT),
        (assigned("a", (0, [1]), (0, [1])), BrokerError.INVALID_REPLICA_ASSIGNMENT),
        (assigned("a", (0, [1]), num_partitions=1), BrokerError.INVALID_REQUEST),
        (assigned("a", (1, [1]), (0, [1])), BrokerError.NONE),
    ],
)
def test_replicas_are_assigned_to_the_only_node(client: Client, topic: dict[str, Any], error: int) -> None:
    assert client.create(topic) == [error]


@pytest.mark.parametrize(("brokers", "error"), [([[5]], 39), ([[1], [1]], 39), ([[1]], 0)])
def test_replicas_of_new_partitions_are_assigned_to_the_only_node(
    client: Client, brokers: list[list[int]], error: int
) -> None:
    growth = {"name": TOPIC, "count": 2, "assignments": [{"broker_ids": each} for each in brokers]}
    grown = client.ask(GROW, 1, {"topics": [growth], "timeout_ms": 9000, "validate_only": False})
    assert [one.error_code for one in grown.results] == [error]


def test_an_unknown_group_is_left_by_each_member_alone(client: Client) -> None:
    members = [{"member_id": name, "group_instance_id": None} for name in ("one", "two")]
    answer = client.ask(LEAVE, 4, {"group_id": "nobody", "members": members})
    assert answer.error_code == BrokerError.NONE
    assert [one.error_code for one in answer.members] == [BrokerError.UNKNOWN_MEMBER_ID] * 2
    assert client.ask(LEAVE, 2, {"group_id": "nobody", "member_id": "one"}).error_code == BrokerError.UNKNOWN_MEMBER_ID


def test_a_topic_that_is_asked_for_twice_is_reported_once(client: Client) -> None:
    names = [{"name": TOPIC}, {"name": TOPIC}]
    asked = {
        "topics": names,
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }
    assert [one.name for one in client.ask(METADATA, 9, asked).topics] == [TOPIC]
    described = {"topics": [*names, {"name": "missing"}], "response_partition_limit": 100, "cursor": None}
    assert [(one.name, one.error_code) for one in client.ask(TOPIC_PARTITIONS, 0, described).topics] == [
        (TOPIC, BrokerError.NONE),
        ("missing", BrokerError.UNKNOWN_TOPIC_OR_PARTITION),
    ]


def test_the_latest_time_of_a_record_is_a_setting_of_its_topic(client: Client) -> None:
    far = plain("far", configs=[{"name": "message.timestamp.after.max.ms", "value": "9223372036854775807"}])
    assert client.create(far) == [0]
    ahead_ms = int(time.time() * 1000) + 3 * 3_600_000
    records = make_batch([b"x"], timestamp_ms=ahead_ms).wire

    def produced(topic: str) -> int:
        data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
        values = {"transactional_id": None, "acks": -1, "timeout_ms": 9000, "topic_data": data}
        return int(client.ask(PRODUCE, 7, values).responses[0].partition_responses[0].error_code)

    assert struct.unpack_from(">q", records, 35) == (ahead_ms,)
    assert produced(TOPIC) == BrokerError.INVALID_TIMESTAMP
    assert produced("far") == 0
