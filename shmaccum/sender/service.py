# SPDX-License-Identifier: Apache-2.0
"""A process that runs a sender: its signals, its report to the process that started it, and its exit.

SIGTERM and SIGINT stop it: it delivers the waiting records, then leaves. A second signal makes it leave at once, and
the rest stays in the arena. A signal that arrives after it has left has no effect.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.exceptions import ArenaNotFoundError
from shmaccum.sender.sender import Sender, others_are_attached
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.systemd import Supervisor

PROCESS_NAME = "shmaccum-sender"
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def name_process() -> None:
    """Set the name that ps, top and ``shmaccum stat`` show for this process; the kernel truncates it to 15 bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(PROCESS_NAME, encoding="utf-8")


class SenderService:
    """Runs senders of one arena until one is stopped, or leaves idle while no other process is attached.

    A supervisor such as systemd is notified of each step (`supervisor`).

    Args:
        arena: name or path.
        url: as `open_sink` takes it; each sender gets a new sink.
        sink_options: those of the sink.
        standby: wait for the role.
        mode, group: as `Arena.attach` takes them.
        on_open: called once, after the role is taken and the sink is open.
        options: those of `SenderOptions`.
    """

    def __init__(
        self,
        arena: str | os.PathLike[str],
        url: str,
        *,
        sink_options: dict[str, Any] | None = None,
        standby: bool = False,
        mode: int = DEFAULT_MODE,
        group: str | int | None = None,
        on_open: Callable[[Sender], object] | None = None,
        **options: Any,
    ) -> None:
        self._arena = arena
        self._url = url
        self._sink_options = sink_options or {}
        self._is_standby = standby
        self._mode, self._group = mode, group
        self._on_open = on_open
        self._options = options
        self._supervisor = Supervisor()
        self._sender: Sender | None = None
        self._stop_count = 0

    def run(self) -> None:
        """Run senders. Return after a stop, or when no sender is needed any more.

        Raises:
            ArenaBusyError, OSError, ShmaccumError: as `Sender.run`.
        """
        while True:
            self._sender = self._new_sender()
            self._run_one(self._sender)
            if not self._sender.has_left_idle or not self._is_needed():
                return

    def _new_sender(self) -> Sender:
        sink = open_sink(self._url, **self._sink_options)
        return Sender(
            self._arena,
            sink,
            standby=self._is_standby,
            mode=self._mode,
            group=self._group,
            supervisor=self._supervisor,
            **self._options,
        )

    def _run_one(self, sender: Sender) -> None:
        with sender:
            if self._stop_count:
                sender.stop()
            if sender.open() and self._on_open is not None:
                on_open, self._on_open = self._on_open, None
                on_open(sender)
            sender.run()

    def _is_needed(self) -> bool:
        """True if a process attached while the idle sender left, and therefore started no other sender."""
        try:
            with Arena.attach(self._arena, mode=self._mode, group=self._group) as arena:
                return others_are_attached(arena) and not arena.native.sender_is_alive
        except ArenaNotFoundError:
            return False

    def stop(self) -> None:
        """On the first call, deliver what is there, then leave. On the second, leave at once. Safe in handlers."""
        self._stop_count += 1
        self._supervisor.stopping("delivers what is left, then leaves")
        if self._sender is not None:
            self._sender.stop(None if self._stop_count == 1 else 0)

    def run_until_signalled(self) -> None:
        """Call `run`, with `stop` as handler of SIGTERM and SIGINT. For the main thread of a process that then ends.

        After a clean exit of the sender, the exit code is 0, even if more signals arrive. The interpreter restores
        its handlers before the process ends, so the signals are set to be ignored.
        """

        def stop(_number: int, _frame: FrameType | None) -> None:
            self.stop()

        self._on_signals(stop)
        self.run()
        self._on_signals(signal.SIG_IGN)

    @staticmethod
    def _on_signals(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, handler)
