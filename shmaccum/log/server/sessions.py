# SPDX-License-Identifier: Apache-2.0
"""Fetch sessions (KIP-227): a consumer names its partitions once, and then only changes.

::

    full fetch (epoch 0)  ──> a session: its partitions, in order, with the last response for each
    fetch n (epoch n)     ──> changes to them; the response has only partitions with records, errors or moved ends

Sessions are a cache of at most `SESSIONS_MAX` entries, from which the least recently used is removed. A client whose
session was removed gets FETCH_SESSION_ID_NOT_FOUND, and starts again with a full fetch.
"""

from __future__ import annotations

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import final

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.fetch_frames import FINAL_EPOCH, NO_SESSION, FetchRequest, PartitionRecords, Wanted
from shmaccum.log.server.topics import TopicKey

SESSIONS_MAX = 1000
TOTAL_MAX = 500_000
"""The most partitions of all sessions together. The oldest sessions are removed first."""
PARTITIONS_MAX = 100_000
"""The most partitions of one session. A client with more partitions gets no session."""
FIRST_EPOCH = 1
EPOCH_MAX = 2**31 - 1

Key = tuple[TopicKey, int]
SentOffsets = tuple[int, int]
"""The end and start offset in the last response."""


@final
class Session:
    """The partitions that one client fetches.

    Attributes:
        session_id: not 0.
        wanted: the partitions, in the order in which the next fetch checks them.
    """

    def __init__(self, session_id: int, wanted: Sequence[Wanted]) -> None:
        self.session_id = session_id
        self.next_epoch = FIRST_EPOCH
        self.wanted: OrderedDict[Key, Wanted] = OrderedDict(((one.topic, one.partition), one) for one in wanted)
        self._sent: dict[Key, SentOffsets] = {}

    def change(self, request: FetchRequest) -> None:
        """Applies the changes of a fetch."""
        for key in request.forgotten:
            self.wanted.pop(key, None)
            self._sent.pop(key, None)
        for one in request.wanted:
            self.wanted[one.topic, one.partition] = one
        self.next_epoch = FIRST_EPOCH if self.next_epoch == EPOCH_MAX else self.next_epoch + 1

    def changes(self, found: Sequence[PartitionRecords]) -> list[PartitionRecords]:
        """Returns the results that the client does not know yet.

        A partition that had records moves to the end of the session, so that no partition starves.
        """
        changes = [one for one in found if self._is_new(one)]
        for one in changes:
            key = one.wanted.topic, one.wanted.partition
            self._sent[key] = one.end_offset, one.start_offset
            if one.records is not None and key in self.wanted:
                self.wanted.move_to_end(key)
        return changes

    def _is_new(self, found: PartitionRecords) -> bool:
        sent = self._sent.get((found.wanted.topic, found.wanted.partition))
        has_error = found.error is not BrokerError.NONE
        return has_error or found.records is not None or sent != (found.end_offset, found.start_offset)


@final
class Sessions:
    """All sessions of a server."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def continued(self, request: FetchRequest) -> list[Wanted] | None:
        """Returns the partitions of the session that a request continues, without changing the session.

        Returns None if the request starts or ends a session, changes its partitions, or is not the next one.
        """
        session = self._sessions.get(request.session_id)
        if session is None or request.session_epoch != session.next_epoch or request.forgotten:
            return None
        changed = {(one.topic, one.partition): one for one in request.wanted}
        if not changed.keys() <= session.wanted.keys():
            return None
        return [changed.get(key, one) for key, one in session.wanted.items()]

    def of(self, request: FetchRequest) -> Session | BrokerError | None:
        """Returns the session of a fetch, new or continued, or None if it has no session."""
        if request.session_epoch in (0, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._sessions.pop(request.session_id, None)
            return None if request.session_epoch == FINAL_EPOCH else self._begin(request)
        session = self._sessions.get(request.session_id)
        if session is None:
            return BrokerError.FETCH_SESSION_ID_NOT_FOUND
        if request.session_epoch != session.next_epoch:
            return BrokerError.INVALID_FETCH_SESSION_EPOCH
        session.change(request)
        if len(session.wanted) > PARTITIONS_MAX:
            del self._sessions[session.session_id]
            return BrokerError.FETCH_SESSION_ID_NOT_FOUND
        self._sessions.move_to_end(session.session_id)
        if request.wanted:
            self._remove_oldest()
        return session

    def _begin(self, request: FetchRequest) -> Session | None:
        if not request.wanted or len(request.wanted) > PARTITIONS_MAX:
            return None
        session_id = next(number for number in map(_random_id, itertools.count()) if number not in self._sessions)
        session = self._sessions[session_id] = Session(session_id, request.wanted)
        self._remove_oldest()
        return session

    def _remove_oldest(self) -> None:
        """Removes the oldest sessions while their number or their total of partitions is too large."""
        total = sum(len(session.wanted) for session in self._sessions.values())
        while len(self._sessions) > SESSIONS_MAX or (total > TOTAL_MAX and len(self._sessions) > 1):
            _, oldest = self._sessions.popitem(last=False)
            total -= len(oldest.wanted)


def _random_id(_attempt: int) -> int:
    return 1 + secrets.randbelow(2**31 - 2)
