# SPDX-License-Identifier: Apache-2.0
"""The presence of a sender: a standby or a keeper hears at once that the sender is gone, and sleeps until then.

::

    sender                                               standby, keeper
    has the role, raises its epoch
    listens on the socket @shmaccum-sender-UUID-EPOCH ─> connects; nobody accepts, nothing is ever said
    leaves the role, or dies                             sleeps, and looks now and then
    closes the socket, or the kernel does ─────────────> is hung up; looks at the role

A hang-up is a hint, the truth is the byte lock of the role. A watcher looks more often where it was hung up too early
or cannot connect: the sender has not got so far, is of another kind, or lives in another network namespace. A sender
that hung up is not called again.

An abstract socket leaves nothing behind, and has no rights, so a watcher asks the kernel for the listener: another user
is believed only where the arena is shared with others, who can make a standby look once a second.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import weakref
from typing import NamedTuple

from shmaccum.arena.arena import Arena
from shmaccum.arena.doorbell import wait_readable

LOOK_S = 1.0
BLIND_LOOK_S = 0.01
PEER_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group of the listener."""
SO_PEERPIDFD = 77
"""Since Linux 6.5; Python has no name for it."""

_present: weakref.WeakSet[Presence] = weakref.WeakSet()


class Listener(NamedTuple):
    """The process that listens, as the kernel names it.

    Attributes:
        pid: its number in this PID namespace; 0 where it cannot be seen from here.
        user: its effective user id when it began to listen.
    """

    pid: int
    user: int


def _address(arena: Arena) -> bytes:
    """The name for the sender of this epoch, so that a successor never finds it taken."""
    return b"\0shmaccum-sender-%s-%d" % (arena.uuid.hex().encode(), arena.native.sender()["epoch"])


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


class Presence:
    """The sender's end, for as long as it has the role. A forked child is no sender, and lets go of it."""

    def __init__(self, arena: Arena) -> None:
        self._listener = _new_socket()
        with contextlib.suppress(OSError):  # then every standby looks by itself
            self._listener.bind(_address(arena))
            self._listener.listen()
        _present.add(self)

    def close(self) -> None:
        """Hangs up on every watcher. Doing it twice does nothing."""
        self._listener.close()


class SenderWatch:
    """The other end, of a standby or a keeper; `close` it. For one thread, but for `wake`.

    Args:
        arena: whose sender is watched.
        look_s: how long `wait` sleeps at most while the line stands, also an attribute; None: `LOOK_S`.
        blind_look_s: how long it sleeps at most without a line; None: `BLIND_LOOK_S`.
    """

    def __init__(self, arena: Arena, *, look_s: float | None = None, blind_look_s: float | None = None) -> None:
        self._arena = arena
        self.look_s = look_s
        self._blind_look_s = blind_look_s
        self._address = b""
        self._line: socket.socket | None = None
        self._has_hung_up = False
        self._bell, self._rope = socket.socketpair()  # a pipe's number could become another file's
        self._rope.setblocking(False)

    def wait(self) -> None:
        """Comes back when the sender hung up, when `wake` was called, and else when it is time to look at the role."""
        address = _address(self._arena)
        if address != self._address:
            self._let_go()
            self._address, self._has_hung_up = address, False
        if self._line is None and not self._has_hung_up:
            self._line = self._connected(address)
        if self._line is None:
            self.pause(BLIND_LOOK_S if self._blind_look_s is None else self._blind_look_s)
        elif self._line in wait_readable([self._bell, self._line], LOOK_S if self.look_s is None else self.look_s):
            self._let_go()
            self._has_hung_up = True

    def pause(self, seconds: float) -> None:
        """Sleeps, whatever the sender does, until time is over or `wake` was called."""
        wait_readable([self._bell], seconds)

    def listener(self) -> Listener | None:
        """The process at the other end of the line, which is the sender; None without a line.

        The answer is from the kernel, and holds for the time at which the process began to listen: as long as the line
        stands (`is_connected`), that process lives, and its number is no other's.
        """
        if self._line is None:
            return None
        pid, user, _ = self._credentials(self._line)
        return Listener(pid, user)

    def listener_descriptor(self) -> int | None:
        """A pidfd of the listener, straight from the kernel; None on a kernel before 6.5, and without a line.

        Raises:
            OSError: the kernel gives none, for the process is gone or cannot be named here.
        """
        if self._line is None:
            return None
        try:
            return self._line.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                return None
            raise

    def is_connected(self) -> bool:
        """True while the line stands; looks now."""
        return self._line is not None and not wait_readable([self._line], 0)

    def _connected(self, address: bytes) -> socket.socket | None:
        line = _new_socket()
        try:
            line.connect(address)
            if self._is_trusted(line):
                return line
        except OSError:
            pass
        line.close()
        return None

    def _is_trusted(self, line: socket.socket) -> bool:
        return self._credentials(line)[1] == os.geteuid() or bool(self._arena.mode & 0o077)

    @staticmethod
    def _credentials(line: socket.socket) -> tuple[int, int, int]:
        found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        pid, user, group = PEER_CREDENTIALS.unpack(found)
        return pid, user, group

    def wake(self) -> None:
        """Ends this wait and every later one; from any thread, and from a signal handler."""
        with contextlib.suppress(OSError):
            self._rope.send(b"\0")

    def _let_go(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()

    def close(self) -> None:
        """Lets go of everything."""
        self._let_go()
        self._bell.close()
        self._rope.close()


def _let_go_in_child() -> None:
    for presence in list(_present):
        presence.close()


os.register_at_fork(after_in_child=_let_go_in_child)
