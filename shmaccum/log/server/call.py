# SPDX-License-Identifier: Apache-2.0
"""A request under way, as the functions see it that answer it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, final

from shmaccum.common import clock
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.fetching import Piece
from shmaccum.log.server.login import Login
from shmaccum.log.server.messages import Request, encode
from shmaccum.log.server.users import User

Values = dict[str, Any]
"""An answer, or a part of one, by the names of Kafka's schema. Fields that a version does not have are left out."""
TWICE: Final[Values] = {
    "error_code": BrokerError.INVALID_REQUEST,
    "error_message": "the request names it more than once",
}
"""The error of an element that a request may name once."""
T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


@final
class Call:
    """One request, to be answered once.

    Attributes:
        began_s: when the request came, on the clock of time.monotonic().
        request: as it came.
        message: its body, decoded; None for those that are read by hand.
        host: the client's address, for people.
        user: the principal who asks.
        login: of the connection; None: nobody has to log in.
    """

    __slots__ = ("_amendments", "_encode", "_send", "_work", "began_s", "host", "login", "message", "request", "user")

    def __init__(
        self,
        request: Request,
        message: Any,
        host: str,
        user: User,
        login: Login | None,
        send: Callable[[Sequence[Piece]], None],
        work: Callable[[Call, Any], None] | None = None,
    ) -> None:
        self.began_s = clock.monotonic()
        self.request = request
        self.message = message
        self.host = host
        self.user = user
        self.login = login
        self._send = send
        self._work = work
        self._encode: Callable[[Callable[[], bytes], Callable[[bytes], None]], None] = _encode_now
        self._amendments: tuple[Callable[[Values], Values], ...] = ()

    @property
    def version(self) -> int:
        return self.request.version

    def amend(self, amendment: Callable[[Values], Values]) -> None:
        """Has a function change the answer before it goes."""
        self._amendments += (amendment,)

    def answer(self, values: Mapping[str, Any]) -> None:
        """Answers it."""
        amended = dict(values)
        for amendment in self._amendments:
            amended = amendment(amended)
        self._encode(lambda: encode(self.request, amended), lambda content: self._send([content]))

    def work(self, steps: Any) -> None:
        """Answers it in steps (`shmaccum.log.server.steps`)."""
        if self._work is None:
            raise AssertionError("this call has no server that takes steps")
        self._work(self, steps)

    def encode_by(self, encode_elsewhere: Callable[[Callable[[], bytes], Callable[[bytes], None]], None]) -> None:
        """Has the answer made elsewhere: the function gets one that makes it, and one that takes it."""
        self._encode = encode_elsewhere

    def answer_with(self, pieces: Sequence[Piece]) -> None:
        """Answers it with a frame that was made by hand; empty: with nothing at all."""
        self._send(pieces)


def _encode_now(make: Callable[[], bytes], take: Callable[[bytes], None]) -> None:
    take(make())


Handler = Callable[[Call], None]
"""A function that answers a request, at once or later."""


def once_and_again(elements: Iterable[T], name_of: Callable[[T], Name]) -> tuple[list[T], list[Name]]:
    """The elements of a request whose names come once, and the names that come more than once."""
    named = [(name_of(one), one) for one in elements]
    counts = Counter(name for name, _ in named)
    return [one for name, one in named if counts[name] == 1], [name for name, count in counts.items() if count > 1]
