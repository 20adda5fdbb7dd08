# SPDX-License-Identifier: Apache-2.0
"""The presence of a sender: a standby or a supervisor notices the end of the sender at once, without polling.

::

    sender                                               standby, supervisor
    has the role
    draws a random number, writes it into the arena
    listens on .shmaccum-UUID.NUMBER, beside the arena ─> connects; no process accepts, no data is sent
    leaves the role, or dies                             sleeps, and checks periodically
    closes the socket, or the kernel does ─────────────> sees the closed connection; checks the role

A closed connection is a hint, and the byte lock of the role is the truth. The kernel closes the descriptors of a dead
process one by one, so its lock may be held for a moment longer. A watcher whose connection was closed checks the role
every few milliseconds. A watcher that cannot connect checks more often, too. Both pauses double up to a second. A
watcher does not connect again to a sender that closed the connection.

**A user without access to the arena can neither connect, nor take the name first, nor impersonate the sender.** The
socket has the permissions of the arena. Its number is in the arena, which such a user cannot read, and the name appears
in a folder only when it is taken. A sender that finds its name taken draws another number. A watcher asks the kernel
for the user and the groups of the listener, and trusts only a listener that shares the arena (arena/trust.py). A sender
that cannot listen writes that into the arena's error log.

A killed sender leaves its socket in the folder. The next sender of any arena in the folder, or `Arena.remove`, removes
it, even if its own arena is already gone (arena/dead_companions.py). A sender that finds the arena's name gone keeps no
socket name. Watchers then poll. If a socket is removed or replaced, the living sender creates it again within a second.

The queue of a socket holds `LISTEN_COUNT` watchers, including watchers that have ended. A watcher that finds it full
sets the number to 0. The sender then creates another socket within a second, to which living watchers connect. It
closes a former socket when the next one is replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import struct
import weakref
from typing import NamedTuple

from shmaccum.arena.arena import Arena
from shmaccum.arena.dead_companions import reachable, remove_dead_companions
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.trust import is_insider
from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.exceptions import ShmaccumError

CHECK_S = 1.0
CLOSED_CHECK_S = 0.001
UNCONNECTED_CHECK_S = 0.01
NUMBER_BITS = 64
UNCONNECTED_CHECK_MAX_S = 1.0
ATTEMPT_COUNT = 8
LISTEN_COUNT = 4096
"""The maximum number of watchers connected to a socket. They are never accepted."""
PEER_CREDENTIALS = struct.Struct("3i")
"""struct ucred: process, user, group of the listener."""
GROUPS_SIZE_MAX = 1024
"""The maximum that Python reads from the kernel. A process with more than 256 groups has only its own here."""
WAKE_READ_SIZE = 4096
SO_PEERPIDFD = 77
"""Since Linux 6.5; Python has no name for it."""
SO_PEERGROUPS = 59
"""Since Linux 4.13; Python has no name for it."""

_present: weakref.WeakSet[Presence] = weakref.WeakSet()


class Listener(NamedTuple):
    """The process that listens, as reported by the kernel.

    Attributes:
        pid: its process id in this PID namespace, or 0 if it is not visible here.
        user: its effective user id when it began to listen.
    """

    pid: int
    user: int


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


class Presence:
    """The sender's end, which exists while it has the role. A forked child is no sender, and closes it.

    Attributes:
        path: the path of the socket, or None if there is none.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._listener = _new_socket()
        self._former: socket.socket | None = None
        self._number = 0
        self.path: str | None = None
        self._file_id = 0, 0
        _present.add(self)
        try:
            remove_dead_companions(os.path.dirname(ArenaFile.parse(arena.name).path))
            self._listen(arena)
        except OSError as error:  # then every watcher polls
            arena.native.set_presence(0)
            arena.native.record_error(
                "the sender cannot listen beside the arena, so standbys and supervisors notice its death late, and do "
                f"not replace it when it is stopped: {error.strerror or error}"
            )

    def _listen(self, arena: Arena) -> None:
        for attempt in range(ATTEMPT_COUNT):
            number = secrets.randbits(NUMBER_BITS) or 1
            path = ArenaFile.parse(arena.name).presence(arena.uuid, number)
            arena.native.set_presence(number)
            self._number = number
            try:
                self._bind(arena, path)
            except OSError as error:
                if error.errno != errno.EADDRINUSE or attempt + 1 == ATTEMPT_COUNT:
                    raise
            else:
                return

    def _bind(self, arena: Arena, path: str) -> None:
        """The kernel gives the new file the mode of the socket, so it is never open to more users than the arena."""
        os.fchmod(self._listener.fileno(), 0o600)
        with reachable(path) as address:
            self._listener.bind(address)
        self.path = path
        try:
            with contextlib.suppress(FileNotFoundError):  # `check` finds that it is lost
                self._file_id = _file_id(path)
            ArenaFile.parse(arena.name).share(path)
            self._listener.listen(LISTEN_COUNT)
        except OSError:
            self._unlink()
            raise
        if not arena.is_linked():
            self._unlink()

    def check(self) -> bool:
        """Creates the socket again if its queue is full, or if it was removed or replaced.

        Returns True if it was removed or replaced. Watchers of the former socket still notice the sender's death.

        Raises:
            ArenaForbiddenError, OSError: it cannot be created.
        """
        if self.path is None:
            return False
        is_lost, is_full = self._is_lost(), self._arena.native.presence != self._number
        if not (is_lost or is_full) or not self._arena.is_linked():
            return False
        self._unlink()
        if self._former is not None:
            self._former.close()
        self._former, self._listener = self._listener, _new_socket()
        self._listen(self._arena)
        return is_lost

    def _is_lost(self) -> bool:
        assert self.path is not None
        try:
            return _file_id(self.path) != self._file_id
        except FileNotFoundError:
            return True
        except OSError:  # an inaccessible name proves nothing
            return False

    def _unlink(self) -> None:
        path, self.path = self.path, None
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def release(self) -> None:
        """Closes the descriptors in a forked child. The socket remains the sender's."""
        self._listener.close()
        if self._former is not None:
            self._former.close()

    def close(self) -> None:
        """Closes the connections of all watchers. A second call does nothing."""
        self._unlink()
        self.release()


def _file_id(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


class GrowingPause:
    """The pause between unsuccessful checks, which doubles each time.

    Args:
        first_s: the first pause, in seconds.
        max_s: the longest one.
    """

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s, self._max_s = first_s, max_s
        self._next_s = first_s

    def take(self) -> float:
        """Returns the length of the next pause, in seconds."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._max_s)
        return pause_s

    def reset(self) -> None:
        """Makes the next pause the first one again, after a successful check."""
        self._next_s = self._first_s


class SenderWatch:
    """The other end, for a standby or a supervisor, which must `close` it. Other threads may only call `wake`.

    Args:
        arena: the arena whose sender is watched.
        check_s: the longest sleep of `wait` while connected, also an attribute. The default is `CHECK_S`.
        unconnected_check_s: the first sleep of `wait` if it cannot connect. The default is `UNCONNECTED_CHECK_S`.
    """

    def __init__(self, arena: Arena, *, check_s: float | None = None, unconnected_check_s: float | None = None) -> None:
        self._arena = arena
        self.check_s = check_s
        self._blind = GrowingPause(
            UNCONNECTED_CHECK_S if unconnected_check_s is None else unconnected_check_s, UNCONNECTED_CHECK_MAX_S
        )
        self._closing = GrowingPause(CLOSED_CHECK_S, UNCONNECTED_CHECK_MAX_S)
        self._sender = 0, 0
        self._connection: socket.socket | None = None
        self._was_closed = False
        # A late `wake` uses a closed socket object. The number of a closed pipe could belong to another file by then.
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)

    def wait(self) -> None:
        """Returns when the sender closes the connection, when `wake` is called, or when it is time for a check."""
        epoch, number = self._arena.native.sender()["epoch"], self._arena.native.presence
        if (epoch, number) != self._sender:
            self._disconnect()
            self._was_closed = self._was_closed and epoch == self._sender[0]
            self._sender = epoch, number
            self._blind.reset()
        if self._connection is None and number and not self._was_closed:
            self._connection = self._connected(number)
        if self._connection is None:
            self.pause((self._closing if self._was_closed else self._blind).take())
        elif self._connection in wait_readable(
            [self._wake_read, self._connection], CHECK_S if self.check_s is None else self.check_s
        ):
            self._disconnect()
            self._was_closed = True
            self._closing.reset()

    def pause(self, seconds: float) -> None:
        """Sleeps until the time is over or `wake` is called, whatever the sender does."""
        wait_readable([self._wake_read], seconds)

    def listener(self) -> Listener | None:
        """Returns the process at the other end of the connection, which is the sender, or None without a connection.

        The kernel reports it as of the time when it began to listen. As long as the connection exists (`is_connected`),
        that process lives, and no other process has its number.
        """
        if self._connection is None:
            return None
        pid, user, _ = self._credentials(self._connection)
        return Listener(pid, user)

    def listener_descriptor(self) -> int | None:
        """Returns a pidfd of the listener from the kernel, or None before Linux 6.5 and without a connection.

        Raises:
            OSError: the process is gone, or is not visible here.
        """
        if self._connection is None:
            return None
        try:
            return self._connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
        except OSError as error:
            if error.errno == errno.ENOPROTOOPT:
                return None
            raise

    def is_connected(self) -> bool:
        """True if the connection exists now."""
        return self._connection is not None and not wait_readable([self._connection], 0)

    def _connected(self, number: int) -> socket.socket | None:
        connection = _new_socket()
        try:
            with reachable(ArenaFile.parse(self._arena.name).presence(self._arena.uuid, number)) as address:
                connection.connect(address)
            _, user, group = self._credentials(connection)  # the kernel reports those of the listener
            if is_insider(user, {group, *_peer_groups(connection)}, self._arena.permissions):
                return connection
        except BlockingIOError:
            self._ask_for_another_socket(number)
        except OSError:
            pass
        except BaseException:  # for example, another thread has closed the arena
            connection.close()
            raise
        connection.close()
        return None

    def _ask_for_another_socket(self, number: int) -> None:
        """Sets the number to 0, because the queue of the socket is full."""
        native = self._arena.native
        with contextlib.suppress(ShmaccumError, OSError):
            if native.is_read_only:
                with Arena.attach(self._arena.name, mode=self._arena.mode) as arena:
                    if arena.native.presence == number:
                        arena.native.set_presence(0)
            elif native.presence == number:
                native.set_presence(0)

    @staticmethod
    def _credentials(connection: socket.socket) -> tuple[int, int, int]:
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER_CREDENTIALS.size)
        pid, user, group = PEER_CREDENTIALS.unpack(found)
        return pid, user, group

    def wake(self) -> None:
        """Ends the current wait and every later one. Any thread or signal handler may call it."""
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    def clear_wake(self) -> None:
        """Resets the effect of `wake`."""
        with contextlib.suppress(OSError):
            while self._wake_read.recv(WAKE_READ_SIZE, socket.MSG_DONTWAIT):
                pass

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self) -> None:
        """Closes all descriptors."""
        self._disconnect()
        self._wake_read.close()
        self._wake_write.close()


def _peer_groups(connection: socket.socket) -> tuple[int, ...]:
    """Returns the supplementary groups of the process at the other end."""
    try:
        found = connection.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_SIZE_MAX)
    except OSError:
        return ()
    return struct.unpack(f"{len(found) // 4}I", found)


def _release_in_child() -> None:
    for presence in list(_present):
        presence.release()


os.register_at_fork(after_in_child=_release_in_child)
