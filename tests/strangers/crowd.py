# SPDX-License-Identifier: Apache-2.0
"""Strangers of a listener: connections of many kinds that only use its resources."""

from __future__ import annotations

import contextlib
import random
import resource
import select
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.support.log_server import api, string

STRANGER_COUNT = 4096
DESCRIPTORS = STRANGER_COUNT + 1024
"""The number of open files that this process needs."""
CONNECT_S = 4.0
"""Time for all connects. The listener has not accepted a connect that is still pending then."""
BATCH = 256
RARE = 8
"""The number of strangers of each kind that costs this process memory or time."""
STORM_PAUSE_S = 0.002

Opening = Callable[[random.Random], bytes]
"""The first bytes of a stranger, which then sends and reads nothing."""

SILENT = "silent"


def _nothing(_dice: random.Random) -> bytes:
    return b""


def _announced(dice: random.Random) -> bytes:
    """The first 300 KB of a Produce of up to 100 MiB."""
    return struct.pack(">ihhi", dice.choice([100, 100, 56]) << 20, 0, 3, 1) + bytes(300_000)


KAFKA: Mapping[str, Opening] = {
    SILENT: _nothing,
    "half a frame": lambda dice: api(3, 1, struct.pack(">i", 1))[: dice.randrange(1, 14)],
    "announced a large frame": _announced,
    "never reads": lambda _dice: api(18, 0) * 20_000,
    "asks for a long poll": lambda _dice: api(
        1, 4, struct.pack(">iiiib", -1, 3_600_000, 1, 1 << 20, 0) + struct.pack(">i", 1) + string(b"t") + bytes(20)
    ),
}
HTTP: Mapping[str, Opening] = {
    SILENT: _nothing,
    "half a request line": lambda _dice: b"GET /met",
    "headers without an end": lambda _dice: b"GET /metrics HTTP/1.1\r\n" + b"X-More: 1\r\n" * 5000,
    "a line without an end": lambda _dice: b"GET /" + b"x" * 200_000,
    "never reads": lambda _dice: b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2000,
    "a body that never comes": lambda _dice: b"POST /metrics HTTP/1.1\r\nContent-Length: 1000000000\r\n\r\n",
}
TLS: Mapping[str, Opening] = {
    SILENT: _nothing,
    "half a hello": lambda _dice: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no hello": lambda _dice: api(18, 0),
}
LOGIN: Mapping[str, Opening] = {
    SILENT: _nothing,
    "half a login": lambda _dice: api(17, 1, string(b"SCRAM-SHA-256")),
    "a login that stops": lambda _dice: (
        api(17, 1, string(b"SCRAM-SHA-256")) + api(36, 0, struct.pack(">i", 14) + b"n,,n=x,r=abcde")
    ),
    "a wrong password": lambda _dice: api(17, 1, string(b"PLAIN")) + api(36, 0, struct.pack(">i", 6) + b"\0x\0abc"),
}
NONE: Mapping[str, Opening] = {SILENT: _nothing}
FREQUENT = {SILENT, "half a frame", "half a request line", "half a hello", "half a login"}

Address = str | tuple[str, int]


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Allow this process as many open files as it needs."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], DESCRIPTORS), max(limits[1], DESCRIPTORS)))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


class Crowd:
    """Strangers that stay until `close`, and others that repeatedly connect and disconnect.

    Args:
        address: the address of the listener.
        openings: the kinds of strangers.
        dice: chooses the kind of each.
        count: the number of strangers that stay.
    """

    def __init__(
        self, address: Address, openings: Mapping[str, Opening], dice: random.Random, count: int = STRANGER_COUNT
    ) -> None:
        self._address = address
        self._openings = openings
        self._dice = dice
        self.kinds: Counter[str] = Counter()
        self._sockets: list[socket.socket] = []
        self._is_over = threading.Event()
        for kind in self._kinds(count):
            self.kinds[kind] += 1
        self._connect(list(self.kinds.elements()))
        self._storm = threading.Thread(target=self._come_and_go)
        self._storm.start()

    def _kinds(self, count: int) -> Iterator[str]:
        rare = [kind for kind in self._openings if kind not in FREQUENT]
        frequent = [kind for kind in self._openings if kind in FREQUENT]
        yield from (kind for kind in rare for _ in range(RARE))
        yield from self._dice.choices(frequent, k=count - RARE * len(rare))

    def _connect(self, kinds: Sequence[str]) -> None:
        shuffled = self._dice.sample(kinds, len(kinds))
        end_s = time.monotonic() + CONNECT_S
        for start in range(0, len(shuffled), BATCH):
            made = [self._one() for _ in shuffled[start : start + BATCH]]
            self._sockets += made
            _wait_until_connected(made, end_s)
            for one, kind in zip(made, shuffled[start : start + BATCH], strict=True):
                _send(one, self._openings[kind](self._dice))

    def _one(self) -> socket.socket:
        is_local = isinstance(self._address, str)
        one = socket.socket(socket.AF_UNIX if is_local else socket.AF_INET)
        one.setblocking(False)
        with contextlib.suppress(OSError):
            one.connect(self._address)
        return one

    def _come_and_go(self) -> None:
        while not self._is_over.wait(STORM_PAUSE_S):
            with self._one():
                pass

    def connected_count(self) -> int:
        """Return the number of strangers that are still connected."""
        poller = select.poll()
        for one in self._sockets:
            poller.register(one, select.POLLIN)
        ready = {descriptor for descriptor, mask in poller.poll(0) if mask & (select.POLLHUP | select.POLLERR)}
        return sum(_is_open(one) for one in self._sockets if one.fileno() not in ready)

    def close(self) -> None:
        """Disconnect every stranger."""
        self._is_over.set()
        self._storm.join()
        for one in self._sockets:
            one.close()


def _wait_until_connected(sockets: Sequence[socket.socket], end_s: float) -> None:
    waiting = {one.fileno() for one in sockets}
    poller = select.poll()
    for descriptor in waiting:
        poller.register(descriptor, select.POLLOUT)
    while waiting and (left_s := end_s - time.monotonic()) > 0:
        for descriptor, _ in poller.poll(left_s * 1000):
            poller.unregister(descriptor)
            waiting.discard(descriptor)


def _send(one: socket.socket, content: bytes) -> None:
    """Send as much as the socket accepts at once."""
    with contextlib.suppress(OSError):
        one.send(content)


def _is_open(one: socket.socket) -> bool:
    try:
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False
