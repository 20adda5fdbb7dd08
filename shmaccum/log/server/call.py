# SPDX-License-Identifier: Apache-2.0
"""A request in progress, as its handler sees it, and the ways in which a handler responds.

A handler returns the response, the steps that compute it (`steps`), or None if the response comes later. A later
response is passed to `Call.complete`, the only call from a handler to the dispatcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, final

from shmaccum.common import clock
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.fetch_frames import Piece
from shmaccum.log.server.login import Login
from shmaccum.log.server.messages import Request
from shmaccum.log.server.users import User

Values = dict[str, Any]
"""A response, or part of one, by the names of Kafka's schema. Fields that a version lacks are not encoded."""
Response = Values | Sequence[Piece]
"""A response by the names of its schema, or a frame in pieces. If it is empty, the client expects no response."""
Result = Response | Generator[Callable[[], Any] | None, Any, Any] | None
"""The result of a handler: a response, steps that return one of these, or None if the response comes later."""
REPEATED: Final[Values] = {
    "error_code": BrokerError.INVALID_REQUEST,
    "error_message": "the request names it more than once",
}
"""The error of an element that a request may name only once."""
T = TypeVar("T")
Name = TypeVar("Name", bound=Hashable)


@final
class Call:
    """One request, which is answered once.

    Attributes:
        began_s: the time of arrival, on the clock of time.monotonic().
        request: the request head and body.
        message: the decoded body. None if the handler decodes it.
        host: the address of the client, for messages.
        user: the principal of the request.
        login: the login of the connection. None if no login is required.
        is_long: whether the request takes so long that its response is encoded in a thread.
    """

    __slots__ = ("_amendments", "_complete", "began_s", "host", "is_long", "login", "message", "request", "user")

    def __init__(
        self,
        request: Request,
        message: Any,
        host: str,
        user: User,
        login: Login | None,
        complete: Callable[[Call, Result], None],
    ) -> None:
        self.began_s = clock.monotonic()
        self.request = request
        self.message = message
        self.host = host
        self.user = user
        self.login = login
        self.is_long = False
        self._complete = complete
        self._amendments: tuple[Callable[[Values], Values], ...] = ()

    @property
    def version(self) -> int:
        return self.request.version

    def amend(self, amendment: Callable[[Values], Values]) -> None:
        """Registers a function that changes the response before it is sent."""
        self._amendments += (amendment,)

    def amended(self, values: Values) -> Values:
        """Returns the response after all amendments."""
        for amendment in self._amendments:
            values = amendment(values)
        return values

    def complete(self, result: Result) -> None:
        """Passes on a result that the handler did not return because the request waited."""
        self._complete(self, result)


Handler = Callable[[Call], Result]
"""A function that handles a request."""


def split_repeated(elements: Iterable[T], name_of: Callable[[T], Name]) -> tuple[list[T], list[Name]]:
    """Return the elements whose names occur once, and the names that occur more than once."""
    named = [(name_of(one), one) for one in elements]
    counts = Counter(name for name, _ in named)
    return [one for name, one in named if counts[name] == 1], [name for name, count in counts.items() if count > 1]


def partition_errors(topic: Any, errors: Mapping[TopicPartition, BrokerError], rest: BrokerError) -> Values:
    """Return a topic of a response, with `errors` for single partitions and `rest` for all others."""
    partitions = [
        {
            "partition_index": one.partition_index,
            "error_code": errors.get(TopicPartition(topic.name, one.partition_index), rest),
        }
        for one in topic.partitions
    ]
    return {"name": topic.name, "partitions": partitions}
