# SPDX-License-Identifier: Apache-2.0
"""The requests of consumer groups of KIP-848, to and from the state machine: ConsumerGroupHeartbeat and -Describe."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.assignors import Places
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.consumer_group import JOINS, ConsumerGroup, ConsumerMember, Heartbeat

CONSUMER_PROTOCOL = 1
"""The type of a member: it uses KIP-848."""
NO_OPERATIONS = -(2**31)
"""Of authorized operations: nobody asked."""
TopicNames = Callable[[uuid.UUID], str | None]


def heartbeat_of(call: Call) -> Heartbeat:
    """The heartbeat that a request brings. Version 0 lets the server choose the id of a member that joins."""
    message = call.message
    is_nameless = not message.member_id and message.member_epoch == JOINS and call.version == 0
    names = message.subscribed_topic_names
    return Heartbeat(
        str(uuid.uuid4()) if is_nameless else message.member_id,
        message.member_epoch,
        message.instance_id,
        message.rack_id,
        message.rebalance_timeout_ms,
        None if names is None else frozenset(names),
        message.server_assignor,
        _places(message.topic_partitions),
        call.request.client_id,
        "/" + call.host,
        message.subscribed_topic_regex if call.version >= 1 else None,
    )


def _places(topics: Any) -> Places | None:
    if topics is None:
        return None
    return frozenset((topic.topic_id, partition) for topic in topics for partition in topic.partitions)


def _by_topic(places: Places) -> dict[uuid.UUID, list[int]]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def assignment_values(places: Places | None) -> Values | None:
    """An assignment as the answer to a heartbeat has it."""
    if places is None:
        return None
    return {"topic_partitions": [{"topic_id": one, "partitions": found} for one, found in _by_topic(places).items()]}


def refusal_values(error: BrokerError, sentence: str | None) -> Values:
    """The answer to a heartbeat that gets an error."""
    nothing: Values = {"member_id": None, "member_epoch": 0, "heartbeat_interval_ms": 0, "assignment": None}
    return {**nothing, "error_code": error, "error_message": sentence}


def described_values(group_id: str, group: ConsumerGroup | None, name_of: TopicNames) -> Values:
    """A group as ConsumerGroupDescribe has it; None: there is none of this type."""
    values: Values = {
        "group_id": group_id,
        "error_code": BrokerError.NONE,
        "error_message": None,
        "authorized_operations": NO_OPERATIONS,
    }
    if group is None:
        missing = {"error_code": BrokerError.GROUP_ID_NOT_FOUND, "error_message": f"{group_id} is no consumer group"}
        nothing = {"group_state": "", "group_epoch": 0, "assignment_epoch": 0, "assignor_name": "", "members": []}
        return {**values, **missing, **nothing}
    return {
        **values,
        "group_state": group.state.value,
        "group_epoch": group.generation,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": [_described_member(member, group.targets, name_of) for member in group.members.values()],
    }


def _described_member(member: ConsumerMember, targets: Mapping[str, Places], name_of: TopicNames) -> Values:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": sorted(member.topic_names),
        "subscribed_topic_regex": member.topic_pattern or None,
        "assignment": _described_places(member.assigned, name_of),
        "target_assignment": _described_places(targets.get(member.member_id, frozenset()), name_of),
        "member_type": CONSUMER_PROTOCOL,
    }


def _described_places(places: Places, name_of: TopicNames) -> Values:
    return {
        "topic_partitions": [
            {"topic_id": topic_id, "topic_name": name_of(topic_id) or "", "partitions": partitions}
            for topic_id, partitions in _by_topic(places).items()
        ]
    }
