# SPDX-License-Identifier: Apache-2.0
"""A request without its right gets Kafka's error, in every version, and changes nothing."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import LogServer, access, messages
from shmaccum.log.server.call import Call
from shmaccum.log.server.messages import Request
from shmaccum.log.server.requests import RequestType
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topic_requests import PARTITION_COUNT_MAX
from shmaccum.log.server.topics import NO_TOPIC_ID
from shmaccum.log.server.users import ANONYMOUS, User, parse_grant

PRODUCE, OFFSET_FETCH = 0, 9
TOPIC, GROUP = "hidden", "secret"
TOPIC_ERROR = BrokerError.TOPIC_AUTHORIZATION_FAILED
GROUP_ERROR = BrokerError.GROUP_AUTHORIZATION_FAILED
CLUSTER_ERROR = BrokerError.CLUSTER_AUTHORIZATION_FAILED
ID_ERROR = BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
PARTITION = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
RECORDS = {"partition_index": 0, "offset": 0}
EPOCH = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
NEW_TOPIC = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
COMMITTED = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
MEMBER = {"group_id": GROUP, "member_id": "m", "group_instance_id": None, "generation_id": 1}
TOPIC_NAMED: dict[str, Any] = {"resource_type": 2, "resource_name": TOPIC}
NODE_NAMED: dict[str, Any] = {"resource_type": 4, "resource_name": "1"}
ASKED: dict[str, Any] = {"configuration_keys": None}
CHANGED: dict[str, Any] = {"configs": []}
PRODUCER: dict[str, Any] = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0}
ADDED: dict[str, Any] = {"topics": [{"name": TOPIC, "partitions": [0]}]}
PRODUCED = {"name": TOPIC, "partition_data": [{"index": 0, "records": b""}]}

ADMIN = User("admin", grants=tuple(parse_grant("read", each) for each in ("topic:*", "group:*")))

CASES: list[tuple[int, dict[str, Any], BrokerError]] = [
    (0, {"acks": -1, "topic_data": [PRODUCED]}, TOPIC_ERROR),
    (2, {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": [PARTITION]}]}, TOPIC_ERROR),
    (3, {"topics": [{"name": TOPIC, "topic_id": NO_TOPIC_ID}], "allow_auto_topic_creation": True}, TOPIC_ERROR),
    (8, {**MEMBER, "topics": [{"name": TOPIC, "partitions": [COMMITTED]}]}, GROUP_ERROR),
    (9, {"group_id": GROUP, "topics": [], "groups": [{"group_id": GROUP, "topics": []}]}, GROUP_ERROR),
    (10, {"key": GROUP, "key_type": 0, "coordinator_keys": [GROUP]}, GROUP_ERROR),
    (11, {**MEMBER, "protocol_type": "consumer", "protocols": []}, GROUP_ERROR),
    (12, MEMBER, GROUP_ERROR),
    (13, {**MEMBER, "members": []}, GROUP_ERROR),
    (14, {**MEMBER, "assignments": []}, GROUP_ERROR),
    (15, {"groups": [GROUP]}, GROUP_ERROR),
    (
        19,
        {"topics": [{**NEW_TOPIC, "name": "new"}]},
        TOPIC_ERROR,
    ),
    (20, {"topic_names": [TOPIC], "topics": [{"name": TOPIC, "topic_id": NO_TOPIC_ID}]}, TOPIC_ERROR),
    (21, {"topics": [{"name": TOPIC, "partitions": [RECORDS]}]}, TOPIC_ERROR),
    (22, {"transactional_id": None}, CLUSTER_ERROR),
    (0, {"acks": -1, "transactional_id": "t", "topic_data": [PRODUCED]}, ID_ERROR),
    (22, {**PRODUCER, "transaction_timeout_ms": 1}, ID_ERROR),
    (24, {f"v3_and_below_{name}": value for name, value in (PRODUCER | ADDED).items()}, ID_ERROR),
    (25, {**PRODUCER, "group_id": GROUP}, ID_ERROR),
    (26, {**PRODUCER, "committed": True}, ID_ERROR),
    (28, {**PRODUCER, **MEMBER, "topics": [{"name": TOPIC, "partitions": [COMMITTED]}]}, ID_ERROR),
    (61, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}, TOPIC_ERROR),
    (65, {"transactional_ids": ["t"]}, ID_ERROR),
    (
        23,
        {"topics": [{"topic": TOPIC, "partitions": [EPOCH]}]},
        TOPIC_ERROR,
    ),
    (32, {"resources": [{**TOPIC_NAMED, **ASKED}]}, TOPIC_ERROR),
    (32, {"resources": [{**NODE_NAMED, **ASKED}]}, CLUSTER_ERROR),
    (33, {"resources": [{**TOPIC_NAMED, **CHANGED}]}, TOPIC_ERROR),
    (33, {"resources": [{**NODE_NAMED, **CHANGED}]}, CLUSTER_ERROR),
    (34, {"dirs": [{"path": "/", "topics": [{"name": TOPIC, "partitions": [0]}]}]}, CLUSTER_ERROR),
    (35, {"topics": None}, CLUSTER_ERROR),
    (37, {"topics": [{"name": TOPIC, "count": 5, "assignments": None}]}, TOPIC_ERROR),
    (42, {"groups_names": [GROUP]}, GROUP_ERROR),
    (43, {"topic_partitions": [{"topic": TOPIC, "partitions": [0]}], "election_type": 0}, CLUSTER_ERROR),
    (44, {"resources": [{**TOPIC_NAMED, **CHANGED}]}, TOPIC_ERROR),
    (44, {"resources": [{**NODE_NAMED, **CHANGED}]}, CLUSTER_ERROR),
    (45, {"topics": []}, CLUSTER_ERROR),
    (46, {"topics": None}, CLUSTER_ERROR),
    (47, {"group_id": GROUP, "topics": []}, GROUP_ERROR),
    (74, {"resource_types": []}, CLUSTER_ERROR),
    (75, {"topics": [{"name": TOPIC}]}, TOPIC_ERROR),
    (68, {"group_id": GROUP, "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": -1}, GROUP_ERROR),
    (69, {"group_ids": [GROUP], "include_authorized_operations": False}, GROUP_ERROR),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LogServer]:
    """A writable server with a topic."""
    with LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True) as server:
        assert server._write_handlers is not None
        take_all(server._write_handlers.topics.create_topic(TOPIC, None))
        take_all(server._write_handlers.topics.create_topic("open", None))
        yield server


def encoded(api_key: int, version: int, values: dict[str, Any]) -> memoryview:
    kind = messages._messages(api_key).request
    known = {name: value for name, value in values.items() if name in kind.fields}
    return memoryview(bytes(messages._build(kind, version, known, {}).encode(version=version)))


def answer(server: LogServer, user: User, api_key: int, version: int, values: dict[str, Any]) -> Any:
    """The answer to a request, decoded."""
    request = Request(api_key, version, 7, "client", encoded(api_key, version, values))
    results: list[Any] = []
    call = Call(request, messages.decode(request), "host", user, None, lambda _call, result: results.append(result))
    row = server._dispatcher.table[api_key]
    results.append(server._dispatcher._result_of(call, row))
    (found,) = (take_all(one) if isinstance(one, Generator) else one for one in results if one is not None)
    frame = messages.encode(request, call.amended(found))
    kind = messages._messages(api_key).response
    return kind.decode(frame[4:], version=version, header=True).to_dict()


def errors(found: Any) -> set[int]:
    """Every error code in an answer."""
    if isinstance(found, dict):
        own = {found[name] for name in ("error_code", "partition_error_code") if name in found}
        return own.union(*(errors(value) for value in found.values()))
    return set().union(*(errors(each) for each in found)) if isinstance(found, list) else set()


def versions(server: LogServer, api_key: int) -> range:
    """The served versions. OffsetFetch 1 has no field for a group's error, and Produce 13 names topics by id."""
    route = server._dispatcher.table[api_key]
    lowest, highest = {PRODUCE: (3, 12), OFFSET_FETCH: (2, 99)}.get(api_key, (0, 99))
    return range(max(route.version_min, lowest), min(route.version_max, highest) + 1)


@pytest.mark.parametrize(
    ("api_key", "values", "error"),
    CASES,
    ids=[f"{key}-{error.name}" for key, _, error in CASES],
)
def test_a_principal_without_rights_gets_the_error_of_kafka(
    server: LogServer, api_key: int, values: dict[str, Any], error: BrokerError
) -> None:
    if api_key not in server._dispatcher.table:
        pytest.skip(f"the server has no request {api_key}")
    names = server._topics.names()
    for version in versions(server, api_key):
        assert errors(answer(server, User("stranger"), api_key, version, values)) - {0} == {error}, version
    assert server._topics.names() == names
    assert server._coordinator._groups == {}


MAIN_RIGHTS = ("read", "write", "admin")
ANY, READ, WRITE, ADMINISTER = set(MAIN_RIGHTS), {"read"}, {"write"}, {"admin"}
NEEDED: dict[tuple[int, BrokerError], set[str]] = {
    **{(key, TOPIC_ERROR): ANY for key in (2, 3, 23, 32, 75)},
    **{(key, TOPIC_ERROR): ADMINISTER for key in (19, 20, 21, 33, 37, 44)},
    (0, TOPIC_ERROR): WRITE,
    (61, TOPIC_ERROR): READ,
    **{(key, GROUP_ERROR): READ for key in (8, 11, 12, 13, 14, 68)},
    **{(key, GROUP_ERROR): ANY - WRITE for key in (9, 10, 15, 69)},  # no right to write groups exists
    **{(key, GROUP_ERROR): ADMINISTER for key in (42, 47)},
    **{(key, ID_ERROR): WRITE for key in (0, 22, 24, 25, 26, 28)},
    (65, ID_ERROR): ANY,
    (22, CLUSTER_ERROR): WRITE,
    **{(key, CLUSTER_ERROR): set() for key in (32, 33, 34, 35, 43, 44, 45, 46, 74)},
}
"""API key and error -> the sufficient rights on the resource. If empty, only administering every topic suffices."""
RESOURCES = (f"topic:{TOPIC}", "topic:new", f"group:{GROUP}", "transactional-id:t")
ADMINISTRATORS = {"admin topic:*": True, "read topic:*": False, "write topic:*": False, "admin topic:hid*": False,
                  "admin group:*": False, "admin transactional-id:*": False}  # fmt: skip


def refusals(server: LogServer, user: User, api_key: int, version: int, values: dict[str, Any]) -> set[int]:
    """Return the errors of an answer. A waiting request has none, because it had to be accepted."""
    try:
        return errors(answer(server, user, api_key, version, values))
    except ValueError as error:
        assert "not enough values to unpack" in str(error)  # noqa: PT017
        return set()


def test_the_rights_of_every_request_are_tried(server: LogServer) -> None:
    lists_and_bytes = {1, 16, 66}
    tried = {key for key, _, _ in CASES}
    table = server._dispatcher.table
    assert tried | lists_and_bytes | {key for key, row in table.items() if row.rule is access.unrestricted} == set(
        table
    )
    assert NEEDED.keys() == {(key, error) for key, _, error in CASES}


@pytest.mark.parametrize("right", MAIN_RIGHTS)
@pytest.mark.parametrize(
    ("api_key", "values", "error"),
    CASES,
    ids=[f"{key}-{error.name}-{number}" for number, (key, _, error) in enumerate(CASES)],
)
def test_a_request_needs_the_right_that_the_page_names_and_no_lesser_one(
    server: LogServer, api_key: int, values: dict[str, Any], error: BrokerError, right: str
) -> None:
    is_enough = right in NEEDED[api_key, error]
    resources = [resource for resource in RESOURCES if right != "write" or not resource.startswith("group:")]
    user = User("user", grants=tuple(parse_grant(right, resource) for resource in resources))
    for version in versions(server, api_key):
        assert (error not in refusals(server, user, api_key, version, values)) is is_enough, version


TOPIC_PARTITION: dict[str, Any] = {"topics": [{"name": TOPIC, "partitions": [COMMITTED]}]}
HEARTBEAT: dict[str, Any] = {"member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": -1}
SEVERAL: list[tuple[int, dict[str, Any], dict[str, BrokerError]]] = [
    (0, {"acks": -1, "transactional_id": "t", "topic_data": [PRODUCED]},
     {"write transactional-id:t": ID_ERROR, "write topic:hidden": TOPIC_ERROR}),
    (8, {**MEMBER, **TOPIC_PARTITION}, {"read group:secret": GROUP_ERROR, "read topic:hidden": TOPIC_ERROR}),
    (24, {f"v3_and_below_{name}": value for name, value in (PRODUCER | ADDED).items()},
     {"write transactional-id:t": ID_ERROR, "write topic:hidden": TOPIC_ERROR}),
    (25, {**PRODUCER, "group_id": GROUP},
     {"write transactional-id:t": ID_ERROR, "read group:secret": GROUP_ERROR}),
    (28, {**PRODUCER, **MEMBER, **TOPIC_PARTITION},
     {"write transactional-id:t": ID_ERROR, "read group:secret": GROUP_ERROR, "read topic:hidden": TOPIC_ERROR}),
    (47, {"group_id": GROUP, "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]},
     {"admin group:secret": GROUP_ERROR, "read topic:hidden": TOPIC_ERROR}),
    (68, {**HEARTBEAT, "group_id": GROUP, "subscribed_topic_names": [TOPIC]},
     {"read group:secret": GROUP_ERROR, "read topic:hidden": TOPIC_ERROR}),
]  # fmt: skip
"""Requests that need rights on several resources: each right, and the error of a principal without it."""


@pytest.mark.parametrize(
    ("api_key", "values", "errors_without", "missing"),
    [(key, values, rights, missing) for key, values, rights in SEVERAL for missing in [*rights, ""]],
    ids=[f"{key}-{missing or 'all'}" for key, _, rights in SEVERAL for missing in [*rights, ""]],
)
def test_a_request_needs_each_of_its_rights(
    server: LogServer, api_key: int, values: dict[str, Any], errors_without: dict[str, BrokerError], missing: str
) -> None:
    user = User("user", grants=tuple(parse_grant(*grant.split()) for grant in errors_without if grant != missing))
    expected = {errors_without[missing]} if missing else set()
    for version in versions(server, api_key):
        found = refusals(server, user, api_key, version, values)
        assert found & set(errors_without.values()) == expected, version


@pytest.mark.parametrize("grant", ADMINISTRATORS)
@pytest.mark.parametrize(
    ("api_key", "values"), [(key, values) for key, values, error in CASES if NEEDED[key, error] == set()], ids=str
)
def test_a_request_for_the_server_needs_an_administrator(
    server: LogServer, api_key: int, values: dict[str, Any], grant: str
) -> None:
    user = User("user", grants=(parse_grant(*grant.split()),))
    for version in versions(server, api_key):
        found = refusals(server, user, api_key, version, values)
        assert (CLUSTER_ERROR not in found) is ADMINISTRATORS[grant], version


def test_a_request_without_a_rule_needs_an_administrator(server: LogServer) -> None:
    row = RequestType(0, 0, lambda _call: {"error_code": 0})
    for grant, is_enough in ADMINISTRATORS.items():
        user = User("user", grants=(parse_grant(*grant.split()),))
        request = Request(60, 0, 7, "client", encoded(60, 0, {}))
        call = Call(request, messages.decode(request), "host", user, None, lambda _call, _result: None)
        if is_enough:
            assert server._dispatcher._result_of(call, row) == {"error_code": 0}
        else:
            with pytest.raises(messages.BadFrameError, match="is not an administrator"):
                server._dispatcher._result_of(call, row)


def test_every_request_has_a_rule(server: LogServer) -> None:
    assert access.administrators not in {row.rule for row in server._dispatcher.table.values()}


def test_the_right_to_an_id_is_not_one_to_topics_and_groups(server: LogServer) -> None:
    user = User("producer", grants=(parse_grant("write", "transactional-id:t"), parse_grant("read", "group:open")))
    key = {"transactional_id": "t", "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    begun = answer(server, user, 22, 4, key)
    assert begun["error_code"] == 0
    producer = {**PRODUCER, "producer_id": begun["producer_id"], "producer_epoch": begun["producer_epoch"]}
    added = {f"v3_and_below_{name}": value for name, value in (producer | ADDED).items()}
    assert errors(answer(server, user, 24, 3, added)) == {TOPIC_ERROR}
    assert errors(answer(server, user, 25, 3, {**producer, "group_id": GROUP})) == {GROUP_ERROR}
    assert errors(answer(server, user, 25, 3, {**producer, "group_id": "open"})) == {0}
    offset = [{"name": TOPIC, "partitions": [COMMITTED]}]
    committed = {**producer, **MEMBER, "group_id": "open", "topics": offset}
    assert errors(answer(server, user, 28, 3, committed)) == {TOPIC_ERROR}
    named = {"key": "t", "key_type": 1, "coordinator_keys": ["t"]}
    for version in (1, 4):
        assert errors(answer(server, user, 10, version, named)) - {0} == set()
        assert errors(answer(server, User("stranger"), 10, version, named)) == {ID_ERROR}
    listed = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
    assert [one["transactional_id"] for one in answer(server, user, 66, 1, listed)["transaction_states"]] == ["t"]
    assert answer(server, User("stranger"), 66, 1, listed)["transaction_states"] == []


def test_a_list_leaves_out_what_the_principal_may_not_see(server: LogServer) -> None:
    user = User("user", grants=(parse_grant("read", "topic:op*"), parse_grant("read", "group:mine")))
    everything = {"topics": None, "allow_auto_topic_creation": False}
    assert [topic["name"] for topic in answer(server, user, 3, 9, everything)["topics"]] == ["open"]
    assert [topic["name"] for topic in answer(server, user, 75, 0, {"topics": []})["topics"]] == ["open"]
    for group in ("mine", GROUP):
        committed = {**MEMBER, "group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
        answer(server, ADMIN, 8, 9, {**committed, "topics": [{"name": "open", "partitions": [COMMITTED]}]})
    groups = answer(server, user, 16, 5, {"states_filter": [], "types_filter": []})["groups"]
    assert [group["group_id"] for group in groups] == ["mine"]
    (group,) = answer(server, user, 9, 9, {"groups": [{"group_id": "mine", "topics": None}]})["groups"]
    assert [topic["name"] for topic in group["topics"]] == ["open"]


def test_a_pattern_matches_no_topic_that_the_principal_may_not_see(server: LogServer) -> None:
    user = User("user", grants=(parse_grant("read", "topic:op*"), parse_grant("read", "group:mine")))
    joining = {"group_id": "mine", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 1000}
    wanted: dict[str, Any] = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*", "topic_partitions": []}
    assignment = answer(server, user, 68, 1, {**joining, **wanted})["assignment"]
    assert [one["topic_id"] for one in assignment["topic_partitions"]] == [str(server._topics.topic_id("open"))]


def test_a_mixed_request_is_done_for_what_is_allowed(server: LogServer) -> None:
    user = User("user", grants=(parse_grant("write", "topic:open"), parse_grant("admin", "topic:new-*")))
    topics = [{"name": name, "partitions": [PARTITION]} for name in (TOPIC, "open")]
    found = answer(server, user, 2, 7, {"replica_id": -1, "topics": topics})["topics"]
    assert {topic["name"]: topic["partitions"][0]["error_code"] for topic in found} == {TOPIC: TOPIC_ERROR, "open": 0}
    made: list[dict[str, Any]] = [
        {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        for name in ("new-1", "old")
    ]
    created = answer(server, user, 19, 7, {"topics": made})["topics"]
    assert {topic["name"]: topic["error_code"] for topic in created} == {"new-1": 0, "old": TOPIC_ERROR}
    assert server._topics.names() == [TOPIC, "new-1", "open"]


def test_an_id_reports_no_name_of_a_hidden_topic(server: LogServer) -> None:
    asked = {"topics": [{"name": None, "topic_id": server._topics.topic_id(TOPIC)}], "allow_auto_topic_creation": False}
    (topic,) = answer(server, User("stranger"), 3, 12, asked)["topics"]
    assert (topic["error_code"], topic["name"], topic["partitions"]) == (BrokerError.UNKNOWN_TOPIC_ID, None, [])


@pytest.mark.parametrize(
    ("api_key", "version", "values"),
    [
        (0, 13, {"acks": -1, "topic_data": [{**PRODUCED, "topic_id": NO_TOPIC_ID}]}),
        (3, 12, {"topics": [{"name": None, "topic_id": NO_TOPIC_ID}], "allow_auto_topic_creation": True}),
        (20, 6, {"topics": [{"name": None, "topic_id": NO_TOPIC_ID}]}),
    ],
)
def test_an_id_of_zeros_is_no_topics(server: LogServer, api_key: int, version: int, values: dict[str, Any]) -> None:
    assert errors(answer(server, ANONYMOUS, api_key, version, values)) == {BrokerError.UNKNOWN_TOPIC_ID}
    assert server._topics.names() == [TOPIC, "open"]


@pytest.mark.parametrize("size", [0, 270, 32_767])
def test_a_client_id_is_of_any_length(size: int) -> None:
    frame = messages.HEAD.pack(3, 0, 7, size) + b"c" * size
    assert messages.read_head(memoryview(frame)).client_id == "c" * size
    if size:
        with pytest.raises(messages.BadFrameError, match="a client id"):
            messages.read_head(memoryview(frame)[:-1])


@pytest.mark.parametrize("count", [PARTITION_COUNT_MAX + 1, 2**31 - 1])
def test_a_request_makes_no_thousands_of_folders(server: LogServer, count: int) -> None:
    grown = {"topics": [{"name": TOPIC, "count": count, "assignments": None}], "timeout_ms": 0, "validate_only": False}
    assert errors(answer(server, ANONYMOUS, 37, 1, grown)) == {BrokerError.INVALID_PARTITIONS}
    made: dict[str, Any] = {
        "topics": [{**NEW_TOPIC, "name": "new", "num_partitions": count}],
        "timeout_ms": 0,
        "validate_only": False,
    }
    assert errors(answer(server, ANONYMOUS, 19, 5, made)) == {BrokerError.INVALID_PARTITIONS}
    assert server._topics.partition_count(TOPIC) == 1


def numbers(found: Any) -> dict[str, set[int]]:
    """Every number in an answer that is no error, by its field."""
    together: dict[str, set[int]] = {}
    for each in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        for name, values in numbers(each).items():
            together.setdefault(name, set()).update(values)
    if isinstance(found, dict):
        for name, value in found.items():
            if type(value) is int:
                together.setdefault(name, set()).add(value)
    return together


@pytest.mark.parametrize(
    ("api_key", "fields"),
    [
        (0, {"base_offset", "log_append_time_ms", "log_start_offset"}),
        (2, {"timestamp", "offset", "leader_epoch"}),
        (21, {"low_watermark"}),
        (22, {"producer_id", "producer_epoch"}),
        (23, {"leader_epoch", "end_offset"}),
    ],
)
def test_a_refused_answer_has_no_numbers(server: LogServer, api_key: int, fields: set[str]) -> None:
    values = next(values for key, values, _ in CASES if key == api_key)
    for version in versions(server, api_key):
        found = numbers(answer(server, User("stranger"), api_key, version, values))
        assert {name: found[name] for name in fields & found.keys()} == {name: {-1} for name in fields & found.keys()}
        assert fields & found.keys()
