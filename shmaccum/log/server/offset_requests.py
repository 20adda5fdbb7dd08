# SPDX-License-Identifier: Apache-2.0
"""The requests about offsets of groups: OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.groups.offsets_file import Committed
from shmaccum.log.server.call import Call, Values, partition_errors
from shmaccum.log.server.consumer_group import ConsumerGroup
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.steps import Stepwise

STABLE_VERSION = 7
"""From this version of OffsetFetch on, a client may request only offsets that no open transaction can change."""
GENERATION_VERSION = 9
"""From this version of OffsetCommit on, an unknown group gives GROUP_ID_NOT_FOUND."""
NO_OFFSET = Committed(-1, -1, "", 0)


@final
class OffsetRequests:
    """Handles requests about the offsets of groups."""

    def __init__(self, groups: Coordinator) -> None:
        self._groups = groups

    def commit(self, call: Call) -> Stepwise[Values]:
        """OffsetCommit: writes the valid offsets to the file, as one frame, before the response is sent."""
        message = call.message
        offsets, errors = yield from self._groups.checked_offsets(message, has_epochs=call.version >= 6)
        loaded = self._groups.load_for_commit(
            message.group_id, message.generation_id_or_member_epoch, has_not_found=call.version >= GENERATION_VERSION
        )
        if isinstance(loaded, BrokerError):
            group_error = loaded
        else:
            epoch = message.generation_id_or_member_epoch
            group_error = loaded.group.commit_problem(
                message.member_id, message.group_instance_id, epoch, self._groups.now_ms()
            )
            if group_error is BrokerError.NONE:
                try:
                    loaded.file.commit(offsets)
                except OSError:
                    errors.update(dict.fromkeys(offsets, BrokerError.KAFKA_STORAGE_ERROR))
            self._groups.release_unused(loaded)
        found = {} if group_error is not BrokerError.NONE else errors
        return {"topics": [partition_errors(topic, found, group_error) for topic in message.topics]}

    def fetch(self, call: Call) -> Stepwise[Values]:
        """OffsetFetch of one group or, from version 8 on, several."""
        message = call.message
        if call.version >= 8:
            groups = []
            for group in message.groups:
                found = yield from self._fetched_group(group, call)
                groups.append(found)
                yield None
            return {"groups": groups}
        else:
            is_stable = call.version >= STABLE_VERSION and message.require_stable
            error, topics = yield from self._fetched(message.group_id, message.topics, is_stable=is_stable)
            return {"error_code": error, "topics": topics}

    def _fetched_group(self, group: Any, call: Call) -> Stepwise[Values]:
        problem = self._epoch_problem(group) if call.version >= 9 else BrokerError.NONE
        if problem is not BrokerError.NONE:
            return {"group_id": group.group_id, "topics": [], "error_code": problem}
        is_stable = call.message.require_stable
        error, topics = yield from self._fetched(group.group_id, group.topics, is_stable=is_stable)
        return {"group_id": group.group_id, "topics": topics, "error_code": error}

    def _epoch_problem(self, asked: Any) -> BrokerError:
        """Returns whether a KIP-848 member has this epoch. Other requests are not checked."""
        loaded = self._groups.loaded(asked.group_id)
        if asked.member_epoch < 0 or loaded is None or not isinstance(loaded.group, ConsumerGroup):
            return BrokerError.NONE
        return loaded.group.epoch_problem(asked.member_id or "", asked.member_epoch)

    def _fetched(
        self, group_id: str, topics: Iterable[Any] | None, *, is_stable: bool
    ) -> Stepwise[tuple[BrokerError, list[Values]]]:
        """Returns the offsets of a group, by topic.

        Args:
            group_id: the group.
            topics: the requested topics. None means all topics with an offset.
            is_stable: whether an offset that an open transaction may change gives an error (KIP-447).
        """
        try:
            file = self._groups.file_of(group_id)
            offsets = {} if file is None else file.offsets
        except (CorruptLogError, OSError):
            return BrokerError.COORDINATOR_NOT_AVAILABLE, []
        asked = (
            sorted(offsets)
            if topics is None
            else [TopicPartition(topic.name, number) for topic in topics for number in topic.partition_indexes]
        )
        found: dict[str, list[Values]] = {}
        for place in asked:
            is_unstable = is_stable and file is not None and file.is_pending(place)
            found.setdefault(place.topic, []).append(_offset_values(place, offsets, is_unstable=is_unstable))
            yield None
        return BrokerError.NONE, [{"name": topic, "partitions": partitions} for topic, partitions in found.items()]

    def delete(self, call: Call) -> Stepwise[Values]:
        """OffsetDelete (KIP-496): rejected while the group has members."""
        message = call.message
        places: set[TopicPartition] = set()
        for topic in message.topics:
            for one in topic.partitions:
                places.add(TopicPartition(topic.name, one.partition_index))
                yield None
        loaded = self._groups.load_known(message.group_id, BrokerError.GROUP_ID_NOT_FOUND, has_members=False)
        if isinstance(loaded, BrokerError):
            return {"error_code": loaded, "topics": []}
        error = BrokerError.GROUP_SUBSCRIBED_TO_TOPIC if loaded.group.members else BrokerError.NONE
        if error is BrokerError.NONE:
            loaded.file.forget(places)
        return {
            "error_code": BrokerError.NONE,
            "topics": [partition_errors(topic, {}, error) for topic in message.topics],
        }


def _offset_values(place: TopicPartition, offsets: Mapping[TopicPartition, Committed], *, is_unstable: bool) -> Values:
    found = NO_OFFSET if is_unstable else offsets.get(place, NO_OFFSET)
    return {
        "partition_index": place.partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": BrokerError.UNSTABLE_OFFSET_COMMIT if is_unstable else BrokerError.NONE,
    }
