# SPDX-License-Identifier: Apache-2.0
"""The group of a consumer: its looks at the plan, and its commits."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shmaccum.common import clock
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config.consumer import ConsumerOptions
from shmaccum.exceptions import ConsumerError, GroupBusyError, InvalidArgumentError
from shmaccum.log.groups.membership import Assignors, Membership
from shmaccum.log.groups.offsets_file import Committed
from shmaccum.log.groups.stopped import StoppedWatch

logger = logging.getLogger(__name__)

ASSIGNORS = ("range", "cooperative-sticky")
"""Kafka's default."""
BUSY_PAUSE_S_MIN = 0.001
BUSY_PAUSE_S_MAX = 0.05
OUTDATED_S = 60.0
"""A plan that is outdated for so long is told of, and so is a commit that is due."""
OFFSET_MAX = 2**63 - 1
REVOCATION_TIMEOUT_S = 1.0
"""A consumer that gives partitions up waits so long to commit their offsets. Other commits take microseconds."""
METADATA_SIZE_MAX = 4096
"""Bytes of the metadata of a commit, as for clients of a server."""


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, or a committed one."""

    offset: int
    """The next one to consume."""
    metadata: str = ""
    leader_epoch: int = -1


class GroupMembership:
    """The membership of one consumer, and its timers.

    Attributes:
        membership: the member.
        pause_s: the time from the last look until this member wants to look again; infinity: at news.
        commit_count: how many commits were made.

    Args:
        directory: the log directory.
        options: with a group_id.
        client_id: the beginning of the member's id.
        count_of: the number of partitions of a topic, now.

    Raises:
        GroupModeError, LogForbiddenError, InvalidArgumentError, ConsumerStateError, CorruptLogError, OSError: as
            `Membership`.
    """

    def __init__(
        self, directory: str, options: ConsumerOptions, client_id: str, count_of: Callable[[str], int]
    ) -> None:
        assert options.group_id is not None
        self._options = options
        self.pause_s = math.inf
        self._busy_s = 0.0
        self._current_s = clock.monotonic()
        self.commit_count = 0
        self._commit_s = clock.monotonic() + options.auto_commit_interval_ms / 1000
        self._uncommitted_s = math.inf
        self._committed: dict[TopicPartition, int] = {}
        self.membership = Membership(
            directory,
            options.group_id,
            count_of=count_of,
            assignors=Assignors.of(options.partition_assignment_strategy or ASSIGNORS),
            client_id=client_id,
            instance_id=options.group_instance_id,
            session_timeout_ms=options.session_timeout_ms,
        )
        self._stopped: StoppedWatch | None = None
        if options.replace_stalled_ms is not None:
            self._stopped = StoppedWatch(options.group_id, self.membership.locks.path, options.replace_stalled_ms)

    def look(self, *, is_told: bool) -> bool:
        """Looks at the plan; False when it is outdated and cannot be replaced yet. The next look follows soon then.

        Args:
            is_told: another member of this process has looked for the dead.
        """
        self.pause_s = math.inf if self._stopped is None else self._stopped.look(self.membership.others())
        if self.membership.look(is_told=is_told):
            self._busy_s = 0.0
            return True
        if not self._busy_s:
            self._current_s = clock.monotonic()
        self._busy_s = min(2 * self._busy_s, BUSY_PAUSE_S_MAX) or BUSY_PAUSE_S_MIN
        self.pause_s = min(self.pause_s, max(self._busy_s, self.membership.pause_s))
        self._tell_of_outdated(clock.monotonic())
        return False

    def _tell_of_outdated(self, now_s: float) -> None:
        """Warns once a minute while nobody replaces an outdated plan."""
        if now_s - self._current_s >= OUTDATED_S:
            self._current_s = now_s
            logger.warning(
                "the plan of the group %r has been outdated for %g s, because its planner does not run: "
                "continue it or kill it%s",
                self._options.group_id,
                OUTDATED_S,
                self.membership.stopped(),
            )

    # --- offsets

    def commit(self, offsets: Mapping[TopicPartition, Any], timeout_s: float) -> None:
        """Commits offsets; tells the interceptors.

        Raises:
            InvalidArgumentError: one of them is no offset, or its metadata are too long.
            ConsumerStateError, GroupBusyError, OSError: as `Membership.commit`.
        """
        time_ms = time.time_ns() // 1_000_000
        rows = {place: _row(place, given, time_ms) for place, given in offsets.items()}
        self.membership.commit(rows, timeout_s)
        self.commit_count += 1
        for place, row in rows.items():
            self._committed[place] = row.offset
        if self._options.interceptors:
            told = {place: OffsetAndMetadata(row.offset, row.metadata, row.leader_epoch) for place, row in rows.items()}
            for interceptor in self._options.interceptors:
                _tell(interceptor, told)

    def is_commit_due(self) -> bool:
        """True when the interval of automatic commits is over."""
        return self._options.enable_auto_commit and clock.monotonic() >= self._commit_s

    def commit_by_itself(self, positions: Mapping[TopicPartition, int], timeout_s: float = 0.0) -> None:
        """Commits the positions that changed since the last commit, with enable_auto_commit; errors are logged.

        Where another member writes all the time, the commit stays due.

        Args:
            positions: of the records that were handed out.
            timeout_s: the longest wait for another member that writes.
        """
        if not self._options.enable_auto_commit:
            return
        changed = {place: offset for place, offset in positions.items() if self._committed.get(place) != offset}
        try:
            if changed:
                self.commit(changed, timeout_s)
        except GroupBusyError as error:
            self._tell_of_uncommitted(error, timeout_s)
            return
        except (ConsumerError, OSError) as error:
            logger.warning("an automatic commit of the group %r failed: %s", self._options.group_id, error)
        self._commit_s = clock.monotonic() + self._options.auto_commit_interval_ms / 1000
        self._uncommitted_s = math.inf

    def _tell_of_uncommitted(self, error: GroupBusyError, timeout_s: float) -> None:
        """Warns when a commit was given up, and once a minute while one is due."""
        now_s = clock.monotonic()
        self._uncommitted_s = min(self._uncommitted_s, now_s)
        if timeout_s > 0 or now_s - self._uncommitted_s >= OUTDATED_S:
            self._uncommitted_s = now_s
            hint = "" if timeout_s > 0 else self.membership.stopped()
            logger.warning("an automatic commit of the group %r failed: %s%s", self._options.group_id, error, hint)

    def committed(self, place: TopicPartition) -> OffsetAndMetadata | None:
        """The committed offset of a partition."""
        found = self.membership.committed(place)
        return None if found is None else OffsetAndMetadata(found.offset, found.metadata, found.leader_epoch)

    def start_of(self, place: TopicPartition) -> int:
        """Where a new owner begins: the committed offset, -1 without one."""
        found = self.committed(place)
        self._committed.pop(place, None)
        return -1 if found is None else found.offset


def _tell(interceptor: Any, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Calls on_commit. As in Kafka, an interceptor that fails is passed over."""
    told = getattr(interceptor, "on_commit", None)
    if told is not None:
        try:
            told(offsets)
        except Exception:
            logger.exception("the interceptor %r failed in on_commit and was passed over", interceptor)


def _row(place: TopicPartition, given: Any, time_ms: int) -> Committed:
    """The row of a whole number, or of an object such as kafka-python's OffsetAndMetadata."""
    if type(given) is int and 0 <= given <= OFFSET_MAX:
        return Committed(given, -1, "", time_ms)
    offset = getattr(given, "offset", given)
    metadata = getattr(given, "metadata", "") or ""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
        raise InvalidArgumentError(f"the offset of {place} to commit must be 0 or more, got {given!r}")
    if not isinstance(metadata, str) or len(metadata.encode()) > METADATA_SIZE_MAX:
        raise InvalidArgumentError(f"the metadata of {place} must be a text of at most {METADATA_SIZE_MAX} bytes")
    epoch = getattr(given, "leader_epoch", -1)
    return Committed(offset, epoch if isinstance(epoch, int) else -1, metadata, time_ms)
