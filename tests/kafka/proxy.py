# SPDX-License-Identifier: Apache-2.0
"""A proxy for one port that cuts connections in the middle of what they carry, carries it late, or not at all."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.kafka.broker import LOOPBACK, free_port, running_cluster
from tests.kafka.distribution import require

CHUNK_SIZE = 16 * 1024


class Proxy:
    """Passes bytes on between its own port and another one.

    Attributes:
        port: where it listens.
        carried: bytes so far, in both directions.
        delay_s: how late each piece comes, in both directions.
        is_away: new connections are closed at once, as where nobody listens behind a balancer.
        is_silent: arriving bytes are swallowed, in both directions.
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
        """Resets every connection, wherever its requests and answers are."""
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


@contextlib.contextmanager
def proxy(target_port: int, port: int = 0) -> Iterator[Proxy]:
    one = Proxy(target_port, port)
    try:
        yield one
    finally:
        one.close()


@contextlib.contextmanager
def proxied_broker(directory: Path) -> Iterator[tuple[Proxy, str]]:
    """A broker that is reached through a proxy alone; and its bootstrap list."""
    require()
    port = free_port()
    properties = {"advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}"}
    with running_cluster(directory, properties=properties) as cluster, proxy(cluster.brokers[0].port, port) as between:
        yield between, f"{LOOPBACK}:{port}"
