# SPDX-License-Identifier: Apache-2.0
"""The sockets and FIFOs of killed processes. If their arena was removed as well, no other code removes them.

The socket of a living sender is bound, even before it listens. To check a socket, a datagram socket
connects to it. If the socket is bound, the kernel reports that its type is different. This does not affect the sender.
If no process has the socket open, the kernel refuses the connection.

The kernel creates the file an instant before it binds the socket. A sender whose file is removed in between notices
that, as if any other process had removed it (arena/presence.py).

A FIFO that no process has open for reading cannot be opened for writing without blocking (ENXIO). Each user has both
ends open. Its name has the uuid of an arena in shared memory. The arena may exist: then the next user creates the FIFO
again. So does a user that opens it in between (arena/fifo.py, `WakeFifo.check`, `ResultsListener.check`). The FIFO of
an arena with a path has the name of the arena, so the next arena with this path uses it.

A process that is killed while it creates a semaphore may leave a file ``/dev/shm/sem.XXXXXX``, with six random
characters, of the C library. It cannot be distinguished from a semaphore of another program, so it is not removed. It
takes one page of memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import stat
import time
from collections.abc import Iterator

SENDER_SOCKET = re.compile(r"\.shmaccum-[0-9a-f]{12}\.[0-9a-f]{16}")
"""Names of `ArenaFile.presence`."""
FIFO = re.compile(r"shmaccum-[0-9a-f]{12}\.(bell|results)")
"""Names of `ArenaFile.wake_fifo` and `ArenaFile.results_fifo` in shared memory."""
UNUSED_S = 60
"""A FIFO that was created or written to more recently is not removed. Its user may be about to open it."""
FIFO_FLAGS = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yields an address of the path that is short enough for a socket, even in a deep folder."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def remove_dead_companions(folder: str) -> None:
    """Removes the sockets and FIFOs in the folder that no process has open, of all arenas. Skips other users' files."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if (SENDER_SOCKET.fullmatch(name) and _is_dead_socket(path)) or (FIFO.fullmatch(name) and _is_unused(path)):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _is_dead_socket(path: str) -> bool:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return False
        with reachable(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.connect(address)
    except ConnectionRefusedError:
        return True
    except OSError:  # it is bound, another user's, or gone
        pass
    return False


def _is_unused(path: str) -> bool:
    """Whether the path is a FIFO that no process has open and that is not new."""
    try:
        found = os.lstat(path)
        if stat.S_ISFIFO(found.st_mode) and time.time() - found.st_mtime > UNUSED_S:
            os.close(os.open(path, FIFO_FLAGS))
    except OSError as error:
        return error.errno == errno.ENXIO
    return False
