# SPDX-License-Identifier: Apache-2.0
"""The server: one thread, one event loop, any number of clients.

::

    epoll ──┬── listener      accept a client (`acceptor`)
            ├── connections   an ordinary fetch ──> response, in C (`receive_ready`)
            │                 any other request (`dispatch`)
            ├── log watch     another process appended ──> check the fetches that wait for the partition
            └── wake fd       a writer of this process appended, a computation is done, or `stop` was called

Rules: nothing here blocks on a client or another thread. A failure of the log, such as a full disk, is logged, and the
loop continues. The server reads the log from its files and verifies it batch by batch (`log_heads`), whether this
server or a sender writes it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import selectors
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from typing import NoReturn, final

from shmaccum.common import clock
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.pending_calls import PendingCalls
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError, LogError, NotALogError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import META_FILE
from shmaccum.log.files.reader import LogReader
from shmaccum.log.files.small_files import read_directory_id
from shmaccum.log.server.acceptor import Acceptor, open_listener
from shmaccum.log.server.addresses import Address, listener_name, parse_advertised, parse_listen
from shmaccum.log.server.cluster import Cluster
from shmaccum.log.server.connection import Connection, FrameLimits
from shmaccum.log.server.consumer_group import ConsumerLimits
from shmaccum.log.server.coordinator import Coordinator
from shmaccum.log.server.dispatch import SLICE_S, Dispatcher
from shmaccum.log.server.fetch import FetchHandler
from shmaccum.log.server.fetch_frames import receive_ready
from shmaccum.log.server.group import GroupLimits
from shmaccum.log.server.login_requests import LoginRequests
from shmaccum.log.server.long_poll import LongPoll
from shmaccum.log.server.numbers import Family, GroupLag, ServerNumbers
from shmaccum.log.server.produce import ProduceHandler
from shmaccum.log.server.requests import WriteHandlers, request_table
from shmaccum.log.server.settings import ServerSettings
from shmaccum.log.server.steps import Steps, Stepwise
from shmaccum.log.server.tls_files import tls_files
from shmaccum.log.server.topic_requests import TopicRequests
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transaction_coordinator import TransactionCoordinator
from shmaccum.log.server.users import NOT_LOGGED_IN, UsersFile

logger = logging.getLogger(__name__)

EPOLLIN, EPOLLOUT = 0x1, 0x4
MAINTAIN_INTERVAL_S = 1.0
PROBLEM_PAUSE_S, PROBLEM_KEPT_S = 0.2, 5.0
NUMBERS_TIMEOUT_S = 2.0


@final
class LogServer(ClosedOnExit):
    """Serves a log directory to Kafka clients.

    ::

        with LogServer("/var/lib/events", "127.0.0.1:9092") as server:
            server.run()

    Args:
        directory: the log. A writable server creates it if it is missing.
        listen: HOST:PORT. Port 0 selects a free port.
        is_writable: whether to write the log, so that clients may produce, and create and delete topics.
        writer: the log as opened by another thread of this process, which reports each append to the server.
        options: those of `ServerOptions`.

    Raises:
        InvalidArgumentError: an option is wrong, or the address is invalid or needs ``insecure``.
        NotALogError: the directory has no log, and the server is not writable.
        LogBusyError: the server is writable, and another process writes the log.
        OSError: the port is in use, or the log cannot be read.
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
                "a server stores batches as compressed by their producers: omit compression_type, or set it for "
                "producers or for the sink log: of a sender"
            )
        listening = parse_listen(listen, self.options)
        advertised = parse_advertised(self.options.advertised_listener, listening.host)
        self._tls = tls_files(self.options)
        self._users = UsersFile(self.options.users_file) if self.options.users_file is not None else None
        self._listener = open_listener(listening)
        with contextlib.ExitStack() as taken:  # closes what was opened if a later step fails
            taken.callback(self._listener.close)
            self._log = LogDirectory(directory, self.options) if is_writable else None
            if self._log is not None:
                taken.callback(self._log.close)
            self.directory = LogReader(directory).path
            self.address = Address(listening.host, self._listener.getsockname()[1])
            self._begin_loop()
            taken.callback(self._wake_receiver.close)
            taken.callback(self._wake_sender.close)
            self._open_log(writer or self._log, taken)
            self._begin_requests(advertised._replace(port=advertised.port or self.address.port), taken)
            taken.pop_all()

    def _begin_loop(self) -> None:
        """Initializes the state of the loop."""
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_sender.setblocking(False)
        self._questions: PendingCalls[list[Family]] = PendingCalls("the server", self._wake)
        self._scraped: Stepwise[Sequence[GroupLag]] | None = None
        self._ticking: Steps | None = None
        self._maintain_at_s = 0.0
        self._is_stopped = False
        self._problem, self._problem_s = "", -math.inf

    def _open_log(self, writer: LogDirectory | None, taken: contextlib.ExitStack) -> None:
        """Opens the parts that read and write the log.

        Args:
            writer: the log as written by this process. None if another process writes it.
            taken: closes what was opened if a later step fails.
        """
        self._numbers = ServerNumbers()
        self._topics = LogTopics(self.directory)
        self._polls = LongPoll(self._topics, self._wake, has_reports=writer is not None)
        taken.callback(self._polls.close)
        self._fetches = FetchHandler(self._topics, self._polls, self._numbers)
        self._writer = writer
        if writer is not None:
            writer.on_append = self._polls.record_append
        self._coordinator = _new_coordinator(self._topics, self.options)
        taken.callback(self._coordinator.close)
        self._coordinator.address = f"{self.address.host}:{self.address.port}"
        self._write_handlers: WriteHandlers | None = None
        if self._log is not None:
            is_synced = self.options.sync != "none"
            transactions = TransactionCoordinator(self._log, self._coordinator, is_synced=is_synced)
            produce = ProduceHandler(self._log, self._topics, self._numbers, transactions)
            self._write_handlers = WriteHandlers(produce, TopicRequests(self._log, self._topics), transactions)
            self._log.publish_server(self._coordinator.address)

    def _begin_requests(self, advertised: Address, taken: contextlib.ExitStack) -> None:
        """Creates the parts that read and answer requests, and registers the files of the loop.

        Args:
            advertised: the address to advertise to clients.
            taken: closes what was opened if a later step fails.
        """
        listener = listener_name(self.options, advertised)
        settings = ServerSettings(
            self._topics, self._writer, advertised=listener, is_writable=self._write_handlers is not None
        )
        creator = None if self._write_handlers is None else self._write_handlers.topics
        self._logins = LoginRequests(self._wake)
        cluster = Cluster(self._topics, creator, _cluster_id(self.directory), advertised)
        table = request_table(
            self._topics,
            self._fetches,
            self._coordinator,
            cluster,
            settings,
            self._write_handlers,
            None if self._users is None else self._logins,
        )
        produce_size_max = self.options.request_size_max if self._log is None else self.options.produce_size_max
        self._limits = FrameLimits(self.options.request_size_max, produce_size_max, self.options.request_memory_max)
        self._selector = selectors.EpollSelector()
        taken.callback(self._selector.close)
        self._dispatcher = Dispatcher(
            table,
            self._topics,
            self._fetches,
            self._coordinator,
            self._numbers,
            self._limits,
            self._selector,
            self._wake,
        )
        self._acceptor = Acceptor(
            self._listener, self._selector, self._dispatcher, self._limits, self.options, self._tls, self._users
        )
        self._selector.register(self._wake_receiver, selectors.EVENT_READ, lambda: self._wake_receiver.recv(64))
        if self._polls.descriptor >= 0:
            self._selector.register(
                self._polls.descriptor, selectors.EVENT_READ, lambda: self._fetches.wake(self._polls.changed())
            )

    # --- the loop

    def run(self) -> None:
        """Serves until `stop` is called. An error of the log or a bug is logged and does not end the loop."""
        while not self._is_stopped:
            self._run_once_and_log()

    def _run_once_and_log(self) -> None:
        try:
            self.run_once()
        except Exception as error:
            self._problem, self._problem_s = repr(error), clock.monotonic()
            logger.exception("the server of %s continues after an exception", self.directory)
            time.sleep(PROBLEM_PAUSE_S)

    @property
    def problem(self) -> str | None:
        """The last exception that interrupted the loop, for a few seconds. Thread-safe."""
        return self._problem if clock.monotonic() - self._problem_s < PROBLEM_KEPT_S else None

    def run_once(self) -> None:
        """Waits for work, and does it."""
        due_s = self._due_s()
        has_work = self._dispatcher.has_work or self._scraped is not None or self._ticking is not None
        self._take_events(0.0 if has_work else max(due_s - clock.monotonic(), 0.0))
        if self._questions.has_any:
            self._scrape()
        self._fetches.wake(self._polls.reported())
        self._logins.conclude()
        self._dispatcher.run_pending()
        if self._ticking is not None:
            self._continue_tick(self._ticking)
        if clock.monotonic() >= due_s:
            self._do_due()

    def _take_events(self, rest_s: float) -> None:
        """Waits for events and handles them. C has already answered ordinary fetches."""
        descriptor, dispatcher = self._selector.fileno(), self._dispatcher
        ready = receive_ready(descriptor, rest_s, dispatcher.idle, self._fetches.ordinary, self._limits.size_max)
        for source, mask, outcome in ready:
            if isinstance(source, Connection):
                dispatcher.handle_outcome(source, outcome)
            else:
                self._take_event(source, mask)

    def _take_event(self, descriptor: int, mask: int) -> None:
        key = self._selector.get_map().get(descriptor)
        if key is None:  # closed in this round
            return
        if isinstance(key.data, Connection):
            self._dispatcher.serve(key.data, _events_of(mask) & key.events)
        else:
            key.data()

    def _due_s(self) -> float:
        """The next time at which `_do_due` has work. Work that becomes due in a round is done in the next one."""
        groups_s = self._coordinator.deadline_ms / 1000
        requests_s = min(self._polls.deadline_s, self._logins.deadline_s, self._dispatcher.deadline_s)
        return min(requests_s, groups_s, self._maintain_at_s)

    def _do_due(self) -> None:
        """Does the work that is due."""
        self._fetches.wake(self._polls.due())
        self._logins.tick()
        self._coordinator.tick()
        self._maintain()

    def stop(self) -> None:
        """Ends `run`. Thread-safe, and safe in a signal handler."""
        self._is_stopped = True
        self._wake()

    def _wake(self) -> None:
        """Wakes the loop. If the pipe is full, a wake-up is already pending."""
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    def _maintain(self) -> None:
        now_s = clock.monotonic()
        if now_s < self._maintain_at_s:
            return
        self._maintain_at_s = now_s + MAINTAIN_INTERVAL_S
        if self._log is not None:
            self._log.maintain()
        if self._write_handlers is not None and self._ticking is None:
            self._ticking = self._write_handlers.transactions.tick()
        self._topics.retain()
        self._coordinator.retain()
        self._read_changed_files()
        self._acceptor.maintain(self._topics.total_count())

    def _read_changed_files(self) -> None:
        """Reloads changed certificates and users."""
        if self._tls is not None and _is_reloaded(self._tls.refresh):
            logger.info("reloaded the certificate from %s for new connections", self.options.ssl_certfile)
        if self._users is not None and _is_reloaded(self._users.refresh):
            logger.info("reloaded the users from %s", self._users.path)
            self._apply_rights()

    def _apply_rights(self) -> None:
        """Applies the new rights to requests in progress. A waiting fetch that lost its right is answered."""
        for connection, call in self._dispatcher.waiting.items():
            if connection.login is not None:
                call.user = connection.login.user or NOT_LOGGED_IN
        self._fetches.wake(self._polls.all())

    # --- numbers

    def _continue_tick(self, steps: Steps) -> None:
        """Runs the periodic work of transactions for one slice."""
        end_s = clock.monotonic() + SLICE_S
        self._ticking = None
        try:
            for _ in steps:
                if clock.monotonic() >= end_s:
                    self._ticking = steps
                    return
        except OSError as error:
            logger.error("the periodic work of transactions failed: %s", error)

    def families(self) -> list[Family]:
        """Returns the server's metrics, computed by the loop, under the names of Kafka's broker. Thread-safe.

        Raises:
            LogError: the server is not running.
        """
        try:
            return self._questions.ask(NUMBERS_TIMEOUT_S)
        except TimeoutError:
            raise LogError(f"the server of {self.directory} does not answer: check that it is running") from None

    def _scrape(self) -> None:
        """Continues the metrics of a scrape. All pending scrapes get the same result."""
        if self._scraped is None:
            self._scraped = self._coordinator.lags()
        end_s = clock.monotonic() + SLICE_S
        try:
            while clock.monotonic() < end_s:
                next(self._scraped)
        except StopIteration as end:
            groups: Sequence[GroupLag] = end.value
            self._questions.answer(lambda: list(self._numbers.families(len(self._dispatcher.connections), groups)))
            self._scraped = None
        except OSError as error:
            self._questions.answer(functools.partial(_raise, error))
            self._scraped = None

    # --- end

    def close(self) -> None:
        """Closes every connection, the groups and the log. Idempotent."""
        self._dispatcher.close_all()
        if self._ticking is not None:
            self._ticking.close()
        self._logins.close()
        if self._write_handlers is not None:
            self._write_handlers.transactions.close()
        self._coordinator.close()
        self._selector.close()
        self._polls.close()
        for one in (self._listener, self._wake_receiver, self._wake_sender):
            one.close()
        if self._log is not None:
            self._log.close()


def _raise(error: Exception) -> NoReturn:
    raise error


def _events_of(mask: int) -> int:
    """Convert epoll events to selector events. An error or the end of a connection counts as both."""
    return selectors.EVENT_WRITE * bool(mask & ~EPOLLIN) | selectors.EVENT_READ * bool(mask & ~EPOLLOUT)


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
            f"{directory} is empty, and a read-only server creates no log: start its writer first, as a sender "
            f"(--sink log:{directory}), or serve it with --writable"
        ) from None


def _is_reloaded(refresh: Callable[[], bool]) -> bool:
    """Returns whether a file has changed. If a changed file is invalid, the previous contents stay in effect."""
    try:
        return refresh()
    except InvalidArgumentError as error:
        logger.error("the previous contents stay in effect: %s", error)
        return False
