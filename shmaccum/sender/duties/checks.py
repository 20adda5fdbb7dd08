# SPDX-License-Identifier: Apache-2.0
"""Checks once a second that other processes can find the FIFO, the socket and the server of a sender."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shmaccum.arena.presence import Presence
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.common.clock import NS_PER_S
from shmaccum.exceptions import ShmaccumError
from shmaccum.sender.duties.duty import Duty
from shmaccum.sender.host import Host, logger

if TYPE_CHECKING:
    from shmaccum.log.server.server_thread import ServerThread


class Checks(Duty):
    """Checks the FIFO, the socket and the server. Recreates a FIFO or socket whose name was removed.

    Args:
        server: the server of the sink's log. None if there is none.
    """

    due_ns = 0

    def __init__(self, host: Host, wake_fifo: WakeFifo, presence: Presence, server: ServerThread | None) -> None:
        self._host = host
        self._wake_fifo = wake_fifo
        self._presence = presence
        self._server = server

    def run(self, now_ns: int) -> None:
        if now_ns >= self.due_ns:
            self.due_ns = now_ns + NS_PER_S
            self._check_presence()
            self._check_server()
            self._check_wake_fifo()

    def _check_wake_fifo(self) -> None:
        """Without its FIFO, a sender wakes up only at its ticks, which is many times slower."""
        path = self._wake_fifo.path
        try:
            if self._wake_fifo.check():
                self._host.report(f"{path} was removed or replaced, and is recreated: producers wake the sender by it")
        except (OSError, ShmaccumError) as error:
            sentence = (
                f"{path} was removed or replaced, and cannot be recreated ({error}): the sender is slow until it "
                "exists, so let its user write into that folder, or restart it"
            )
            self._host.report(Report(Kind.IMPAIRED, sentence))

    def _check_server(self) -> None:
        problem = None if self._server is None else self._server.problem
        if problem is not None:
            sentence = (
                f"the server of the log does not work ({problem}): look at the sender's log, or restart the sender"
            )
            self._host.report(Report(Kind.IMPAIRED, sentence))

    def _check_presence(self) -> None:
        """Without its socket, no process can find the sender, to stop it or to replace it when it is stopped."""
        try:
            if not self._presence.check():
                return
            sentence = "the sender's socket was removed or replaced, and is recreated: supervisors need it"
        except (OSError, ShmaccumError) as error:
            sentence = (
                f"the sender's socket was removed or replaced, and cannot be recreated ({error}): a stopped sender is "
                "not replaced, so let its user write into that folder, and restart it"
            )
        logger.warning("%s", sentence)
        self._host.arena.native.record_error(sentence)
