# SPDX-License-Identifier: Apache-2.0
"""The listener of a server: it accepts clients, and closes idle ones where others need their place."""

from __future__ import annotations

import contextlib
import selectors
import socket
from collections.abc import Collection
from typing import final

from shmaccum.common import clock, descriptors
from shmaccum.config import ServerOptions
from shmaccum.log.server.addresses import Address
from shmaccum.log.server.connection import Connection, FrameLimits
from shmaccum.log.server.dispatch import Dispatcher
from shmaccum.log.server.login import Login
from shmaccum.log.server.requests import FETCH
from shmaccum.log.server.throttle import throttled_logger
from shmaccum.log.server.tls_files import TlsFiles
from shmaccum.log.server.transport import PlainTransport, TlsTransport
from shmaccum.log.server.users import UsersFile

logger = throttled_logger(__name__)

BACKLOG = 512
ACCEPTED_MAX = 64
"""Clients that are welcomed in one round of the loop."""
IDLE_S, UNREAD_S, LONG_WAIT_S = 5.0, 10.0, 60.0
"""How long a client is idle, does not read its answer, or waits in a fetch, before another one may have its place."""
CLOSED_PARTS = 16
"""One in so many of the idle clients is closed at once."""


def open_listener(address: Address) -> socket.socket:
    """A listener that does not block.

    Raises:
        OSError: the port is taken.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


@final
class Acceptor:
    """Accepts the clients of a server.

    Args:
        listener: does not block.
        selector: of the server's loop.
        dispatcher: gets the connections.
        limits: of the frames that arrive.
        options: of the server.
        tls: the certificate; None: connections have no TLS.
        users: None: nobody has to log in.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        dispatcher: Dispatcher,
        limits: FrameLimits,
        options: ServerOptions,
        tls: TlsFiles | None,
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
        """A client whose socket has this number or a higher one takes the place of an idle one."""
        self._is_accepting = True
        selector.register(listener, selectors.EVENT_READ, self.accept)

    def accept(self) -> None:
        """Welcomes the clients that came since the last round. A round may be long where many have requests."""
        for _ in range(ACCEPTED_MAX):
            try:
                accepted, (host, *_) = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                logger.warning("a client could not be accepted: %s", error.strerror)
                if not self._make_room(self._dispatcher.connections):
                    # Clients wait in the backlog until `maintain`: without descriptors, the loop would spin.
                    self._selector.unregister(self._listener)
                    self._is_accepting = False
                return
            if not self._has_room_for(host, accepted.fileno()):
                accepted.close()
                continue
            with contextlib.suppress(OSError):  # the client is gone already
                self._welcome(accepted, host)

    def _welcome(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport = PlainTransport(accepted) if self._tls is None else TlsTransport(accepted, self._tls.context)
        login = None if self._users is None else Login(self._users)
        self._dispatcher.add(Connection(transport, host, login, self._limits))

    def maintain(self, partition_count: int) -> None:
        """Closes the clients whose time is over, and keeps descriptors for the log; call it once a second.

        Args:
            partition_count: the number of partitions of the log, which may be opened.
        """
        if not self._is_accepting:
            self._selector.register(self._listener, selectors.EVENT_READ, self.accept)
            self._is_accepting = True
        connections, now_s = self._dispatcher.connections, clock.monotonic()
        for connection in [each for each in connections if self._is_overdue(each, now_s)]:
            self._dispatcher.close(connection)
        self._descriptor_end = descriptors.limit() - descriptors.reserve(partition_count)
        if descriptors.lowest_free() >= self._descriptor_end:
            self._make_room(connections)

    def _is_overdue(self, connection: Connection, now_s: float) -> bool:
        login = connection.login
        if not connection.transport.is_open or not connection.is_known:
            return now_s - connection.began_s > self._options.login_timeout_ms / 1000
        if login is not None and login.user is None:
            return True
        is_waiting = connection in self._dispatcher.waiting
        return not is_waiting and now_s - connection.active_s > self._options.connections_max_idle_ms / 1000

    # --- room

    def _has_room_for(self, host: str, descriptor: int) -> bool:
        """True when a client may come, also in the place of one that is idle."""
        connections, host_count = self._dispatcher.connections, self._dispatcher.host_counts[host]
        if host_count >= self._options.connection_count_per_address_max:
            others, reason = [each for each in connections if each.host == host], f"it has {host_count} connections"
        elif len(connections) >= self._options.connection_count_max:
            others, reason = list(connections), f"{len(connections)} are connected"
        elif descriptor >= self._descriptor_end:
            others, reason = list(connections), "the other open files are for the log"
        else:
            return True
        has_room = self._make_room(others)
        if not has_room:
            logger.warning("a client from %s is turned away: %s", host, reason)
        return has_room

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
            self._dispatcher.close(connection)
        if idle:
            logger.warning("idle clients make room for others: %d are connected", len(self._dispatcher.connections))
        return bool(idle)

    def _idle_rank(self, connection: Connection, now_s: float) -> int | None:
        """0 for a client that never asked, 1 for an idle one, 2 for one that does not read its answer, 3 for one that
        waits in a fetch for long; None: it is none of them."""
        call = self._dispatcher.waiting.get(connection)
        if call is not None:
            is_long_poll = call.request.api_key == FETCH and now_s - call.began_s > LONG_WAIT_S
            return 3 if is_long_poll else None
        if connection.is_busy:
            return 2 if now_s - connection.active_s > UNREAD_S else None
        if not connection.has_asked:
            return 0
        return 1 if now_s - connection.active_s > IDLE_S else None
