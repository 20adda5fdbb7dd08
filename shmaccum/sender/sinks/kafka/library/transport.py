# SPDX-License-Identifier: Apache-2.0
"""Sockets of the library's connections: frames are written by sendmsg, complete Produce responses are read natively.

Requests of every kind share a connection, and are answered in order. Requests in flight are only in the library's two
queues, whose first entry gets the next response. If that entry is a `Sent` and its response is complete, it is removed
from both queues and read natively (the fast path). The library reads everything else (the slow path). For the library,
a `Sent` is both the header of a request and the future of a response.
"""

from __future__ import annotations

import selectors
import socket
import ssl
from collections.abc import Sequence
from typing import Any

from kafka import errors
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from shmaccum.common import clock
from shmaccum.sender.sinks.kafka.library.frames import Frame, Sent
from shmaccum.sender.sinks.kafka.traffic import NodeTraffic
from shmaccum.sender.sinks.sink import Delivered, SocketEnd

RECEIVE_SIZE = 64 * 1024
FRAME_HEAD_SIZE = 4


class RequestTimer:
    """Closes a connection whose oldest Produce request has waited too long for its response, or to be written."""

    def __init__(self, net: Any, conn: Any, timeout_s: float) -> None:
        self._net = net
        self._conn = conn
        self._timeout_s = timeout_s
        self._is_set = False

    def watch(self, sent: Sent) -> None:
        """Watch this request, too."""
        if not self._is_set:
            self._is_set = True
            self._net.call_at(sent.begun_s + self._timeout_s, self._check)

    def _check(self) -> None:
        self._is_set = False
        conn = self._conn
        if conn.closed:
            return
        waiting = [*(entry[1] for entry in conn.in_flight_requests), *conn.transport.unwritten]
        oldest = next((sent for sent in waiting if type(sent) is Sent), None)
        if oldest is None:
            return
        timeout_at = oldest.begun_s + self._timeout_s
        if timeout_at <= clock.monotonic():
            conn._request_timed_out(oldest, oldest.begun_s, timeout_at)  # noqa: SLF001 - as the library's own timers
        else:
            self.watch(oldest)


class FrameTransport(KafkaTCPTransport):  # type: ignore[misc]
    """Writes frames, whole or in parts, without copying, and counts bytes."""

    traffic: NodeTraffic
    timer: RequestTimer
    _writing: bool
    _dropped: Sequence[Frame | Sent] = ()

    def write(self, data: Any) -> None:
        """Start to write, at once if nothing else waits."""
        frame = data if isinstance(data, Sent) else Frame(data)
        if self._closed:  # the failure is being reported already
            frame.end()
            return
        self._write_buffer.append(frame)
        if self._writing:
            return
        _, error = self._sock_send()
        if error is not None:
            self.abort(error=error)
        elif self._write_buffer:
            self._writing = True
            self._write_task = self._net.call_soon(self._write_to_sock)

    @property
    def unwritten(self) -> Sequence[Frame | Sent]:
        """Frames that wait for the socket, or are written in part."""
        return self._write_buffer  # type: ignore[no-any-return]

    @property
    def untouched(self) -> list[Sent]:
        """Produce requests of which no byte is written."""
        return [frame for frame in self._write_buffer if isinstance(frame, Sent) and not frame.is_touched]

    def withdraw(self, sent: Sent) -> None:
        self._write_buffer.remove(sent)
        sent.withdraw()

    def hand_over(self) -> int:
        """Return the socket. The library does not use it before `take_back`, because it is not polled in between."""
        descriptor: int = self._sock.fileno()
        return descriptor

    def take_back(self, delivered: Delivered) -> None:
        """Count the borrower's requests."""
        if delivered.request_count:
            average = delivered.sent_size / delivered.request_count
            sizes = self.traffic.request_size
            sizes.record(delivered.sent_size, delivered.request_count, average, clock.monotonic_ns())
        self.traffic.requests += delivered.request_count
        self.traffic.responses += delivered.request_count
        self.traffic.bytes_sent += delivered.sent_size
        self.traffic.bytes_received += delivered.received_size
        self.last_write = self.last_read = clock.monotonic()

    def resume(self, end: SocketEnd) -> None:
        """Continue with a socket that the borrower has returned, or close it if it is broken."""
        if end.received:
            self._take_all(end.received)
        if end.is_broken:
            self.abort(error=errors.KafkaConnectionError("the connection was lost, or a request was not answered"))

    def _sock_send(self) -> tuple[int, Exception | None]:
        """Write until nothing is left or the socket is full."""
        total = 0
        try:
            while self._write_buffer:
                frame = self._write_buffer[0]
                sent = self._send_some(frame)
                total += sent
                self.traffic.operations += sent > 0
                if not frame.is_written:
                    break
                self.traffic.request_written(frame.size)
                self._write_buffer.popleft().end()
        except OSError as error:
            # The error itself is not stored, because its traceback refers to buffers of the arena.
            return total, errors.KafkaConnectionError(str(error))
        finally:
            self.traffic.bytes_sent += total
            self.last_write = clock.monotonic()
        return total, None

    def _send_some(self, frame: Frame | Sent) -> int:
        """Write as many bytes as the socket accepts at once."""
        return frame.send(self._sock.fileno())

    async def _read_from_sock(self) -> None:
        sock = self._sock
        try:
            while self._read and not self._closed:
                await self._net.wait_readable(sock)
                received, error = self._sock_recv()
                if error is not None:
                    self.abort(error=error)
                    return
                self.last_read = clock.monotonic()
                self._take_all(received)
        finally:
            self._net.unregister_event(sock, selectors.EVENT_READ)

    def _take_all(self, received: bytes) -> None:
        """Process received bytes. Close the connection if they cannot be parsed."""
        try:
            self._take(received)
        except errors.KafkaProtocolError as error:
            self.abort(error=error)
        except Exception as error:  # noqa: BLE001 - hostile bytes raise anything in the library, its only reader
            self.abort(error=errors.KafkaProtocolError(f"a response cannot be parsed: {error}"))

    def _sock_recv(self) -> tuple[bytes, Exception | None]:
        try:
            received = self._receive()
        except (BlockingIOError, InterruptedError):
            return b"", None
        except OSError as error:
            return b"", errors.KafkaConnectionError(str(error))
        self.traffic.operations += bool(received)
        self.traffic.bytes_received += len(received)
        return received, None if received else errors.KafkaConnectionError("the broker closed the connection")

    def _receive(self) -> bytes:
        """Return the bytes that one call receives. Raise BlockingIOError if there are none."""
        received: bytes = self._sock.recv(RECEIVE_SIZE)
        return received

    def _take(self, received: bytes) -> None:
        """Read complete Produce responses without errors on the fast path; pass the rest to the library's parser."""
        conn = self._protocol
        rest = memoryview(received)
        while len(rest) >= FRAME_HEAD_SIZE and _is_between_frames(conn.parser) and conn.in_flight_requests:
            sent = conn.in_flight_requests[0][1]
            end = FRAME_HEAD_SIZE + int.from_bytes(rest[:FRAME_HEAD_SIZE], "big", signed=True)
            if type(sent) is not Sent or not FRAME_HEAD_SIZE < end <= len(rest):
                break
            answer = sent.read(rest[FRAME_HEAD_SIZE:end])
            if answer is None:
                break
            conn.in_flight_requests.popleft()
            conn.parser.in_flight_requests.popleft()
            rest = rest[end:]
            if answer.throttle_time_ms:
                conn._maybe_throttle(answer)  # noqa: SLF001 - as the library does for every response
            sent.success(answer)
            conn._reauth.on_response_processed()  # noqa: SLF001 - a login waits until nothing is in flight
        if rest:
            self._pass_on(bytes(rest))

    def _pass_on(self, received: bytes) -> None:
        """Pass bytes to the library. Each of its futures that is complete afterwards is counted as a response. A `Sent`
        counts its own response.
        """
        conn = self._protocol
        waiting = [entry[1] for entry in conn.in_flight_requests]
        conn.data_received(received)
        self.traffic.responses += sum(type(future) is not Sent and future.succeeded() for future in waiting)

    def _close(self, error: Exception | None = None) -> None:
        self.traffic.connections_closed += self._sock is not None
        super()._close(error)
        unwritten, self._dropped = self._dropped, ()
        for frame in unwritten:
            frame.end()

    def abort(self, error: Exception | None = None) -> None:
        """Close the socket, then release the unwritten frames."""
        if not self._closed:
            self._dropped = list(self._write_buffer)
        super().abort(error)


def _is_between_frames(parser: Any) -> bool:
    """True if the parser is not in the middle of a frame."""
    return not parser._receiving and parser._header.tell() == 0  # noqa: SLF001 - the library has no public method


class TlsFrameTransport(FrameTransport, KafkaSSLTransport):  # type: ignore[misc]
    """The same over TLS: gathering a record, and encrypting it, are copies."""

    def __init__(self, net: Any, sock: socket.socket, context: ssl.SSLContext, host: str) -> None:
        """The library's constructor has other arguments before kafka-python 3.0.8."""
        name = host.rstrip(".")
        secure = context.wrap_socket(sock, server_hostname=name, do_handshake_on_connect=False)
        KafkaTCPTransport.__init__(self, net, secure, host=host)

    def _send_some(self, frame: Frame | Sent) -> int:
        """Write as many bytes as the socket accepts. After SSLWantWriteError, OpenSSL gets the same bytes again."""
        total = 0
        try:
            while not frame.is_written:
                sent = self._sock.send(frame.peek())
                frame.skip(sent)
                total += sent
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        return total

    def _receive(self) -> bytes:
        """Return all received bytes: a selector does not report bytes that OpenSSL has decrypted already."""
        received = bytearray()
        try:
            while data := self._sock.recv(RECEIVE_SIZE):
                received += data
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            if not received:
                raise BlockingIOError from error
        return bytes(received)
