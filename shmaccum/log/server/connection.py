# SPDX-License-Identifier: Apache-2.0
"""The socket of one client: requests in, responses out, one at a time and in order.

Rules: a connection has at most one request in progress. Further bytes of the client wait in the socket, and at most
`READ_SIZE` of them here, within `FrameLimits`. Nothing is read until a response is sent completely. So a client that
never reads costs only its one response, which is mostly ranges of files. An invalid frame closes only its own
connection.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from typing import final

from shmaccum.common import clock
from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server.fetch_frames import Outcome, Piece, Served
from shmaccum.log.server.login import Login
from shmaccum.log.server.messages import BadFrameError
from shmaccum.log.server.transport import PlainTransport, Transport

SIZE = struct.Struct(">i")
SIZE_AND_KEY = struct.Struct(">ih")
READ_SIZE = 256 << 10
PROGRESS_SIZE = 256 << 10
"""The least bytes of a request that a client must send per `STALLED_S` while others wait for memory."""
PORTION_SIZE = 2 << 20
"""The bytes of a response that are sent before other clients are served; the same as in C (broker/portion.h)."""
BEFORE_LOGIN_SIZE_MAX = 64 << 10
"""The most bytes of a request from a client that has not logged in."""
PRODUCE = 0


@final
class FrameLimits:
    """The limits of one request, and of all incomplete requests together.

    Memory counts only as it is used: a client that announces a large request and sends a part of it uses that part. A
    client that already holds memory may read more while the total is below the limit. The client that has held memory
    longest may always read more, so requests complete one after another.

    Args:
        size_max: the most bytes of a frame, except Produce.
        produce_size_max: the most bytes of a Produce frame.
        memory_max: the most bytes of all incomplete frames.
    """

    def __init__(self, size_max: int, produce_size_max: int, memory_max: int) -> None:
        self.size_max = size_max
        self.produce_size_max = produce_size_max
        self._memory_max = memory_max
        self._memory = 0
        self._holders: dict[Connection, int] = {}

    def of(self, api_key: int) -> int:
        return self.produce_size_max if api_key == PRODUCE else self.size_max

    def set_size(self, holder: Connection, size: int) -> None:
        """Sets the number of bytes that a client holds here."""
        self._memory += size - self._holders.get(holder, 0)
        if size:
            self._holders[holder] = size
        else:
            self._holders.pop(holder, None)

    def has_room(self, holder: Connection) -> bool:
        """Returns whether more may be read from the client."""
        return self._memory < self._memory_max or next(iter(self._holders), holder) is holder

    @property
    def holders(self) -> Collection[Connection]:
        """The clients that hold memory, the longest first."""
        return self._holders.keys()


@final
class Connection:
    """A client.

    Attributes:
        transport: its socket.
        host: its address, for messages.
        descriptor: the descriptor of its socket.
        login: its login. None if no login is required.
        began_s: the time of the connection, on the monotonic clock.
        active_s: the time of the last complete request or sent byte.
        progress_s: the time at which the present request last grew by `PROGRESS_SIZE`, or started.
        has_asked: whether a complete request has arrived.
        is_busy: whether a request is in progress: its response is not sent completely.
        is_gone: whether either side has closed the connection.
        events: the events that the server's loop waits for.
    """

    def __init__(self, transport: Transport, host: str, login: Login | None, limits: FrameLimits) -> None:
        self.transport = transport
        self.descriptor: int = transport.socket.fileno()
        self.host = host
        self.login = login
        self.began_s = self.active_s = self.progress_s = clock.monotonic()
        self.has_asked = False
        self.is_busy = False
        self.is_gone = False
        self.events = 0
        self._limits = limits
        self._received = bytearray()
        self._progress_size = 0
        self._to_send: tuple[Piece, ...] = ()
        self._is_answered = False
        self._is_plain = login is None and isinstance(transport, PlainTransport)

    @property
    def is_known(self) -> bool:
        """True if the client may send any request, not only a login."""
        return self.login is None or self.login.is_over

    @property
    def is_ended(self) -> bool:
        """True if the client has received the failure of its login."""
        return self.login is not None and self.login.has_failed and self._is_answered and not self._to_send

    # --- in

    def receive(self) -> None:
        """Reads the available bytes, up to a limit.

        Raises:
            ConnectionError: the client closed the connection.
            OSError: the socket failed.
        """
        try:
            self._take_in(self.transport.receive(READ_SIZE))
        except BlockingIOError:
            return

    def _take_in(self, content: bytes) -> None:
        if not content:
            raise ConnectionError("the client closed the connection")
        self._received += content
        self._update_held_size()
        if len(self._received) >= self._progress_size + PROGRESS_SIZE or self._progress_size == 0:
            self._progress_size = len(self._received)
            self.progress_s = clock.monotonic()

    def _update_held_size(self) -> None:
        self._limits.set_size(self, len(self._received))

    @property
    def may_fetch_at_once(self) -> bool:
        """True if C may read from the client: no request is in progress, and no rights must be checked."""
        return self._is_plain and not (self.is_gone or self.is_busy or self._received)

    def handle_outcome(self, outcome: Outcome) -> None:
        """Continues after C has read from the client (`receive_ready`).

        Raises:
            ConnectionError: as `receive`.
            OSError: the socket failed.
        """
        if isinstance(outcome, OSError):
            raise outcome
        if isinstance(outcome, Served):
            self.active_s = clock.monotonic()
            self.has_asked = True
            if outcome.pieces:
                self._to_send, self._is_answered, self.is_busy = outcome.pieces, True, True
                self._drop(outcome.sent)
        elif outcome is not None:
            self._take_in(outcome)

    @property
    def wants_to_read(self) -> bool:
        """False if enough bytes are buffered while a response is pending, or if the memory limit is reached."""
        has_enough = self.is_busy and len(self._received) >= READ_SIZE
        return not self._received or (not has_enough and self._limits.has_room(self))

    def next_frame(self) -> memoryview | None:
        """Returns a complete frame without its size and marks the request as in progress, or returns None.

        Raises:
            BadFrameError: the size of the frame is outside the limits of its API.
        """
        end = self._frame_end()
        if self.is_busy or end is None:
            return None
        received = self._received
        frame = memoryview(bytes(received if end == len(received) else received[:end]))[SIZE.size :]
        del received[:end]
        self._update_held_size()
        self._progress_size = len(received)
        self.is_busy, self._is_answered, self.has_asked = True, False, True
        self.active_s = self.progress_s = clock.monotonic()
        return frame

    def _frame_end(self) -> int | None:
        """Returns where the next frame ends, or None if it is incomplete.

        Raises:
            BadFrameError: as `next_frame`.
        """
        if len(self._received) < SIZE_AND_KEY.size:
            return None
        size, api_key = SIZE_AND_KEY.unpack_from(self._received)
        size_max = self._limits.of(api_key) if self.is_known else BEFORE_LOGIN_SIZE_MAX
        if not 0 < size <= size_max:
            raise BadFrameError(f"a frame has {size} bytes, but a request {api_key} may have at most {size_max}")
        end = SIZE.size + size
        return end if end <= len(self._received) else None

    @property
    def has_frame(self) -> bool:
        """True if `next_frame` would return a frame or raise, once no request is in progress."""
        try:
            return self._frame_end() is not None
        except BadFrameError:
            return True

    # --- out

    def answer(self, pieces: Sequence[Piece]) -> None:
        """Queues the response to the present request. If it is empty, nothing is sent."""
        self._to_send += tuple(pieces)
        self._is_answered = True

    @property
    def wants_to_write(self) -> bool:
        return bool(self._to_send) or self.transport.wants_to_write

    def flush(self) -> None:
        """Sends a portion of the response, as far as the socket accepts it. The rest waits for the next event.

        Raises:
            ConnectionError: a file was truncated, so its bytes cannot be sent.
            OSError: the socket failed.
        """
        transport, left = self.transport, PORTION_SIZE
        try:
            if not transport.is_open:
                transport.handshake()
            while self._to_send and left > 0:
                sent = transport.send(self._to_send)
                self._drop(sent)
                left -= sent
        except BlockingIOError:
            return
        if self._is_answered and not self._to_send:
            self.is_busy = False

    def _drop(self, sent: int) -> None:
        """Removes the bytes that were sent."""
        self.active_s = clock.monotonic()
        for index, piece in enumerate(self._to_send):
            size = piece.size if isinstance(piece, FileRange) else len(piece)
            if sent < size:
                rest = piece.after(sent) if isinstance(piece, FileRange) else piece[sent:]
                self._to_send = (rest, *self._to_send[index + 1 :])
                return
            sent -= size
        self._to_send = ()

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        self.is_gone = True
        self._to_send = ()
        self._limits.set_size(self, 0)
        self.transport.close()
