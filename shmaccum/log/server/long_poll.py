# SPDX-License-Identifier: Apache-2.0
"""Fetches of all clients: answered at once, or parked until a partition grows or their time is over.

::

    fetch ──> enough? ──> answer
                └──> parked, by partition ── partition grew ──> asked again ──> answer
                            └─────────────── deadline ───────────────────────> answer

Rules: a parked fetch is asked again when one of its partitions grew, and at its deadline. Each deadline lies once in a
heap, so a round costs nothing for the fetches that wait. An entry of the heap whose fetch was answered is dropped when
it comes to the top, or when most entries are such.

How growth is heard: the writer in this process tells of each append (`tell`), from any thread. A writer in another
process is heard by inotify (`log_watch`); where the kernel gives no watch, the server looks every `UNWATCHED_LOOK_S`.

Why no growth is missed: a fetch is parked first and looks at its partitions once more after that. A writer appends
first and looks for parked fetches after that. One of both sees the other.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Sequence
from typing import final

from shmaccum.common import clock
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.server.access import TOPIC_REFUSED, readable
from shmaccum.log.server.call import Call
from shmaccum.log.server.fetching import (
    NO_SESSION,
    FetchRequest,
    Ordinary,
    PartitionRecords,
    Served,
    Wanted,
    find,
    find_each,
    is_enough,
    read_request,
    write_answer,
)
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.numbers import ServerNumbers
from shmaccum.log.server.sessions import Session, Sessions
from shmaccum.log.server.steps import Steps, Stepwise, take_all
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.users import ANYBODY, User

WAIT_MAX_MS = 3_600_000
UNWATCHED_LOOK_S = 0.002
"""How often a partition is looked at that the kernel does not tell about."""
PARKED_PARTITIONS_MAX = 500_000
"""Partitions of all parked fetches; a fetch beyond them is answered at once with what there is."""
AT_ONCE_COUNT_MAX = 200
"""Partitions of a fetch that is looked at without a pause: some 50 µs each."""
STALE_MAX = 64
"""Entries of the heap, beside those of parked fetches, that cost less than a new heap."""


@final
class _Fetch:
    """A fetch that is answered, or waits for more."""

    __slots__ = ("call", "deadline_s", "folders", "has_news", "is_looking", "request", "session", "wanted")

    def __init__(self, call: Call, request: FetchRequest, session: Session | None) -> None:
        self.call = call
        self.request = request
        self.session = session
        self.wanted = request.wanted if session is None else list(session.wanted.values())
        self.folders: list[str] = []
        self.has_news = self.is_large
        """A partition may have grown since the last look at it began."""
        self.is_looking = False
        self.deadline_s = call.began_s + min(max(request.max_wait_ms, 0), WAIT_MAX_MS) / 1000

    @property
    def is_large(self) -> bool:
        return len(self.wanted) > AT_ONCE_COUNT_MAX


@final
class LongPoll:
    """All fetches of a server.

    Attributes:
        ordinary: the tables by which C answers ordinary fetches.

    Args:
        topics: the topics that the server serves.
        ring: wakes the server's loop, from any thread.
        numbers: where the bytes are counted that clients fetch.
        fail: ends the connection of a parked fetch that cannot be answered; the fetch is forgotten by then.
        is_told: every append is told by `tell`, so the kernel need not be asked.
    """

    def __init__(
        self,
        topics: LogTopics,
        ring: Callable[[], None],
        numbers: ServerNumbers,
        *,
        fail: Callable[[Call, Exception], None],
        is_told: bool,
    ) -> None:
        self._topics = topics
        self._numbers = numbers
        self._ring = ring
        self._fail = fail
        self._watch = None if is_told else LogWatch()
        self._sessions = Sessions()
        self.ordinary = Ordinary(topics.heads, self._sessions.goes_on)
        self._parked: dict[Call, _Fetch] = {}
        self._size = 0
        self._by_folder: dict[str, dict[Call, _Fetch]] = {}
        self._deadlines: list[tuple[float, int, Call]] = []
        self._tickets = itertools.count()
        self._told: deque[str] = deque()

    # --- requests

    def fetch(self, call: Call) -> None:
        """Fetch: answers now, or parks it."""
        request = read_request(call.request)
        session = self._sessions.of(request)
        if isinstance(session, BrokerError):
            call.answer_with(write_answer(call.request, [], error=session))
            return
        fetch = _Fetch(call, request, session)
        if fetch.is_large:
            call.work(self._fetch_in_steps(fetch))
        elif not self._try_answer(fetch):
            take_all(self._park_in_steps(fetch))
            if fetch.has_news:
                self._ask_again(fetch)

    def _fetch_in_steps(self, fetch: _Fetch) -> Steps:
        """A fetch of many partitions: each is a step, of the look at it and of its parking."""
        fetch.is_looking = True
        try:
            if (yield from self._look(fetch)):
                return
            yield from self._park_in_steps(fetch)
            if (yield from self._look(fetch)):
                self.drop(fetch.call)
        finally:
            fetch.is_looking = False

    def _look(self, fetch: _Fetch) -> Stepwise[bool]:
        """Looks at every partition as long as there are news; True when the fetch is answered."""
        while fetch.has_news:
            fetch.has_news = False
            found = []
            for one in find_each(fetch.request, fetch.wanted, self._head_of(fetch)):
                found.append(one)
                yield None
            if self._answer_if_enough(fetch, found):
                return True
        return False

    def _try_answer(self, fetch: _Fetch) -> bool:
        """Answers a fetch when there is enough, or when its time is over."""
        return self._answer_if_enough(fetch, find(fetch.request, fetch.wanted, self._head_of(fetch)))

    def _head_of(self, fetch: _Fetch) -> Callable[[Wanted], LogHead | BrokerError | None]:
        return functools.partial(self._readable_head, fetch.call.user, fetch.request.is_committed)

    def _answer_if_enough(self, fetch: _Fetch, found: list[PartitionRecords]) -> bool:
        call, request, session = fetch.call, fetch.request, fetch.session
        if not is_enough(request, found) and fetch.deadline_s > clock.monotonic():
            return False
        told = found if session is None else session.news(found)
        session_id = NO_SESSION if session is None else session.session_id
        self._count(told)
        call.answer_with(write_answer(call.request, told, session_id=session_id))
        return True

    def note_served(self, served: Served) -> None:
        """Takes over what an ordinary fetch changes, which C has answered."""
        self._count(served.found)
        if served.request.session_id != NO_SESSION:
            session = self._sessions.of(served.request)
            if isinstance(session, Session):
                session.news(served.found)

    def _count(self, told: Sequence[PartitionRecords]) -> None:
        for one in told:
            if one.records is not None:
                self._numbers.note_fetched(self._topics.name_of_key(one.wanted.topic) or "", one.records.size)

    def _readable_head(self, user: User, is_committed: bool, wanted: Wanted) -> LogHead | BrokerError | None:
        if user is not ANYBODY and not readable(user, wanted.topic, self._topics):
            return TOPIC_REFUSED
        head = self._topics.head(wanted.topic, wanted.partition)
        if head is not None and wanted.offset >= head.readable_end(is_committed=is_committed):
            head.refresh()
        return head

    # --- parking

    def _park_in_steps(self, parked: _Fetch) -> Steps:
        """Parks a fetch; it has news where something happened to it meanwhile."""
        if self._size + len(parked.wanted) > PARKED_PARTITIONS_MAX:
            parked.deadline_s = -math.inf
            parked.has_news = True
            return
        self._size += len(parked.wanted)
        self._parked[parked.call] = parked
        self._note_deadline(parked)
        heads = []
        for one in parked.wanted:
            if (head := self._topics.head(one.topic, one.partition)) is not None:
                heads.append(head)
                parked.folders.append(head.folder)
                self._by_folder.setdefault(head.folder, {})[parked.call] = parked
                if self._watch is not None:
                    self._watch.add(head.folder)
            yield None
        for head in heads:
            if head.refresh():  # it grew between the first look and the watch
                parked.has_news = True
            yield None

    def _note_deadline(self, parked: _Fetch) -> None:
        heapq.heappush(self._deadlines, (parked.deadline_s, next(self._tickets), parked.call))
        if len(self._deadlines) > 2 * len(self._parked) + STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._parked]
            heapq.heapify(self._deadlines)

    def _ask_again(self, parked: _Fetch) -> None:
        if parked.is_large:
            self._ask_large_again(parked)
            return
        try:
            is_over = self._try_answer(parked)
        except Exception as error:  # noqa: BLE001 - no other fetch is to blame for it
            self.drop(parked.call)
            self._fail(parked.call, error)
            return
        if is_over:
            self.drop(parked.call)

    def _ask_large_again(self, parked: _Fetch) -> None:
        parked.has_news = True
        if parked.is_looking:
            return
        try:
            parked.call.work(self._look_again(parked))
        except Exception as error:  # noqa: BLE001 - no other fetch is to blame for it
            self.drop(parked.call)
            self._fail(parked.call, error)

    def _look_again(self, parked: _Fetch) -> Steps:
        parked.is_looking = True
        try:
            if (yield from self._look(parked)):
                self.drop(parked.call)
        finally:
            parked.is_looking = False

    def drop(self, call: Call) -> None:
        """Forgets a parked fetch: it is answered, or its client is gone."""
        parked = self._parked.pop(call, None)
        self._size -= 0 if parked is None else len(parked.wanted)
        for folder in [] if parked is None else parked.folders:
            calls = self._by_folder.get(folder, {})
            calls.pop(call, None)
            if not calls and self._by_folder.pop(folder, None) is not None and self._watch is not None:
                self._watch.remove(folder)

    # --- waking

    @property
    def descriptor(self) -> int:
        """Readable when another process appended; -1: the kernel tells nothing."""
        return -1 if self._watch is None else self._watch.descriptor

    @property
    def deadline_s(self) -> float:
        """When `end_waits` has something to do at the latest, on the clock of time.monotonic()."""
        while self._deadlines and self._deadlines[0][2] not in self._parked:
            heapq.heappop(self._deadlines)
        first_s = self._deadlines[0][0] if self._deadlines else math.inf
        return min(first_s, clock.monotonic() + UNWATCHED_LOOK_S) if self._has_unwatched else first_s

    @property
    def _has_unwatched(self) -> bool:
        return self._watch is not None and self._watch.folder_count < len(self._by_folder)

    def tell(self, place: TopicPartition) -> None:
        """A writer of this process appended to a partition; from any thread, after the append."""
        folder = os.path.join(self._topics.directory, str(place))
        if folder in self._by_folder:
            self._told.append(folder)
            if len(self._told) == 1:
                self._ring()

    def take_told(self) -> None:
        """Asks the fetches again whose partitions a writer of this process told about."""
        while self._told:
            self._ask_again_at({self._told.popleft()})

    def note_growth(self) -> None:
        """Asks the fetches again whose partitions the kernel told about."""
        if self._watch is not None:
            self._ask_again_at(self._watch.changed())

    def _ask_again_at(self, folders: set[str]) -> None:
        calls = dict.fromkeys(call for folder in folders for call in self._by_folder.get(folder, ()))
        for call in calls:
            if (parked := self._parked.get(call)) is not None:
                self._ask_again(parked)

    def ask_all_again(self) -> None:
        """Answers each parked fetch that has an answer by now."""
        for parked in list(self._parked.values()):
            self._ask_again(parked)

    def end_waits(self) -> None:
        """Answers the fetches that have waited for long enough; looks where the kernel tells nothing."""
        now_s = clock.monotonic()
        if self._has_unwatched:
            self.ask_all_again()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            call = heapq.heappop(self._deadlines)[2]
            if call in self._parked:
                self._ask_again(self._parked[call])

    def close(self) -> None:
        """Lets go of the watches."""
        if self._watch is not None:
            self._watch.close()
