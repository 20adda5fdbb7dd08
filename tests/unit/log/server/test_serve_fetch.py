# SPDX-License-Identifier: Apache-2.0
"""C answers an ordinary fetch in one call, with the same bytes as Python."""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shmaccum._native import serve_ready
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server import LogServer, log_heads
from shmaccum.log.server.connection import Connection, FrameLimits
from shmaccum.log.server.dispatch import Dispatcher
from shmaccum.log.server.fetch_frames import (
    FINAL_EPOCH,
    TYPES,
    FetchTables,
    Outcome,
    Served,
    read_request,
    receive_ready,
    write_response,
)
from shmaccum.log.server.log_heads import LogHead, OpenFiles
from shmaccum.log.server.messages import BadFrameError, encode_request, read_head
from shmaccum.log.server.sessions import Session, Sessions
from shmaccum.log.server.topics import LogTopics
from shmaccum.log.server.transport import PlainTransport
from tests.fuzz.frames import faulty
from tests.support.fetch_requests import FETCH, SIZE_MAX, as_bytes, found_for, no_session, python_answer, ready
from tests.support.log_server import DEADLINE_S, answer_of, fetch, running, stranger
from tests.support.segment_log import TOPIC, batch_of, log_files, make_batch, make_batches, open_log

VERSIONS = range(4, 18)
OTHER = "other"
SIZES = (0, 1, 400, 1000, 3000, 1 << 20)
RECORD_COUNT = 120
RECEIVED_MAX = 32 << 10
"""The largest frame that a pair of sockets buffers and one call reads."""


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def topics(tmp_path: Path) -> LogTopics:
    """Two topics of several segments each."""
    path = tmp_path / "log"
    with open_log(path, segment_bytes=3000, index_interval_bytes=500, partitions=2) as directory:
        directory.create_topic(OTHER, 2)
        for topic in (TOPIC, OTHER):
            for number in range(2):
                directory.partition(topic, number).append(make_batches(RECORD_COUNT // 3))
    return LogTopics(os.fspath(path))


def wanted(version: int, topics: LogTopics, dice: random.Random) -> list[dict[str, Any]]:
    """Topics and partitions of a request, most of which exist."""
    names = dice.sample([TOPIC, OTHER], dice.choice([1, 1, 2]))
    fields = [{"topic_id": topics.topic_id(name)} if version >= 13 else {"topic": name} for name in names]
    return [
        {**field, "partitions": [partition(number, dice) for number in dice.sample(range(2), dice.choice([1, 2]))]}
        for field in fields
    ]


def partition(number: int, dice: random.Random) -> dict[str, Any]:
    odd = dice.random() < 0.1
    return {
        "partition": dice.choice([-1, 2, 2**31 - 1]) if odd and dice.random() < 0.3 else number,
        "current_leader_epoch": dice.choice([0, 5, -7]) if odd else -1,
        "fetch_offset": dice.choice([-1, RECORD_COUNT, 2**62]) if odd else dice.randrange(RECORD_COUNT),
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": dice.choice([*SIZES, -1]),
    }


def frame(version: int, topics: LogTopics, dice: random.Random, /, **more: Any) -> bytes:
    limits = {"max_wait_ms": 0, "min_bytes": dice.choice([0, 1, 1, 5000]), "isolation_level": dice.choice([0, 1])}
    limits |= {"max_bytes": dice.choice([*SIZES, 1 << 20, 1 << 20])}
    nobody = {"replica_id": -1, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
    return encode_request(FETCH, version, {**limits, **nobody, "topics": wanted(version, topics, dice), **more})


def receive(ours: socket.socket, tables: FetchTables) -> Outcome:
    """Return what C received from a client."""
    found = ready([ours], [ours], tables)
    assert [source for source, _, _ in found] == [ours] * len(found)
    return found[0][2] if found else None


def served(
    pair: tuple[socket.socket, socket.socket], topics: LogTopics, content: bytes, sessions: Sessions | None = None
) -> bytes | None:
    """Return C's answer. If C sent nothing and left the whole request to Python, return None."""
    ours, theirs = pair
    theirs.sendall(content)
    tables = FetchTables(topics.heads, no_session if sessions is None else sessions.continued)
    outcome = receive(ours, tables)
    if not isinstance(outcome, Served):
        assert outcome == content
        with pytest.raises(BlockingIOError):
            theirs.recv(1, socket.MSG_DONTWAIT)
        return None
    assert not outcome.pieces
    received = b""
    while len(received) < outcome.sent:
        received += theirs.recv(outcome.sent - len(received))
    return received


@pytest.mark.parametrize("version", VERSIONS)
def test_c_and_python_answer_alike(
    version: int, topics: LogTopics, pair: tuple[socket.socket, socket.socket], seeded: Callable[[], random.Random]
) -> None:
    dice, count = seeded(), 0
    for _ in range(150):
        content = frame(version, topics, dice)
        expected = python_answer(topics, content)  # which opens the windows
        answer = served(pair, topics, content)
        assert answer is None or answer == expected
        count += answer is not None
    assert count > 15


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_hostile_frames_are_left_to_python_or_answered_as_python_does(
    version: int, topics: LogTopics, pair: tuple[socket.socket, socket.socket], seeded: Callable[[], random.Random]
) -> None:
    dice = seeded()
    for _ in range(600):
        content = faulty(dice, frame(version, topics, dice))
        if len(content) > RECEIVED_MAX:  # a fault may repeat a piece many times
            continue
        try:
            expected = python_answer(topics, content)
        except (BadFrameError, ValueError):
            expected = None
        assert served(pair, topics, content) in (None, expected)


def answered_in_session(topics: LogTopics, sessions: Sessions, content: bytes) -> bytes:
    """Return Python's answer to a fetch of a session."""
    head = read_head(memoryview(content)[4:])
    session = sessions.of(read_request(head))
    assert isinstance(session, Session)
    found = found_for(topics, read_request(head), list(session.wanted.values()))
    return as_bytes(write_response(head, session.changes(found), session_id=session.session_id))


@pytest.mark.parametrize("version", range(7, 18))
def test_a_session_that_continues_is_answered_alike(
    version: int,
    topics: LogTopics,
    pair: tuple[socket.socket, socket.socket],
    seeded: Callable[[], random.Random],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shmaccum.log.server.sessions._random_id", lambda attempt: 77 + attempt)
    dice, count = seeded(), 0
    ours, theirs = Sessions(), Sessions()
    key = {"topic_id": topics.topic_id(TOPIC)} if version >= 13 else {"topic": TOPIC}

    def one(epoch: int, numbers: list[int]) -> bytes:
        partitions = [{**partition(number, dice), "partition": number} for number in numbers]
        more = {"session_id": 77 * (epoch > 0), "session_epoch": epoch, "min_bytes": 0}
        return frame(version, topics, dice, **more, topics=[{**key, "partitions": partitions}] if numbers else [])

    begin = one(0, [0, 1])
    assert answered_in_session(topics, ours, begin) == answered_in_session(topics, theirs, begin)
    for epoch in range(1, 80):
        content = one(epoch, dice.choice([[], [0], [1], [1, 0], [0, 1], [0, 1]]))
        expected = answered_in_session(topics, theirs, content)
        answer = served(pair, topics, content, ours)
        again = answered_in_session(topics, ours, content)  # applies the changes, which C leaves to Python
        assert expected == again == (answer or again)
        count += answer is not None
    assert count > 0
    following = read_request(read_head(memoryview(one(80, []))[4:]))
    assert theirs.of(following._replace(session_epoch=FINAL_EPOCH)) is None
    assert theirs.of(following) is BrokerError.FETCH_SESSION_ID_NOT_FOUND


def test_a_fetch_that_is_not_ordinary_is_left_to_python(
    topics: LogTopics, pair: tuple[socket.socket, socket.socket]
) -> None:
    dice = random.Random(0)

    def one(**more: Any) -> bytes:
        partitions = [{**partition(0, random.Random(1)), "fetch_offset": 3, "partition_max_bytes": 1 << 20}]
        values = {"max_bytes": 1 << 20, "min_bytes": 1, "topics": [{"topic": TOPIC, "partitions": partitions}]}
        return frame(11, topics, dice, **{**values, **more})

    assert served(pair, topics, one()) is None  # no window is open yet
    assert python_answer(topics, one()) is not None
    assert served(pair, topics, one()) == python_answer(topics, one())
    for content in (
        one(session_id=5, session_epoch=1),
        one(session_epoch=0),
        one(min_bytes=1 << 20),
        one(topics=[]),
        one() + one(),
        one()[:-1],
        b"\x00\x00\x00\x02\x00\x01",
        one()[:4] + b"\x00\x03" + one()[6:],
    ):
        assert served(pair, topics, content) is None


def test_nothing_and_the_end_of_a_connection_are_distinguished(
    topics: LogTopics, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    tables = FetchTables(topics.heads, no_session)
    assert ready([ours], [ours], tables) == []
    theirs.shutdown(socket.SHUT_WR)
    assert receive(ours, tables) == b""
    theirs.close()
    ((source, events, outcome),) = ready([ours], [ours], tables)
    assert (source, events & select.EPOLLHUP, outcome) == (ours.fileno(), select.EPOLLHUP, None)


def test_a_socket_that_breaks_is_reported_with_its_client(
    topics: LogTopics, tmp_path: Path, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A pipe is ready, but recv fails because it is no socket."""
    ours, theirs = pair
    reading, writing = os.pipe()
    os.write(writing, b"x")
    theirs.sendall(b"x")
    with contextlib.closing(select.epoll()) as epoll:
        epoll.register(reading, select.EPOLLIN)
        epoll.register(ours, select.EPOLLIN)
        clients = {reading: "pipe", ours.fileno(): "socket"}
        found = receive_ready(epoll.fileno(), 0.0, clients, FetchTables(topics.heads, no_session), SIZE_MAX)
    os.close(reading)
    os.close(writing)
    outcomes = {source: outcome for source, _, outcome in found}
    assert isinstance(outcomes["pipe"], OSError)
    assert outcomes["socket"] == b"x"


def test_arguments_that_are_none_are_refused(topics: LogTopics, pair: tuple[socket.socket, socket.socket]) -> None:
    content = frame(11, topics, random.Random(3))
    python_answer(topics, content)
    for head in set(topics.heads.values()):
        head.windows = tuple(each[:3] for each in head.windows)  # type: ignore[misc]
    assert served(pair, topics, content) is None
    with contextlib.closing(select.epoll()) as epoll:
        with pytest.raises(TypeError, match="five tuple types"):
            serve_ready(epoll.fileno(), 0, {}, topics.heads, no_session, SIZE_MAX, TYPES[:3])
        with pytest.raises(TypeError, match="dicts"):
            serve_ready(epoll.fileno(), 0, {}, [], no_session, SIZE_MAX, TYPES)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="Bad file descriptor"):
        serve_ready(2**31 - 1, 0, {}, topics.heads, no_session, SIZE_MAX, TYPES)


# --- one call, many fetches


def opened(topics: LogTopics, version: int = 11, **more: Any) -> tuple[bytes, bytes]:
    """Open the window of a fetch, and return the fetch and its answer."""
    partitions = [{**partition(0, random.Random(1)), "fetch_offset": 3, "partition_max_bytes": 1 << 20}]
    values = {"max_bytes": 1 << 20, "min_bytes": 1, "topics": [{"topic": TOPIC, "partitions": partitions}], **more}
    content = frame(version, topics, random.Random(0), **values)
    answer = python_answer(topics, content)
    assert answer is not None
    return content, answer


def ask_often(theirs: socket.socket, content: bytes, answer: bytes, count: int) -> None:
    for _ in range(count):
        theirs.sendall(content)
        received = b""
        while len(received) < len(answer):
            received += theirs.recv(len(answer) - len(received))
        assert received == answer


def test_a_call_continues_until_another_file_is_ready(
    topics: LogTopics, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    content, answer = opened(topics)
    wake_read, wake_write = socket.socketpair()
    with wake_read, wake_write, ThreadPoolExecutor(1) as pool:

        def ask_and_ring() -> None:
            ask_often(theirs, content, answer, 3)
            wake_write.sendall(b"x")

        asked = pool.submit(ask_and_ring)
        found = ready([ours, wake_read], [ours], FetchTables(topics.heads, no_session), DEADLINE_S)
        asked.result(DEADLINE_S)
        assert [source for source, _, _ in found] == [ours, ours, ours, wake_read.fileno()]
        assert all(isinstance(outcome, Served) and outcome.took_s > 0 for _, _, outcome in found[:3])


def test_a_call_ends_after_many_answers(topics: LogTopics, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    content, answer = opened(topics)
    tables = FetchTables(topics.heads, no_session)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask_often, theirs, content, answer, 300)
        counts = [len(ready([ours], [ours], tables, DEADLINE_S))]
        while sum(counts) < 300:
            counts.append(len(ready([ours], [ours], tables, 0.001)))
        asked.result(DEADLINE_S)
    assert counts[0] == 256


def test_a_fetch_that_python_has_to_take_over_ends_a_call(
    topics: LogTopics, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    content, _ = opened(topics)
    in_session, _ = opened(topics, session_id=7, session_epoch=1)
    tables = FetchTables(topics.heads, lambda request: request.wanted)
    theirs.sendall(in_session)
    ((_, _, outcome),) = ready([ours], [ours], tables, DEADLINE_S)
    assert isinstance(outcome, Served)
    theirs.sendall(content * 2)
    assert [outcome for _, _, outcome in ready([ours], [ours], tables, DEADLINE_S)] == [content * 2]


def test_a_signal_ends_a_call(topics: LogTopics, pair: tuple[socket.socket, socket.socket]) -> None:
    heard: list[int] = []
    is_over = threading.Event()
    waiting = threading.get_ident()

    def send_signals() -> None:
        while not is_over.wait(0.01):
            signal.pthread_kill(waiting, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, lambda number, _frame: heard.append(number))
    sender = threading.Thread(target=send_signals)
    sender.start()
    try:
        assert ready([pair[0]], [pair[0]], FetchTables(topics.heads, no_session), DEADLINE_S) == []
    finally:
        is_over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, former)
    assert heard


# --- windows


def head_of(path: Path, files: OpenFiles | None = None) -> LogHead:
    return LogHead(os.fspath(path), TopicPartition(TOPIC, 0), files or OpenFiles())


def test_a_window_goes_when_the_log_grows_or_loses_records(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        log = directory.partition(TOPIC, 0)
        log.append(make_batches(3))
        head = head_of(tmp_path)
        assert head.file_range(0, 100) is not None
        assert [(one.first_offset, one.last_offset, one.end_offset) for one in head.windows] == [(0, 9, 9)]
        log.append(make_batches(1, first=3))
        assert head.refresh()
        assert not head.windows
        assert head.file_range(0, 100) is not None
        head.start_at(4)
        assert not head.windows
        assert head.file_range(5, 100) is not None
        assert head.windows[0].first_offset == head.windows[0].start_offset == 4


def test_each_segment_has_a_window_and_few_are_kept(tmp_path: Path) -> None:
    with open_log(tmp_path, segment_bytes=1000) as directory:
        directory.partition(TOPIC, 0).append(make_batches(30))
        assert len(log_files(tmp_path)) > 6
        head = head_of(tmp_path)
        for offset in range(90):
            assert head.file_range(offset, 100) is not None
            assert head.windows[0].first_offset <= offset < head.windows[0].last_offset
        assert len(head.windows) == 1 + log_heads.INDEXED_MAX


def test_a_partition_with_transactions_has_no_window(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        log = directory.partition(TOPIC, 0)
        log.append([make_batch([b"plain"]), batch_of(7, 0, b"open")])
        head = head_of(tmp_path)
        assert head.file_range(0, 100) is not None
        assert not head.windows


def test_a_file_that_is_dropped_takes_its_window_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_heads, "OPEN_FILES_MAX", 1)
    with open_log(tmp_path, segment_bytes=1000) as directory:
        directory.partition(TOPIC, 0).append(make_batches(10))
        files = OpenFiles()
        head = head_of(tmp_path, files)
        for offset in (0, 20):
            assert head.file_range(offset, 100) is not None
        assert len(head.windows) == 1
        files.forget(head.folder)
        assert not head.windows


# --- a server


def test_a_server_answers_the_second_fetch_without_a_request_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(10))
    handled: list[int] = []
    handle = Dispatcher._handle

    def noted(dispatcher: Dispatcher, *arguments: Any) -> None:
        handled.append(1)
        handle(dispatcher, *arguments)

    monkeypatch.setattr(Dispatcher, "_handle", noted)
    with running(tmp_path, is_writable=False) as server, stranger(f"127.0.0.1:{server.address.port}") as client:
        client.sendall(fetch(3, max_wait_ms=0))
        first = answer_of(client)
        client.sendall(fetch(3, max_wait_ms=0) * 3)  # Python answers several requests
        assert [answer_of(client) for _ in range(3)] == [first] * 3
        before = len(handled)
        while len(handled) == before:  # a window lasts until the server's next scan for deleted segments
            client.sendall(fetch(3, max_wait_ms=0))
            if answer_of(client) == first and len(handled) == before:
                break
        assert len(handled) == before
    numbers = {family.name: family.values for family in server._numbers.families(0, [])}
    (answered,) = (values for name, values in numbers.items() if name.endswith("requests_total"))
    assert answered[("Fetch",)] == 5


def test_a_slow_reader_gets_every_byte_of_an_ordinary_fetch(
    topics: LogTopics, pair: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = pair
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    client = Connection(PlainTransport(ours), "host", None, FrameLimits(SIZE_MAX, SIZE_MAX, SIZE_MAX))
    path = Path(topics.directory)
    with open_log(path) as directory:
        directory.partition(TOPIC, 1).append([make_batch([b"x" * 300_000])])
    head = topics.head(TOPIC, 1)
    assert head is not None
    head.refresh()
    partitions = [{**partition(1, random.Random(1)), "fetch_offset": RECORD_COUNT, "partition_max_bytes": 1 << 20}]
    limits = {"max_bytes": 1 << 20, "min_bytes": 1}
    content = frame(11, topics, random.Random(0), **limits, topics=[{"topic": TOPIC, "partitions": partitions}])
    expected = python_answer(topics, content)
    assert expected is not None
    theirs.sendall(content)
    client.handle_outcome(receive(ours, FetchTables(topics.heads, no_session)))
    assert (client.is_busy, client.may_fetch_at_once) == (True, False)
    received = b""
    while len(received) < len(expected):
        received += theirs.recv(10_000)
        client.flush()
    assert received == expected
    assert (client.is_busy, client.may_fetch_at_once) == (False, True)


def test_a_connection_that_was_closed_in_the_same_round_ends_quietly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_log(tmp_path):
        pass
    with LogServer(tmp_path, "127.0.0.1:0") as server, stranger(f"127.0.0.1:{server.address.port}"):
        while not server._dispatcher.connections:
            server.run_once()
        (client,) = server._dispatcher.connections
        server._dispatcher.close(client)
        server._dispatcher.serve(client, 1)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
