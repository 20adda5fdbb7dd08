# SPDX-License-Identifier: Apache-2.0
"""Long requests are processed in steps: clients that ask later get their response earlier."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import LogServer, dispatch
from shmaccum.log.server import server as served_log
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.messages import decode_answer, encode_request
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.transactional_id import TransactionState
from tests.support.log_server import address_of, answer_of, api, served, stranger

PARTITION_COUNT = 20
ROUNDS_MAX = 1000


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogServer]:
    """A server whose loop the test runs. Each slice of a long request is one step."""
    monkeypatch.setattr(dispatch, "SLICE_S", 0.0)
    monkeypatch.setattr(served_log, "SLICE_S", 0.0)
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server:
        yield server


def turn_until(server: LogServer, client: socket.socket) -> None:
    """Run the loop until the client has a response."""
    poller = select.poll()
    poller.register(client, select.POLLIN)
    for _ in range(ROUNDS_MAX):
        if poller.poll(0):
            return
        server.run_once()
    raise AssertionError("the client has no answer")


def create(name: str, partition_count: int) -> dict[str, Any]:
    one = {"name": name, "num_partitions": partition_count, "replication_factor": 1}
    return {**one, "assignments": [], "configs": []}


def creation(*topics: dict[str, Any]) -> bytes:
    return encode_request(19, 5, {"topics": list(topics), "timeout_ms": 1000, "validate_only": False})


def deletion(*names: str) -> bytes:
    return encode_request(20, 5, {"topic_names": list(names), "timeout_ms": 1000})


LONG = {
    "CreateTopics": creation(create("new", PARTITION_COUNT)),
    "DeleteTopics": deletion("there"),
    "Metadata": encode_request(3, 1, {"topics": None}),
    "DescribeLogDirs": encode_request(35, 1, {"topics": None}),
    "DescribeGroups": encode_request(
        15, 4, {"groups": [str(number) for number in range(20)], "include_authorized_operations": False}
    ),
    "DeleteGroups": encode_request(42, 1, {"groups_names": [str(number) for number in range(20)]}),
}


PLACES = list(range(PARTITION_COUNT))
ADD_PARTITIONS = 24
COMMITTED = {"committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}


def in_transaction(api_key: int, version: int, **more: Any) -> bytes:
    """A request of the producer with the transactional id "long", the first one of the log."""
    producer = {"transactional_id": "long", "producer_id": 0, "producer_epoch": 0}
    if api_key == ADD_PARTITIONS:
        producer = {f"v3_and_below_{name}": value for name, value in producer.items()}
    return encode_request(api_key, version, {**producer, **more})


INIT = encode_request(
    22,
    3,
    {"transactional_id": "long", "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1},
)
ADD = in_transaction(ADD_PARTITIONS, 3, v3_and_below_topics=[{"name": "there", "partitions": PLACES}])
LONG_IN_TRANSACTION = {
    "AddPartitionsToTxn": ADD,
    "EndTxn": in_transaction(26, 3, committed=True),
    "InitProducerId": INIT,
    "TxnOffsetCommit": in_transaction(
        28,
        2,
        group_id="g",
        topics=[{"name": "there", "partitions": [{"partition_index": number, **COMMITTED} for number in PLACES]}],
    ),
    "DescribeProducers": encode_request(61, 0, {"topics": [{"name": "there", "partition_indexes": PLACES}]}),
    "DescribeTransactions": encode_request(65, 0, {"transactional_ids": ["long"] * PARTITION_COUNT}),
    "OffsetFetch": encode_request(
        9, 7, {"group_id": "g", "topics": [{"name": "there", "partition_indexes": PLACES}], "require_stable": False}
    ),
    "OffsetDelete": encode_request(
        47,
        0,
        {
            "group_id": "g",
            "topics": [{"name": "there", "partitions": [{"partition_index": number} for number in PLACES]}],
        },
    ),
}


def begin_transaction(server: LogServer, client: socket.socket) -> None:
    """Begin a transaction in every partition of a topic, and in a group."""
    for frame in (creation(create("there", PARTITION_COUNT)), INIT, ADD, in_transaction(25, 3, group_id="g")):
        client.sendall(frame)
        turn_until(server, client)
        assert answer_of(client)


@pytest.mark.parametrize("name", LONG_IN_TRANSACTION)
def test_a_client_is_answered_before_a_long_request_of_a_transaction(server: LogServer, name: str) -> None:
    with stranger(address_of(server)) as slow, stranger(address_of(server)) as other:
        begin_transaction(server, slow)
        slow.sendall(LONG_IN_TRANSACTION[name])
        while not server._dispatcher._under_way:
            server.run_once()
        other.sendall(api(18, 0))
        turn_until(server, other)
        assert answer_of(other)
        assert server._dispatcher._under_way
        turn_until(server, slow)
        assert answer_of(slow)


def test_a_transaction_whose_client_leaves_amid_the_markers_is_completed(server: LogServer) -> None:
    assert server._write_handlers is not None
    with stranger(address_of(server)) as slow:
        begin_transaction(server, slow)
        slow.sendall(LONG_IN_TRANSACTION["EndTxn"])
        while not server._dispatcher._under_way:
            server.run_once()
        ids = server._write_handlers.transactions._file.ids
        states = [ids["long"].state]
    deadline_s = time.monotonic() + 60
    while states[-1] is not TransactionState.COMPLETE_COMMIT:
        assert time.monotonic() < deadline_s
        server.run_once()
        states.append(ids["long"].state)
    assert states[0] is TransactionState.PREPARE_COMMIT


def test_two_clients_that_end_one_transaction_write_each_marker_once(server: LogServer) -> None:
    with stranger(address_of(server)) as slow, stranger(address_of(server)) as other:
        begin_transaction(server, slow)
        slow.sendall(LONG_IN_TRANSACTION["EndTxn"])
        while not server._dispatcher._under_way:
            server.run_once()
        other.sendall(LONG_IN_TRANSACTION["EndTxn"])
        turn_until(server, other)
        assert decode_answer(26, 3, answer_of(other)).error_code == BrokerError.CONCURRENT_TRANSACTIONS
        turn_until(server, slow)
        assert decode_answer(26, 3, answer_of(slow)).error_code == BrokerError.NONE


@pytest.mark.parametrize("name", LONG)
def test_a_client_that_asks_later_is_answered_before_a_long_request(server: LogServer, name: str) -> None:
    with stranger(address_of(server)) as slow, stranger(address_of(server)) as other:
        slow.sendall(creation(create("there", PARTITION_COUNT)))
        turn_until(server, slow)
        assert answer_of(slow)
        slow.sendall(LONG[name])
        while not server._dispatcher._under_way:
            server.run_once()
        other.sendall(api(18, 0))
        turn_until(server, other)
        assert answer_of(other)
        assert server._dispatcher._under_way
        turn_until(server, slow)
        assert answer_of(slow)


def test_a_topic_that_is_deleted_does_not_exist_while_its_folders_go(server: LogServer) -> None:
    assert server._log is not None
    with stranger(address_of(server)) as slow, stranger(address_of(server)) as other:
        slow.sendall(creation(create("there", PARTITION_COUNT)))
        turn_until(server, slow)
        assert answer_of(slow)
        slow.sendall(deletion("there"))
        while not server._dispatcher._under_way:
            server.run_once()
        assert server._log.partition_count("there") == 0
        other.sendall(creation(create("there", 3)))
        turn_until(server, other)
        assert decode_answer(19, 5, answer_of(other)).topics[0].error_code == BrokerError.NONE
        assert answer_of(slow)
        assert server._log.partition_count("there") == 3
        assert sorted(path.name for path in Path(server.directory).glob("there-*")) == [f"there-{n}" for n in range(3)]


def test_a_topic_that_is_created_again_during_its_creation_keeps_its_partitions(server: LogServer) -> None:
    assert server._log is not None
    assert server._write_handlers is not None
    steps = server._write_handlers.topics.create_topic("there", 2)
    while not server._log.partition_count("there"):
        next(steps)
    server._log.delete_topic("there")
    server._log.create_topic("there", 1)
    take_all(steps)
    assert server._log.partition_count("there") == 1
    assert [path.name for path in Path(server.directory).glob("there-*")] == ["there-0"]


@pytest.mark.parametrize("is_created", [True, False], ids=["created", "deleted"])
def test_a_client_that_leaves_ends_its_request_and_leaves_a_topic_that_can_be_used(
    server: LogServer, is_created: bool
) -> None:
    assert server._log is not None
    with stranger(address_of(server)) as slow:
        slow.sendall(creation(create("there", PARTITION_COUNT)))
        if not is_created:
            turn_until(server, slow)
            assert answer_of(slow)
            slow.sendall(deletion("there"))
        while not server._dispatcher._under_way:
            server.run_once()
    while server._dispatcher.connections:
        server.run_once()
    assert not server._dispatcher._under_way
    assert server._log.partition_count("there") == PARTITION_COUNT
    assert server._log.delete_topic("there") == PARTITION_COUNT
    assert list(Path(server.directory).glob("there-*")) == []


def test_a_request_creates_a_bounded_number_of_partitions(tmp_path: Path) -> None:
    with served(tmp_path / "log") as address, ClientConnection(address) as asking:
        topics = [create(f"t{number}", 1000) for number in range(11)]
        answer = asking.ask(19, 5, {"topics": topics, "timeout_ms": 1000, "validate_only": False})
        assert {topic.error_code for topic in answer.topics} == {BrokerError.POLICY_VIOLATION}
        assert asking.ask(3, 1, {"topics": None}).topics == []
        names = [{"name": f"t{number}"} for number in range(1001)]
        assert {topic.error_code for topic in asking.ask(3, 1, {"topics": names}).topics} == {
            BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        }
