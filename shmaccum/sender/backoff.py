# SPDX-License-Identifier: Apache-2.0
"""The pause before something is tried again (KIP-580, Kafka's ExponentialBackoff)."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from shmaccum import _native
from shmaccum.common.clock import NS_PER_MS

Answer = TypeVar("Answer")

NEVER_NS = 2**63 - 1
MULTIPLIER = 2
JITTER = 0.2
DOUBLINGS_MAX = 62


class Backoff:
    """A pause that doubles with each failure in a row, up to a limit, with 20 % jitter.

    Kafka draws new jitter each time that it checks whether the pause is over. Here it is drawn once per pause.

    Args:
        initial_ms: the first pause, without the jitter.
        max_ms: the longest pause, including the jitter.
        seed: for tests.
    """

    def __init__(self, initial_ms: int, max_ms: int, seed: int | None = None) -> None:
        self._initial_ns = initial_ms * NS_PER_MS
        self._max_ns = max_ms * NS_PER_MS
        self._random = random.Random(seed)

    def pause_ns(self, failure_count: int) -> int:
        """Return the pause after this many failures in a row, in nanoseconds; at least 1."""
        growth = MULTIPLIER ** min(failure_count - 1, DOUBLINGS_MAX)
        drawn = min(self._initial_ns * growth, self._max_ns) * self._random.uniform(1 - JITTER, 1 + JITTER)
        return min(int(drawn), self._max_ns)


class SinkBackoff:
    """Computes for how long a sink that has raised is not called. A round without an exception ends the pause.

    Args:
        native: the arena, for its clock.
        report: takes sentences for people.
    """

    def __init__(self, backoff: Backoff, native: _native.Arena, report: Callable[[str], None]) -> None:
        self._backoff = backoff
        self._native = native
        self._report = report
        self.failure_count = 0
        self._until_ns = 0

    def ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the result of a call of the sink. If the call raises, start a pause and return `otherwise`."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - no exception of a sink may lose a batch
            self._report(f"the sink has a problem: {sentence_of(error)}")
            self.begin(self._native.now_ns())
            return otherwise

    def begin(self, now_ns: int) -> None:
        """Start a pause, after the call has raised."""
        self.failure_count += 1
        self._until_ns = now_ns + self._backoff.pause_ns(self.failure_count)

    def end(self) -> None:
        """End the pause, after a round without an exception."""
        self.failure_count = 0
        self._until_ns = 0

    def pause_left_ns(self, now_ns: int) -> int:
        """Return the rest of the pause; 0 if there is none."""
        return max(self._until_ns - now_ns, 0) if self.failure_count else 0


def sentence_of(error: Exception) -> str:
    """Return the message of an exception, for people."""
    return str(error) or type(error).__name__
