# SPDX-License-Identifier: Apache-2.0
"""Fetch, which a consumer asks again and again: C reads and writes its fields, and its records never enter Python.

::

    answer = bytes (head, first partition) | FileRange | bytes (rest of it, next partition) | FileRange | ... | bytes

Request and answer are Kafka's, version 4 to 17 (native/python/log: fetch_request.c, fetch_answer.c). A range of a file
may end in the middle of a batch, which clients know.

A fetch that finds fewer than ``min_bytes`` is *parked*: the server asks it again when one of its partitions grew, and
answers when its time is over. Its limits are Kafka's: the first batch always goes, whatever its size.

A fetch of committed records ends at the last stable offset, and its answer names the aborted transactions: the client
leaves their records out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from shmaccum._native import read_fetch, serve_ready, write_fetch
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.messages import BadFrameError, Request
from shmaccum.log.server.topics import TopicKey

NO_EPOCH = -1
NO_SESSION = 0
READ_COMMITTED = 1
"""Isolation level of a fetch."""
NS_PER_S = 1_000_000_000
FINAL_EPOCH = -1
"""Of a session: none, or its last fetch (KIP-227)."""

Piece = bytes | FileRange


class Wanted(NamedTuple):
    """A partition that a fetch asks for."""

    topic: TopicKey
    """Its name, or from version 13 on its id."""
    partition: int
    offset: int
    size_max: int
    leader_epoch: int


class FetchRequest(NamedTuple):
    """A fetch as it came."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    wanted: list[Wanted]
    forgotten: list[tuple[TopicKey, int]]

    @property
    def is_committed(self) -> bool:
        """True when records of open and of aborted transactions are not wanted."""
        return self.isolation_level == READ_COMMITTED


class PartitionRecords(NamedTuple):
    """The records found in one partition, or the error."""

    wanted: Wanted
    error: BrokerError
    end_offset: int = -1
    start_offset: int = -1
    records: FileRange | None = None
    stable_offset: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    """Producer id and first offset of the aborted transactions that may have records here."""

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size


class Served(NamedTuple):
    """An ordinary fetch that was answered."""

    sent: int
    """Bytes of the answer that the socket took."""
    pieces: tuple[Piece, ...]
    """The whole answer, as long as the socket has not taken all of it."""
    found: list[PartitionRecords]
    request: FetchRequest
    took_s: float
    """Seconds from the look at the socket to the answer."""


TYPES = (FetchRequest, Wanted, PartitionRecords, FileRange, Served)
Outcome = Served | bytes | OSError | None
"""The find of C at a client: an ordinary fetch, which it answered; other bytes, none at the end of the connection; a
socket that broke; or None, for C did not look."""
Client = TypeVar("Client")


class Ordinary(NamedTuple):
    """The tables by which C answers an ordinary fetch."""

    heads: dict[Any, LogHead]
    """The partitions by topic and number, as `Topics.heads` has them."""
    goes_on: Callable[[FetchRequest], list[Wanted] | None]
    """The partitions of a session with which a request goes on, as `Sessions.goes_on` finds them."""


def receive_ready(
    epoll: int, rest_s: float, clients: dict[int, Client], tables: Ordinary, size_max: int
) -> list[tuple[Client | int, int, Outcome]]:
    """Waits for the files of a server's loop; ordinary fetches that come are answered at once (serve_ready.c).

    The call goes on with an answer that a socket does not take whole, as soon as the socket has room again.

    Args:
        epoll: the descriptor of an epoll with the files, clients with EPOLLIN; it is left so.
        rest_s: seconds to wait at most.
        clients: those that have nothing under way, by the descriptor of their socket.
        tables: those of the server.
        size_max: the most bytes of a request.

    Returns:
        Of each event its client, its events as epoll tells them, and the outcome. Where C did not look, the descriptor
        of the file takes the place of the client.

    Raises:
        OSError: the epoll is none.
    """
    return serve_ready(epoll, int(rest_s * NS_PER_S), clients, *tables, size_max, TYPES)


def read_request(request: Request) -> FetchRequest:
    """A fetch of version 4 to 17.

    Raises:
        BadFrameError: it is none.
    """
    try:
        return read_fetch(request.body, request.version, FetchRequest, Wanted)
    except ValueError as error:
        raise BadFrameError(str(error)) from None


# --- records of the log


def find(
    request: FetchRequest, wanted: Sequence[Wanted], head_of: Callable[[Wanted], LogHead | BrokerError | None]
) -> list[PartitionRecords]:
    """The records of each partition, within the limits of the request.

    Args:
        request: the limits.
        wanted: the partitions.
        head_of: the partition itself, the reason why it may not be fetched, or None: there is none.
    """
    return list(find_each(request, wanted, head_of))


def find_each(
    request: FetchRequest, wanted: Sequence[Wanted], head_of: Callable[[Wanted], LogHead | BrokerError | None]
) -> Iterator[PartitionRecords]:
    """As `find`, one partition after the other."""
    left, is_first = request.max_bytes, True
    for each in wanted:
        one = _find_one(request, each, head_of(each), left, is_first=is_first)
        if one.records is not None:
            is_first = False
            left = max(left - one.records.size, 0)
        yield one


def _find_one(
    request: FetchRequest, wanted: Wanted, head: LogHead | BrokerError | None, left: int, *, is_first: bool
) -> PartitionRecords:
    if isinstance(head, BrokerError):
        return PartitionRecords(wanted, head)
    if head is None:
        is_by_id = isinstance(wanted.topic, bytes)
        return PartitionRecords(
            wanted, BrokerError.UNKNOWN_TOPIC_ID if is_by_id else BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        )
    if (problem := epoch_problem(wanted.leader_epoch, head)) is not None:
        return PartitionRecords(wanted, problem)
    size_max = max(min(wanted.size_max, left), 0)
    return _find_records(wanted, head, size_max, is_first=is_first, is_committed=request.is_committed)


def epoch_problem(leader_epoch: int, head: LogHead) -> BrokerError | None:
    """Why a client with this leader epoch has to ask for metadata again (KIP-320); None when all is well."""
    latest = head.epochs.latest
    if leader_epoch in (NO_EPOCH, latest):
        return None
    return BrokerError.FENCED_LEADER_EPOCH if leader_epoch < latest else BrokerError.UNKNOWN_LEADER_EPOCH


def _find_records(
    wanted: Wanted, head: LogHead, size_max: int, *, is_first: bool, is_committed: bool
) -> PartitionRecords:
    readable_end = head.readable_end(is_committed=is_committed)
    is_asked = wanted.offset < readable_end and (size_max > 0 or is_first)
    ranged = head.file_range(wanted.offset, size_max, readable_end) if is_asked else None
    start_offset, end_offset = head.start_offset, head.end_offset  # which a look into the files may have moved
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
    """True when there is an answer without waiting: an error, enough bytes, or nothing to wait for."""
    size = 0
    for each in found:
        if each.error is not BrokerError.NONE:
            return True
        size += each.size
    return not found or size >= request.min_bytes


# --- answer


def write_answer(
    request: Request,
    found: Sequence[PartitionRecords],
    *,
    error: BrokerError = BrokerError.NONE,
    session_id: int = NO_SESSION,
) -> list[Piece]:
    """The frame that answers a fetch, as pieces to send one after another.

    Partitions of one topic that follow one another stand below one name, as in Kafka's own answers.
    """
    return write_fetch(request.version, request.correlation_id, error, session_id, found)
