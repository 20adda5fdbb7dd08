# SPDX-License-Identifier: Apache-2.0
"""Fetches that wait: parked until a partition grows or their time is over. `fetch` looks at their partitions again.

::

    fetch ──> parked, by partition ──┬── partition grew ──> told, grown ──┐
                                     └── deadline ────────> due ──────────┴──> `FetchHandler.wake`

Rules: a parked fetch is asked again when one of its partitions grew, and at its deadline. Each deadline lies once in a
heap, so a round costs nothing for the fetches that wait. An entry of the heap whose fetch was answered is dropped when
it comes to the top, or when most entries are such.

How growth is heard: the writer in this process tells of each append (`tell`), from any thread. A writer in another
process is heard by inotify (`log_watch`); where the kernel gives no watch, the server looks every `UNWATCHED_LOOK_S`.

Why no growth is missed: a fetch is parked first and looks at its partitions once more after that. A writer appends
first and looks for parked fetches after that. One of both sees the other.
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
UNWATCHED_LOOK_S = 0.002
"""How often a partition is looked at that the kernel does not tell about."""
PARKED_PARTITIONS_MAX = 500_000
"""Partitions of all parked fetches; a fetch beyond them is answered at once with what there is."""
AT_ONCE_COUNT_MAX = 200
"""Partitions of a fetch that is looked at without a pause: some 50 µs each."""
STALE_MAX = 64
"""Entries of the heap, beside those of parked fetches, that cost less than a new heap."""


@final
class Fetch:
    """A fetch that is answered, or waits for more."""

    __slots__ = ("call", "deadline_s", "folders", "has_news", "is_looking", "request", "session", "wanted")

    def __init__(self, call: Call, request: FetchRequest, session: Session | None) -> None:
        self.call = call
        self.request = request
        self.session = session
        self.wanted = request.wanted if session is None else list(session.wanted.values())
        self.folders: list[str] = []
        self.has_news = True
        """A partition may have grown since the last look at it began."""
        self.is_looking = False
        self.deadline_s = call.began_s + min(max(request.max_wait_ms, 0), WAIT_MAX_MS) / 1000

    @property
    def is_large(self) -> bool:
        return len(self.wanted) > AT_ONCE_COUNT_MAX


@final
class LongPoll:
    """The fetches of a server that wait.

    Args:
        topics: the topics that the server serves.
        ring: wakes the server's loop, from any thread.
        is_told: every append is told by `tell`, so the kernel need not be asked.
    """

    def __init__(self, topics: LogTopics, ring: Callable[[], None], *, is_told: bool) -> None:
        self._topics = topics
        self._ring = ring
        self._watch = None if is_told else LogWatch()
        self._parked: dict[Call, Fetch] = {}
        self._size = 0
        self._by_folder: dict[str, dict[Call, Fetch]] = {}
        self._deadlines: list[tuple[float, int, Call]] = []
        self._tickets = itertools.count()
        self._told: deque[str] = deque()

    # --- parking

    def park(self, parked: Fetch) -> Steps:
        """Parks a fetch, each partition in a step. It has news if something happened to it meanwhile."""
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

    def _note_deadline(self, parked: Fetch) -> None:
        heapq.heappush(self._deadlines, (parked.deadline_s, next(self._tickets), parked.call))
        if len(self._deadlines) > 2 * len(self._parked) + STALE_MAX:
            self._deadlines = [entry for entry in self._deadlines if entry[2] in self._parked]
            heapq.heapify(self._deadlines)

    def has(self, fetch: Fetch) -> bool:
        """True while the fetch is parked."""
        return fetch.call in self._parked

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
        """When a fetch is `due` at the latest, on the clock of time.monotonic()."""
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

    def told(self) -> list[Fetch]:
        """The fetches whose partitions a writer of this process told about."""
        folders = []
        while self._told:
            folders.append(self._told.popleft())
        return self._at(folders)

    def grown(self) -> list[Fetch]:
        """The fetches whose partitions the kernel told about."""
        return [] if self._watch is None else self._at(self._watch.changed())

    def _at(self, folders: Iterable[str]) -> list[Fetch]:
        """The fetches that are parked at these folders, each once."""
        return list({call: one for folder in folders for call, one in self._by_folder.get(folder, {}).items()}.values())

    def all(self) -> list[Fetch]:
        """Every fetch that is parked."""
        return list(self._parked.values())

    def due(self) -> list[Fetch]:
        """The fetches that have waited for long enough, and all where the kernel tells nothing."""
        now_s = clock.monotonic()
        found = self.all() if self._has_unwatched else []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            call = heapq.heappop(self._deadlines)[2]
            if call in self._parked:
                found.append(self._parked[call])
        return found

    def close(self) -> None:
        """Lets go of the watches."""
        if self._watch is not None:
            self._watch.close()
