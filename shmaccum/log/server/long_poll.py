# SPDX-License-Identifier: Apache-2.0
"""Fetches that wait until a partition grows or their deadline passes. `fetch` then checks their partitions again.

::

    fetch ──> parked, by partition ──┬── partition grew ──> reported, changed ──┐
                                     └── deadline ────────> due ────────────────┴──> `FetchHandler.wake`

Rules: a parked fetch is checked again when one of its partitions grew, and at its deadline. Each deadline is in a heap
once, so a round of the loop does no work for fetches that wait. An entry of an answered fetch is removed when it
reaches the top of the heap, or when such entries are the majority.

How growth is detected: a writer in this process reports each append (`record_append`), from any thread. Appends by
another process are detected with inotify (`log_watch`). If the kernel provides no watch, the server polls every
`UNWATCHED_CHECK_S`.

Why no growth is missed: a fetch is parked first, and then its partitions are checked once more. A writer appends first,
and then looks for parked fetches. At least one of them sees the other.
"""

from __future__ import annotations

import heapq
import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import final

from shmaccum.common import clock
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.log_watch import LogWatch
from shmaccum.log.server.call import Call
from shmaccum.log.server.fetch_frames import FetchRequest
from shmaccum.log.server.sessions import Session
from shmaccum.log.server.steps import Steps
from shmaccum.log.server.topics import LogTopics

WAIT_MAX_MS = 3_600_000
UNWATCHED_CHECK_S = 0.002
"""The polling interval for partitions that have no inotify watch."""
PARKED_PARTITIONS_MAX = 500_000
"""The most partitions of all parked fetches. A fetch beyond this limit is answered at once."""
AT_ONCE_COUNT_MAX = 200
"""The most partitions that are checked without a pause, at about 50 µs each."""
STALE_MAX = 64
"""The number of stale heap entries that is cheaper than a new heap."""


@final
class Fetch:
    """A fetch that is being answered or waits for more records."""

    __slots__ = ("call", "deadline_s", "folders", "is_checking", "may_have_grown", "request", "session", "wanted")

    def __init__(self, call: Call, request: FetchRequest, session: Session | None) -> None:
        self.call = call
        self.request = request
        self.session = session
        self.wanted = request.wanted if session is None else list(session.wanted.values())
        self.folders: list[str] = []
        self.may_have_grown = True
        """True if a partition may have changed since the last check began."""
        self.is_checking = False
        self.deadline_s = call.began_s + min(max(request.max_wait_ms, 0), WAIT_MAX_MS) / 1000

    @property
    def is_large(self) -> bool:
        return len(self.wanted) > AT_ONCE_COUNT_MAX


@final
class LongPoll:
    """The parked fetches of a server.

    Args:
        topics: the topics that the server serves.
        wake: wakes the server's loop; thread-safe.
        has_reports: whether every append is reported by `record_append`, so that inotify is not needed.
    """

    def __init__(self, topics: LogTopics, wake: Callable[[], None], *, has_reports: bool) -> None:
        self._topics = topics
        self._wake = wake
        self._watch = None if has_reports else LogWatch()
        self._parked: dict[Call, Fetch] = {}
        self._size = 0
        self._by_folder: dict[str, dict[Call, Fetch]] = {}
        self._deadlines: list[tuple[float, int, Call]] = []
        self._tickets = itertools.count()
        self._reported: deque[str] = deque()

    # --- parking

    def park(self, parked: Fetch) -> Steps:
        """Parks a fetch, one partition per step. Sets `may_have_grown` if a partition grew meanwhile."""
        if self._size + len(parked.wanted) > PARKED_PARTITIONS_MAX:
            parked.deadline_s = -math.inf
            parked.may_have_grown = True
            return
        self._size += len(parked.wanted)
        self._parked[parked.call] = parked
        self._push_deadline(parked)
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
            if head.refresh():  # it grew between the first check and the watch
                parked.may_have_grown = True
            yield None

    def _push_deadline(self, parked: Fetch) -> None:
        heapq.heappush(self._deadlines, (parked.deadline_s, next(self._tickets), parked.call))
        if len(self._deadlines) > 2 * len(self._parked) + STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._parked]
            heapq.heapify(self._deadlines)

    def has(self, fetch: Fetch) -> bool:
        """Returns whether the fetch is parked."""
        return fetch.call in self._parked

    def drop(self, call: Call) -> None:
        """Removes a parked fetch that was answered or whose client has disconnected."""
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
        """A descriptor that is readable after another process appended, or -1 if there is no watch."""
        return -1 if self._watch is None else self._watch.descriptor

    @property
    def deadline_s(self) -> float:
        """The next time at which a fetch may be `due`, on the clock of time.monotonic()."""
        while self._deadlines and self._deadlines[0][2] not in self._parked:
            heapq.heappop(self._deadlines)
        first_s = self._deadlines[0][0] if self._deadlines else math.inf
        return min(first_s, clock.monotonic() + UNWATCHED_CHECK_S) if self._has_unwatched else first_s

    @property
    def _has_unwatched(self) -> bool:
        return self._watch is not None and self._watch.folder_count < len(self._by_folder)

    def record_append(self, place: TopicPartition) -> None:
        """Reports an append by a writer of this process. Thread-safe; called after the append."""
        folder = os.path.join(self._topics.directory, str(place))
        if folder in self._by_folder:
            self._reported.append(folder)
            if len(self._reported) == 1:
                self._wake()

    def reported(self) -> list[Fetch]:
        """Returns the fetches with partitions that `record_append` has reported."""
        folders = []
        while self._reported:
            folders.append(self._reported.popleft())
        return self._at(folders)

    def changed(self) -> list[Fetch]:
        """Returns the fetches with partitions that inotify has reported."""
        return [] if self._watch is None else self._at(self._watch.changed())

    def _at(self, folders: Iterable[str]) -> list[Fetch]:
        """Returns the fetches that are parked at these folders, without duplicates."""
        return list({call: one for folder in folders for call, one in self._by_folder.get(folder, {}).items()}.values())

    def all(self) -> list[Fetch]:
        """Returns every parked fetch."""
        return list(self._parked.values())

    def due(self) -> list[Fetch]:
        """Returns the fetches whose deadline has passed, or all if a partition has no watch."""
        now_s = clock.monotonic()
        found = self.all() if self._has_unwatched else []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            call = heapq.heappop(self._deadlines)[2]
            if call in self._parked:
                found.append(self._parked[call])
        return found

    def close(self) -> None:
        """Closes the watches."""
        if self._watch is not None:
            self._watch.close()
