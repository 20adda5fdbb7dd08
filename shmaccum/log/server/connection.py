# SPDX-License-Identifier: Apache-2.0
"""One client's socket: frames in, answers out, one request at a time and in order.

Rules: a connection has at most one request under way. The client's next bytes wait in the socket, and at most
`READ_SIZE` of them here, as far as `FrameLimits` has room. Nothing is read while an answer is not wholly sent. So a
client that never reads costs the answer it asked for, which is mostly ranges of files, and no memory that grows. A
frame that is no request of Kafka's ends its connection alone.
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
"""Bytes of a request that a client sends in `STALLED_S` at least, where others wait for memory."""
PORTION_SIZE = 2 << 20
"""Bytes of an answer that go at once; the requests of other clients come next. C has the same (send_pieces.c)."""
STRANGER_SIZE_MAX = 64 << 10
"""Bytes of a request of a client that has not logged in yet."""
PRODUCE = 0


@final
class FrameLimits:
    """How large a request may be, and all requests that are arriving together.

    Memory counts as it is used: a client that announces a large request and sends a part of it has that part alone. A
    client that has some may get more while there is room. The client that has had some for longest always may, so one
    request after another becomes whole.

    Args:
        size_max: bytes of a frame of any API but Produce.
        produce_size_max: bytes of a Produce.
        memory_max: bytes of all frames that are not whole yet.
    """

    def __init__(self, size_max: int, produce_size_max: int, memory_max: int) -> None:
        self.size_max = size_max
        self.produce_size_max = produce_size_max
        self._memory_max = memory_max
        self._memory = 0
        self._holders: dict[Connection, int] = {}

    def of(self, api_key: int) -> int:
        return self.produce_size_max if api_key == PRODUCE else self.size_max

    def hold(self, holder: Connection, size: int) -> None:
        """Notes the bytes that a client has here; 0: it has none any more."""
        self._memory += size - self._holders.get(holder, 0)
        if size:
            self._holders[holder] = size
        else:
            self._holders.pop(holder, None)

    def has_room(self, holder: Connection) -> bool:
        """True when more of the client may be read."""
        return self._memory < self._memory_max or next(iter(self._holders), holder) is holder

    @property
    def holders(self) -> Collection[Connection]:
        """The clients that have memory, the one that has had it for longest first."""
        return self._holders.keys()


@final
class Connection:
    """A client.

    Attributes:
        transport: its socket.
        host: its address, for people.
        descriptor: the number of its socket.
        login: by which the client says who it is; None: nobody has to log in.
        began_s: the time at which it came, by a clock that goes on evenly.
        active_s: the time at which a whole request or a byte of an answer moved last.
        progress_s: the time at which `PROGRESS_SIZE` bytes of the present request had arrived last, or its first ones.
        has_asked: a whole request came.
        is_busy: a request is under way, and its answer is not wholly sent.
        is_gone: the connection is closed, from either side.
        events: those that the server's loop waits for at this socket.
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
        self._noted_size = 0
        self._to_send: tuple[Piece, ...] = ()
        self._is_answered = False
        self._is_plain = login is None and isinstance(transport, PlainTransport)

    @property
    def is_known(self) -> bool:
        """True when the client may ask for more than a login."""
        return self.login is None or self.login.is_over

    @property
    def is_ended(self) -> bool:
        """True when the client was told that its login failed."""
        return self.login is not None and self.login.has_failed and self._is_answered and not self._to_send

    # --- in

    def receive(self) -> None:
        """Reads what is there, up to a limit.

        Raises:
            ConnectionError: the other side closed.
            OSError: the socket broke.
        """
        try:
            self._take_in(self.transport.receive(READ_SIZE))
        except BlockingIOError:
            return

    def _take_in(self, content: bytes) -> None:
        if not content:
            raise ConnectionError("the client closed the connection")
        self._received += content
        self._note_received()
        if len(self._received) >= self._noted_size + PROGRESS_SIZE or self._noted_size == 0:
            self._noted_size = len(self._received)
            self.progress_s = clock.monotonic()

    def _note_received(self) -> None:
        self._limits.hold(self, len(self._received))

    @property
    def may_fetch_at_once(self) -> bool:
        """True when C may read what the client says: nothing is under way, and no right has to be asked for."""
        return self._is_plain and not (self.is_gone or self.is_busy or self._received)

    def take_over(self, outcome: Outcome) -> None:
        """Goes on behind C, which read what the client said (`receive_ready`).

        Raises:
            ConnectionError: as `receive`.
            OSError: the socket broke.
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
        """False while it has enough of a client that waits for an answer, or memory lacks for the rest of a request."""
        has_enough = self.is_busy and len(self._received) >= READ_SIZE
        return not self._received or (not has_enough and self._limits.has_room(self))

    def next_frame(self) -> memoryview | None:
        """A whole frame without its size, None while there is none; the request is under way then.

        Raises:
            BadFrameError: the frame is larger than a request of its API may be, or smaller than any.
        """
        end = self._frame_end()
        if self.is_busy or end is None:
            return None
        received = self._received
        frame = memoryview(bytes(received if end == len(received) else received[:end]))[SIZE.size :]
        del received[:end]
        self._note_received()
        self._noted_size = len(received)
        self.is_busy, self._is_answered, self.has_asked = True, False, True
        self.active_s = self.progress_s = clock.monotonic()
        return frame

    def _frame_end(self) -> int | None:
        """Where the next frame ends; None while it is not there whole.

        Raises:
            BadFrameError: as `next_frame`.
        """
        if len(self._received) < SIZE_AND_KEY.size:
            return None
        size, api_key = SIZE_AND_KEY.unpack_from(self._received)
        size_max = self._limits.of(api_key) if self.is_known else STRANGER_SIZE_MAX
        if not 0 < size <= size_max:
            raise BadFrameError(f"a frame of {size} bytes; a request {api_key} has at most {size_max}")
        end = SIZE.size + size
        return end if end <= len(self._received) else None

    @property
    def has_frame(self) -> bool:
        """True when `next_frame` would give one as soon as nothing is under way, or would raise."""
        try:
            return self._frame_end() is not None
        except BadFrameError:
            return True

    # --- out

    def answer(self, pieces: Sequence[Piece]) -> None:
        """Queues the answer to the request under way; empty: there is none to send."""
        self._to_send += tuple(pieces)
        self._is_answered = True

    @property
    def wants_to_write(self) -> bool:
        return bool(self._to_send) or self.transport.wants_to_write

    def flush(self) -> None:
        """Sends a portion of the answer, as far as the socket takes it. The rest waits for the socket's next event.

        Raises:
            ConnectionError: a file ended too early: it was cut meanwhile, and its bytes are never made up.
            OSError: the socket broke.
        """
        transport, left = self.transport, PORTION_SIZE
        try:
            if not transport.is_open:
                transport.shake_hands()
            while self._to_send and left > 0:
                sent = transport.send(self._to_send)
                self._drop(sent)
                left -= sent
        except BlockingIOError:
            return
        if self._is_answered and not self._to_send:
            self.is_busy = False

    def _drop(self, sent: int) -> None:
        """Takes away bytes that the socket took."""
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
        """Ends it. Doing it twice does nothing."""
        self.is_gone = True
        self._to_send = ()
        self._limits.hold(self, 0)
        self.transport.close()
