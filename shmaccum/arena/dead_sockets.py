# SPDX-License-Identifier: Apache-2.0
"""The sockets of killed senders. If their arena was removed as well, no other code removes them.

The socket of a living sender is bound, even before it listens. To check a socket, a datagram socket
connects to it. If the socket is bound, the kernel reports that its type is different. This does not affect the sender.
If no process has the socket open, the kernel refuses the connection.

The kernel creates the file an instant before it binds the socket. A sender whose file is removed in between notices
that, as if any other process had removed it (arena/presence.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator

SENDER_SOCKET = re.compile(r"\.shmaccum-[0-9a-f]{12}\.[0-9a-f]{16}")
"""Names of `ArenaFile.presence`."""


@contextlib.contextmanager
def reachable(path: str) -> Iterator[str]:
    """Yields an address of the path that is short enough for a socket, even in a deep folder."""
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def remove_dead_sockets(folder: str) -> None:
    """Removes the sockets of killed senders of all arenas in the folder. It skips those of other users."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            path = os.path.join(folder, name)
            if SENDER_SOCKET.fullmatch(name) and _is_dead(path):
                with contextlib.suppress(OSError):
                    os.unlink(path)


def _is_dead(path: str) -> bool:
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
