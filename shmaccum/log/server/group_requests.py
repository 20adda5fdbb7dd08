# SPDX-License-Identifier: Apache-2.0
"""The requests of classic groups (`group`), and the requests to list, describe and delete groups.

A join, or a sync of a member that is not the leader, waits for other members. The coordinator completes it.
"""

from __future__ import annotations

from typing import Any, final

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import local_groups
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.consumer_group import ConsumerGroup
from shmaccum.log.server.coordinator import CLASSIC_TYPE, CONSUMER, Coordinator
from shmaccum.log.server.group import Group, GroupState, Join, JoinAnswer, Protocol, SyncAnswer
from shmaccum.log.server.steps import Stepwise, answer_each


@final
class GroupRequests:
    """Handles requests of classic members, and requests about all groups."""

    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def join(self, call: Call) -> Values | None:
        """JoinGroup. The coordinator completes the request, now or later."""
        loaded = self._groups.load(call.message.group_id)
        if isinstance(loaded, BrokerError):
            return JoinAnswer(loaded, call.message.member_id).values
        group = loaded.as_classic(self._groups.limits)
        if group is None:
            return JoinAnswer(BrokerError.INCONSISTENT_GROUP_PROTOCOL, call.message.member_id).values
        group.size_max = self._groups.size_max(group)
        group.join(call, _join_of(call), self._groups.now_ms())
        self._groups.store_and_answer(loaded)
        return None

    def sync(self, call: Call) -> Values | None:
        """SyncGroup. The coordinator completes the request, now or later."""
        message = call.message
        loaded = self._groups.load_known(message.group_id)
        if isinstance(loaded, BrokerError) or not isinstance(loaded.group, Group):
            error = loaded if isinstance(loaded, BrokerError) else BrokerError.UNKNOWN_MEMBER_ID
            return SyncAnswer(error).values
        loaded.group.size_max = self._groups.size_max(loaded.group)
        loaded.group.sync(
            call,
            message.member_id,
            message.group_instance_id,
            message.generation_id,
            [(one.member_id, bytes(one.assignment)) for one in message.assignments],
            self._groups.now_ms(),
            protocol_type=message.protocol_type,
            protocol=message.protocol_name,
        )
        self._groups.store_and_answer(loaded)
        return None

    def heartbeat(self, call: Call) -> Values:
        """Heartbeat."""
        message = call.message
        loaded = self._groups.load_known(message.group_id)
        group = loaded if isinstance(loaded, BrokerError) else loaded.group
        if isinstance(group, Group):
            error = group.heartbeat(
                message.member_id, message.group_instance_id, message.generation_id, self._groups.now_ms()
            )
        else:
            error = group if isinstance(group, BrokerError) else BrokerError.UNKNOWN_MEMBER_ID
        return {"error_code": error}

    def leave(self, call: Call) -> Stepwise[Values]:
        """LeaveGroup of one member or, from version 3 on, several."""
        message = call.message
        loaded = self._groups.load_known(message.group_id)
        if isinstance(loaded, BrokerError):
            return _leave_failed(loaded, call)
        if call.version < 3:
            error = loaded.group.leave(message.member_id, None, self._groups.now_ms())
            self._groups.store_and_answer(loaded)
            return {"error_code": error}
        members = yield from answer_each(message.members, lambda one: self._leave_one(message.group_id, one))
        return {"error_code": BrokerError.NONE, "members": members}

    def _leave_one(self, group_id: str, member: Any) -> Values:
        loaded = self._groups.load_known(group_id)
        if isinstance(loaded, BrokerError):
            error = loaded
        else:
            error = loaded.group.leave(member.member_id, member.group_instance_id, self._groups.now_ms())
            self._groups.store_and_answer(loaded)
        return {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error}

    def describe(self, call: Call) -> Stepwise[Values]:
        """DescribeGroups."""
        groups = yield from answer_each(
            call.message.groups, lambda name: self._described(name, call.version, self._groups.is_known(name))
        )
        return {"groups": groups}

    def _described(self, group_id: str, version: int, is_known: bool) -> Values:
        if members := self._groups.local_members(group_id):
            return local_groups.described(group_id, members)
        loaded = self._groups.loaded(group_id)
        group = loaded.group if loaded is not None else None
        is_known = is_known and not isinstance(group, ConsumerGroup)
        is_missing = not is_known and version >= 6
        return {
            "error_code": BrokerError.GROUP_ID_NOT_FOUND if is_missing else BrokerError.NONE,
            "error_message": f"there is no classic group {group_id}" if is_missing else None,
            "group_id": group_id,
            "group_state": (loaded.state_name if loaded else GroupState.EMPTY.value) if is_known else "Dead",
            "protocol_type": (loaded.protocol_type if loaded else CONSUMER) if is_known else "",
            "protocol_data": (group.protocol if isinstance(group, Group) else None) or "",
            "members": _described_members(group) if isinstance(group, Group) else [],
            "authorized_operations": set(),
        }

    def list(self, call: Call) -> Stepwise[Values]:
        """ListGroups."""
        message = call.message
        states = {state.lower() for state in message.states_filter or ()} if call.version >= 4 else set()
        types = {kind.lower() for kind in message.types_filter or ()} if call.version >= 5 else set()
        groups = []
        for name in (yield from self._groups.known_ids()):
            groups.append(self._listed(name))
            yield None
        kept = [
            group
            for group in groups
            if (not states or group["group_state"].lower() in states) and (not types or group["group_type"] in types)
        ]
        return {"error_code": BrokerError.NONE, "groups": kept}

    def _listed(self, group_id: str) -> Values:
        loaded = self._groups.loaded(group_id)
        return {
            "group_id": group_id,
            "protocol_type": (loaded.protocol_type if loaded else "") or CONSUMER,
            "group_state": self._groups.state_of(group_id),
            "group_type": loaded.group_type if loaded else CLASSIC_TYPE,
        }

    def delete(self, call: Call) -> Stepwise[Values]:
        """DeleteGroups."""
        results = yield from answer_each(
            call.message.groups_names, lambda name: {"group_id": name, "error_code": self._groups.delete(name)}
        )
        return {"results": results}


def _leave_failed(error: BrokerError, call: Call) -> Values:
    """Return the response to LeaveGroup if the group cannot be loaded. An unknown group has no members."""
    if error is not BrokerError.UNKNOWN_MEMBER_ID or call.version < 3:
        return {"error_code": error, "members": []}
    members = [
        {"member_id": one.member_id, "group_instance_id": one.group_instance_id, "error_code": error}
        for one in call.message.members
    ]
    return {"error_code": BrokerError.NONE, "members": members}


def _join_of(call: Call) -> Join:
    message = call.message
    return Join(
        message.member_id,
        message.group_instance_id,
        call.request.client_id,
        "/" + call.host,
        message.session_timeout_ms,
        message.rebalance_timeout_ms if call.version >= 1 else 0,
        message.protocol_type,
        tuple(Protocol(one.name, bytes(one.metadata)) for one in message.protocols),
        is_member_id_required=call.version >= 4,
        can_skip_assignment=call.version >= 9,
    )


def _described_members(group: Group) -> list[Values]:
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.join.client_id,
            "client_host": member.join.client_host,
            "member_metadata": member.metadata(group.protocol),
            "member_assignment": member.assignment,
        }
        for member in group.members.values()
    ]
