# SPDX-License-Identifier: Apache-2.0
"""A server shows local groups to Kafka's tools, and does not let remote members join them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from shmaccum import Consumer, TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.groups.plan import plan_path
from shmaccum.log.server.client_connection import ClientConnection
from tests.support.log_server import DEADLINE_S, confluent_consumer, served
from tests.support.segment_log import TOPIC, make_batch, open_log

GROUP = "workers"
DESCRIBE_GROUPS, CONSUMER_GROUP_HEARTBEAT = 15, 68


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A topic with two partitions of three records."""
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 2)
        for partition in range(2):
            directory.partition(TOPIC, partition).append([make_batch([b"0", b"1", b"2"])])
    return tmp_path / "log"


def describe(admin: AdminClient) -> Any:
    return admin.describe_consumer_groups([GROUP], request_timeout=DEADLINE_S)[GROUP].result(DEADLINE_S)


def states(admin: AdminClient) -> dict[str, str]:
    listed = admin.list_consumer_groups(request_timeout=DEADLINE_S).result(DEADLINE_S)
    return {one.group_id: one.state.name for one in listed.valid}


def test_local_members_are_described_with_their_partitions(log: Path) -> None:
    with served(log, is_writable=False) as address:
        admin = AdminClient({"bootstrap.servers": address})
        with Consumer(log, TOPIC, group_id=GROUP, group_instance_id="one") as consumer:
            consumer.poll()
            assert states(admin) == {GROUP: "STABLE"}
            found = describe(admin)
            (member,) = found.members
            assert (found.state.name, member.member_id, member.group_instance_id) == ("STABLE", "one", "one")
            places = {TopicPartition(place.topic, place.partition) for place in member.assignment.topic_partitions}
            assert places == consumer.assignment()
            with contextlib.closing(KafkaAdminClient(bootstrap_servers=address)) as other:
                members = other.describe_groups([GROUP])[GROUP]["members"]
                assert members[0]["member_metadata"]["topics"] == [TOPIC]
                assert members[0]["member_assignment"]["assigned_partitions"] == [
                    {"topic": TOPIC, "partitions": [0, 1]}
                ]
        assert states(admin) == {GROUP: "EMPTY"}
        assert describe(admin).members == []


@pytest.mark.parametrize("name", ["\ud800", "x" * 100_000, "\x00", ""], ids=["surrogate", "long", "zero", "empty"])
def test_a_plan_with_strange_names_is_described(log: Path, name: str) -> None:
    row = {"pid": 2**70, "topics": [name], "assignors": [], "is_static": True, "session_timeout_ms": 0, "gone_ms": None}
    with served(log, is_writable=False) as address, Consumer(log, TOPIC, group_id=GROUP):
        plan = Path(plan_path(str(log), GROUP))
        (member,) = json.loads(plan.read_bytes())["members"].values()
        document = {
            "epoch": 1,
            "counts": {},
            "members": {name: {**row, "slot": member["slot"]}},
            "assignment": {name: [[name, 1]]},
        }
        plan.write_text(json.dumps(document))
        with ClientConnection(address) as server:
            (group,) = server.ask(DESCRIBE_GROUPS, 5, {"groups": [GROUP]}).groups
    assert (group.group_state, len(group.members)) == ("Stable", 1)


def test_a_group_with_local_members_is_not_deleted(log: Path) -> None:
    with served(log, is_writable=False) as address, Consumer(log, TOPIC, group_id=GROUP) as consumer:
        consumer.poll()
        admin = AdminClient({"bootstrap.servers": address})
        with pytest.raises(confluent_kafka.KafkaException, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([GROUP], request_timeout=DEADLINE_S)[GROUP].result(DEADLINE_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_remote_member_of_a_local_group_is_refused_with_a_sentence(
    log: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    with served(log, is_writable=False) as address, Consumer(log, TOPIC, group_id=GROUP):
        options = {"group.protocol": protocol, "error_cb": lambda error: told.append(error.str())}
        with contextlib.closing(confluent_consumer(address, GROUP, **options)) as remote:
            for _ in range(int(DEADLINE_S * 10)):
                message = remote.poll(0.1)
                if message is not None and (error := message.error()) is not None:
                    told.append(error.str())
                if told:
                    break
    assert "the group 'workers' is used by consumers on the log's host" in caplog.text
    assert "inconsistent group protocol" in told[0].lower()


def test_the_answer_to_a_remote_member_of_kip_848_has_the_sentence(log: Path) -> None:
    joining = {"group_id": GROUP, "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None}
    wants = {"rebalance_timeout_ms": 1000, "subscribed_topic_names": [TOPIC], "subscribed_topic_regex": None}
    rest: dict[str, Any] = {"server_assignor": None, "topic_partitions": []}
    with (
        served(log, is_writable=False) as address,
        Consumer(log, TOPIC, group_id=GROUP),
        ClientConnection(address) as server,
    ):
        answer = server.ask(CONSUMER_GROUP_HEARTBEAT, 1, {**joining, **wants, **rest})
    assert answer.error_code == BrokerError.INCONSISTENT_GROUP_PROTOCOL
    assert "use another group" in answer.error_message
