# SPDX-License-Identifier: Apache-2.0
"""A proxy for one port that cuts connections at any byte, and delays or discards bytes."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.kafka.broker import LOOPBACK, free_port, running_cluster
from tests.kafka.distribution import require

CHUNK_SIZE = 16 * 1024
FRAME_HEAD = struct.Struct(">i")
API_KEY = struct.Struct(">h")


class Proxy:
    """Forwards bytes between its own port and another one.

    Attributes:
        port: the port on which it listens.
        carried: forwarded bytes, in both directions.
        delay_s: the delay of each piece, in both directions.
        is_away: new connections are closed at once, as by a balancer without servers.
        is_silent: arriving bytes are discarded, in both directions.
    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self._target_port = target_port
        self._listener = socket.create_server((LOOPBACK, port))
        self.port: int = self._listener.getsockname()[1]
        self.carried = 0
        self.delay_s = 0.0
        self.is_away = False
        self.is_silent = False
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.is_away:
                    client.close()
                    continue
                thread = threading.Thread(target=self._carry, args=(client,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _carry(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self._target_port)) as server:
            self._pairs.append((client, server))
            while True:
                readable, _, _ = select.select([client, server], [], [])
                for source, target in ((client, server), (server, client)):
                    if source in readable:
                        data = source.recv(CHUNK_SIZE)
                        if not data:
                            return
                        if self.is_silent:
                            continue
                        self.carried += len(data)
                        time.sleep(self.delay_s)
                        target.sendall(data)

    def cut(self) -> None:
        """Resets every connection at once."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)


class RequestProxy(Proxy):
    """Forwards whole frames, and cuts the connection before a chosen request or answer.

    Attributes:
        counts: the number of requests of each API key.
        is_hit: the cut was made.
    """

    def __init__(self, target_port: int, port: int = 0) -> None:
        self.counts: Counter[int] = Counter()
        self._aim: tuple[int, int, bool] | None = None
        self._lock = threading.Lock()
        self.is_hit = False
        super().__init__(target_port, port)

    def aim(self, key: int, number: int, is_answer: bool, act: Callable[[], object]) -> None:
        """Cut the connection at the request of this key and number.

        Args:
            key: the API key.
            number: from 0.
            is_answer: the request arrives, but its answer does not.
            act: called before the cut.
        """
        with self._lock:
            self._aim = key, self.counts[key] + number, is_answer
            self._act = act
            self.is_hit = False

    def _carry(self, client: socket.socket) -> None:
        asked: deque[tuple[int, int]] = deque()
        received = bytearray(), bytearray()
        with client, contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self._target_port)) as server:
            self._pairs.append((client, server))
            ends = client, server
            while True:
                readable, _, _ = select.select(ends, [], [])
                for side, source in enumerate(ends):
                    data = source.recv(CHUNK_SIZE) if source in readable else None
                    received[side].extend(data or b"")
                    if data == b"" or not self._pass_on(received[side], ends[1 - side], asked, is_answer=side == 1):
                        return

    def _pass_on(
        self, received: bytearray, target: socket.socket, asked: deque[tuple[int, int]], *, is_answer: bool
    ) -> bool:
        """Forwards whole frames. Returns False if the connection is to be cut."""
        while len(received) >= FRAME_HEAD.size:
            size = FRAME_HEAD.size + FRAME_HEAD.unpack_from(received)[0]
            if len(received) < size:
                break
            if self._is_aimed_at(received, asked, is_answer=is_answer):
                self._act()
                self.is_hit = True
                return False
            time.sleep(self.delay_s)
            target.sendall(received[:size])
            del received[:size]
        return True

    def _is_aimed_at(self, frame: bytearray, asked: deque[tuple[int, int]], *, is_answer: bool) -> bool:
        """A broker answers in the order of the requests."""
        with self._lock:
            if not is_answer:
                (key,) = API_KEY.unpack_from(frame, FRAME_HEAD.size)
                asked.append((key, self.counts[key]))
                self.counts[key] += 1
            is_aimed_at = (*(asked.popleft() if is_answer else asked[-1]), is_answer) == self._aim
            self._aim = None if is_aimed_at else self._aim
        return is_aimed_at


@contextlib.contextmanager
def proxy(target_port: int, port: int = 0) -> Iterator[Proxy]:
    one = Proxy(target_port, port)
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def proxied_broker(directory: Path) -> Iterator[tuple[Proxy, str]]:
    """A broker that is reached only through a proxy, and its bootstrap list."""
    require()
    port = free_port()
    properties = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
    with running_cluster(directory, properties=properties) as cluster, proxy(cluster.brokers[0].port, port) as between:
        yield between, f"{LOOPBACK}:{port}"
