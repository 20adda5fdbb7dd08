# SPDX-License-Identifier: Apache-2.0
"""The transport of bytes from and to a client: plain TCP, or TLS over TCP.

No call blocks: a call that would have to wait raises BlockingIOError. Plain TCP sends records with ``sendfile``. TLS
reads them from the file and sends an encrypted copy.

A TLS connection starts with a handshake, which takes several rounds of the loop. If a client does not speak TLS, has no
valid certificate, or stalls, only its own connection is closed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from typing import Protocol, final

from shmaccum._native import send_pieces
from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server.fetch_frames import Piece

TLS_RECORD_SIZE = 16 << 10
"""The most bytes of a TLS record, and of one `recv`."""
TLS_CHUNK_SIZE = 128 << 10
"""The bytes of a file that are read and encrypted at once."""


class Transport(Protocol):
    """The socket of one client."""

    socket: socket.socket

    @property
    def is_open(self) -> bool:
        """True if the handshake is done."""

    @property
    def wants_to_write(self) -> bool:
        """True while the transport itself has bytes to send."""

    def handshake(self) -> None:
        """Continues the handshake. Does nothing once it is done."""

    def receive(self, size_max: int) -> bytes:
        """Returns the available bytes, or none if the client closed the connection."""

    def send(self, pieces: tuple[Piece, ...]) -> int:
        """Sends one or more of the pieces, and returns the number of bytes that the socket accepted.

        Raises:
            BlockingIOError: the socket accepts no bytes now.
            ConnectionError: a file was truncated.
            OSError: the socket failed.
        """

    def close(self) -> None:
        """Closes the connection."""


@final
class PlainTransport:
    """Plain TCP."""

    is_open = True
    wants_to_write = False

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted

    def handshake(self) -> None:
        """Does nothing: plain TCP has no handshake here."""

    def receive(self, size_max: int) -> bytes:
        """See `Transport`."""
        return self.socket.recv(size_max)

    def send(self, pieces: tuple[Piece, ...]) -> int:
        """See `Transport`. The kernel sends large ranges from the page cache."""
        return send_pieces(self.socket.fileno(), pieces)

    def close(self) -> None:
        """See `Transport`."""
        self.socket.close()


@final
class TlsTransport:
    """TLS over TCP.

    Args:
        accepted: a connected, non-blocking socket, which this object then owns.
        context: the TLS context of the server.
    """

    def __init__(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        self._secure = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        self.socket: socket.socket = self._secure
        self.is_open = False
        self.wants_to_write = False
        self._unsent = b""  # TLS requires a write that would have blocked to be repeated with the same bytes

    def handshake(self) -> None:
        """See `Transport`.

        Raises:
            BlockingIOError: the handshake needs more bytes from the client.
            OSError: the handshake failed.
        """
        if not self.is_open:
            with self._never_waiting():
                self._secure.do_handshake()
            self.is_open = True

    def receive(self, size_max: int) -> bytes:
        """See `Transport`. Reads until less than a whole record would fit, or no bytes are available."""
        self.handshake()
        received = bytearray()
        while size_max - len(received) >= TLS_RECORD_SIZE:
            try:
                with self._never_waiting():
                    content = self._secure.recv(TLS_RECORD_SIZE)
            except BlockingIOError:
                if not received:
                    raise
                break
            if not content:
                break
            received += content
        return bytes(received)

    def send(self, pieces: tuple[Piece, ...]) -> int:
        """See `Transport`. Sends only the first piece, at most `TLS_CHUNK_SIZE` of a file."""
        first = pieces[0]
        content = self._read(first) if isinstance(first, FileRange) else first
        self._unsent = content
        with self._never_waiting():
            sent = self._secure.send(content)
        self._unsent = b""
        return sent

    def _read(self, records: FileRange) -> bytes:
        size = min(records.size, TLS_CHUNK_SIZE)
        content = self._unsent or os.pread(records.file.descriptor, size, records.position)
        if not content:
            raise ConnectionError("a file ended too early")
        return content

    @contextlib.contextmanager
    def _never_waiting(self) -> Iterator[None]:
        self.wants_to_write = False
        try:
            yield
        except ssl.SSLWantReadError:
            raise BlockingIOError from None
        except ssl.SSLWantWriteError:
            self.wants_to_write = True
            raise BlockingIOError from None

    def close(self) -> None:
        """See `Transport`. Sends a TLS close notification if the socket accepts it."""
        if self.is_open:
            with contextlib.suppress(OSError, ValueError):
                self._secure.unwrap()
        self._secure.close()
