# SPDX-License-Identifier: Apache-2.0
"""Connections of the library with our transports."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

from kafka import errors
from kafka.net.manager import KafkaConnectionManager

from shmaccum.common.file_stamp import FileContents
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks.kafka.library.lookup import Lookup
from shmaccum.sender.sinks.kafka.library.metadata import TopicErrorMetadata
from shmaccum.sender.sinks.kafka.library.sessions import Session
from shmaccum.sender.sinks.kafka.library.tokens import TokenRefresher
from shmaccum.sender.sinks.kafka.library.transport import FrameTransport, RequestTimer, TlsFrameTransport
from shmaccum.sender.sinks.kafka.produce import PlainAnswer
from shmaccum.sender.sinks.kafka.traffic import Traffic

VERSION_OF_VERSIONS_PLAIN = 2
THROTTLE_MAX_MS = 60_000
LOGIN_FAILURES = (
    ssl.SSLError,
    errors.SaslAuthenticationFailedError,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The connection ended during a handshake. This does not show that a certificate was rejected."""


class ConnectionThrottle:
    """Pauses a connection for the time in a response, but for at most a minute.

    The field can hold 24 days. The library ends such a pause only when the connection has been idle for too long; fresh
    metadata does not end it. If a broker insists on more than a minute, it reads nothing meanwhile. Then the next
    request times out, and the next connection is not paused.
    """

    def __init__(self, conn: Any) -> None:
        self._pause = conn._maybe_throttle  # noqa: SLF001 - the library has no option for a limit

    def __call__(self, answer: Any) -> None:
        """Check a response of any kind."""
        is_too_long = (getattr(answer, "throttle_time_ms", 0) or 0) > THROTTLE_MAX_MS
        self._pause(PlainAnswer(THROTTLE_MAX_MS, (), ()) if is_too_long else answer)


class Manager(KafkaConnectionManager):  # type: ignore[misc]
    def __init__(
        self,
        net: Any,
        traffic: Traffic,
        on_failure: Callable[[str, Exception], None],
        report: Callable[[str], None],
        tokens: TokenRefresher | None = None,
        tls: FileContents[ssl.SSLContext] | None = None,
        **configs: Any,
    ) -> None:
        super().__init__(net, sasl_oauth_token_provider=tokens, **configs)
        self._tokens = tokens
        self._tls = tls
        self.on_failure = on_failure
        self._report = report
        self._traffic = traffic
        # Brokers whose newest ApiVersions response could not be parsed; the next request to them is of an old version.
        self._misunderstood: set[tuple[str, int]] = set()
        self.cluster = TopicErrorMetadata(**configs)
        self.cluster.attach(self)

    def connection(self, node_id: Any) -> Any:
        """Return the library's connection to a node, in any state; None if there is none."""
        return self._conns.get(node_id)

    def connections(self) -> list[Any]:
        return list(self._conns.values())

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        if self._tokens is not None:
            await self._tokens.ready()
            self._tokens.token()  # raises if there is none, because a connection would be useless
        sock = await self._open_socket(node.host, node.port, timeout_at)
        if self._tls is not None:
            transport = TlsFrameTransport(self._net, sock, self._context(self._tls), node.host)
        else:
            transport = FrameTransport(self._net, sock, host=node.host)
        transport.traffic = self._traffic.node(node.node_id)
        transport.traffic.connections_created += 1
        try:
            await transport.handshake()
        except (OSError, ValueError, errors.KafkaError) as error:
            transport.traffic.logins_failed += _is_login_failure(error)
            transport.abort(error)
            raise errors.KafkaConnectionError(f"TLS handshake failed: {error}") from None
        return transport

    def _context(self, tls: FileContents[ssl.SSLContext]) -> ssl.SSLContext:
        try:
            tls.refresh()
        except InvalidArgumentError as error:
            self._report(f"{error}. Connections use the previous files")
        return tls.value

    async def _open_socket(self, host: str, port: int, timeout_at: float | None) -> socket.socket:
        """Return a socket connected to the first of the host's addresses that accepts."""
        reason = f"{host} has no address"
        for family, address in await self._resolve(host, port):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                await self._connect_socket(sock, address, timeout_at)
            except (OSError, errors.KafkaError) as error:
                sock.close()
                reason = str(error)
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        raise errors.KafkaConnectionError(reason)

    async def _connect_socket(self, sock: socket.socket, address: Any, timeout_at: float | None) -> None:
        sock.setblocking(False)
        for option in self.config["socket_options"]:
            sock.setsockopt(*option)
        code = sock.connect_ex(address)
        if code == errno.EINPROGRESS:
            await self._net.wait_write(sock, timeout_at)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code != 0:
            raise OSError(code, os.strerror(code))

    async def _resolve(self, host: str, port: int) -> list[tuple[Any, Any]]:
        """Look up families and addresses of the host in a thread: the C library's resolver may block for seconds."""
        lookup = Lookup(self._net, host.strip("[]"), port)
        found: list[tuple[Any, Any]] = await lookup.future
        return found

    async def _connect(
        self, node: Any, conn: Any, reset_backoff_on_connect: bool = True, timeout_at: float | None = None
    ) -> None:
        """Connect as the library does, but pause after a failed login, too.

        Each broker reports its own versions. The library would keep those of the bootstrap, even after upgrades.
        """
        conn.broker_version_data = None
        conn._maybe_throttle = ConnectionThrottle(conn)  # noqa: SLF001
        if (node.host, node.port) in self._misunderstood:
            conn._api_versions_idx = VERSION_OF_VERSIONS_PLAIN  # noqa: SLF001
        address = f"{node.host}:{node.port}"
        timeout_s = self.config["socket_connection_setup_timeout_ms"] / 1000
        session = Session(conn, self._tokens, timeout_s, lambda error: self._report_failure(address, error))
        await super()._connect(node, conn, reset_backoff_on_connect=False, timeout_at=timeout_at)
        self._auth_failures.pop(node.node_id, None)
        if conn.connected:
            conn.transport.timer = RequestTimer(self._net, conn, self.config["request_timeout_ms"] / 1000)
            self._traffic.node(node.node_id).logins += self.ssl_enabled or conn.sasl_enabled
            if reset_backoff_on_connect:
                self.reset_backoff(node.node_id)
            return
        if self.connection_delay(node.node_id) == 0:
            self.update_backoff(node.node_id)
        self._traffic.node(node.node_id).logins_failed += _is_login_failure(conn.init_future.exception)
        if self._tokens is not None and isinstance(conn.init_future.exception, errors.SaslAuthenticationFailedError):
            self._tokens.renew()
        if isinstance(conn.init_future.exception, errors.KafkaProtocolError):
            self._misunderstood.add((node.host, node.port))
        if conn.init_future.failed():
            self._report_failure(address, session.reason_of(conn.init_future.exception))

    def _report_failure(self, address: str, error: Exception) -> None:
        if not self.closed:
            self.on_failure(address, error)


def _is_login_failure(error: Exception | None) -> bool:
    """True if the peer is not trusted, or does not trust this client (Kafka's AuthenticationException)."""
    return isinstance(error, LOGIN_FAILURES) and not isinstance(error, CUT_OFF)
