# SPDX-License-Identifier: Apache-2.0
"""Reports the sender's state to systemd, or to another supervisor with sd_notify (``Type=notify``, ``WatchdogSec=``).

::

    READY=1      the role is taken and the sink is open; a standby is ready when it waits for the role
    STATUS=      one sentence, which ``systemctl status`` shows
    WATCHDOG=1   a heartbeat, twice in the interval that the supervisor sets (WATCHDOG_USEC)
    STOPPING=1   it delivers what is left, then leaves

The sender sends it whenever it also renews its heartbeat in the arena: after each round, and during long work of a
sink. So a sender that is stopped, or blocked in one call of its sink, is killed and restarted.
Without NOTIFY_SOCKET, nothing is sent. A supervisor that does not listen does not affect the sender.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import final

from shmaccum.common.clock import monotonic

US_PER_S = 1_000_000
STATUS_SIZE_MAX = 512


@final
class Supervisor:
    """One end of the notification socket; it holds no descriptor.

    Args:
        environment: contains NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID.
        clock: returns seconds.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, *, clock: Callable[[], float] = monotonic) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._interval_s = _interval_s(environment)
        self._clock = clock
        self._beat_at_s = 0.0

    def ready(self, status: str) -> None:
        """Report that the sender works, or stands by."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Report another sentence."""
        self._send(_status(status))

    def stopping(self, status: str) -> None:
        """Report that the sender was asked to leave."""
        self._send("STOPPING=1", _status(status))

    def show_life(self) -> None:
        """Notify the watchdog, at most once in half of its interval. Call it often."""
        if self._interval_s is None or (now_s := self._clock()) < self._beat_at_s:
            return
        self._beat_at_s = now_s + self._interval_s
        self._send("WATCHDOG=1")

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as line,
        ):
            line.sendto("\n".join(lines).encode(), self._address)


def _address(text: str) -> str | None:
    """Return a path, or the name of an abstract socket, which begins with @; None for anything else (AF_VSOCK)."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _interval_s(environment: Mapping[str, str]) -> float | None:
    """Return half of the watchdog's interval; None if there is no watchdog, or if it watches another process."""
    given, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not given.isdecimal() or int(given) == 0 or pid not in {"", str(os.getpid())}:
        return None
    return int(given) / US_PER_S / 2


def _status(sentence: str) -> str:
    return f"STATUS={' '.join(sentence.split())[:STATUS_SIZE_MAX]}"
