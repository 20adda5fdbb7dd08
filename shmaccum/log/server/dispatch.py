# SPDX-License-Identifier: Apache-2.0
"""The connections of clients, and the path of a request through the server.

::

    bytes ──> frame ──> row of the table ──> rule of its rights ──> handler ──> result
                                                                                   │
           ┌──────────────── response, a frame in pieces <─────────────────────────┤
           v                                                  steps, in slices <───┤
         socket                                  later, by `Call.complete` <───────┘

Rules: nothing here blocks on a client or another thread. A connection has at most one request in progress. A request
whose work grows with the number of names in it is answered in steps (`steps`), a few milliseconds at a time. If its
client disconnects, the remaining steps are not run. An error of a client, or a request that cannot be answered, closes
only its own connection.
"""

from __future__ import annotations

import functools
import math
import selectors
import ssl
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, final

from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.common import clock
from shmaccum.log.server.call import Call, Result, Values
from shmaccum.log.server.connection import Connection, FrameLimits
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.fetch import FetchHandler
from shmaccum.log.server.fetch_frames import Outcome, Piece, Served
from shmaccum.log.server.messages import (
    BadFrameError,
    Request,
    api_name,
    decode,
    encode,
    encode_unsupported,
    read_head,
)
from shmaccum.log.server.numbers import ServerNumbers
from shmaccum.log.server.requests import (
    API_VERSIONS,
    BEFORE_LOGIN,
    FETCH,
    PRODUCE,
    PRODUCE_VERSION_MIN,
    RequestType,
    api_versions,
)
from shmaccum.log.server.steps import Stepwise
from shmaccum.log.server.throttle import throttled_logger
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.users import ANONYMOUS, NOT_LOGGED_IN, User
from shmaccum.log.server.worker import Worker

logger = throttled_logger(__name__)

SLICE_S = 0.005
"""The time that long or pipelined requests get before other clients are served."""
AT_ONCE_SIZE_MAX = 32 << 10
"""The most bytes of a request that the loop decodes. kafka-python needs about 2 µs for each element."""
STALLED_S = 1.0
"""While other requests wait for memory, a request without progress for this time is closed."""
Computed = tuple[Any, Exception | None]
"""The result or the exception of a function that the worker thread called."""
RequestSteps = Generator["Callable[[], Any] | None", Any, Any]


@final
class Dispatcher:
    """The connections of a server and their requests.

    Attributes:
        connections: all clients.
        host_counts: the number of clients from each address.
        idle: the clients without a request in progress, by socket descriptor.
        waiting: the requests without a response.

    Args:
        table: the request types by api key.
        topics: the topics that the server serves.
        fetches: handles fetches, and records the fetches that C has answered.
        coordinator: the coordinator of the groups, where joins wait.
        numbers: counts requests.
        limits: the limits of incoming frames.
        selector: the selector of the server's loop.
        wake: wakes the server's loop; thread-safe.
    """

    def __init__(
        self,
        table: Mapping[int, RequestType],
        topics: LogTopics,
        fetches: FetchHandler,
        coordinator: Coordinator,
        numbers: ServerNumbers,
        limits: FrameLimits,
        selector: selectors.BaseSelector,
        wake: Callable[[], None],
    ) -> None:
        self.table = table
        self.connections: set[Connection] = set()
        self.host_counts: Counter[str] = Counter()
        self.idle: dict[int, Connection] = {}
        self.waiting: dict[Connection, Call] = {}
        self._topics = topics
        self._fetches = fetches
        self._coordinator = coordinator
        self._numbers = numbers
        self._limits = limits
        self._selector = selector
        self._validator, self._reader_thread = Worker(wake, "judging"), Worker(wake, "reading")
        self._starved: set[Connection] = set()
        self._under_way: dict[Connection, tuple[Call, RequestSteps]] = {}
        """Requests that are answered in steps, the longest wait first."""
        self._runnable: list[Connection] = []
        self._served: Connection | None = None

    # --- the loop

    @property
    def has_work(self) -> bool:
        """True if a request can continue now."""
        return bool(self._runnable or self._under_way)

    @property
    def deadline_s(self) -> float:
        """The latest time for the next `run_pending`, on the clock of time.monotonic(), if there is no work now."""
        return clock.monotonic() + STALLED_S / 4 if self._starved else math.inf

    def run_pending(self) -> None:
        """Runs pipelined requests and one long request for one slice each."""
        self._take_runnable()
        if self._starved:
            self._resume_starved()
            self._close_stalled()
        self._validator.conclude()
        self._reader_thread.conclude()
        if self._under_way:
            connection = next(iter(self._under_way))
            call, steps = self._under_way.pop(connection)
            self._try_steps(connection, call, steps, (None, None))

    def _take_runnable(self) -> None:
        """Starts the next requests of clients that sent several at once, for at most one slice."""
        runnable, self._runnable = self._runnable, []
        end_s = clock.monotonic() + SLICE_S
        for taken, connection in enumerate(runnable, 1):
            self.take_frame(connection)
            if clock.monotonic() >= end_s:
                self._runnable = runnable[taken:] + self._runnable
                return

    def _resume_starved(self) -> None:
        """Resumes reading from connections that waited for memory, while memory is available."""
        for connection in [each for each in self._starved if each.wants_to_read]:
            self._starved.discard(connection)
            connection.progress_s = clock.monotonic()
            self._await(connection)

    def _close_stalled(self) -> None:
        """While other clients wait for memory, closes clients that hold it without progress."""
        before_s = clock.monotonic() - STALLED_S
        slow = [each for each in self._limits.holders if each.progress_s < before_s and not each.has_frame]
        speaking = wait_readable([each.descriptor for each in slow], 0) if slow and self._starved else []
        for connection in slow if self._starved else []:
            if connection.descriptor in speaking:  # it has bytes that were not read yet
                continue
            logger.warning(
                "the connection from %s is closed: its request has stalled, and others wait for its memory",
                connection.host,
            )
            self.close(connection)
        self._resume_starved()

    # --- connections

    def add(self, connection: Connection) -> None:
        """Adds an accepted client."""
        self.connections.add(connection)
        self.host_counts[connection.host] += 1
        connection.events = selectors.EVENT_READ
        self._selector.register(connection.transport.socket, connection.events, connection)
        self._update_idle(connection)

    def serve(self, connection: Connection, events: int) -> None:
        """Reads and writes as the events of the socket allow, and starts a request that is complete."""
        try:
            if not events:  # epoll reports a broken connection even if no event was requested
                raise ConnectionError("the client closed the connection")
            if events & selectors.EVENT_READ:
                connection.receive()
            if events & selectors.EVENT_WRITE:
                connection.flush()
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        self.take_frame(connection)

    def handle_outcome(self, connection: Connection, outcome: Outcome) -> None:
        """Continues a connection after C has read from it, and has answered the request if it was an ordinary fetch."""
        if isinstance(outcome, Served):
            self._fetches.record_served(outcome)
            self._numbers.count_answered(api_name(FETCH), outcome.took_s)
        if connection.is_gone:
            return
        try:
            connection.handle_outcome(outcome)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        if not connection.may_fetch_at_once:
            self.take_frame(connection)

    def _await(self, connection: Connection) -> None:
        """Sets the events that the loop waits for."""
        if connection.is_ended:
            self.close(connection)
        if connection.is_gone:
            return
        if not connection.is_busy and connection.has_frame:
            self._runnable.append(connection)
        wants_to_read = connection.wants_to_read
        if not wants_to_read and not connection.is_busy:
            self._starved.add(connection)
        events = selectors.EVENT_READ * wants_to_read | selectors.EVENT_WRITE * connection.wants_to_write
        if connection.events != events:
            connection.events = events
            self._selector.modify(connection.transport.socket, events, connection)
        self._update_idle(connection)

    def _update_idle(self, connection: Connection) -> None:
        """Lets C read from the connection while it has no request in progress."""
        if connection.may_fetch_at_once:
            self.idle[connection.descriptor] = connection
        else:
            self.idle.pop(connection.descriptor, None)

    def _fail(self, connection: Connection, error: Exception) -> None:
        """Logs an error and closes this connection only, even if the error is a bug of the server."""
        host = connection.host
        if isinstance(error, BadFrameError):
            logger.warning("the connection from %s is closed: %s", host, error)
        elif isinstance(error, ssl.SSLError):
            logger.warning("the connection from %s is closed: TLS failed: %s", host, error.reason or error)
        elif not isinstance(error, OSError):
            logger.error("a request from %s could not be answered; its connection is closed", host, exc_info=error)
        self.close(connection)

    def _fail_waiting(self, connection: Connection, call: Call, error: Exception) -> None:
        """Closes the connection of a request that waited and cannot be answered. An OSError comes from the log."""
        if isinstance(error, OSError):
            logger.error("a request from %s that waited could not be answered: %s", call.host, error)
        if self.waiting.get(connection) is call:
            self._fail(connection, error)

    def close(self, connection: Connection) -> None:
        """Closes a connection and drops its request. Idempotent."""
        if connection.is_gone:
            return
        call = self.waiting.pop(connection, None)
        if call is not None:
            self._fetches.drop(call)
            self._coordinator.drop(call)
        if (under_way := self._under_way.pop(connection, None)) is not None:
            under_way[1].close()
        self._selector.unregister(connection.transport.socket)
        self.idle.pop(connection.descriptor, None)
        self.connections.discard(connection)
        self._starved.discard(connection)
        self.host_counts[connection.host] -= 1
        if not self.host_counts[connection.host]:
            del self.host_counts[connection.host]
        connection.close()

    def close_all(self) -> None:
        """Closes every connection and the threads. Idempotent."""
        for connection in list(self.connections):
            self.close(connection)
        self._validator.close()
        self._reader_thread.close()

    # --- a request

    def take_frame(self, connection: Connection) -> None:
        """Starts the next request of a connection that has none in progress."""
        if connection.is_gone:
            return
        self._served = connection
        try:
            frame = connection.next_frame()
            if frame is not None:
                self._handle(connection, frame)
        except OSError as error:  # from the log: `_send` handles errors of the socket
            logger.error("a request from %s could not be answered: %s", connection.host, error)
            self.close(connection)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        self._served = None
        self._await(connection)

    def _handle(self, connection: Connection, frame: memoryview) -> None:
        request = read_head(frame)
        row = self.table.get(request.api_key)
        if request.api_key == API_VERSIONS and row is not None and request.version > row.version_max:
            self._send(connection, [encode_unsupported(request, api_versions(self.table))])
            return
        if row is None or not row.version_min <= request.version <= row.version_max:
            raise BadFrameError(f"request {request.api_key} in version {request.version} is not supported")
        if request.api_key == PRODUCE and request.version < PRODUCE_VERSION_MIN:
            raise BadFrameError(f"Produce in version {request.version}: its record format is older than Kafka 0.11")
        user = _user_of(connection, request)
        complete = functools.partial(self._complete, connection)
        call = self.waiting[connection] = Call(request, None, connection.host, user, connection.login, complete)
        if request.api_key not in (FETCH, PRODUCE) and len(frame) > AT_ONCE_SIZE_MAX:
            call.is_long = True
            self._respond(connection, call, self._decoded_and_handled(call, row))
            return
        call.message = None if request.api_key == FETCH else decode(request)
        self._respond(connection, call, self._result_of(call, row))

    def _result_of(self, call: Call, row: RequestType) -> Result:
        """Calls the handler. Without a users file, the principal has all rights, so no rule is checked."""
        return row.handler(call) if call.user is ANONYMOUS else row.rule(call, row.handler, self._topics)

    def _decoded_and_handled(self, call: Call, row: RequestType) -> Stepwise[Result]:
        """Decodes a large request in the thread, then calls the handler."""
        call.message = yield functools.partial(decode, call.request)
        return self._result_of(call, row)

    # --- a response

    def _respond(self, connection: Connection, call: Call, result: Result) -> None:
        """Acts on the result of a handler. Every response is built and sent from here."""
        if isinstance(result, dict):
            self._encode(connection, call, call.amended(result))
        elif isinstance(result, Generator):
            self._take_steps(connection, call, result, (None, None))
        elif result is not None:
            self._send(connection, result)

    def _complete(self, connection: Connection, call: Call, result: Result) -> None:
        """Continues a request that waited."""
        try:
            self._respond(connection, call, result)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail_waiting(connection, call, error)

    def _encode(self, connection: Connection, call: Call, values: Values) -> None:
        """Builds a frame and sends it. The frame of a long request is built in a thread."""
        make = functools.partial(encode, call.request, values)
        if not call.is_long:
            self._send(connection, [make()])
            return

        def conclude(computed: Computed) -> None:
            content, error = computed
            if error is not None:
                self._fail_waiting(connection, call, error)
            else:
                self._send(connection, [content])

        self._reader_thread.ask(functools.partial(_computed, make), conclude)

    def _send(self, connection: Connection, pieces: Sequence[Piece]) -> None:
        call = self.waiting.pop(connection, None)
        if call is not None:
            self._numbers.count_answered(api_name(call.request.api_key), clock.monotonic() - call.began_s)
        if connection.is_gone:
            return
        connection.answer(pieces)
        try:
            connection.flush()
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        if connection is not self._served:
            self._await(connection)

    # --- steps

    def _take_steps(self, connection: Connection, call: Call, steps: RequestSteps, computed: Computed) -> None:
        """Runs steps of a request until it has a result, needs a thread, or has used its slice."""
        end_s = clock.monotonic() + SLICE_S
        found, error = computed
        try:
            compute = steps.send(found) if error is None else steps.throw(error)
            while compute is None:
                if clock.monotonic() >= end_s:
                    call.is_long = True
                    self._under_way[connection] = call, steps
                    return
                compute = next(steps)
        except StopIteration as end:
            self._respond(connection, call, end.value)
            return
        thread = self._validator if call.request.api_key == PRODUCE else self._reader_thread
        thread.ask(
            functools.partial(_computed, compute),
            lambda computed: self._try_steps(connection, call, steps, computed),
        )

    def _try_steps(self, connection: Connection, call: Call, steps: RequestSteps, computed: Computed) -> None:
        """Continues the steps of a request that waited for a slice or for a thread."""
        if connection.is_gone:
            steps.close()
            return
        try:
            self._take_steps(connection, call, steps, computed)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail_waiting(connection, call, error)


def _user_of(connection: Connection, request: Request) -> User:
    """Return the principal of a request.

    Raises:
        BadFrameError: the client has not logged in, or its user was removed.
    """
    if connection.login is None:
        return ANONYMOUS
    user = connection.login.user
    if user is None and request.api_key not in BEFORE_LOGIN:
        raise BadFrameError(f"request {request.api_key} came from a client that has not logged in")
    return user or NOT_LOGGED_IN


def _computed(compute: Callable[[], Any]) -> Computed:
    try:
        return compute(), None
    except Exception as error:  # noqa: BLE001 - raised again where the request is answered
        return None, error
