# SPDX-License-Identifier: Apache-2.0
"""Computes Kafka's averages, maxima and rates of the last one to two windows of 30 seconds.

The windows are Kafka's (metrics.sample.window.ms, metrics.num.samples). A `Sensor` records each value. For a total that
is counted in any case, `TotalRates` reads the total at the end of each window, so counting costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shmaccum.common.clock import NS_PER_S

WINDOW_NS = 30_000_000_000


@dataclass(slots=True)
class _Window:
    start_ns: int
    sum: float = 0
    count: int = 0
    max: float = 0


class Sensor:
    """Sum, count and maximum of values, in total and recently."""

    def __init__(self, now_ns: int) -> None:
        self.total: float = 0
        self._last = self._current = _Window(now_ns)

    def record(self, total: float, count: int, largest: float, now_ns: int) -> None:
        """Record `count` values whose sum is `total`."""
        if now_ns - self._current.start_ns >= WINDOW_NS:
            self._start_window(now_ns)
        self.total += total
        self._current.sum += total
        self._current.count += count
        self._current.max = max(self._current.max, largest)

    def add(self, amount: float, now_ns: int) -> None:
        self.record(amount, 1, amount, now_ns)

    def _start_window(self, now_ns: int) -> None:
        is_recent = now_ns - self._current.start_ns < 2 * WINDOW_NS
        self._last = self._current if is_recent else _Window(now_ns)
        self._current = _Window(now_ns)

    def windows(self, now_ns: int) -> list[_Window]:
        """Return one or two windows, the older one first."""
        if now_ns - self._current.start_ns >= WINDOW_NS:
            self._start_window(now_ns)
        return [self._current] if self._last is self._current else [self._last, self._current]

    def rate(self, now_ns: int) -> float:
        """Return the recent sum per second."""
        windows = self.windows(now_ns)
        return _per_second(sum(window.sum for window in windows), now_ns - windows[0].start_ns)

    def average(self, now_ns: int) -> float:
        """Return the recent average; 0 without values."""
        return average_of([self], now_ns)

    def maximum(self, now_ns: int) -> float:
        """Return the recent maximum; 0 without values."""
        return maximum_of([self], now_ns)

    def meter(self, name: str, now_ns: int) -> dict[str, float]:
        """Return Kafka's pair of rate and total."""
        return {f"{name}-rate": self.rate(now_ns), f"{name}-total": self.total}


def average_of(sensors: Iterable[Sensor], now_ns: int) -> float:
    """Return the average of the values of all sensors."""
    windows = [window for sensor in sensors for window in sensor.windows(now_ns)]
    return sum(window.sum for window in windows) / max(sum(window.count for window in windows), 1)


def maximum_of(sensors: Iterable[Sensor], now_ns: int) -> float:
    return max((window.max for sensor in sensors for window in sensor.windows(now_ns)), default=0)


class TotalRates:
    """The rates of totals that are counted elsewhere. A total that is not known yet was 0.

    The owner calls `sample` periodically, which ends a window.
    """

    def __init__(self, now_ns: int) -> None:
        self._last = self._current = now_ns, dict[str, float]()

    def sample(self, totals: Mapping[str, float], now_ns: int) -> None:
        """End a window."""
        self._last, self._current = self._current, (now_ns, dict(totals))

    def read(self, totals: Mapping[str, float], now_ns: int) -> dict[str, float]:
        """Return the rate of each total per second."""
        start_ns, known = self._last
        return {name: _per_second(total - known.get(name, 0), now_ns - start_ns) for name, total in totals.items()}


def _per_second(amount: float, elapsed_ns: int) -> float:
    """Return the amount per second. A time of less than a second counts as a second."""
    return amount * NS_PER_S / max(elapsed_ns, NS_PER_S)
