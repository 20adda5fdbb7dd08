# SPDX-License-Identifier: Apache-2.0
"""A duty of the sender, and the objects that the duties of one sender share."""

from __future__ import annotations

from shmaccum._native import SenderHalf
from shmaccum.arena.places import Places
from shmaccum.arena.results_fifo import ResultsWaker
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.common.clock import NS_PER_MS
from shmaccum.sender.backoff import NEVER_NS, Backoff, SinkBackoff
from shmaccum.sender.batch_splitter import BatchSplitter
from shmaccum.sender.host import Host
from shmaccum.sender.identity import ProducerIdentity
from shmaccum.sender.metrics import SenderMetrics
from shmaccum.sender.short_waits import ShortWaits
from shmaccum.sender.sink_batches import SinkBatches
from shmaccum.sender.sinks.sink import Sink

TICK_NS = 100 * NS_PER_MS
"""The interval of periodic work."""


class Duty:
    """A task that each round of a sender runs. The base class is a task without work."""

    @property
    def due_ns(self) -> int:
        """The time at which a round has to run it, even without a request."""
        return NEVER_NS

    @property
    def is_requested(self) -> bool:
        """True if a process has requested something since it ran, so the sender must not wait."""
        return False

    @property
    def is_idle(self) -> bool:
        """True if it has no work left, now or later."""
        return True

    def run(self, now_ns: int) -> None:
        """Do what is due."""

    def expect(self) -> None:
        """Note that another duty gave batches their results: the next run checks them."""

    def metrics(self) -> dict[str, float]:
        """Return its metrics, by Kafka's names where they exist."""
        return {}

    def finish(self, now_ns: int) -> None:
        """Do the last work, after the sink was closed."""


class Shared:
    """The objects that the duties of one sender share.

    Args:
        half: has the role.
        sink: opened with `host`.
    """

    def __init__(
        self, half: SenderHalf, host: Host, sink: Sink, wake_fifo: WakeFifo, results_waker: ResultsWaker
    ) -> None:
        self.half = half
        self.host = host
        self.sink = sink
        self.wake_fifo = wake_fifo
        self.results_waker = results_waker
        self.native = native = host.arena.native
        self.options = options = host.options
        self.linger_ns = options.linger_ms * NS_PER_MS
        self.backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms)
        self.trouble = SinkBackoff(self.backoff, native, host.report)
        self.places = Places(native)
        self.metrics = SenderMetrics(native.now_ns(), self.places)
        self.short_waits = ShortWaits(native, self.linger_ns)
        self.sink_batches = SinkBatches(half, native, self.places)
        self.batch_splitter = BatchSplitter(half, self.sink_batches)
        self.identity = ProducerIdentity(half, host, sink, self.sink_batches)
