# SPDX-License-Identifier: Apache-2.0
"""The frames of Fetch. C reads and writes their fields; the records never enter Python.

::

    response = bytes (head, first partition) | FileRange | bytes (rest of it, next partition) | FileRange | ... | bytes

Request and response have Kafka's versions 4 to 17 (native/format/fetch.h). A range of a
file may end inside a batch, which Kafka clients accept.
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
"""An isolation level of a fetch."""
FINAL_EPOCH = -1
"""A session epoch: no session, or its last fetch (KIP-227)."""

Piece = bytes | FileRange


class Wanted(NamedTuple):
    """A partition that a fetch requests."""

    topic: TopicKey
    """The name, or from version 13 on the id."""
    partition: int
    offset: int
    size_max: int
    leader_epoch: int


class FetchRequest(NamedTuple):
    """A decoded fetch request."""

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
        """True if records of open and aborted transactions are excluded."""
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
    """The producer id and first offset of each aborted transaction that may have records in this range."""

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size


class Served(NamedTuple):
    """An ordinary fetch that C has answered."""

    sent: int
    """The bytes of the response that were sent."""
    pieces: tuple[Piece, ...]
    """The whole response, if it was not sent completely."""
    found: list[PartitionRecords]
    request: FetchRequest
    took_s: float
    """Seconds from reading the socket to the response."""


TYPES = (FetchRequest, Wanted, PartitionRecords, FileRange, Served)
Outcome = Served | bytes | OSError | None
"""The result of C for a client: an ordinary fetch, which it has answered; other bytes, empty at the end of the
connection; an error of the socket; or None if C did not read from it."""
Client = TypeVar("Client")


class FetchTables(NamedTuple):
    """The tables with which C answers an ordinary fetch."""

    heads: dict[Any, LogHead]
    """The partitions by topic and number, from `LogTopics.heads`."""
    continued: Callable[[FetchRequest], list[Wanted] | None]
    """Returns the partitions of the session that a request continues (`Sessions.continued`)."""


def receive_ready(
    epoll: int, rest_s: float, clients: dict[int, Client], tables: FetchTables, size_max: int
) -> list[tuple[Client | int, int, Outcome]]:
    """Waits for the files of a server's loop, and answers ordinary fetches at once (serve_ready.c).

    If a socket does not accept a whole response, the call sends the rest when the socket is writable again.

    Args:
        epoll: the descriptor of an epoll that has the files; clients have EPOLLIN, before and after the call.
        rest_s: the longest wait in seconds.
        clients: the clients without a request in progress, by socket descriptor.
        tables: the tables of the server.
        size_max: the most bytes of a request.

    Returns:
        For each event: its client, its epoll events and the outcome. If C did not read from the file, its descriptor
        takes the place of the client.

    Raises:
        OSError: the descriptor is not an epoll.
    """
    return serve_ready(epoll, int(rest_s * NS_PER_S), clients, *tables, size_max, TYPES)


# --- a fetch that Python answers


def read_request(request: Request) -> FetchRequest:
    """Decode a fetch of version 4 to 17.

    Raises:
        BadFrameError: the body is not such a fetch.
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
    """Return the response to a fetch, as pieces to send in order.

    Consecutive partitions of one topic share one topic entry, as in Kafka's responses.
    """
    return write_fetch(request.version, request.correlation_id, error, session_id, found)
