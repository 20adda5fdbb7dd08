# SPDX-License-Identifier: Apache-2.0
"""Senders with an overflow for tests, and sinks that do not work while they are told so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shmaccum.sender import Sender
from shmaccum.sender.overflow import Overflow
from shmaccum.sender.sinks.log import LogSink
from tests.support.sender import ScriptedSink, Sending

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
SLOT_COUNT = 16
Open = Callable[..., Sending]


class AwaySink(ScriptedSink):
    """A sink that does not work while it is told so.

    Attributes:
        is_away: it does not work.
    """

    is_away = False

    @property
    def outage(self) -> str | None:
        return "nobody answers" if self.is_away else None

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


def away(sending: Sending) -> AwaySink:
    assert isinstance(sending.sink, AwaySink)
    return sending.sink


def overflow_of(sending: Sending) -> Overflow:
    assert sending.sender._overflow is not None
    return sending.sender._overflow


def settle(sending: Sending, rounds: int = 12) -> None:
    for _ in range(rounds):
        sending.sleep(10)
        sending.run()


def die(sending: Sending) -> None:
    """The sender is gone, and left nothing in order."""
    overflow = overflow_of(sending)
    overflow._directory.abandon()
    for backlog in overflow._backlogs.values():
        backlog.rest()
        backlog.file.close()
    rounds = sending.sender._rounds
    assert rounds is not None
    for wire in rounds._lending.take_all_back():
        for buffer in wire.buffers:
            buffer.release()
    sending.sender._half.close()
    sending.sender._rounds = None
    sending.sender._overflow = None
    sending.sender._close_bells()
    presence = sending.sender._presence
    assert presence is not None
    presence.close()


class AwayLog(LogSink):
    """A log that does not work while it is told so, and takes as few batches in flight as a broker."""

    in_flight_max = 5
    is_away = True

    @property
    def outage(self) -> str | None:
        return "nobody answers" if self.is_away else super().outage

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


def run_rounds(sender: Sender, count: int) -> None:
    for _ in range(count):
        sender._wake()
        sender.run_once()
