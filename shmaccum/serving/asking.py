# SPDX-License-Identifier: Apache-2.0
"""A client of a server of this host, for the commands that administer a log: one request, one answer."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, final

from shmaccum.exceptions import ServerUnreachableError
from shmaccum.serving.messages import decode_answer, encode_request

TIMEOUT_S = 10.0
SIZE = struct.Struct(">i")


@final
class Asking:
    """A connection without a login.

    Args:
        address: HOST:PORT.

    Raises:
        ServerUnreachableError: nothing answers there.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), TIMEOUT_S)
        except (OSError, ValueError) as error:
            raise self._failure(str(error)) from None

    def _failure(self, reason: str) -> ServerUnreachableError:
        return ServerUnreachableError(
            f"the server at {self._address} did not answer ({reason}). Where it demands TLS or a login, use Kafka's "
            "own tools"
        )

    def ask(self, api_key: int, version: int, values: Mapping[str, Any]) -> Any:
        """The answer to a request, by the names of Kafka's schema.

        Raises:
            ServerUnreachableError: none came.
        """
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

    def __enter__(self) -> Asking:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
