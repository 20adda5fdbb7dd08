# SPDX-License-Identifier: Apache-2.0
"""Hostile frames under the whole dispatcher of a server: framing, decoding, rights, every handler, the answer.

Every frame ends in an answer or with its own connection. It never fails in our code, takes seconds, or
leaves memory behind. A few seconds here; ``-m fuzz`` for SHMACCUM_FUZZ_SECONDS.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import socket
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import final

import psutil
import pytest

from shmaccum.segment_log.log_file import FileRange
from shmaccum.serving import LogServer, messages
from shmaccum.serving.connection import Connection
from shmaccum.serving.fetching import Piece
from shmaccum.serving.login import Login
from shmaccum.serving.users import User, UsersFile, Verifier, changed_users, parse_grant
from tests.fuzz.frames import TOPICS, Frames, faulty

SHORT_SECONDS = 1.0
LONG_SECONDS = float(os.environ.get("SHMACCUM_FUZZ_SECONDS", "600"))
ROOM_S = 120
FRAME_CPU_S = 3.0
GROWTH_MAX = 64 << 20
WHOLE_COUNT = 4
"""Whole frames of each version of each request, from which faulty ones are made."""
ROUND_COUNT = 5000
"""Frames between two rounds of the server's loop, and between two batches of new whole frames."""
MEMBERS_MAX = 20
WAITING_MAX = 30
PASSWORD = "password"
RIGHTS = (
    *(f"{right} topic:fuzz-{number}" for right in ("read", "write", "admin") for number in range(2)),
    *(f"{right} group:group-{number}" for right in ("read", "admin") for number in range(2)),
)


@final
class MemoryTransport:
    """A client that reads everything at once; a socket stands for it in the server's loop."""

    is_open = True
    wants_to_write = False

    def __init__(self, stand_in: socket.socket) -> None:
        self.socket = stand_in

    def shake_hands(self) -> None:
        """Nothing to be done."""

    def receive(self, size_max: int) -> bytes:
        raise AssertionError("the fuzzer brings the bytes itself")

    def send(self, pieces: tuple[Piece, ...]) -> int:
        return sum(piece.size if isinstance(piece, FileRange) else len(piece) for piece in pieces)

    def close(self) -> None:
        """The socket is used again."""


class FailOnError(logging.Handler):
    """A request that failed in our code is logged at ERROR."""

    def emit(self, record: logging.LogRecord) -> None:
        raise record.exc_info[1] if record.exc_info and record.exc_info[1] else AssertionError(record.getMessage())


@final
class Clients:
    """Clients of a server, in the thread of the server: some stay, some wait for an answer, some never log in."""

    def __init__(self, server: LogServer, chance: random.Random, login: Login | None) -> None:
        self._server = server
        self._chance = chance
        self._login = login
        self._stand_ins = deque(socket.socketpair() for _ in range(WAITING_MAX + 2))
        self._pairs = list(self._stand_ins)
        self._waiting: deque[tuple[Connection, tuple[socket.socket, socket.socket]]] = deque()
        self._now: Connection | None = None
        self._round_cpu_s = time.process_time()

    def begin_round(self) -> None:
        """Notes the CPU time, which is asked for seldom: a call may cost as much as ten frames."""
        self._round_cpu_s = time.process_time()

    def take(self, frame: bytes) -> None:
        """Brings a frame to the server and lets it answer."""
        connection = self._free()
        connection._received += frame
        begun_s = time.monotonic()
        self._server._take_frame(connection)
        is_long = time.monotonic() - begun_s > FRAME_CPU_S
        assert not (is_long and time.process_time() - self._round_cpu_s > FRAME_CPU_S), "a frame held the server up"

    def _free(self) -> Connection:
        """A connection that can take a frame: the one of before, unless it is gone, waits or got half a frame."""
        now = self._now
        if now is not None and not now.is_gone and not now.is_busy and not now._received:
            return now
        if now is not None:
            self._leave(now)
        self._now = self._new()
        return self._now

    def _leave(self, connection: Connection) -> None:
        pair = self._stand_ins.popleft()
        if connection.is_gone or not connection.is_busy:
            self._server._close(connection)
            self._stand_ins.append(pair)
            return
        self._waiting.append((connection, pair))
        if len(self._waiting) >= WAITING_MAX:
            oldest, freed = self._waiting.popleft()
            self._server._close(oldest)
            self._stand_ins.append(freed)

    def _new(self) -> Connection:
        server = self._server
        transport = MemoryTransport(self._stand_ins[0][0])
        login = self._login
        if login is not None and self._chance.random() < 0.05:
            login = Login(login._users)
        connection = Connection(transport, "fuzz", login, server._limits)
        server._connections.add(connection)
        server._hosts["fuzz"] += 1
        server._selector.register(transport.socket, 1, connection)
        return connection

    def close(self) -> None:
        for connection in [*(each for each, _ in self._waiting), *([self._now] if self._now else [])]:
            self._server._close(connection)
        for one in itertools.chain.from_iterable(self._pairs):
            one.close()


def logged_in(path: Path) -> tuple[str, Login]:
    """A users file, and the login of a user who may do something and not everything."""
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


@pytest.fixture(params=["everybody reads", "a user writes"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LogServer, Login | None]]:
    """A server with some topics. A user who writes has rights, so that no fault of a name makes a topic for ever."""
    path, is_writable = tmp_path / "log", request.param == "a user writes"
    with LogServer(path, "127.0.0.1:0", is_writable=True, partitions=2) as server:
        assert server._writing is not None
        for topic in TOPICS[:3]:
            server._writing.create_topic(topic, None)
    users, login = logged_in(tmp_path / "users") if is_writable else (None, None)
    with LogServer(path, "127.0.0.1:0", is_writable=is_writable, users_file=users) as server:
        yield server, login


def whole_frames(frames: Frames, server: LogServer) -> list[bytes]:
    """Some of each version of each request that the server answers and that has a schema."""
    return [
        frames.whole(key, version)
        for key, route in server._routes.items()
        if key in messages.API_KEYS
        for version in range(route.version_min, route.version_max + 1)
        for _ in range(WHOLE_COUNT)
    ]


def note_groups(frames: Frames, server: LogServer) -> None:
    """Lets frames name members that groups have, at their generations and epochs."""
    groups = [loaded.group for loaded in server._coordinator._groups.values()]
    members = [member for group in groups for member in group.members.values()][-MEMBERS_MAX:]
    frames.members = [member.member_id for member in members]
    frames.epochs = [group.generation for group in groups] + [getattr(member, "epoch", 0) for member in members]


def fuzz(target: tuple[LogServer, Login | None], seconds: float, seed: int) -> int:
    """How many frames were tried."""
    server, login = target
    chance = random.Random(seed)
    frames = Frames(chance, [server._topics.topic_id(topic) for topic in TOPICS[:3]])
    clients = Clients(server, chance, login)
    handler, count, sizes = FailOnError(), 0, []
    log = logging.getLogger("shmaccum")
    log.addHandler(handler)
    log.setLevel(logging.ERROR)
    end_s = time.monotonic() + seconds
    frame = b""
    try:
        while time.monotonic() < end_s:
            note_groups(frames, server)
            known = whole_frames(frames, server)
            clients.begin_round()
            for _ in range(ROUND_COUNT):
                frame = chance.choice(known)
                frame = frame if chance.random() < 0.2 else faulty(chance, frame)
                clients.take(frame)
            count += ROUND_COUNT
            server.run_once()
            sizes.append(psutil.Process().memory_info().rss)
    except BaseException:
        print(f"frame {count} or later: {frame.hex()}")
        raise
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
        clients.close()
    assert sizes[-1] - sizes[len(sizes) // 4] < GROWTH_MAX, "the frames left memory behind"
    return count


def new_seed() -> int:
    return int(os.environ.get("SHMACCUM_SEED") or random.SystemRandom().getrandbits(40))


@pytest.mark.timeout(SHORT_SECONDS + ROOM_S)
def test_some_hostile_frames_harm_nobody(target: tuple[LogServer, Login | None]) -> None:
    seed = new_seed()
    print(f"SHMACCUM_SEED={seed}")
    assert fuzz(target, SHORT_SECONDS, seed) > 0


@pytest.mark.fuzz
@pytest.mark.timeout(LONG_SECONDS + ROOM_S)
def test_many_hostile_frames_harm_nobody(
    target: tuple[LogServer, Login | None], capsys: pytest.CaptureFixture[str]
) -> None:
    seed = new_seed()
    count = fuzz(target, LONG_SECONDS, seed)
    with capsys.disabled():
        print(f"SHMACCUM_SEED={seed}: {count:,} frames in {LONG_SECONDS:g} s")
