# SPDX-License-Identifier: Apache-2.0
"""A server in a thread of the process that writes the log (docs/decisions/0052).

::

    writer's thread   append to the file ──> report the append, if a fetch waits for this partition
    server's thread   accept, read, answer ──> wait for a client, a reported append or a deadline

Rules: the threads share the files, a queue of partitions and a wake fd, but no lock. The server reads the log like any
other process, so the writer never waits for a client. A failure of the server does not affect the writer: it is logged,
and the server continues after a pause.
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
    """Serves a log in the process of its writer, from construction to `close`.

    Attributes:
        port: the port that the server listens on.

    Args:
        directory: the log, open for writing by the caller's thread.
        listen: HOST:PORT. Port 0 selects a free port.
        options: the options of the server.

    Raises:
        InvalidArgumentError: the address is invalid, is in use, or needs ``insecure``.
    """

    def __init__(self, directory: LogDirectory, listen: str, options: ServerOptions) -> None:
        self._directory = directory
        try:
            self._server = LogServer(directory.path, listen, writer=directory, **vars(options))
        except OSError as error:
            raise InvalidArgumentError(
                f"{directory.path} cannot be served at {listen}: {error.strerror or error}. Choose another port, or "
                "stop the program that uses this one"
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
        logger.info("serving %s at %s:%d, read-only", directory.path, host, port)

    def _run(self) -> None:
        """Runs the loop, and restarts it after any exception, even one that would normally end a thread."""
        while not self._is_closed.is_set():
            try:
                self._server.run()
            except BaseException:  # noqa: BLE001, PERF203 - the thread continues after any exception
                log_exception(logger, "the thread that serves a log continues after an exception")
                self._is_closed.wait(RETRY_S)

    @property
    def families(self) -> Callable[[], list[Family]]:
        """The function that computes the metrics of a scrape (`LogServer.families`)."""
        return self._server.families

    @property
    def problem(self) -> str | None:
        """The reason why clients are not served, if known: the loop fails, or the thread has ended."""
        if not self._thread.is_alive() and not self._is_closed.is_set():
            return "the thread of the server has ended"
        return self._server.problem

    def close(self, timeout_s: float = math.inf) -> None:
        """Stops the thread and closes every connection. Idempotent.

        Args:
            timeout_s: the time to finish the present request. After that, the thread is abandoned with its files.
        """
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        self._directory.on_append = None
        self._server.stop()
        self._thread.join(None if timeout_s == math.inf else timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "the server of %s did not stop within %g s: its thread is abandoned", self._directory, timeout_s
            )
        else:
            self._server.close()
