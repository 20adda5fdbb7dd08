# SPDX-License-Identifier: Apache-2.0
"""A minimal Kafka client for the commands that administer a log: one request, one response."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, final

from shmaccum.exceptions import LogError
from shmaccum.log.server.client_settings import PLAIN_CONNECTION, ClientSettings

TIMEOUT_S = 10.0
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
SIZE = struct.Struct(">i")


@final
class ClientConnection:
    """A connection to a server.

    Args:
        address: HOST:PORT.
        settings: the settings for TLS and login.

    Raises:
        LogError: the server does not answer, or the login failed.
    """

    def __init__(self, address: str, settings: ClientSettings = PLAIN_CONNECTION) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        try:
            self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise self._failure(str(error)) from None
        try:
            if settings.tls is not None:
                self._socket = settings.tls.wrap_socket(self._socket, server_hostname=host)
            if settings.mechanism is not None:
                self._log_in(settings.mechanism, settings.username, settings.password)
        except OSError as error:
            self._socket.close()
            raise self._failure(str(error)) from None
        except BaseException:
            self._socket.close()
            raise

    def _log_in(self, mechanism: str, username: str, password: str) -> None:
        if error := self.ask(SASL_HANDSHAKE, 1, {"mechanism": mechanism}).error_code:
            raise self._failure(f"it does not support login by {mechanism}: error {error}")
        from shmaccum.log.server.messages import login_exchange  # imports kafka-python, as below

        exchange = login_exchange(mechanism, username, password)
        while not exchange.is_done():
            answer = self.ask(SASL_AUTHENTICATE, 1, {"auth_bytes": exchange.auth_bytes()})
            if answer.error_code:
                raise self._failure(str(answer.error_message))
            exchange.receive(answer.auth_bytes)

    def _failure(self, reason: str) -> LogError:
        return LogError(
            f"the server at {self._address} did not answer ({reason}). If it requires TLS or a login, name a file of "
            "Kafka's client properties with --command-config"
        )

    def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        """Sends a request, and returns the response by the names of Kafka's schema.

        Raises:
            LogError: the server did not respond.
        """
        from shmaccum.log.server.messages import decode_answer, encode_request

        try:
            self._socket.sendall(encode_request(api_key, version, values))
            with self._socket.makefile("rb") as answers:
                (size,) = SIZE.unpack(answers.read(SIZE.size))
                frame = answers.read(size)
                if len(frame) < size:
                    raise OSError(f"the connection ended after {len(frame)} of {size} bytes")
                return decode_answer(api_key, version, frame)
        except (OSError, struct.error) as error:
            raise self._failure(str(error)) from None

    def __enter__(self) -> ClientConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
