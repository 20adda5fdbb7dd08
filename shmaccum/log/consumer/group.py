# SPDX-License-Identifier: Apache-2.0
"""The group of a consumer: its checks of the plan, and its commits."""

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
"""Kafka's defaults."""
BUSY_PAUSE_S_MIN = 0.001
BUSY_PAUSE_S_MAX = 0.05
OUTDATED_S = 60.0
"""A warning is logged if a plan is outdated, or a commit is due, for this time."""
OFFSET_MAX = 2**63 - 1
REVOCATION_TIMEOUT_S = 1.0
"""The time to wait for a commit before partitions are released. Other commits take microseconds."""
METADATA_SIZE_MAX = 4096
"""The maximum size of a commit's metadata in bytes, as for clients of a server."""


class OffsetAndMetadata(NamedTuple):
    """An offset to commit, or a committed one."""

    offset: int
    """The next offset to consume."""
    metadata: str = ""
    leader_epoch: int = -1


class GroupMembership:
    """The membership of one consumer, and its timers.

    Attributes:
        membership: the member.
        pause_s: the time from the last check until this member must check again, or infinity without such a need.
        commit_count: the number of commits.

    Args:
        directory: the log directory.
        options: the options, with a group_id.
        client_id: the prefix of the member's id.
        count_of: returns the current number of partitions of a topic.

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

    def check_plan(self, *, is_checked: bool) -> bool:
        """Check the plan; return False if it is outdated and cannot be replaced yet. Then the next check is soon.

        Args:
            is_checked: True if another member of this process has already checked for dead members.
        """
        self.pause_s = math.inf if self._stopped is None else self._stopped.check(self.membership.others())
        if self.membership.check_plan(is_checked=is_checked):
            self._busy_s = 0.0
            return True
        if not self._busy_s:
            self._current_s = clock.monotonic()
        self._busy_s = min(2 * self._busy_s, BUSY_PAUSE_S_MAX) or BUSY_PAUSE_S_MIN
        self.pause_s = min(self.pause_s, max(self._busy_s, self.membership.pause_s))
        self._warn_of_outdated(clock.monotonic())
        return False

    def _warn_of_outdated(self, now_s: float) -> None:
        """Log a warning once a minute while no member replaces an outdated plan."""
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
        """Commit offsets, and call the interceptors.

        Raises:
            InvalidArgumentError: if an offset is invalid, or its metadata is too long.
            ConsumerStateError, GroupBusyError, OSError: as `Membership.commit`.
        """
        time_ms = time.time_ns() // 1_000_000
        rows = {place: _row(place, given, time_ms) for place, given in offsets.items()}
        self.membership.commit(rows, timeout_s)
        self.commit_count += 1
        for place, row in rows.items():
            self._committed[place] = row.offset
        if self._options.interceptors:
            sent = {place: OffsetAndMetadata(row.offset, row.metadata, row.leader_epoch) for place, row in rows.items()}
            for interceptor in self._options.interceptors:
                _call_on_commit(interceptor, sent)

    def is_commit_due(self) -> bool:
        """True if the interval of automatic commits has passed."""
        return self._options.enable_auto_commit and clock.monotonic() >= self._commit_s

    def auto_commit(self, positions: Mapping[TopicPartition, int], timeout_s: float = 0.0) -> None:
        """With enable_auto_commit, commit the positions that changed since the last commit. Errors are logged.

        If another member is writing all the time, the commit stays due.

        Args:
            positions: the positions after the records that were returned.
            timeout_s: the longest time to wait while another member is writing.
        """
        if not self._options.enable_auto_commit:
            return
        changed = {place: offset for place, offset in positions.items() if self._committed.get(place) != offset}
        try:
            if changed:
                self.commit(changed, timeout_s)
        except GroupBusyError as error:
            self._warn_of_uncommitted(error, timeout_s)
            return
        except (ConsumerError, OSError) as error:
            logger.warning("an automatic commit of the group %r failed: %s", self._options.group_id, error)
        self._commit_s = clock.monotonic() + self._options.auto_commit_interval_ms / 1000
        self._uncommitted_s = math.inf

    def _warn_of_uncommitted(self, error: GroupBusyError, timeout_s: float) -> None:
        """Log a warning when a commit was given up, and once a minute while one is due."""
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
        """The offset at which a new owner starts: the committed offset, or -1."""
        found = self.committed(place)
        self._committed.pop(place, None)
        return -1 if found is None else found.offset


def _call_on_commit(interceptor: Any, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
    """Call on_commit. As in Kafka, an error of the interceptor is ignored."""
    method = getattr(interceptor, "on_commit", None)
    if method is not None:
        try:
            method(offsets)
        except Exception:
            logger.exception("the interceptor %r failed in on_commit and was skipped", interceptor)


def _row(place: TopicPartition, given: Any, time_ms: int) -> Committed:
    """The row for a whole number, or for an object such as kafka-python's OffsetAndMetadata."""
    if type(given) is int and 0 <= given <= OFFSET_MAX:
        return Committed(given, -1, "", time_ms)
    offset = getattr(given, "offset", given)
    metadata = getattr(given, "metadata", "") or ""
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
        raise InvalidArgumentError(f"the offset of {place} to commit must be 0 or more, got {given!r}")
    if not isinstance(metadata, str) or len(metadata.encode()) > METADATA_SIZE_MAX:
        raise InvalidArgumentError(f"the metadata of {place} must be a str of at most {METADATA_SIZE_MAX} bytes")
    epoch = getattr(given, "leader_epoch", -1)
    return Committed(offset, epoch if isinstance(epoch, int) else -1, metadata, time_ms)
