# SPDX-License-Identifier: Apache-2.0
"""The server: one thread, one loop, any number of clients.

::

    epoll ──┬── listener      a client comes
            ├── connections   an ordinary fetch ──> answer, in C (`receive_ready`)
            │                 frame ──> route ──> answer, at once or later (a parked fetch, join or sync)
            ├── log watch     another process appended ──> the fetches that are parked there are asked again
            └── bell          a writer of this process appended, a computation is done, or `stop`

Rules: nothing here waits for a client or another thread. A connection has one request under way. A request whose work
grows with what it names is answered in steps (`shmaccum.log.server.steps`), of which the loop takes a few milliseconds
at a time. If its client leaves, the steps that are left are not taken. A mistake of a client costs its own connection,
and so does a request that cannot be answered. Any other failure, as on a full disk, is told in the server's log, and
the loop goes on. The log is read as it lies in its files, verified batch by batch (`log_heads`), whether this server
writes it or a sender beside it does.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import logging
import math
import os
import selectors
import socket
import ssl
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, final

from shmaccum.arena.doorbell import wait_readable
from shmaccum.common import clock, descriptors
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.questions import Questions
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError, NotALogError, ServerUnreachableError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import META_FILE
from shmaccum.log.files.reader import LogReader
from shmaccum.log.files.small_files import read_directory_id
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.cluster import Address, Cluster
from shmaccum.log.server.connection import Connection, FrameLimits
from shmaccum.log.server.consumer_group import ConsumerLimits
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.fetching import Outcome, Piece, Served, receive_ready
from shmaccum.log.server.group import GroupLimits
from shmaccum.log.server.login import Login
from shmaccum.log.server.long_poll import LongPoll
from shmaccum.log.server.messages import BadFrameError, Request, api_name, decode, encode_unsupported, read_head
from shmaccum.log.server.numbers import Family, GroupLag, ServerNumbers
from shmaccum.log.server.placement import Placement
from shmaccum.log.server.requests import (
    API_VERSIONS,
    BEFORE_LOGIN,
    FETCH,
    PRODUCE,
    PRODUCE_VERSION_MIN,
    RequestRoute,
    api_versions,
    guarded_routes,
    login_routes,
    routes,
)
from shmaccum.log.server.settings import ServerSettings
from shmaccum.log.server.steps import Steps, Stepwise
from shmaccum.log.server.throttle import WarningThrottle
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transaction_coordinator import TransactionCoordinator
from shmaccum.log.server.transport import PlainTransport, TlsFiles, TlsTransport
from shmaccum.log.server.users import ANYBODY, NOBODY, User, UsersFile
from shmaccum.log.server.worker import Worker
from shmaccum.log.server.writing import Writing

logger = logging.getLogger(__name__)
logger.addFilter(WarningThrottle())

EPOLLIN, EPOLLOUT = 0x1, 0x4
BACKLOG = 512
ACCEPTED_MAX = 64
"""Clients that are welcomed in one round of the loop."""
MAINTAIN_INTERVAL_S = 1.0
PROBLEM_PAUSE_S, PROBLEM_KEPT_S = 0.2, 5.0
NUMBERS_TIMEOUT_S = 2.0
FAILED_LOGIN_DELAY_S = 1.0
IDLE_S, UNREAD_S, LONG_WAIT_S = 5.0, 10.0, 60.0
"""How long a client is idle, does not read its answer, or waits in a fetch, before another one may have its place."""
SLICE_S = 0.005
"""The time that long requests, or requests that came together, have before the other clients are looked at."""
AT_ONCE_SIZE_MAX = 32 << 10
"""Bytes of a request that is decoded in the loop: the library needs 2 µs for each element."""
Computed = tuple[Any, Exception | None]
"""The result of a function that the thread called, or its error."""
CLOSED_PARTS = 16
"""One in so many of the idle clients is closed at once."""
STALLED_S = 1.0
"""A request of which nothing arrives for so long is given up, where others wait for its memory."""


@final
class LogServer(ClosedOnExit):
    """Serves a log directory to Kafka clients.

    ::

        with LogServer("/var/lib/events", "127.0.0.1:9092") as server:
            server.run()

    Args:
        directory: of the log; a writable server makes it when it is missing.
        listen: HOST:PORT; port 0 takes any that is free.
        is_writable: takes the right to write the log; then clients may produce, and make and delete topics.
        writer: the log as another thread of this process has it open; it tells the server of each append.
        options: those of `ServerOptions`.

    Raises:
        InvalidArgumentError: the address is none, or is open to the network without ``insecure``; an option is wrong.
        NotALogError: there is no log, and it is not to be written.
        LogBusyError: a writable server finds another writer.
        OSError: the port is taken, or the log cannot be read.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        listen: str,
        *,
        is_writable: bool = False,
        writer: LogDirectory | None = None,
        **options: object,
    ) -> None:
        self.options = ServerOptions.parse(options)
        if writer is None and self.options.compression_type != "none":
            raise InvalidArgumentError(
                "a server keeps batches as their producers compress them: leave compression_type out, or give it to "
                "producers and to the sink log: of a sender"
            )
        listening = parse_listen(listen, self.options)
        advertised = parse_advertised(self.options.advertised_listener, listening.host)
        self._tls = TlsFiles(self.options) if self.options.ssl_certfile is not None else None
        self._users = UsersFile(self.options.users_file) if self.options.users_file is not None else None
        self._listener = _listen(listening)
        with contextlib.ExitStack() as taken:  # closes them when one cannot be had
            taken.callback(self._listener.close)
            self._log = LogDirectory(directory, self.options) if is_writable else None
            if self._log is not None:
                taken.callback(self._log.close)
            self.directory = LogReader(directory, verify_crc=False).path
            self.address = Address(listening.host, self._listener.getsockname()[1])
            self._begin_clients()
            taken.callback(self._bell.close)
            taken.callback(self._rope.close)
            self._open_log(writer or self._log)
            self._routes = self._new_routes(advertised._replace(port=advertised.port or self.address.port))
            self._selector = self._new_selector()
            taken.pop_all()

    def _begin_clients(self) -> None:
        """The loop's own state: nobody is connected, nothing is under way."""
        self._bell, self._rope = socket.socketpair()
        self._rope.setblocking(False)
        self._questions: Questions[list[Family]] = Questions("the server", self._ring)
        produce_size_max = self.options.request_size_max if self._log is None else self.options.produce_size_max
        self._limits = FrameLimits(self.options.request_size_max, produce_size_max, self.options.request_memory_max)
        self._hosts: Counter[str] = Counter()
        self._connections: set[Connection] = set()
        self._starved: set[Connection] = set()
        self._idle: dict[int, Connection] = {}
        self._waiting: dict[Connection, Call] = {}
        self._scraped: Stepwise[Sequence[GroupLag]] | None = None
        self._ticking: Steps | None = None
        self._under_way: dict[Connection, tuple[Call, Steps]] = {}
        """Requests that are answered in steps, the one that has waited for its next slice longest first."""
        self._runnable: list[Connection] = []
        self._served: Connection | None = None
        self._refused: deque[tuple[float, Call, Values]] = deque()
        self._maintain_at_s = 0.0
        self._descriptor_end = descriptors.limit() - descriptors.reserve(0)
        """A client whose socket has this number or a higher one takes the place of an idle one."""
        self._is_stopped = False
        self._is_accepting = True
        self._problem, self._problem_s = "", -math.inf

    def _open_log(self, teller: LogDirectory | None) -> None:
        """The parts that read and write the log.

        Args:
            teller: the log as this process writes it, which tells of each append; None: another process writes it.
        """
        self._numbers = ServerNumbers()
        self._hashing = Worker(self._ring, "hashing")
        self._judging, self._reading = Worker(self._ring, "judging"), Worker(self._ring, "reading")
        self._topics = LogTopics(self.directory)
        self._polls = LongPoll(
            self._topics, self._ring, self._numbers, fail=self._fail_call, is_told=teller is not None
        )
        self._teller = teller
        if teller is not None:
            teller.on_append = self._polls.tell
        self._coordinator = _new_coordinator(self._topics, self.options)
        self._coordinator.address = f"{self.address.host}:{self.address.port}"
        self._writing = None if self._log is None else self._new_writing(self._log)
        if self._log is not None:
            self._log.tell_server(self._coordinator.address)

    def _new_writing(self, log: LogDirectory) -> Writing:
        is_synced = self.options.sync != "none"
        transactions = TransactionCoordinator(log, self._coordinator, is_synced=is_synced)
        return Writing(log, self._topics, self._numbers, transactions)

    def _new_selector(self) -> selectors.EpollSelector:
        """A selector of everything but the clients."""
        selector = selectors.EpollSelector()
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        selector.register(self._bell, selectors.EVENT_READ, self._answer_bell)
        if self._polls.descriptor >= 0:
            selector.register(self._polls.descriptor, selectors.EVENT_READ, self._polls.note_growth)
        return selector

    def _new_routes(self, advertised: Address) -> dict[int, RequestRoute]:
        """The requests that are answered.

        Args:
            advertised: the address that clients are told.
        """
        topics, writing = self._topics, self._writing
        cluster = Cluster(topics, writing, _cluster_id(self.directory), advertised)
        listener = listener_name(self.options, advertised)
        settings = ServerSettings(topics, self._teller, advertised=listener, is_writable=writing is not None)
        more = {} if self._users is None else login_routes(self._hashing, self._refuse_login)
        table = routes(cluster, self._coordinator, Placement(topics), settings, writing, self._polls.fetch, more)
        return guarded_routes(table, topics)

    # --- the loop

    def run(self) -> None:
        """Serves until `stop` is called. A problem of the log, or a mistake of ours, is told and ends nothing."""
        while not self._is_stopped:
            self._run_once_or_tell()

    def _run_once_or_tell(self) -> None:
        try:
            self.run_once()
        except Exception as error:
            self._problem, self._problem_s = repr(error), clock.monotonic()
            logger.exception("the server of %s has a problem and goes on", self.directory)
            time.sleep(PROBLEM_PAUSE_S)

    @property
    def problem(self) -> str | None:
        """The last exception that interrupted the loop, for a few seconds; from any thread."""
        return self._problem if clock.monotonic() - self._problem_s < PROBLEM_KEPT_S else None

    def run_once(self) -> None:
        """Waits until something is to be done, and does it."""
        due_s = self._due_s()
        has_work = bool(self._runnable or self._under_way) or self._scraped is not None or self._ticking is not None
        self._take_events(0.0 if has_work else max(due_s - clock.monotonic(), 0.0))
        self._take_runnable()
        if self._starved:
            self._feed_starved()
            self._close_stalled()
        if self._questions.has_any:
            self._scrape()
        self._polls.take_told()
        self._hashing.conclude()
        self._judging.conclude()
        self._reading.conclude()
        self._go_on()
        if self._ticking is not None:
            self._go_on_ticking(self._ticking)
        if clock.monotonic() >= due_s:
            self._do_due()

    def _take_runnable(self) -> None:
        """Begins the next requests of clients that sent several at once, as many as fit into a slice."""
        runnable, self._runnable = self._runnable, []
        end_s = clock.monotonic() + SLICE_S
        for taken, connection in enumerate(runnable, 1):
            self._take_frame(connection)
            if clock.monotonic() >= end_s:
                self._runnable = runnable[taken:] + self._runnable
                return

    def _take_events(self, rest_s: float) -> None:
        """Waits for the files of the loop, and does what they ask for. Ordinary fetches are answered by then."""
        descriptor = self._selector.fileno()
        ready = receive_ready(descriptor, rest_s, self._idle, self._polls.ordinary, self._limits.size_max)
        for source, mask, outcome in ready:
            if isinstance(source, Connection):
                self._take_over(source, outcome)
            else:
                self._take_event(source, mask)

    def _take_event(self, descriptor: int, mask: int) -> None:
        key = self._selector.get_map().get(descriptor)
        if key is None:  # it was closed in this round
            return
        if isinstance(key.data, Connection):
            self._serve(key.data, _events_of(mask) & key.events)
        else:
            key.data()

    def _due_s(self) -> float:
        """When `_do_due` has something to do. Work that comes to be due in a round is done in the next one."""
        due_s = min(self._polls.deadline_s, self._coordinator.deadline_ms / 1000, self._maintain_at_s)
        if self._starved:
            due_s = min(due_s, clock.monotonic() + STALLED_S / 4)
        return min(due_s, self._refused[0][0]) if self._refused else due_s

    def _do_due(self) -> None:
        """Does what is to be done at its time."""
        self._polls.end_waits()
        while self._refused and self._refused[0][0] <= clock.monotonic():
            _, call, values = self._refused.popleft()
            call.answer(values)
        self._coordinator.tick()
        self._maintain()

    def stop(self) -> None:
        """Ends `run`; from any thread, and from a signal handler."""
        self._is_stopped = True
        self._ring()

    def _ring(self) -> None:
        """Wakes the loop; a full pipe wakes it as well."""
        with contextlib.suppress(OSError):
            self._rope.send(b"\0")

    def _answer_bell(self) -> None:
        self._bell.recv(64)

    def _maintain(self) -> None:
        now_s = clock.monotonic()
        if now_s < self._maintain_at_s:
            return
        self._maintain_at_s = now_s + MAINTAIN_INTERVAL_S
        if not self._is_accepting:
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
            self._is_accepting = True
        if self._log is not None:
            self._log.maintain()
        if self._writing is not None and self._ticking is None:
            self._ticking = self._writing.transactions.tick()
        self._topics.retain()
        self._coordinator.retain()
        self._read_changed_files()
        for connection in [each for each in self._connections if self._is_overdue(each, now_s)]:
            self._close(connection)
        self._descriptor_end = descriptors.limit() - descriptors.reserve(self._topics.total_count())
        if descriptors.lowest_free() >= self._descriptor_end:
            self._make_room(self._connections)

    def _read_changed_files(self) -> None:
        """Takes over new certificates and users. A file that cannot be used leaves the former content in place."""
        try:
            if self._tls is not None and self._tls.refresh():
                logger.info("new connections get the certificate that is in %s now", self.options.ssl_certfile)
            if self._users is not None and self._users.refresh():
                logger.info("the users are those that are in %s now", self._users.path)
                self._take_over_rights()
        except InvalidArgumentError as error:
            logger.error("the former content goes on: %s", error)

    def _take_over_rights(self) -> None:
        """Judges the requests under way by the rights of now. A fetch that waits is answered if it lost its right."""
        for connection, call in self._waiting.items():
            if connection.login is not None:
                call.user = connection.login.user or NOBODY
        self._polls.ask_all_again()

    def _is_overdue(self, connection: Connection, now_s: float) -> bool:
        login = connection.login
        if not connection.transport.is_open or not connection.is_known:
            return now_s - connection.began_s > self.options.login_timeout_ms / 1000
        if login is not None and login.user is None:
            return True
        is_waiting = connection in self._waiting
        return not is_waiting and now_s - connection.active_s > self.options.connections_max_idle_ms / 1000

    # --- connections

    def _accept(self) -> None:
        """Welcomes the clients that came since the last round. A round may be long where many have requests."""
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, (host, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("a client could not be accepted: %s", error.strerror)
                if not self._make_room(self._connections):
                    # Clients wait in the backlog until `_maintain`: without descriptors, the loop would spin.
                    self._selector.unregister(self._listener)
                    self._is_accepting = False
                return
            if not self._has_room_for(host, accepted.fileno()):
                accepted.close()
                continue
            with contextlib.suppress(OSError):  # the client is gone already
                self._welcome(accepted, host)

    def _has_room_for(self, host: str, descriptor: int) -> bool:
        """True when a client may come, also in the place of one that is idle."""
        options = self.options
        if self._hosts[host] >= options.connection_count_per_address_max:
            others = [each for each in self._connections if each.host == host]
            return self._make_room(others) or self._turn_away(host, f"it has {self._hosts[host]} connections")
        if len(self._connections) >= options.connection_count_max:
            return self._make_room(self._connections) or self._turn_away(
                host, f"{len(self._connections)} are connected"
            )
        if descriptor >= self._descriptor_end:
            return self._make_room(self._connections) or self._turn_away(host, "the other open files are for the log")
        return True

    def _turn_away(self, host: str, reason: str) -> bool:
        logger.warning("a client from %s is turned away: %s", host, reason)
        return False

    def _make_room(self, connections: Collection[Connection]) -> bool:
        """Closes the clients that have been idle for longest, and first those that never asked for anything.

        Several are closed at once, so that a crowd of newcomers does not cost a look at all connections for each.
        """
        now_s = clock.monotonic()
        idle = [
            (rank, each.active_s, each) for each in connections if (rank := self._idle_rank(each, now_s)) is not None
        ]
        idle.sort(key=lambda one: one[:2])
        for _, _, connection in idle[: max(len(idle) // CLOSED_PARTS, 1)]:
            self._close(connection)
        if idle:
            logger.warning("idle clients make room for others: %d are connected", len(self._connections))
        return bool(idle)

    def _idle_rank(self, connection: Connection, now_s: float) -> int | None:
        """0 for a client that never asked, 1 for an idle one, 2 for one that does not read its answer, 3 for one that
        waits in a fetch for long; None: it is none of them."""
        call = self._waiting.get(connection)
        if call is not None:
            is_long_poll = call.request.api_key == FETCH and now_s - call.began_s > LONG_WAIT_S
            return 3 if is_long_poll else None
        if connection.is_busy:
            return 2 if now_s - connection.active_s > UNREAD_S else None
        if not connection.has_asked:
            return 0
        return 1 if now_s - connection.active_s > IDLE_S else None

    def _welcome(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = PlainTransport(accepted) if self._tls is None else TlsTransport(accepted, self._tls.context)
        login = None if self._users is None else Login(self._users)
        connection = Connection(transport, host, login, self._limits)
        self._connections.add(connection)
        self._hosts[host] += 1
        connection.events = selectors.EVENT_READ
        self._selector.register(transport.socket, connection.events, connection)
        self._note_idle(connection)

    def _serve(self, connection: Connection, events: int) -> None:
        try:
            if not events:  # the kernel tells of a broken connection, even where nothing is wanted of it
                raise ConnectionError("the client closed the connection")
            if events & selectors.EVENT_READ:
                connection.receive()
            if events & selectors.EVENT_WRITE:
                connection.flush()
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        self._take_frame(connection)

    def _take_over(self, connection: Connection, outcome: Outcome) -> None:
        """Goes on behind C, which read what a client said, and answered it when it was an ordinary fetch."""
        if isinstance(outcome, Served):
            self._polls.note_served(outcome)
            self._numbers.note_answered(api_name(FETCH), outcome.took_s)
        if connection.is_gone:
            return
        try:
            connection.take_over(outcome)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        if not connection.may_fetch_at_once:
            self._take_frame(connection)

    def _take_frame(self, connection: Connection) -> None:
        """Begins the next request of a connection that has none under way."""
        if connection.is_gone:
            return
        self._served = connection
        try:
            frame = connection.next_frame()
            if frame is not None:
                self._handle(connection, frame)
        except OSError as error:  # of the log: `_send` meets those of the socket
            logger.error("a request from %s could not be answered: %s", connection.host, error)
            self._close(connection)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        self._served = None
        self._await(connection)

    def _await(self, connection: Connection) -> None:
        """Says what the loop is to wait for."""
        if connection.is_ended:
            self._close(connection)
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
        self._note_idle(connection)

    def _note_idle(self, connection: Connection) -> None:
        """Lets C read what a client says that has nothing under way."""
        if connection.may_fetch_at_once:
            self._idle[connection.descriptor] = connection
        else:
            self._idle.pop(connection.descriptor, None)

    def _feed_starved(self) -> None:
        """Lets connections read on whose requests waited for memory, as far as there is some."""
        for connection in [each for each in self._starved if each.wants_to_read]:
            self._starved.discard(connection)
            connection.progress_s = clock.monotonic()
            self._await(connection)

    def _close_stalled(self) -> None:
        """Closes the clients that keep memory for requests that do not arrive, while others wait for it."""
        before_s = clock.monotonic() - STALLED_S
        slow = [each for each in self._limits.holders if each.progress_s < before_s and not each.has_frame]
        for connection in _silent(slow) if self._starved else []:
            logger.warning("the connection from %s is closed: others wait for the memory it has", connection.host)
            self._close(connection)
        self._feed_starved()

    def _fail(self, connection: Connection, error: Exception) -> None:
        """Turns an error into the end of this connection alone, also a mistake of ours in one answer."""
        host = connection.host
        if isinstance(error, BadFrameError):
            logger.warning("the connection from %s is closed: %s", host, error)
        elif isinstance(error, ssl.SSLError):
            logger.warning("the connection from %s is closed: TLS failed: %s", host, error.reason or error)
        elif not isinstance(error, OSError):
            logger.error("a request from %s could not be answered; its connection is closed", host, exc_info=error)
        self._close(connection)

    def _fail_call(self, call: Call, error: Exception) -> None:
        """Ends the connection of a request that waited and cannot be answered. An OSError is one of the log."""
        if isinstance(error, OSError):
            logger.error("a request from %s that waited could not be answered: %s", call.host, error)
        for connection in [each for each, waiting in self._waiting.items() if waiting is call]:
            self._fail(connection, error)

    def _close(self, connection: Connection) -> None:
        if connection.is_gone:
            return
        call = self._waiting.pop(connection, None)
        if call is not None:
            self._polls.drop(call)
            self._coordinator.drop(call)
        if (under_way := self._under_way.pop(connection, None)) is not None:
            under_way[1].close()
        self._selector.unregister(connection.transport.socket)
        self._idle.pop(connection.descriptor, None)
        self._connections.discard(connection)
        self._starved.discard(connection)
        self._hosts[connection.host] -= 1
        if not self._hosts[connection.host]:
            del self._hosts[connection.host]
        connection.close()

    # --- requests

    def _handle(self, connection: Connection, frame: memoryview) -> None:
        request = read_head(frame)
        route = self._routes.get(request.api_key)
        if request.api_key == API_VERSIONS and route is not None and request.version > route.version_max:
            self._send(connection, [encode_unsupported(request, api_versions(self._routes))])
            return
        if route is None or not route.version_min <= request.version <= route.version_max:
            raise BadFrameError(f"request {request.api_key} in version {request.version} was not offered")
        if request.api_key == PRODUCE and request.version < PRODUCE_VERSION_MIN:
            raise BadFrameError(f"Produce in version {request.version}: its records have a format of before Kafka 0.11")
        call = Call(
            request,
            None,
            connection.host,
            self._user_of(connection, request),
            connection.login,
            lambda pieces: self._send(connection, pieces),
            lambda call, steps: self._take_steps(connection, call, steps, functools.partial(steps.send, None)),
        )
        self._waiting[connection] = call
        if request.api_key not in (FETCH, PRODUCE) and len(frame) > AT_ONCE_SIZE_MAX:
            self._encode_in_thread(call)
            call.work(_decoded_and_answered(call, route))
            return
        call.message = None if request.api_key == FETCH else decode(request)
        route.answer(call)

    # --- long requests

    def _take_steps(
        self, connection: Connection, call: Call, steps: Steps, advance: Callable[[], Callable[[], Any] | None]
    ) -> None:
        """Takes steps of a request until it is answered, needs the thread, or has had its slice of the loop's time."""
        end_s = clock.monotonic() + SLICE_S
        try:
            while (compute := advance()) is None:
                advance = functools.partial(steps.send, None)
                if clock.monotonic() >= end_s:
                    self._encode_in_thread(call)
                    self._under_way[connection] = call, steps
                    return
        except StopIteration:
            return
        thread = self._judging if call.request.api_key == PRODUCE else self._reading
        thread.ask(
            functools.partial(_outcome, compute),
            lambda outcome: self._resume(connection, call, steps, outcome),
        )

    def _resume(self, connection: Connection, call: Call, steps: Steps, outcome: Computed) -> None:
        """Goes on with a request whose computation is done."""
        if connection.is_gone:
            steps.close()
            return
        found, error = outcome
        advance = functools.partial(steps.send, found) if error is None else functools.partial(steps.throw, error)
        self._try_steps(connection, call, steps, advance)

    def _try_steps(
        self, connection: Connection, call: Call, steps: Steps, advance: Callable[[], Callable[[], Any] | None]
    ) -> None:
        try:
            self._take_steps(connection, call, steps, advance)
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail_call(call, error)

    def _go_on(self) -> None:
        """Gives the request its slice that has waited for one longest."""
        if self._under_way:
            connection = next(iter(self._under_way))
            call, steps = self._under_way.pop(connection)
            self._try_steps(connection, call, steps, functools.partial(steps.send, None))

    def _encode_in_thread(self, call: Call) -> None:
        """Has the answer of a long request made in the thread."""

        def encode_elsewhere(make: Callable[[], bytes], take: Callable[[bytes], None]) -> None:
            def conclude(outcome: Computed) -> None:
                content, error = outcome
                if error is not None:
                    self._fail_call(call, error)
                else:
                    take(content)

            self._reading.ask(functools.partial(_outcome, make), conclude)

        call.encode_by(encode_elsewhere)

    @staticmethod
    def _user_of(connection: Connection, request: Request) -> User:
        """The principal of a request.

        Raises:
            BadFrameError: the client has not logged in, or its user is gone.
        """
        if connection.login is None:
            return ANYBODY
        user = connection.login.user
        if user is None and request.api_key not in BEFORE_LOGIN:
            raise BadFrameError(f"request {request.api_key} came from a client that has not logged in")
        return user or NOBODY

    def _refuse_login(self, call: Call, values: Values) -> None:
        """Answers later, so that nobody can try many passwords."""
        logger.warning("a login from %s failed: %s", call.host, values["error_message"])
        self._refused.append((clock.monotonic() + FAILED_LOGIN_DELAY_S, call, values))

    def _send(self, connection: Connection, pieces: Sequence[Piece]) -> None:
        call = self._waiting.pop(connection, None)
        if call is not None:
            self._numbers.note_answered(api_name(call.request.api_key), clock.monotonic() - call.began_s)
        if connection.is_gone:
            return
        connection.answer(pieces)
        try:
            connection.flush()
        except Exception as error:  # noqa: BLE001 - see `_fail`
            self._fail(connection, error)
        if connection is not self._served:
            self._await(connection)

    # --- numbers

    def _go_on_ticking(self, steps: Steps) -> None:
        """Gives a slice to what is to be done for transactions now and then."""
        end_s = clock.monotonic() + SLICE_S
        self._ticking = None
        try:
            for _ in steps:
                if clock.monotonic() >= end_s:
                    self._ticking = steps
                    return
        except OSError as error:
            logger.error("transactions could not be looked after: %s", error)

    def families(self) -> list[Family]:
        """The server's numbers by the names of Kafka's broker, for the thread of a scrape: the loop answers.

        Raises:
            ServerUnreachableError: the server does not run.
        """
        try:
            return self._questions.ask(NUMBERS_TIMEOUT_S)
        except TimeoutError:
            raise ServerUnreachableError(f"the server of {self.directory} does not answer: it does not run") from None

    def _scrape(self) -> None:
        """Goes on with the numbers for a scrape. Scrapes that are under way get the same ones."""
        if self._scraped is None:
            self._scraped = self._coordinator.lags()
        end_s = clock.monotonic() + SLICE_S
        try:
            while clock.monotonic() < end_s:
                next(self._scraped)
        except StopIteration as end:
            groups: Sequence[GroupLag] = end.value
            self._questions.answer(lambda: list(self._numbers.families(len(self._connections), groups)))
            self._scraped = None
        except OSError as error:
            self._questions.answer(functools.partial(_raise, error))
            self._scraped = None

    # --- end

    def close(self) -> None:
        """Closes every connection, the groups and the log. Doing it twice does nothing."""
        for connection in list(self._connections):
            self._close(connection)
        if self._ticking is not None:
            self._ticking.close()
        self._hashing.close()
        self._judging.close()
        self._reading.close()
        if self._writing is not None:
            self._writing.transactions.close()
        self._coordinator.close()
        self._selector.close()
        self._polls.close()
        for one in (self._listener, self._bell, self._rope):
            one.close()
        if self._log is not None:
            self._log.close()


def _raise(error: Exception) -> NoReturn:
    raise error


def _outcome(compute: Callable[[], Any]) -> Computed:
    try:
        return compute(), None
    except Exception as error:  # noqa: BLE001 - it is raised where the request is answered
        return None, error


def _decoded_and_answered(call: Call, route: RequestRoute) -> Steps:
    """Decodes a large request in the thread, and answers it."""
    call.message = yield functools.partial(decode, call.request)
    route.answer(call)


def _silent(connections: Sequence[Connection]) -> list[Connection]:
    """The connections whose clients have sent nothing that was not read."""
    speaking = set(wait_readable([each.descriptor for each in connections], 0)) if connections else set()
    return [each for each in connections if each.descriptor not in speaking]


def _events_of(mask: int) -> int:
    """The events of a selector that epoll's stand for; an error, or the end of a connection, is both of them."""
    return selectors.EVENT_WRITE * bool(mask & ~EPOLLIN) | selectors.EVENT_READ * bool(mask & ~EPOLLOUT)


def parse_listen(text: str, options: ServerOptions) -> Address:
    """HOST:PORT.

    Raises:
        InvalidArgumentError: it is none, or other hosts could connect without TLS and nobody said that they may.
    """
    host, colon, port = text.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not colon or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgumentError(f"{text!r} is no address to listen on: write HOST:PORT, as in 127.0.0.1:9092")
    if not _is_loopback(host) and not options.insecure and options.ssl_certfile is None:
        raise InvalidArgumentError(
            f"other hosts can reach {host}, and this server would talk to them without TLS: listen on 127.0.0.1, give "
            "a certificate (-X ssl_certfile=FILE -X ssl_keyfile=FILE), or say insecure=true (--insecure) where the "
            "network itself keeps strangers out"
        )
    return Address(host, int(port))


def parse_advertised(text: str | None, listening_host: str) -> Address:
    """The address that clients are told. Its port is 0 where the text has none: the one that the server listens on.

    Args:
        text: HOST:PORT or HOST; None: the address that the server listens on.
        listening_host: the host of that address.

    Raises:
        InvalidArgumentError: the text is no address, or the address is none that a client can connect to.
    """
    if text is None:
        _refuse_every_address(listening_host, "the server listens on every address of the host")
        return Address(listening_host, 0)
    host, _, port = text.rpartition(":") if ":" in text else (text, ":", "0")
    if not host or not port.isdecimal() or (":" in text and not 0 < int(port) <= 65_535):
        raise InvalidArgumentError(
            f"advertised_listener: {text!r} is no address at which clients find the server: write HOST:PORT, as in "
            "logs.example.com:9092"
        )
    _refuse_every_address(host.strip("[]"), "advertised_listener names every address of a host")
    return Address(host.strip("[]"), int(port))


def _refuse_every_address(host: str, reason: str) -> None:
    """Clients cannot connect to 0.0.0.0 or to ::, so they are never told such an address. Kafka refuses it, too."""
    if _is_every_address(host):
        raise InvalidArgumentError(
            f"{reason} ({host}), and clients have to be told one of them: name it by advertised_listener "
            "(--advertised-listener), as in logs.example.com:9092"
        )


def _is_every_address(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def listener_name(options: ServerOptions, address: Address) -> str:
    """An address as Kafka's setting advertised.listeners has it, with its protocol."""
    protocol = "PLAINTEXT" if options.ssl_certfile is None else "SSL"
    if options.users_file is not None:
        protocol = f"SASL_{protocol}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{protocol}://{host}:{address.port}"


def _group_limits(options: ServerOptions) -> GroupLimits:
    return GroupLimits(
        options.group_min_session_timeout_ms,
        options.group_max_session_timeout_ms,
        options.group_max_size,
        options.group_initial_rebalance_delay_ms,
    )


def _new_coordinator(topics: LogTopics, options: ServerOptions) -> Coordinator:
    limits = _group_limits(options), _consumer_limits(options)
    return Coordinator(
        topics.directory,
        topics,
        *limits,
        memory_max=options.group_memory_max,
        offsets_retention_ms=options.offsets_retention_ms,
        is_synced=options.sync != "none",
    )


def _consumer_limits(options: ServerOptions) -> ConsumerLimits:
    return ConsumerLimits(
        options.group_consumer_session_timeout_ms,
        options.group_consumer_heartbeat_interval_ms,
        options.group_max_size,
    )


def _cluster_id(directory: str) -> uuid.UUID:
    try:
        return uuid.UUID(bytes=read_directory_id(os.path.join(directory, META_FILE)))
    except FileNotFoundError:
        raise NotALogError(
            f"{directory} is empty, and a server that only reads makes no log: start its writer first, as a sender "
            f"(--sink log:{directory}), or serve it with --writable"
        ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener
