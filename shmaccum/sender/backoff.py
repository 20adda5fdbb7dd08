# SPDX-License-Identifier: Apache-2.0
"""How long to wait before something is tried again (KIP-580, Kafka's ExponentialBackoff)."""

from __future__ import annotations

import random

NS_PER_MS = 1_000_000
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
    """A sink that raises: for how long it is left alone. One good call ends it."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.failure_count = 0
        self._until_ns = 0

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
