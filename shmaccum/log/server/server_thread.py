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
import math
import threading
from collections.abc import Callable
from typing import final

from shmaccum.common.background import RETRY_S, log_exception
from shmaccum.config import ServerOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.server.numbers import Family
from shmaccum.log.server.server import LogServer

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
        self._thread = threading.Thread(target=self._run, name="shmaccum-server", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            self._server.close()
            raise
        host, port = self._server.address
        logger.info("serving %s at %s:%d, to read", directory.path, host, port)

    def _run(self) -> None:
        """The loop survives a mistake; what would end a thread of Python's does not end this one."""
        while not self._is_closed.is_set():
            try:
                self._server.run()
            except BaseException:  # noqa: BLE001, PERF203 - the thread goes on whatever it was
                log_exception(logger, "the thread that serves a log goes on after an exception")
                self._is_closed.wait(RETRY_S)

    @property
    def families(self) -> Callable[[], list[Family]]:
        """The function that answers a scrape (`LogServer.families`)."""
        return self._server.families

    @property
    def problem(self) -> str | None:
        """The reason why clients are not served, as far as is known: the loop fails, or the thread has ended."""
        if not self._thread.is_alive() and not self._is_closed.is_set():
            return "the thread of the server has ended"
        return self._server.problem

    def close(self, timeout_s: float = math.inf) -> None:
        """Ends the thread and every connection. Doing it twice does nothing.

        Args:
            timeout_s: the time for the request that is answered; after it the thread is left, with its files.
        """
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._directory.on_append = None
        self._server.stop()
        self._thread.join(None if timeout_s == math.inf else timeout_s)
        if self._thread.is_alive():
            logger.warning("the server of %s did not end within %g s: its thread is left", self._directory, timeout_s)
        else:
            self._server.close()
