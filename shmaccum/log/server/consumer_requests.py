# SPDX-License-Identifier: Apache-2.0
"""The requests of KIP-848 groups: ConsumerGroupHeartbeat and ConsumerGroupDescribe (`consumer_group`)."""

from __future__ import annotations

import functools
import math
import uuid
from collections.abc import Callable, Mapping
from typing import final

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import local_groups
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.consumer_assignors import Places
from shmaccum.log.server.consumer_group import (
    JOINS,
    ConsumerGroup,
    ConsumerMember,
    Heartbeat,
    HeartbeatRefusedError,
    TopicShape,
)
from shmaccum.log.server.coordinator import Coordinator, LoadedGroup
from shmaccum.log.server.steps import Stepwise, answer_each
from shmaccum.log.server.topic_patterns import TopicPatterns
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics
from shmaccum.log.server.users import ANONYMOUS, User

CONSUMER_PROTOCOL = 1
"""The member type of KIP-848."""
NO_OPERATIONS = -(2**31)
"""The value of authorized operations if they were not requested."""
SHAPES_KEPT_MS = 1000
"""The time for which the list of topics is cached."""
TopicNames = Callable[[uuid.UUID], str | None]


@final
class ConsumerRequests:
    """Handles requests of KIP-848 members."""

    def __init__(self, groups: Coordinator, topics: LogTopics) -> None:
        self._groups = groups
        self._topics = topics
        self._shapes: dict[str, TopicShape] = {}
        self._shapes_until_ms = -math.inf
        self._patterns = TopicPatterns()

    def heartbeat(self, call: Call) -> Values:
        """ConsumerGroupHeartbeat."""
        is_joining = call.message.member_epoch == JOINS
        load = self._groups.load if is_joining else self._groups.load_known
        loaded = load(call.message.group_id)
        if isinstance(loaded, BrokerError):
            is_local = loaded is BrokerError.INCONSISTENT_GROUP_PROTOCOL
            return refusal_values(loaded, local_groups.refusal(call.message.group_id) if is_local else None)
        try:
            return self._handle_heartbeat(loaded, _heartbeat_of(call), call.user)
        except HeartbeatRefusedError as refusal:
            self._groups.release_unused(loaded)
            return refusal_values(refusal.error, str(refusal))

    def _handle_heartbeat(self, loaded: LoadedGroup, request: Heartbeat, user: User) -> Values:
        group = loaded.as_consumer(self._groups.consumer_limits)
        if group is None:
            raise HeartbeatRefusedError(
                BrokerError.GROUP_ID_NOT_FOUND,
                f"the group {loaded.group.group_id} has members that use the classic protocol",
            )
        group.size_max = self._groups.size_max(group)
        matching = functools.partial(self._matching, user)
        answer = group.heartbeat(request, self._topic_shapes(), self._groups.now_ms(), matching)
        self._groups.store_and_answer(loaded)
        places = {} if answer.assignment is None else _by_topic(answer.assignment)
        partitions = [{"topic_id": topic_id, "partitions": numbers} for topic_id, numbers in places.items()]
        return {
            "error_code": BrokerError.NONE,
            "error_message": None,
            "member_id": answer.member_id,
            "member_epoch": answer.member_epoch,
            "heartbeat_interval_ms": self._groups.consumer_limits.heartbeat_interval_ms,
            "assignment": None if answer.assignment is None else {"topic_partitions": partitions},
        }

    def _matching(self, user: User, pattern: str) -> frozenset[str]:
        """Returns the topics that match a pattern and are visible to the principal."""
        try:
            names = self._patterns.matching(pattern, self._topic_shapes())
        except InvalidArgumentError as error:
            raise HeartbeatRefusedError(BrokerError.INVALID_REGULAR_EXPRESSION, str(error)) from None
        return names if user is ANONYMOUS else frozenset(name for name in names if user.sees("topic", name))

    def _topic_shapes(self) -> Mapping[str, TopicShape]:
        """Returns every topic with an id. The cache is refreshed regularly, because a sender may create topics."""
        now_ms = self._groups.now_ms()
        if now_ms >= self._shapes_until_ms:
            shapes = {
                name: TopicShape(self._topics.topic_id(name), self._topics.partition_count(name))
                for name in self._topics.names()
            }
            shapes = {name: shape for name, shape in shapes.items() if shape.topic_id != NO_TOPIC_ID}
            if shapes != self._shapes:
                self._shapes = shapes
            self._shapes_until_ms = now_ms + SHAPES_KEPT_MS
        return self._shapes

    def describe(self, call: Call) -> Stepwise[Values]:
        """ConsumerGroupDescribe of KIP-848 groups. Kafka's tools use DescribeGroups for others."""
        groups = yield from answer_each(call.message.group_ids, self._described)
        return {"groups": groups}

    def _described(self, group_id: str) -> Values:
        loaded = self._groups.loaded(group_id)
        group = loaded.group if loaded is not None and isinstance(loaded.group, ConsumerGroup) else None
        return described_values(group_id, group, self._topics.name_of)


def _heartbeat_of(call: Call) -> Heartbeat:
    """Decode a heartbeat. In version 0, the server chooses the id of a joining member."""
    message = call.message
    is_nameless = not message.member_id and message.member_epoch == JOINS and call.version == 0
    names, topics = message.subscribed_topic_names, message.topic_partitions
    places = (
        None if topics is None else frozenset((one.topic_id, number) for one in topics for number in one.partitions)
    )
    return Heartbeat(
        str(uuid.uuid4()) if is_nameless else message.member_id,
        message.member_epoch,
        message.instance_id,
        message.rack_id,
        message.rebalance_timeout_ms,
        None if names is None else frozenset(names),
        message.server_assignor,
        places,
        call.request.client_id,
        "/" + call.host,
        message.subscribed_topic_regex if call.version >= 1 else None,
    )


def _by_topic(places: Places) -> dict[uuid.UUID, list[int]]:
    topics: dict[uuid.UUID, list[int]] = {}
    for topic_id, partition in sorted(places):
        topics.setdefault(topic_id, []).append(partition)
    return topics


def refusal_values(error: BrokerError, sentence: str | None) -> Values:
    """Return the response to a rejected heartbeat."""
    nothing: Values = {"member_id": None, "member_epoch": 0, "heartbeat_interval_ms": 0, "assignment": None}
    return {**nothing, "error_code": error, "error_message": sentence}


def described_values(group_id: str, group: ConsumerGroup | None, name_of: TopicNames) -> Values:
    """Return a group as in ConsumerGroupDescribe. If it is None, return the error for an unknown group."""
    values: Values = {
        "group_id": group_id,
        "error_code": BrokerError.NONE,
        "error_message": None,
        "authorized_operations": NO_OPERATIONS,
    }
    if group is None:
        missing = {"error_code": BrokerError.GROUP_ID_NOT_FOUND, "error_message": f"{group_id} is not a consumer group"}
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
