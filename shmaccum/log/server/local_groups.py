# SPDX-License-Identifier: Apache-2.0
"""Groups of consumers on the log's host that need no server, as shown by DescribeGroups.

The server does not coordinate such a group, and rejects remote members. It shows the group in the form of the classic
protocol, so that ``kafka-consumer-groups --describe`` prints the owner and the lag of each partition.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.groups.members import LocalMember
from shmaccum.log.server.call import Values
from shmaccum.log.server.group import GroupState

PROTOCOL_TYPE = "consumer"
VERSION = 0
"""The version of ConsumerProtocolSubscription and ConsumerProtocolAssignment."""
NAME_SIZE_MAX = 1000
"""The most bytes of a name. A longer name is cut."""
NO_USER_DATA = struct.pack(">i", -1)
LOCAL_HOST = "/127.0.0.1"
STATE = GroupState.STABLE.value
"""The state of a local group. In this state, tools do not move offsets."""


def _plain(text: str) -> str:
    """Return a name from the plan, which is untrusted, in a form that the protocol can encode."""
    return text.encode("utf-8", "replace")[:NAME_SIZE_MAX].decode("utf-8", "ignore")


def _text(text: str) -> bytes:
    content = _plain(text).encode()
    return struct.pack(">h", len(content)) + content


def subscription(topics: Iterable[str]) -> bytes:
    """Return Kafka's ConsumerProtocolSubscription."""
    names = [_text(topic) for topic in topics]
    return struct.pack(">hi", VERSION, len(names)) + b"".join(names) + NO_USER_DATA


def assignment(places: Iterable[TopicPartition]) -> bytes:
    """Return Kafka's ConsumerProtocolAssignment."""
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    parts = [
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers) for topic, numbers in topics.items()
    ]
    return struct.pack(">hi", VERSION, len(parts)) + b"".join(parts) + NO_USER_DATA


def described(group_id: str, members: Iterable[LocalMember]) -> Values:
    """Return a group with its live members, as in DescribeGroups."""
    return {
        "error_code": BrokerError.NONE,
        "error_message": None,
        "group_id": group_id,
        "group_state": STATE,
        "protocol_type": PROTOCOL_TYPE,
        "protocol_data": "",
        "members": [_described_member(member) for member in members],
        "authorized_operations": set(),
    }


def _described_member(member: LocalMember) -> Values:
    return {
        "member_id": _plain(member.member_id),
        "group_instance_id": None if member.instance_id is None else _plain(member.instance_id),
        "client_id": f"process-{member.pid}",
        "client_host": LOCAL_HOST,
        "member_metadata": subscription(member.topics),
        "member_assignment": assignment(member.partitions),
    }


def refusal(group_id: str) -> str:
    """Return the error message for a remote member of a local group."""
    return (
        f"the group {group_id!r} is used by consumers on the log's host, without a server: consume there, stop them, "
        "or use another group"
    )
