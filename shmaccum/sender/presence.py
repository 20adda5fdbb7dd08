# SPDX-License-Identifier: Apache-2.0
"""How a standby hears at once that the sender is gone, and sleeps until then.

::

    sender                                               standby
    has the role, raises its epoch
    listens on the socket @shmaccum-sender-UUID-EPOCH ─> connects; nobody accepts, nothing is ever said
    leaves the role, or dies                             sleeps, and looks once a second
    closes the socket, or the kernel does ─────────────> is hung up; tries to take the role

A hang-up is a hint, the truth is the byte lock of the role: a standby that was hung up too early, that cannot connect
(the sender has not got so far, is of another kind, or lives in another network namespace), or that found a stranger on
the name, looks every 10 ms; a sender that hung up is not called again. An abstract socket leaves nothing behind, and
has no rights, so a standby asks the kernel who listens: another user is believed only where the arena is shared with
others, who can make it look once a second.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import weakref

from shmaccum.arena import Arena
from shmaccum.arena.doorbell import wait_readable

LOOK_S = 1.0
BLIND_LOOK_S = 0.01
PEER_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group of who listens."""

_present: weakref.WeakSet[Presence] = weakref.WeakSet()


def _address(arena: Arena) -> bytes:
    """Of the sender of this epoch, so that a successor never finds it taken."""
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
        """Hangs up on every standby. Doing it twice does nothing."""
        self._listener.close()


class SenderWatch:
    """A standby's end; `close` it."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._address = b""
        self._line: socket.socket | None = None
        self._has_hung_up = False
        self._bell, self._rope = socket.socketpair()  # no pipe: what is closed has no number that another file may get
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
            wait_readable([self._bell], BLIND_LOOK_S)
        elif self._line in wait_readable([self._bell, self._line], LOOK_S):
            self._let_go()
            self._has_hung_up = True

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
        _, user, _ = PEER_CREDENTIALS.unpack(
            line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        )
        return user == os.geteuid() or bool(self._arena.mode & 0o077)

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
