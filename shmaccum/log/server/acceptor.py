# SPDX-License-Identifier: Apache-2.0
"""The listener of a server: it accepts clients, and closes idle ones if a limit is reached."""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
from collections.abc import Collection
from typing import final

from shmaccum.common import clock, descriptors
from shmaccum.common.file_stamp import FileContents
from shmaccum.config import ServerOptions
from shmaccum.log.server.addresses import Address
from shmaccum.log.server.connection import Connection, FrameLimits
from shmaccum.log.server.dispatch import Dispatcher
from shmaccum.log.server.login import Login
from shmaccum.log.server.requests import FETCH
from shmaccum.log.server.throttle import throttled_logger
from shmaccum.log.server.transport import PlainTransport, TlsTransport
from shmaccum.log.server.users import UsersFile

logger = throttled_logger(__name__)

BACKLOG = 512
ACCEPTED_MAX = 64
"""The most clients that are accepted in one round of the loop."""
IDLE_S, UNREAD_S, LONG_WAIT_S = 5.0, 10.0, 60.0
"""The idle time, the time without reading a response, and the fetch wait after which a client may be replaced."""
CLOSED_PARTS = 16
"""The fraction of the idle clients that is closed at once."""


def open_listener(address: Address) -> socket.socket:
    """Open a non-blocking listener.

    Raises:
        OSError: the port is in use.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


@final
class Acceptor:
    """Accepts the clients of a server.

    Args:
        listener: a non-blocking socket.
        selector: the selector of the server's loop.
        dispatcher: receives the connections.
        limits: the limits of incoming frames.
        options: the options of the server.
        tls: the certificate. None for connections without TLS.
        users: the users. None if no login is required.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        dispatcher: Dispatcher,
        limits: FrameLimits,
        options: ServerOptions,
        tls: FileContents[ssl.SSLContext] | None,
        users: UsersFile | None,
    ) -> None:
        self._listener = listener
        self._selector = selector
        self._dispatcher = dispatcher
        self._limits = limits
        self._options = options
        self._tls = tls
        self._users = users
        self._descriptor_end = descriptors.limit() - descriptors.reserve(0)
        """A client whose descriptor is at least this number replaces an idle client."""
        self._is_accepting = True
        selector.register(listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        """Accepts the clients that arrived since the last round, up to `ACCEPTED_MAX`."""
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, (host, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("a client could not be accepted: %s", error.strerror)
                if not self._close_idle(self._dispatcher.connections):
                    # Clients wait in the backlog until `maintain`. Otherwise, the loop would spin without descriptors.
                    self._selector.unregister(self._listener)
                    self._is_accepting = False
                return
            if not self._may_connect(host, accepted.fileno()):
                accepted.close()
                continue
            with contextlib.suppress(OSError):  # the client has already disconnected
                self._add_client(accepted, host)

    def _add_client(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = PlainTransport(accepted) if self._tls is None else TlsTransport(accepted, self._tls.value)
        login = None if self._users is None else Login(self._users)
        self._dispatcher.add(Connection(transport, host, login, self._limits))

    def maintain(self, partition_count: int) -> None:
        """Closes clients whose time limit has passed, and reserves descriptors for the log. Called once a second.

        Args:
            partition_count: the number of partitions of the log, whose files may be opened.
        """
        if not self._is_accepting:
            self._selector.register(self._listener, selectors.EVENT_READ, self.accept)
            self._is_accepting = True
        connections, now_s = self._dispatcher.connections, clock.monotonic()
        for connection in [each for each in connections if self._is_overdue(each, now_s)]:
            self._dispatcher.close(connection)
        self._descriptor_end = descriptors.limit() - descriptors.reserve(partition_count)
        if descriptors.lowest_free() >= self._descriptor_end:
            self._close_idle(connections)

    def _is_overdue(self, connection: Connection, now_s: float) -> bool:
        login = connection.login
        if not connection.transport.is_open or not connection.is_known:
            return now_s - connection.began_s > self._options.login_timeout_ms / 1000
        if login is not None and login.user is None:
            return True
        is_waiting = connection in self._dispatcher.waiting
        return not is_waiting and now_s - connection.active_s > self._options.connections_max_idle_ms / 1000

    # --- limits

    def _may_connect(self, host: str, descriptor: int) -> bool:
        """Returns whether a client may connect, if necessary by closing an idle client."""
        connections, host_count = self._dispatcher.connections, self._dispatcher.host_counts[host]
        if host_count >= self._options.connection_count_per_address_max:
            others, reason = [each for each in connections if each.host == host], f"it has {host_count} connections"
        elif len(connections) >= self._options.connection_count_max:
            others, reason = list(connections), f"{len(connections)} are connected"
        elif descriptor >= self._descriptor_end:
            others, reason = list(connections), "the remaining file descriptors are reserved for the log"
        else:
            return True
        is_accepted = self._close_idle(others)
        if not is_accepted:
            logger.warning("a client from %s was rejected: %s", host, reason)
        return is_accepted

    def _close_idle(self, connections: Collection[Connection]) -> bool:
        """Closes the clients that have been idle longest, those without any request first.

        Several are closed at once, so that many new clients do not each require a scan of all connections.
        """
        now_s = clock.monotonic()
        idle = [
            (rank, each.active_s, each) for each in connections if (rank := self._idle_rank(each, now_s)) is not None
        ]
        idle.sort(key=lambda one: one[:2])
        for _, _, connection in idle[: max(len(idle) // CLOSED_PARTS, 1)]:
            self._dispatcher.close(connection)
        if idle:
            logger.warning("closed idle clients to accept others: %d are connected", len(self._dispatcher.connections))
        return bool(idle)

    def _idle_rank(self, connection: Connection, now_s: float) -> int | None:
        """Returns 0 for a client without any request, 1 for an idle client, 2 for one that does not read its response,
        and 3 for one that has waited long in a fetch. Returns None for any other client."""
        call = self._dispatcher.waiting.get(connection)
        if call is not None:
            is_long_poll = call.request.api_key == FETCH and now_s - call.began_s > LONG_WAIT_S
            return 3 if is_long_poll else None
        if connection.is_busy:
            return 2 if now_s - connection.active_s > UNREAD_S else None
        if not connection.has_asked:
            return 0
        return 1 if now_s - connection.active_s > IDLE_S else None
