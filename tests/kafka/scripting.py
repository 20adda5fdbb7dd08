# SPDX-License-Identifier: Apache-2.0
"""Scripts for a fake cluster: lists of answers, and invalid answers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from shmaccum._native import decode_batch
from tests.kafka.fake_broker import Arrived, Reply


def values_of(arrived: Sequence[Arrived]) -> list[bytes | None]:
    """The values of all records, in the order of their arrival."""
    return [record[3] for batch in arrived for record in decode_batch(batch.wire_bytes)]


class Script:
    """Returns one reply of a list for each batch, then success."""

    def __init__(self, *replies: Reply | type[Exception]) -> None:
        self._replies = list(replies)

    def __call__(self, arrived: Arrived) -> Reply:
        reply = self._replies.pop(0) if self._replies else Reply()
        if isinstance(reply, Reply):
            return reply
        raise reply


HOSTILE: Mapping[str, tuple[int, Callable[[int], bytes]]] = {
    "empty": (3, lambda _: b""),
    "shorter than its header": (3, lambda _: b"ab"),
    "its header alone": (13, struct.Struct(">i").pack),
    "null topics": (3, lambda correlation_id: struct.pack(">iii", correlation_id, -1, 0)),
    "null topics, flexible": (13, lambda correlation_id: struct.pack(">iBBiB", correlation_id, 0, 0, 0, 0)),
    "null partitions": (3, lambda correlation_id: struct.pack(">iih7sii", correlation_id, 1, 7, b"flights", -1, 0)),
    "a name of a negative size": (3, lambda correlation_id: struct.pack(">iihii", correlation_id, 1, -5, -1, 0)),
    "more topics than bytes": (3, lambda correlation_id: struct.pack(">iii", correlation_id, 2**31 - 1, 0)),
    "a count without end": (13, lambda correlation_id: struct.pack(">iB20s", correlation_id, 0, b"\xff" * 20)),
    "of another request": (3, lambda correlation_id: struct.pack(">iii", correlation_id + 1, 0, 0)),
    "more than an answer": (3, lambda correlation_id: struct.pack(">iii50s", correlation_id, 0, 0, b"x" * 50)),
}


class RawAnswer:
    """Bytes that are sent instead of a response."""

    API_VERSION = 0

    def __init__(self, payload_of: Callable[[int], bytes]) -> None:
        self._payload_of = payload_of
        self._frame = b""

    def with_header(self, correlation_id: int) -> None:
        payload = self._payload_of(correlation_id)
        self._frame = struct.pack(">i", len(payload)) + payload

    def encode(self, **_how: bool) -> bytes:
        return self._frame
