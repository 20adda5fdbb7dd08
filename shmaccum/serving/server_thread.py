# SPDX-License-Identifier: Apache-2.0
"""A server in the process of the log's writer, in a thread of its own (docs/decisions/0052).

::

    writer's thread   append to the file ──> tell the server, if a fetch waits for this partition
    server's thread   accept, read, answer ──> sleep until a client, a told append or a deadline

Rules: the two threads share the files, a queue of places and a bell, and no lock. The server reads the log as any
other process would, so the writer never waits for a client. A mistake of the server ends neither the writer nor the
server: it is logged, and the server goes on after a pause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import final

from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.segment_log.directory import LogDirectory
from shmaccum.serving.numbers import Family
from shmaccum.serving.server import LogServer

logger = logging.getLogger(__name__)


@final
class ServerThread:
    """Serves a log beside its writer, from construction to `close`.

    Attributes:
        port: the port that it listens on.

    Args:
        directory: open for writing, by the caller's thread.
        listen: HOST:PORT; port 0 takes any that is free.
        options: of the server.

    Raises:
        InvalidArgumentError: the address is none, is taken, or is open to the network without ``insecure``.
    """

    def __init__(self, directory: LogDirectory, listen: str, options: ServerOptions) -> None:
        self._directory = directory
        try:
            self._server = LogServer(directory.path, listen, writer=directory, **vars(options))
        except OSError as error:
            raise InvalidArgumentError(
                f"{directory.path} cannot be served at {listen}: {error.strerror or error}. Name another port, or stop "
                "the program that has this one"
            ) from error
        self.port = self._server.address.port
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._server.run, name="shmaccum-server", daemon=True)
        self._thread.start()
        host, port = self._server.address
        logger.info("serving %s at %s:%d, to read", directory.path, host, port)

    @property
    def families(self) -> Callable[[], list[Family]]:
        """The function that answers a scrape (`LogServer.families`)."""
        return self._server.families

    def close(self) -> None:
        """Ends the thread and every connection. Doing it twice does nothing."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._directory.on_append = None
        self._server.stop()
        self._thread.join()
        self._server.close()
