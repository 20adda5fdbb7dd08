# SPDX-License-Identifier: Apache-2.0
"""A sender tells systemd how it is, or another supervisor that speaks sd_notify (``Type=notify``, ``WatchdogSec=``).

::

    READY=1      the role is held and the sink is open; a standby is ready when it stands by
    STATUS=      one sentence, which ``systemctl status`` shows
    WATCHDOG=1   a sign of life, twice in the time that the supervisor gives (WATCHDOG_USEC)
    STOPPING=1   it delivers what is left, then leaves

A sign of life is sent from where the sender shows life in the arena, too: after each round, and between the parts of
what a sink does at length. So a sender that is stopped, or wedged in one call of its sink, is killed and started again.
Without NOTIFY_SOCKET nothing is sent. A supervisor that does not listen changes nothing for the sender.
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
    """One end of the notification socket; it keeps no descriptor.

    Args:
        environment: where NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are.
        clock: seconds.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ, *, clock: Callable[[], float] = monotonic) -> None:
        self._address = _address(environment.get("NOTIFY_SOCKET", ""))
        self._interval_s = _interval_s(environment)
        self._clock = clock
        self._beat_at_s = 0.0

    def ready(self, status: str) -> None:
        """The sender works, or stands by."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """Another sentence."""
        self._send(_status(status))

    def stopping(self, status: str) -> None:
        """The sender was told to leave."""
        self._send("STOPPING=1", _status(status))

    def show_life(self) -> None:
        """Call it often: it sends what the watchdog waits for, at half of its time."""
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
    """A path, or the name of an abstract socket, which begins with @; None for anything else (AF_VSOCK)."""
    if text.startswith("@"):
        return "\0" + text[1:]
    return text if text.startswith("/") else None


def _interval_s(environment: Mapping[str, str]) -> float | None:
    """Half of the watchdog's time; None where there is no watchdog, or it watches another process."""
    given, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not given.isdecimal() or int(given) == 0 or pid not in {"", str(os.getpid())}:
        return None
    return int(given) / US_PER_S / 2


def _status(sentence: str) -> str:
    return f"STATUS={' '.join(sentence.split())[:STATUS_SIZE_MAX]}"
