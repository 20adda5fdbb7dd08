# SPDX-License-Identifier: Apache-2.0
"""Pieces of an answer arrive whole and in order, however little a socket accepts. They never exceed the file."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import trustme

from shmaccum._native import send_pieces
from shmaccum.log.files.log_file import FileRange, LogFile
from shmaccum.log.server.connection import PORTION_SIZE, Connection, FrameLimits
from shmaccum.log.server.fetch_frames import Piece
from shmaccum.log.server.transport import PlainTransport, TlsTransport, Transport

FILE_SIZE = 1 << 20
LIMITS = FrameLimits(1 << 20, 1 << 20, 1 << 20)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def file(tmp_path: Path) -> LogFile:
    path = tmp_path / "records"
    path.write_bytes(random.Random(0).randbytes(FILE_SIZE))
    return LogFile(str(path))


def content(pieces: list[Piece], whole: bytes) -> bytes:
    return b"".join(
        whole[piece.position : piece.position + piece.size] if isinstance(piece, FileRange) else piece
        for piece in pieces
    )


def drawn(dice: random.Random, file: LogFile) -> Piece:
    if dice.random() < 0.5:
        return dice.randbytes(dice.choice([0, 1, 40, 5000]))
    size = dice.choice([1, 100, 4096, 16 << 10, (16 << 10) + 1, 300_000])
    return FileRange(file, dice.randrange(FILE_SIZE - size), size)


def send_for_ever(ours: socket.socket, pieces: tuple[Piece, ...]) -> None:
    while True:
        send_pieces(ours.fileno(), pieces)


def test_pieces_come_whole_and_in_order_through_a_socket_that_takes_little(
    pair: tuple[socket.socket, socket.socket], file: LogFile, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    dice = seeded()
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    whole = (tmp_path / "records").read_bytes()
    connection = Connection(PlainTransport(ours), "host", None, LIMITS)
    for _ in range(20):
        pieces = [drawn(dice, file) for _ in range(dice.choice([1, 3, 200]))]
        wanted = content(pieces, whole)
        connection.answer(pieces)
        connection.flush()
        received = bytearray()
        while len(received) < len(wanted):
            received += theirs.recv(dice.choice([1000, 100_000]))
            connection.flush()
        assert received == wanted
        assert not connection.wants_to_write


def test_a_small_range_is_sent_with_adjacent_ones(pair: tuple[socket.socket, socket.socket], file: LogFile) -> None:
    ours, theirs = pair
    assert send_pieces(ours.fileno(), (b"head", FileRange(file, 0, 1000), b"tail")) == 1008
    assert len(theirs.recv(4096)) == 1008


@pytest.mark.parametrize("count", [64, 65, 1000])
def test_pieces_without_bytes_are_no_pieces(
    pair: tuple[socket.socket, socket.socket], file: LogFile, count: int
) -> None:
    ours, theirs = pair
    assert send_pieces(ours.fileno(), (b"", FileRange(file, 0, 0)) * count + (b"end",)) == 3
    assert theirs.recv(4096) == b"end"


def test_a_call_sends_one_portion_however_much_the_other_side_takes(file: LogFile, tmp_path: Path) -> None:
    """A file accepts everything, like the fastest reader."""
    with open(tmp_path / "taken", "wb") as taken:
        assert send_pieces(taken.fileno(), (FileRange(file, 0, FILE_SIZE),) * 5) == PORTION_SIZE


class Greedy:
    """A client that accepts everything, a piece at a time."""

    is_open = True
    wants_to_write = False

    def __init__(self) -> None:
        self.socket = self

    def fileno(self) -> int:
        """Return no valid descriptor."""
        return -1

    def send(self, pieces: tuple[bytes, ...]) -> int:
        return len(pieces[0])


def test_an_answer_of_many_pieces_goes_in_portions() -> None:
    connection = Connection(cast(Transport, Greedy()), "host", None, LIMITS)
    connection.answer([bytes(PORTION_SIZE // 2)] * 5)
    connection.is_busy = True
    is_busy = []
    while connection.wants_to_write:
        connection.flush()
        is_busy.append(connection.is_busy)
    assert is_busy == [True, True, False]


@pytest.mark.parametrize("size", [100, 100_000], ids=["small", "large"])
def test_a_file_that_ended_too_early_is_an_error_and_nothing_is_made_up(
    pair: tuple[socket.socket, socket.socket], file: LogFile, size: int
) -> None:
    ours, theirs = pair
    connection = Connection(PlainTransport(ours), "host", None, LIMITS)
    connection.answer([FileRange(file, FILE_SIZE - size + 1, size)])
    with pytest.raises(ConnectionError, match="a file ended too early"):
        connection.flush()
    connection.close()
    assert len(theirs.recv(1 << 20, socket.MSG_WAITALL)) < size


def test_a_socket_that_takes_nothing_and_one_that_broke_are_reported(
    pair: tuple[socket.socket, socket.socket], file: LogFile
) -> None:
    ours, theirs = pair
    pieces = (b"head", FileRange(file, 0, FILE_SIZE))
    with pytest.raises(BlockingIOError):
        send_for_ever(ours, pieces)
    theirs.close()
    with pytest.raises(ConnectionError):
        send_pieces(ours.fileno(), pieces)


def test_objects_that_are_no_pieces_are_refused(pair: tuple[socket.socket, socket.socket], file: LogFile) -> None:
    ours, _ = pair
    for pieces in (("text",), ((file, 0),), ((file, "0", 1),), ((file, 0, -1),), (("no file", 0, 1),)):
        with pytest.raises((TypeError, OverflowError, ValueError)):
            send_pieces(ours.fileno(), pieces)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tuple"):
        send_pieces(ours.fileno(), [b"list"])  # type: ignore[arg-type]


def test_a_handshake_continues_when_the_socket_accepts_bytes_again(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    context, trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost", key_type=trustme.KeyType.ECDSA).configure_cert(context)
    authority.configure_trust(trusting)
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(received, sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    full = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            full += ours.send(bytes(1000))
    connection = Connection(TlsTransport(ours, context), "host", None, LIMITS)
    theirs.sendall(sent.read())
    connection.receive()
    had_to_write = connection.wants_to_write
    while full:
        full -= len(theirs.recv(full))
    connection.flush()
    assert (had_to_write, connection.wants_to_write) == (True, False)
    received.write(theirs.recv(1 << 16))
    client.do_handshake()
    theirs.sendall(sent.read())
    connection.receive()
    assert connection.transport.is_open
    connection.close()
