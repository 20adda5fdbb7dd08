# SPDX-License-Identifier: Apache-2.0
"""A request under way, as the functions see it that answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from shmaccum.serving.fetching import Piece
from shmaccum.serving.messages import Request, encode

Values = dict[str, Any]
"""An answer, or a part of one, by the names of Kafka's schema. Fields that a version does not have are left out."""


@final
class Call:
    """One request, to be answered once.

    Attributes:
        request: as it came.
        message: its body, decoded; None for those that are read by hand.
        host: the client's address, for people.
    """

    def __init__(self, request: Request, message: Any, host: str, send: Callable[[Sequence[Piece]], None]) -> None:
        self.request = request
        self.message = message
        self.host = host
        self._send = send

    @property
    def version(self) -> int:
        return self.request.version

    def answer(self, values: Mapping[str, Any]) -> None:
        """Answers it."""
        self._send([encode(self.request, {"throttle_time_ms": 0, **values})])

    def answer_with(self, pieces: Sequence[Piece]) -> None:
        """Answers it with a frame that was made by hand; empty: with nothing at all."""
        self._send(pieces)
