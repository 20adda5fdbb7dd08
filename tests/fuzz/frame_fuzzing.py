# SPDX-License-Identifier: Apache-2.0
"""Fuzz a whole server with hostile frames, in memory: framing, decoding, authorization, every handler, the response.

::

    frames.py ──bytes──> MemoryClient ──> Dispatcher.take_frame ──> handler ──> MemoryTransport
               └──────> SocketClient ──> LogServer._take_events ──> C, or handler ──> socket

The dispatcher, its parts and the log on disk are those of a server. A client of a server with users is an object in
memory, and `Selector` never asks the kernel about it. Any other client has a socket, because C reads an ordinary fetch
from a socket.
A client of either kind reads everything at once.

`fuzz` sends frames for some seconds, and checks that the server's memory, descriptors and files stay within bounds.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from selectors import EVENT_READ
from typing import Any, NamedTuple, final

import psutil

from shmaccum.log.files.file_names import PRODUCER_IDS_FILE, RECOVERY_POINTS_FILE, START_OFFSETS_FILE
from shmaccum.log.files.log_file import FileRange
from shmaccum.log.server import LogServer, messages
from shmaccum.log.server.connection import Connection
from shmaccum.log.server.fetch_frames import Piece, Served
from shmaccum.log.server.login import Login
from shmaccum.log.server.requests import BEFORE_LOGIN, FETCH
from shmaccum.log.server.steps import take_all
from shmaccum.log.server.topics import NO_TOPIC_ID
from shmaccum.log.server.transport import PlainTransport
from shmaccum.log.server.users import User, UsersFile, Verifier, changed_users, parse_grant
from shmaccum.log.server.worker import Worker
from tests.fuzz.frames import TOPICS, Frames, faulty, pick
from tests.support.segment_log import make_batches

FRAME_CPU_S = 3.0
GROWTH_MAX = 64 << 20
GROUPS_FOLDER = ".groups"
FILES_OF_A_LOG = {START_OFFSETS_FILE, RECOVERY_POINTS_FILE, PRODUCER_IDS_FILE}
"""Files that appear once in a log, when they are first written."""
WHOLE_COUNT = 4
"""The number of whole frames of each version of each request. Faulty frames are made from them."""
WHOLE_SHARE = 0.2
STRANGER_SHARE = 0.05
"""The share of frames from clients that have not logged in to a server with users."""
ROUND_COUNT = 5000
"""The number of frames between two rounds of the server's loop, and between two sets of new whole frames."""
MEMBERS_MAX = 20
PRODUCERS_MAX = 2
WAITING_MAX = 30
CHUNK_SIZE = 32 << 10
"""The number of bytes that a socket accepts at once, and that a call of the server reads."""
BATCH_COUNT = 10
"""The number of batches in each partition of the log, in several segments."""
PASSWORD = "password"
RIGHTS = (
    *(f"{right} topic:fuzz-{number}" for right in ("read", "write", "admin") for number in range(2)),
    *(f"{right} group:group-{number}" for right in ("read", "admin") for number in range(2)),
    *(f"write transactional-id:transaction-{number}" for number in range(2)),
)


class Target(NamedTuple):
    """A server, the folder with all its files, and the login of a user, or None if no login is needed."""

    server: LogServer
    folder: Path
    login: Login | None
    api_keys: Container[int] = range(1 << 15)
    """The requests to send."""


class Outcome(NamedTuple):
    """The number of frames sent, the bytes by which memory grew, and the number of responses by the name of the API."""

    frame_count: int
    cpu_s: float
    memory_growth: int
    answers: dict[str, int]
    ordinary_count: int
    """The number of fetches that C served."""


class FailOnError(logging.Handler):
    """Fails if the server logs at ERROR, which means that a request failed in its code."""

    def emit(self, record: logging.LogRecord) -> None:
        raise record.exc_info[1] if record.exc_info and record.exc_info[1] else AssertionError(record.getMessage())


# --- clients


@final
class MemoryTransport:
    """A client that reads everything at once."""

    is_open = True
    wants_to_write = False

    def __init__(self) -> None:
        self.socket: Any = self  # the selector's key of this client

    def fileno(self) -> int:
        """Return a number that is no descriptor."""
        return -1

    def handshake(self) -> None:
        """Nothing to be done."""

    def receive(self, size_max: int) -> bytes:
        raise AssertionError("the fuzzer brings the bytes itself")

    def send(self, pieces: tuple[Piece, ...]) -> int:
        return sum(piece.size if isinstance(piece, FileRange) else len(piece) for piece in pieces)

    def close(self) -> None:
        """Nothing to be done."""


@final
class Selector:
    """The server's selector. It ignores clients in memory, and never blocks."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self._clients: set[MemoryTransport] = set()

    def register(self, file: Any, events: int, data: Any) -> None:
        if isinstance(file, MemoryTransport):
            self._clients.add(file)
        else:
            self._real.register(file, events, data)

    def unregister(self, file: Any) -> None:
        if isinstance(file, MemoryTransport):
            self._clients.remove(file)
        else:
            self._real.unregister(file)

    def modify(self, file: Any, events: int, data: Any) -> None:
        if not isinstance(file, MemoryTransport):
            self._real.modify(file, events, data)

    def fileno(self) -> int:
        return int(self._real.fileno())

    def get_map(self) -> Any:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class MemoryClient:
    """A client whose bytes are put into the server's buffer of received bytes."""

    def __init__(self, server: LogServer, login: Login | None) -> None:
        self._server = server
        self.connection = Connection(MemoryTransport(), "fuzz", login, server._limits)
        _introduce(server, self.connection)

    def bring(self, frame: bytes) -> None:
        """Send a frame to the server."""
        self.connection._received += frame
        self._server._dispatcher.take_frame(self.connection)

    def close(self) -> None:
        self._server._dispatcher.close(self.connection)


class SocketClient:
    """A client with a socket, as a server without users and without TLS has them."""

    def __init__(self, server: LogServer) -> None:
        self._server = server
        accepted, self._socket = socket.socketpair()
        for one in (accepted, self._socket):
            one.setblocking(False)
        self.connection = Connection(PlainTransport(accepted), "fuzz", None, server._limits)
        _introduce(server, self.connection)

    def bring(self, frame: bytes) -> None:
        """Send a frame to the server, and read the response."""
        connection = self.connection
        for start in range(0, len(frame), CHUNK_SIZE):
            if connection.is_gone or not connection.events & EVENT_READ:
                return
            self._socket.send(frame[start : start + CHUNK_SIZE])
            self._server._take_events(0.0)
            self._read()
        while connection.wants_to_write:
            self._server._take_events(0.0)
            self._read()

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self._socket.recv(1 << 20):
                pass

    def close(self) -> None:
        self._server._dispatcher.close(self.connection)
        self._socket.close()


def _introduce(server: LogServer, connection: Connection) -> None:
    """Accept a client as the server does."""
    server._dispatcher.add(connection)


Client = MemoryClient | SocketClient


@final
class Clients:
    """Clients in the thread of the server. Some stay connected, some wait for a response, and some never log in.

    Attributes:
        ordinary_count: fetches that C served.
    """

    def __init__(self, target: Target, chance: random.Random) -> None:
        self._server = target.server
        self._login = target.login
        self._chance = chance
        self._waiting: deque[Client] = deque()
        self._now: Client | None = None
        self._round_cpu_s = 0.0
        self.ordinary_count = 0
        self._record_served = target.server._fetches.record_served
        target.server._fetches.record_served = self._count_served  # type: ignore[method-assign]
        self.begin_round()

    def _count_served(self, served: Served) -> None:
        self.ordinary_count += 1
        self._record_served(served)

    def begin_round(self) -> None:
        """Record the CPU time. It is read rarely, because a read may cost as much as ten frames."""
        self._round_cpu_s = time.process_time()

    def has_stranger(self) -> bool:
        """Return True if the next frame is from a client that has not logged in."""
        return not self._free().connection.is_known

    def take(self, frame: bytes) -> None:
        """Send a frame to the server, and let it respond."""
        client = self._free()
        begun_s = time.monotonic()
        client.bring(frame)
        is_long = time.monotonic() - begun_s > FRAME_CPU_S
        assert not (is_long and time.process_time() - self._round_cpu_s > FRAME_CPU_S), "a frame held the server up"

    def _free(self) -> Client:
        """Return a client that can send a frame. This is the last one, unless it is closed, waits for a response or has
        sent half a frame.
        """
        now = self._now
        if now is not None:
            connection = now.connection
            if not connection.is_gone and not connection.is_busy and not connection._received:
                return now
            self._leave(now)
        self._now = self._new()
        return self._now

    def _leave(self, client: Client) -> None:
        if client.connection.is_gone or not client.connection.is_busy:
            client.close()
            return
        self._waiting.append(client)
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft().close()

    def _new(self) -> Client:
        login = self._login
        if login is None:
            return SocketClient(self._server)
        if self._chance.random() < STRANGER_SHARE:
            login = Login(login._users)
        return MemoryClient(self._server, login)

    def close(self) -> None:
        for client in [*self._waiting, *([self._now] if self._now else [])]:
            client.close()


# --- servers


@contextlib.contextmanager
def read_by_everybody(folder: Path) -> Iterator[Target]:
    """Yield a server without users that only reads."""
    _make_log(folder / "log")
    with LogServer(folder / "log", "127.0.0.1:0") as server:
        yield _in_memory(Target(server, folder, None))


@contextlib.contextmanager
def written_by_a_user(folder: Path) -> Iterator[Target]:
    """Yield a server that writes, for a user with few rights, so that no faulty name creates a permanent topic."""
    _make_log(folder / "log")
    users, login = _logged_in(folder / "users")
    with LogServer(folder / "log", "127.0.0.1:0", is_writable=True, users_file=users) as server:
        yield _in_memory(Target(server, folder, login))


@contextlib.contextmanager
def fetched_by_everybody(folder: Path) -> Iterator[Target]:
    """Yield a server that only reads, and gets only Fetch requests."""
    with read_by_everybody(folder) as target:
        yield target._replace(api_keys={FETCH})


SERVERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[Target]]] = {
    "everybody reads": read_by_everybody,
    "a user writes": written_by_a_user,
    "everybody fetches": fetched_by_everybody,
}


def _make_log(path: Path) -> None:
    with LogServer(path, "127.0.0.1:0", is_writable=True, partitions=2, segment_bytes=2000) as server:
        assert server._write_handlers is not None
        assert server._log is not None
        for topic in TOPICS[:3]:
            take_all(server._write_handlers.topics.create_topic(topic, None))
            for number in range(2):
                server._log.partition(topic, number).append(make_batches(BATCH_COUNT))


def _logged_in(path: Path) -> tuple[str, Login]:
    """Write a users file. Return it with the login of a user who has some of the rights."""
    verifier = Verifier.of(PASSWORD, "SCRAM-SHA-256", iterations=4096)
    with changed_users(str(path)) as users:
        users["user"] = User("user", {"SCRAM-SHA-256": verifier}, tuple(parse_grant(*each.split()) for each in RIGHTS))
    login = Login(UsersFile(str(path)))
    login.begin("PLAIN")
    proof = login.step(b"\0user\0" + PASSWORD.encode())
    assert callable(proof)
    login.conclude(proof())
    assert login.user is not None
    return str(path), login


def _in_memory(target: Target) -> Target:
    target.server._selector = Selector(target.server._selector)  # type: ignore[assignment]
    target.server._dispatcher._selector = target.server._selector
    return target


# --- the fuzzer


def whole_frames(frames: Frames, target: Target) -> tuple[list[bytes], list[bytes]]:
    """Return frames of each version of each request that has a schema, and separately those for a login."""
    known: tuple[list[bytes], list[bytes]] = [], []
    for key, route in target.server._dispatcher.table.items():
        if key not in messages.API_KEYS or key not in target.api_keys:
            continue
        for version in range(route.version_min, route.version_max + 1):
            made = [frames.whole(key, version) for _ in range(WHOLE_COUNT)]
            known[0].extend(made)
            known[1].extend(made if key in BEFORE_LOGIN else ())
    return known


def note_state(frames: Frames, server: LogServer) -> None:
    """Give the frames the ids, generations and epochs of existing members of groups, and the producers of
    transactions.
    """
    groups = [loaded.group for loaded in server._coordinator._groups.values()]
    members = [member for group in groups for member in group.members.values()][-MEMBERS_MAX:]
    frames.members = [member.member_id for member in members]
    frames.epochs = [group.generation for group in groups] + [getattr(member, "epoch", 0) for member in members]
    if server._write_handlers is not None:
        ids = list(server._write_handlers.transactions._file.ids.values())[-PRODUCERS_MAX:]
        frames.note_producers([(each.producer_id, each.epoch) for each in ids])


def _memory_size() -> int:
    return int(psutil.Process().memory_info().rss)


def _memory_growth(sizes: Sequence[int]) -> int:
    """Return the growth from the first quarter of the rounds to the minimum of the last quarter."""
    return min(sizes[-max(len(sizes) // 4, 1) :]) - sizes[len(sizes) // 4]


def _bring_to_rest(server: LogServer) -> None:
    """Close the groups, and delete the topics. In a server that only reads, close their files."""
    server.run_once()
    for worker in (server._dispatcher._validator, server._dispatcher._reader_thread):
        _await_computations(server, worker)
    server._coordinator.close()
    for topic in server._topics.names():
        if server._write_handlers is None:
            server._topics._forget(topic)
        else:
            assert take_all(server._write_handlers.topics._deleted(topic, NO_TOPIC_ID))["error_code"] == 0
    gc.collect()


def _await_computations(server: LogServer, worker: Worker) -> None:
    """Wait for the computations of closed clients, which read files and may start further computations."""
    worker._thread.submit(int).result(FRAME_CPU_S * WAITING_MAX)
    while worker._computed:
        server.run_once()
        worker._thread.submit(int).result(FRAME_CPU_S * WAITING_MAX)


def _kept(target: Target) -> Counter[str]:
    """Return the targets of the open descriptors, and the files. Files of groups are omitted, because any member
    creates them.
    """
    files = (path for path in target.folder.rglob("*") if path.is_file() and path.name not in FILES_OF_A_LOG)
    paths = (str(path) for path in files if GROUPS_FOLDER not in path.parts)
    return Counter([*map(_link_target, os.listdir("/proc/self/fd")), *paths])


def _link_target(descriptor: str) -> str:
    """Return the target of a descriptor, without the inode number of a socket or pipe."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").partition(":")[0]
    except FileNotFoundError:  # the descriptor that listed the folder
        return ""


@contextlib.contextmanager
def _failing_on_errors() -> Iterator[None]:
    handler, log = FailOnError(), logging.getLogger("shmaccum")
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()  # existing objects stay, so the collector need not traverse them in each round
    try:
        yield
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # hide older objects from the collector again (tests/conftest.py)
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)


def _try_frames(clients: Clients, chance: random.Random, known: tuple[list[bytes], list[bytes]]) -> None:
    """Send the frames between two rounds of the server's loop.

    Raises:
        AssertionError: a frame made the server fail; its bytes are printed.
    """
    frame = b""
    try:
        for _ in range(ROUND_COUNT):
            frame = pick(chance, known[clients.has_stranger()])
            frame = frame if chance.random() < WHOLE_SHARE else faulty(chance, frame)
            clients.take(frame)
    except BaseException:
        print(f"not survived: {frame.hex()}")
        raise


def fuzz(target: Target, seconds: float, seed: int, *, round_count_min: int = 1) -> Outcome:
    """Send frames for `seconds`, and for a minimum number of rounds.

    Raises:
        AssertionError: a frame made the server fail or delayed it, or the frames leaked a resource.
    """
    server = target.server
    chance = random.Random(seed)
    frames = Frames(chance, [server._topics.topic_id(topic) for topic in TOPICS[:3]])
    clients = Clients(target, chance)
    count, sizes, begun_cpu_s = 0, list[int](), time.process_time()
    end_s = time.monotonic() + seconds
    before = _kept(target)
    with _failing_on_errors(), contextlib.closing(clients):
        while len(sizes) < round_count_min or time.monotonic() < end_s:  # a slow start may take all the time
            note_state(frames, server)
            known = whole_frames(frames, target)
            clients.begin_round()
            _try_frames(clients, chance, known)
            count += ROUND_COUNT
            server.run_once()
            sizes.append(_memory_size())
    growth = _memory_growth(sizes)
    assert growth < GROWTH_MAX, f"the frames leaked {growth} bytes of memory"
    _bring_to_rest(server)
    after = _kept(target)
    assert not after - before, f"the frames left these descriptors and files: {after - before}"
    return Outcome(
        count, time.process_time() - begun_cpu_s, growth, dict(server._numbers._requests), clients.ordinary_count
    )
