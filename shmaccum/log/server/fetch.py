# SPDX-License-Identifier: Apache-2.0
"""Fetch: the requested records of each partition, as ranges of files.

::

    request ──> session ──> records of each partition ──> enough? ──> response
                                   ^                         └──> parked (long_poll)
                                   └── a partition grew, or the deadline ──┘

The limits are Kafka's: the first batch is always returned, whatever its size. A fetch of committed records ends at the
last stable offset. Its response lists the aborted transactions, whose records the client drops.

C answers ordinary fetches itself (native/python/log/serve_fetch.c), with the same decisions as this module. This module
answers all other fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import final

from shmaccum.common import clock
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.access import TOPIC_REFUSED, readable
from shmaccum.log.server.call import Call, Result
from shmaccum.log.server.fetch_frames import (
    NO_SESSION,
    FetchRequest,
    FetchTables,
    PartitionRecords,
    Piece,
    Served,
    Wanted,
    read_request,
    write_response,
)
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.long_poll import Fetch, LongPoll
from shmaccum.log.server.numbers import ServerNumbers
from shmaccum.log.server.sessions import Session, Sessions
from shmaccum.log.server.steps import Stepwise, take_all
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.users import ANONYMOUS

Head = LogHead | BrokerError | None
"""A partition; or the reason why it may not be fetched; or None, if it does not exist."""


@final
class FetchHandler:
    """Handles all fetches of a server.

    Attributes:
        ordinary: the tables with which C answers ordinary fetches.

    Args:
        topics: the topics that the server serves.
        polls: where fetches wait.
        numbers: counts the bytes that clients fetch.
    """

    def __init__(self, topics: LogTopics, polls: LongPoll, numbers: ServerNumbers) -> None:
        self._topics = topics
        self._polls = polls
        self._numbers = numbers
        self._sessions = Sessions()
        self.ordinary = FetchTables(topics.heads, self._sessions.continued)

    def handle(self, call: Call) -> Result:
        """Fetch: responds now, or in steps if it has many partitions, or parks it."""
        request = read_request(call.request)
        session = self._sessions.of(request)
        if isinstance(session, BrokerError):
            return write_response(call.request, [], error=session)
        fetch = Fetch(call, request, session)
        steps = self._answer_or_park(fetch)
        return steps if fetch.is_large else take_all(steps)

    def wake(self, fetches: Iterable[Fetch]) -> None:
        """Checks the partitions of parked fetches again, and completes each fetch that has a response now."""
        for fetch in fetches:
            fetch.may_have_grown = True
            if not fetch.is_checking and self._polls.has(fetch):
                fetch.call.complete(self._answer_parked(fetch))

    def drop(self, call: Call) -> None:
        """Drops a waiting fetch whose client has disconnected."""
        self._polls.drop(call)

    def record_served(self, served: Served) -> None:
        """Applies the state changes of an ordinary fetch that C has answered."""
        self._count(served.found)
        session = self._sessions.of(served.request)
        if isinstance(session, Session):
            session.changes(served.found)

    def _answer_or_park(self, fetch: Fetch) -> Stepwise[list[Piece] | None]:
        """Checks the partitions, and parks the fetch if it has no response yet. Each step handles one partition."""
        fetch.is_checking = True
        try:
            response = yield from self._check(fetch)
            if response is None:
                yield from self._polls.park(fetch)
                response = yield from self._answer_parked(fetch)
            return response
        finally:
            fetch.is_checking = False

    def _answer_parked(self, fetch: Fetch) -> Stepwise[list[Piece] | None]:
        fetch.is_checking = True
        try:
            response = yield from self._check(fetch)
            if response is not None:
                self._polls.drop(fetch.call)
            return response
        finally:
            fetch.is_checking = False

    def _check(self, fetch: Fetch) -> Stepwise[list[Piece] | None]:
        """Returns the response, or None. Checks every partition until no partition has grown during the check."""
        while fetch.may_have_grown:
            fetch.may_have_grown = False
            found = []
            for one in find_each(fetch.request, ((wanted, self._head(fetch, wanted)) for wanted in fetch.wanted)):
                found.append(one)
                yield None
            if is_enough(fetch.request, found) or fetch.deadline_s <= clock.monotonic():
                return self._response(fetch, found)
        return None

    def _head(self, fetch: Fetch, wanted: Wanted) -> Head:
        user = fetch.call.user
        if user is not ANONYMOUS and not readable(user, wanted.topic, self._topics):
            return TOPIC_REFUSED
        head = self._topics.head(wanted.topic, wanted.partition)
        if head is not None and wanted.offset >= head.readable_end(is_committed=fetch.request.is_committed):
            head.refresh()
        return head

    def _response(self, fetch: Fetch, found: list[PartitionRecords]) -> list[Piece]:
        session = fetch.session
        changed = found if session is None else session.changes(found)
        self._count(changed)
        return write_response(
            fetch.call.request, changed, session_id=NO_SESSION if session is None else session.session_id
        )

    def _count(self, changed: Sequence[PartitionRecords]) -> None:
        for one in changed:
            if one.records is not None:
                self._numbers.count_fetched(self._topics.name_of_key(one.wanted.topic) or "", one.records.size)


# --- records of the log


def find_each(request: FetchRequest, wanted: Iterable[tuple[Wanted, Head]]) -> Iterator[PartitionRecords]:
    """Yield the records of each partition, within the limits of the request."""
    left, is_first = request.max_bytes, True
    for each, head in wanted:
        one = _find_one(request, each, head, left, is_first=is_first)
        if one.records is not None:
            is_first = False
            left = max(left - one.records.size, 0)
        yield one


def _find_one(request: FetchRequest, wanted: Wanted, head: Head, left: int, *, is_first: bool) -> PartitionRecords:
    if head is None:
        is_by_id = isinstance(wanted.topic, bytes)
        head = BrokerError.UNKNOWN_TOPIC_ID if is_by_id else BrokerError.UNKNOWN_TOPIC_OR_PARTITION
    if isinstance(head, BrokerError):
        return PartitionRecords(wanted, head)
    if (problem := head.epoch_problem(wanted.leader_epoch)) is not None:
        return PartitionRecords(wanted, problem)
    size_max = max(min(wanted.size_max, left), 0)
    return _find_records(wanted, head, size_max, is_first=is_first, is_committed=request.is_committed)


def _find_records(
    wanted: Wanted, head: LogHead, size_max: int, *, is_first: bool, is_committed: bool
) -> PartitionRecords:
    readable_end = head.readable_end(is_committed=is_committed)
    is_asked = wanted.offset < readable_end and (size_max > 0 or is_first)
    ranged = head.file_range(wanted.offset, size_max, readable_end) if is_asked else None
    start_offset, end_offset = head.start_offset, head.end_offset  # read now, because `file_range` may have moved them
    stable_offset = head.stable_offset
    if not start_offset <= wanted.offset <= end_offset:
        return PartitionRecords(wanted, BrokerError.OFFSET_OUT_OF_RANGE, end_offset, start_offset, None, stable_offset)
    if is_asked and ranged is None:
        return PartitionRecords(wanted, BrokerError.CORRUPT_MESSAGE, end_offset, start_offset, None, stable_offset)
    has_room = ranged is not None and (is_first or ranged[1] <= size_max)
    records = ranged[0] if ranged is not None and has_room else None
    aborted = head.aborted(wanted.offset, records, readable_end) if is_committed and records is not None else ()
    return PartitionRecords(wanted, BrokerError.NONE, end_offset, start_offset, records, stable_offset, aborted)


def is_enough(request: FetchRequest, found: Sequence[PartitionRecords]) -> bool:
    """Return whether to respond without waiting: an error, enough bytes, or nothing to wait for."""
    has_error = any(each.error is not BrokerError.NONE for each in found)
    return has_error or not found or sum(each.size for each in found) >= request.min_bytes
