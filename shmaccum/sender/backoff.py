# SPDX-License-Identifier: Apache-2.0
"""How long to wait before something is tried again (KIP-580, Kafka's ExponentialBackoff)."""

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
    """Doubles with each failure in a row up to a limit, with a jitter of a fifth either way.

    Kafka draws the jitter each time it looks whether the pause is over; here it is drawn once for each pause.

    Args:
        initial_ms: the first pause, but for the jitter.
        max_ms: no pause is longer, jitter included.
        seed: for tests.
    """

    def __init__(self, initial_ms: int, max_ms: int, seed: int | None = None) -> None:
        self._initial_ns = initial_ms * NS_PER_MS
        self._max_ns = max_ms * NS_PER_MS
        self._random = random.Random(seed)

    def pause_ns(self, failure_count: int) -> int:
        """Nanoseconds to wait after so many failures in a row, at least 1."""
        growth = MULTIPLIER ** min(failure_count - 1, DOUBLINGS_MAX)
        drawn = min(self._initial_ns * growth, self._max_ns) * self._random.uniform(1 - JITTER, 1 + JITTER)
        return min(int(drawn), self._max_ns)


class SinkBackoff:
    """A sink that raises: for how long it is left alone. One good round ends it.

    Args:
        native: the arena, for its clock.
        report: where sentences for people go.
    """

    def __init__(self, backoff: Backoff, native: _native.Arena, report: Callable[[str], None]) -> None:
        self._backoff = backoff
        self._native = native
        self._report = report
        self.failure_count = 0
        self._until_ns = 0

    def ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """The sink's answer; when it raises, `otherwise`, and it is left alone for a while."""
        try:
            return question()
        except Exception as error:  # noqa: BLE001 - whatever a sink raises, no batch may be lost over it
            self._report(f"the sink has a problem: {sentence_of(error)}")
            self.begin(self._native.now_ns())
            return otherwise

    def begin(self, now_ns: int) -> None:
        """Notes that the call has raised."""
        self.failure_count += 1
        self._until_ns = now_ns + self._backoff.pause_ns(self.failure_count)

    def end(self) -> None:
        """Notes that the call has not raised."""
        self.failure_count = 0
        self._until_ns = 0

    def rest_ns(self, now_ns: int) -> int:
        """How much longer to leave it alone; 0: not at all."""
        return max(self._until_ns - now_ns, 0) if self.failure_count else 0


def sentence_of(error: Exception) -> str:
    """The words of an exception, for people."""
    return str(error) or type(error).__name__
