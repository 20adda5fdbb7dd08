# SPDX-License-Identifier: Apache-2.0
"""The frames of Fetch. C reads and writes their fields, and the records never enter Python.

::

    response = bytes (head, first partition) | FileRange | bytes (rest of it, next partition) | FileRange | ... | bytes

Request and response are Kafka's, version 4 to 17 (native/python/log: fetch_request.c, fetch_answer.c). A range of a
file may end in the middle of a batch, which clients know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from shmaccum._native import read_fetch, serve_ready, write_fetch
from shmaccum.common.clock import NS_PER_S
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.messages import BadFrameError, Request
from shmaccum.log.server.topics import TopicKey

NO_SESSION = 0
READ_COMMITTED = 1
"""Isolation level of a fetch."""
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
    """The partitions by topic and number, as `LogTopics.heads` has them."""
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


# --- a fetch that Python answers


def read_request(request: Request) -> FetchRequest:
    """A fetch of version 4 to 17.

    Raises:
        BadFrameError: it is none.
    """
    try:
        return read_fetch(request.body, request.version, FetchRequest, Wanted)
    except ValueError as error:
        raise BadFrameError(str(error)) from None


def write_response(
    request: Request,
    found: Sequence[PartitionRecords],
    *,
    error: BrokerError = BrokerError.NONE,
    session_id: int = NO_SESSION,
) -> list[Piece]:
    """The response to a fetch, as pieces to send one after another.

    Partitions of one topic that follow one another stand below one name, as in Kafka's own responses.
    """
    return write_fetch(request.version, request.correlation_id, error, session_id, found)
