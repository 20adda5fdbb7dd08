# SPDX-License-Identifier: Apache-2.0
"""If a socket does not accept a whole answer, C sends it in portions, alternately with those of other clients."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from shmaccum.log.server import LogServer
from shmaccum.log.server.fetch_frames import FetchTables, Served, receive_ready
from shmaccum.log.server.topics import LogTopics
from tests.support.fetch_requests import SIZE_MAX, no_session, python_answer, ready, whole_fetch
from tests.support.log_server import DEADLINE_S, address_of, answer_of, fetch, running, stranger
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC, log_files, make_batch, open_log

Pair = tuple[socket.socket, socket.socket]
BATCH_SIZE = 100_000
BATCH_COUNT = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log that is larger than the buffer of a small socket."""
    dice = random.Random(0)
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append([make_batch([dice.randbytes(BATCH_SIZE)]) for _ in range(BATCH_COUNT)])
    return tmp_path / "log"


@pytest.fixture
def topics(path: Path) -> LogTopics:
    return LogTopics(os.fspath(path))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A server's socket with a small buffer, and its client."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    theirs.settimeout(DEADLINE_S)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def wake_pair() -> Iterator[Pair]:
    """Another file of the loop, and its write end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def answer_to(topics: LogTopics, content: bytes) -> bytes:
    """Return the whole answer, and open a window for it."""
    answer = python_answer(topics, content)
    assert answer is not None
    return answer


def taken(theirs: socket.socket, size: int, step: int = 10_000) -> bytes:
    received = bytearray()
    while len(received) < size and (more := theirs.recv(min(step, size - len(received)))):
        received += more
    return bytes(received)


def tables_of(topics: LogTopics) -> FetchTables:
    return FetchTables(topics.heads, no_session)


@pytest.mark.parametrize(("offset", "step"), [(0, 10_000), (BATCH_COUNT - 1, 7)], ids=["large steps", "single bytes"])
def test_a_call_sends_an_answer_to_its_end(
    topics: LogTopics, pair: Pair, wake_pair: Pair, offset: int, step: int
) -> None:
    ours, theirs = pair
    content = whole_fetch(offset)
    answer = answer_to(topics, content)
    theirs.sendall(content)
    with ThreadPoolExecutor(1) as pool:

        def read_and_ring() -> bytes:
            received = taken(theirs, len(answer), step)
            wake_pair[1].sendall(b"x")
            return received

        reading = pool.submit(read_and_ring)
        found = ready([ours, wake_pair[0]], [ours], tables_of(topics), DEADLINE_S)
        assert reading.result(DEADLINE_S) == answer
    (client, _, outcome), (other, *_) = found
    assert (client, other) == (ours, wake_pair[0].fileno())
    assert isinstance(outcome, Served)
    assert (outcome.sent, outcome.pieces) == (len(answer), ())


def test_the_same_client_is_answered_again_after_a_large_answer(topics: LogTopics, pair: Pair, wake_pair: Pair) -> None:
    ours, theirs = pair
    content = whole_fetch()
    answer = answer_to(topics, content)
    with ThreadPoolExecutor(1) as pool:

        def ask_and_ring() -> list[bytes]:
            answers = []
            for _ in range(5):
                theirs.sendall(content)
                answers.append(taken(theirs, len(answer)))
            wake_pair[1].sendall(b"x")
            return answers

        asking = pool.submit(ask_and_ring)
        found = ready([ours, wake_pair[0]], [ours], tables_of(topics), DEADLINE_S)
        assert asking.result(DEADLINE_S) == [answer] * 5
    assert [source for source, _, _ in found] == [ours] * 5 + [wake_pair[0].fileno()]


def test_a_reader_that_stops_leaves_the_rest_to_python_and_the_epoll_as_it_was(topics: LogTopics, pair: Pair) -> None:
    ours, theirs = pair
    content = whole_fetch()
    answer = answer_to(topics, content)
    theirs.sendall(content)
    with contextlib.closing(select.epoll()) as epoll:
        epoll.register(ours, select.EPOLLIN)
        clients = {ours.fileno(): "client"}
        ((client, _, outcome),) = receive_ready(epoll.fileno(), 0.0, clients, tables_of(topics), SIZE_MAX)
        assert isinstance(outcome, Served)
        assert client == "client"
        assert 0 < outcome.sent < len(answer)
        assert taken(theirs, outcome.sent) == answer[: outcome.sent]
        assert sum(piece.size if isinstance(piece, tuple) else len(piece) for piece in outcome.pieces) == len(answer)
        assert epoll.poll(0) == []  # the socket is writable, but no event is registered for it
        theirs.sendall(b"x")
        assert epoll.poll(DEADLINE_S) == [(ours.fileno(), select.EPOLLIN)]


def test_a_large_answer_of_a_session_ends_the_call_when_it_is_whole(topics: LogTopics, pair: Pair) -> None:
    ours, theirs = pair
    content = whole_fetch(session_id=7, session_epoch=1)
    size = len(answer_to(topics, whole_fetch()))
    theirs.sendall(content)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(taken, theirs, size)
        tables = FetchTables(topics.heads, lambda request: request.wanted)
        ((client, _, outcome),) = ready([ours], [ours], tables, DEADLINE_S)
        assert len(reading.result(DEADLINE_S)) == size
    assert client is ours
    assert isinstance(outcome, Served)
    assert (outcome.sent, outcome.pieces) == (size, ())


def broken_outcome(topics: LogTopics, pair: Pair, break_off: Callable[[], object]) -> OSError:
    """Interrupt an answer, and return its outcome. Check that the client received only a prefix of it."""
    ours, theirs = pair
    content = whole_fetch()
    answer = answer_to(topics, content)
    theirs.sendall(content)
    with ThreadPoolExecutor(1) as pool:

        def read_and_break_off() -> bytes:
            received = taken(theirs, 1)
            break_off()
            return received if theirs.fileno() < 0 else received + taken(theirs, len(answer))

        reading = pool.submit(read_and_break_off)
        ((client, _, outcome),) = ready([ours], [ours], tables_of(topics), DEADLINE_S)
        ours.close()
        received = reading.result(DEADLINE_S)
    assert client is ours
    assert isinstance(outcome, OSError)
    assert answer.startswith(received)
    assert len(received) < len(answer)
    return outcome


def test_a_client_that_breaks_off_under_way_is_reported(topics: LogTopics, pair: Pair) -> None:
    outcome = broken_outcome(topics, pair, pair[1].close)
    assert isinstance(outcome, (BrokenPipeError, ConnectionResetError))


def test_a_file_that_is_cut_under_way_ends_the_connection_and_nothing_is_made_up(
    topics: LogTopics, path: Path, pair: Pair
) -> None:
    outcome = broken_outcome(topics, pair, lambda: os.truncate(log_files(path)[0], 0))
    assert "a file ended too early" in str(outcome)


def test_a_segment_that_retention_deletes_under_way_goes_whole(
    topics: LogTopics, path: Path, pair: Pair, wake_pair: Pair
) -> None:
    ours, theirs = pair
    content = whole_fetch()
    answer = answer_to(topics, content)
    theirs.sendall(content)
    with ThreadPoolExecutor(1) as pool:

        def read_and_ring() -> bytes:
            first = taken(theirs, 1)
            os.unlink(log_files(path)[0])
            received = first + taken(theirs, len(answer) - 1)
            wake_pair[1].sendall(b"x")
            return received

        reading = pool.submit(read_and_ring)
        ready([ours, wake_pair[0]], [ours], tables_of(topics), DEADLINE_S)
        assert reading.result(DEADLINE_S) == answer


def test_a_call_that_fails_breaks_the_connections_whose_answers_are_under_way(topics: LogTopics, pair: Pair) -> None:
    ours, theirs = pair
    content = whole_fetch()
    answer = answer_to(topics, content)
    theirs.sendall(content)
    waiting, is_over = threading.get_ident(), threading.Event()
    raised: list[int] = []

    def raise_once(number: int, _frame: object) -> None:
        if not raised:
            raised.append(number)
            raise RuntimeError("a handler fails")

    def read_and_send_signals() -> bytes:
        first = taken(theirs, 1)  # the call is running, and the rest does not fit
        while not is_over.wait(0.01):
            signal.pthread_kill(waiting, signal.SIGUSR1)
        return first + taken(theirs, len(answer))

    former = signal.signal(signal.SIGUSR1, raise_once)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_and_send_signals)
        try:
            with pytest.raises(RuntimeError, match="a handler fails"):
                ready([ours], [ours], tables_of(topics), DEADLINE_S)
        finally:
            is_over.set()
            received = reading.result(DEADLINE_S)
            signal.signal(signal.SIGUSR1, former)
    assert answer.startswith(received)
    assert len(received) < len(answer)


# --- a server


@contextlib.contextmanager
def serving(path: Path) -> Iterator[LogServer]:
    """A server with small socket buffers."""
    with running(path, is_writable=False) as server:
        server._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BATCH_SIZE // 2)  # inherited
        yield server


@contextlib.contextmanager
def slow_client(server: LogServer) -> Iterator[socket.socket]:
    """A client with a small socket buffer."""
    with socket.socket() as client:
        client.settimeout(DEADLINE_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BATCH_SIZE // 2)
        client.connect((server.address.host, server.address.port))
        yield client


def ask(client: socket.socket) -> bytes:
    client.sendall(fetch(0, max_wait_ms=0))
    return answer_of(client)


def test_two_fast_readers_beside_a_stalled_one_get_every_byte_and_so_does_it_later(path: Path) -> None:
    with serving(path) as server, slow_client(server) as stalled, ThreadPoolExecutor(2) as pool:
        whole = ask(stalled)  # which opens the window
        stalled.sendall(fetch(0, max_wait_ms=0))

        def read_often() -> set[bytes]:
            with stranger(address_of(server)) as client:
                return {ask(client) for _ in range(20)}

        for reading in [pool.submit(read_often) for _ in range(2)]:
            assert reading.result(DEADLINE_S) == {whole}
        assert answer_of(stalled) == whole
    assert len(whole) > BATCH_COUNT * BATCH_SIZE


def test_a_connection_that_is_cut_in_an_answer_affects_no_other(path: Path) -> None:
    with serving(path) as server, stranger(address_of(server)) as other:
        whole = ask(other)
        for _ in range(5):
            with slow_client(server) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(fetch(0, max_wait_ms=0))
                client.recv(1)
            assert ask(other) == whole
        wait_until(lambda: len(server._dispatcher.connections) == 1, "the server has heard of the cuts")


def test_a_server_sends_large_answers_without_a_step_of_python(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[int] = []
    take_event = LogServer._take_event

    def noted(server: LogServer, descriptor: int, mask: int) -> None:
        events.append(mask)
        take_event(server, descriptor, mask)

    monkeypatch.setattr(LogServer, "_take_event", noted)
    with serving(path) as server, slow_client(server) as client:
        whole = ask(client)
        while True:  # a call ends each second, and Python then sends the rest of an unfinished answer
            before = len(events)
            assert ask(client) == whole
            if len(events) == before:
                break


def test_a_fetch_that_arrives_while_another_one_waits_is_answered_after_it(path: Path) -> None:
    with running(path, is_writable=False) as server, stranger(address_of(server)) as client:
        client.sendall(fetch(0, max_wait_ms=0, number=1))  # opens the window from which C answers
        assert struct.unpack_from(">i", answer_of(client)) == (1,)
        client.sendall(fetch(BATCH_COUNT, max_wait_ms=200, number=2))
        wait_until(lambda: bool(server._dispatcher.waiting), "the fetch waits")
        client.sendall(fetch(0, max_wait_ms=0, number=3))
        assert [struct.unpack_from(">i", answer_of(client)) for _ in range(2)] == [(2,), (3,)]
