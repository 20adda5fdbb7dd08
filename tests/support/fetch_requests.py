# SPDX-License-Identifier: Apache-2.0
"""Fetches for tests of the server: their bytes, the response of Python, and a C call that answers common ones."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Sequence
from typing import Any

from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server.fetch import find_each, is_enough
from shmaccum.log.server.fetch_frames import (
    FetchRequest,
    FetchTables,
    Outcome,
    PartitionRecords,
    Piece,
    Wanted,
    read_request,
    receive_ready,
    write_response,
)
from shmaccum.log.server.messages import encode_request, read_head
from shmaccum.log.server.topics import LogTopics
from tests.support.segment_log import TOPIC

FETCH = 1
SIZE_MAX = 1 << 16
"""The maximum number of bytes of a request."""


def whole_fetch(offset: int = 0, **more: Any) -> bytes:
    """Return a fetch, by version 11, of all records of partition 0 from an offset on."""
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1}
    topic = {"topic": TOPIC, "partitions": [{**partition, "log_start_offset": -1, "partition_max_bytes": 1 << 20}]}
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0}
    nobody = {"replica_id": -1, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    return encode_request(FETCH, 11, {**limits, **nobody, "topics": [topic], **more})


def as_bytes(pieces: list[Piece]) -> bytes:
    return b"".join(
        os.pread(piece.file.descriptor, piece.size, piece.position) if isinstance(piece, FileRange) else piece
        for piece in pieces
    )


def found_for(topics: LogTopics, request: FetchRequest, wanted: Sequence[Wanted]) -> list[PartitionRecords]:
    """Return the records of each partition, as the handler finds them."""
    return list(find_each(request, ((each, topics.head(each.topic, each.partition)) for each in wanted)))


def python_answer(topics: LogTopics, content: bytes) -> bytes | None:
    """Return the response of the Python functions, which also open windows for C, or None if there are too few bytes
    for a response.
    """
    head = read_head(memoryview(content)[4:])
    request = read_request(head)
    found = found_for(topics, request, request.wanted)
    return as_bytes(write_response(head, found)) if is_enough(request, found) else None


def no_session(_request: FetchRequest) -> list[Wanted] | None:
    return None


def ready(
    files: Sequence[socket.socket], clients: Sequence[socket.socket], tables: FetchTables, rest_s: float = 0.0
) -> list[tuple[socket.socket | int, int, Outcome]]:
    """Return the ready files, some of which belong to clients."""
    with contextlib.closing(select.epoll()) as epoll:
        for file in files:
            epoll.register(file, select.EPOLLIN)
        return receive_ready(epoll.fileno(), rest_s, {one.fileno(): one for one in clients}, tables, SIZE_MAX)
