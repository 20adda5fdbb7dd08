# SPDX-License-Identifier: Apache-2.0
"""The way of bytes from and to a client: plain TCP, or TLS on top of it.

Both kinds never block: a call that would have to wait raises BlockingIOError. Records go out by ``sendfile``, or with
TLS by a read of the file and an encrypted copy.

A TLS connection begins with a handshake, which takes several rounds of the loop. A client that speaks no TLS, has no
valid certificate, or stops in the middle costs its own connection alone.
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
"""Most bytes that one record of TLS carries, and that one `recv` returns."""
TLS_CHUNK_SIZE = 128 << 10
"""Bytes of a file that are read and encrypted at once."""


class Transport(Protocol):
    """One client's socket."""

    socket: socket.socket

    @property
    def is_open(self) -> bool:
        """True when requests may come."""

    @property
    def wants_to_write(self) -> bool:
        """True while the transport itself has bytes to send."""

    def shake_hands(self) -> None:
        """Goes on with the handshake; nothing is to be done once it is over."""

    def receive(self, size_max: int) -> bytes:
        """The bytes that are there; none: the client closed the connection."""

    def send(self, pieces: tuple[Piece, ...]) -> int:
        """Sends pieces of an answer, the first ones or all; answers how many bytes the socket took.

        Raises:
            BlockingIOError: it takes none now.
            ConnectionError: a file ended too early.
            OSError: the socket broke.
        """

    def close(self) -> None:
        """Ends the connection."""


@final
class PlainTransport:
    """Bytes as they are."""

    is_open = True
    wants_to_write = False

    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted

    def shake_hands(self) -> None:
        """Does nothing: plain TCP has no handshake of its own."""

    def receive(self, size_max: int) -> bytes:
        """See `Transport`."""
        return self.socket.recv(size_max)

    def send(self, pieces: tuple[Piece, ...]) -> int:
        """See `Transport`; the kernel takes the bytes of large ranges from the page cache."""
        return send_pieces(self.socket.fileno(), pieces)

    def close(self) -> None:
        """See `Transport`."""
        self.socket.close()


@final
class TlsTransport:
    """Bytes within TLS.

    Args:
        accepted: a connected socket that does not block; this object owns it from now on.
        context: of the server.
    """

    def __init__(self, accepted: socket.socket, context: ssl.SSLContext) -> None:
        self._secure = context.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        self.socket: socket.socket = self._secure
        self.is_open = False
        self.wants_to_write = False
        self._unsent = b""  # TLS wants the bytes of a write that would have blocked once more

    def shake_hands(self) -> None:
        """See `Transport`.

        Raises:
            BlockingIOError: the client has to say more.
            OSError: the handshake failed.
        """
        if not self.is_open:
            with self._never_waiting():
                self._secure.do_handshake()
            self.is_open = True

    def receive(self, size_max: int) -> bytes:
        """See `Transport`; reads until a record less would fit, or none is there."""
        self.shake_hands()
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
        """See `Transport`; the first piece alone, of a file as much as is read and encrypted at once."""
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
        """See `Transport`; says goodbye where the socket takes it."""
        if self.is_open:
            with contextlib.suppress(OSError, ValueError):
                self._secure.unwrap()
        self._secure.close()
