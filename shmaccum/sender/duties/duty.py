# SPDX-License-Identifier: Apache-2.0
"""A duty of the sender, and the objects that the duties of one sender share."""

from __future__ import annotations

from shmaccum._native import SenderHalf
from shmaccum.arena.doorbell import Doorbell
from shmaccum.arena.places import Places
from shmaccum.arena.results_bell import ResultsBell
from shmaccum.common.clock import NS_PER_MS
from shmaccum.sender.backoff import NEVER_NS, Backoff, SinkBackoff
from shmaccum.sender.host import Host
from shmaccum.sender.identity import ProducerIdentity
from shmaccum.sender.lending import Lending
from shmaccum.sender.metrics import SenderMetrics
from shmaccum.sender.naps import Naps
from shmaccum.sender.sinks.sink import Sink
from shmaccum.sender.splitting import Splitting

TICK_NS = 100 * NS_PER_MS
"""The pace of what is done now and then."""


class Duty:
    """A task that each round of a sender looks at. This class itself is the task of a sender that has none."""

    @property
    def due_ns(self) -> int:
        """The time at which a round has to look at it, even without news."""
        return NEVER_NS

    @property
    def is_news(self) -> bool:
        """True when a process has asked for something since it ran: the sender does not rest."""
        return False

    @property
    def is_idle(self) -> bool:
        """True when it has nothing left to do, now or later."""
        return True

    def run(self, now_ns: int) -> int:
        """Does what is due. Answers how many batches it gave to the sink or to the overflow."""
        del now_ns
        return 0

    def expect(self) -> None:
        """Batches have got their results by another duty: the next run looks at them."""

    def metrics(self) -> dict[str, float]:
        """Its numbers, by Kafka's names where Kafka has one."""
        return {}

    def finish(self, now_ns: int) -> None:
        """The sink was closed, and no round follows."""


class Shared:
    """The objects that the duties of one sender share.

    Args:
        half: holds the role.
        sink: opened already, with `host`.
    """

    def __init__(self, half: SenderHalf, host: Host, sink: Sink, doorbell: Doorbell, results_bell: ResultsBell) -> None:
        self.half = half
        self.host = host
        self.sink = sink
        self.doorbell = doorbell
        self.results_bell = results_bell
        self.native = native = host.arena.native
        self.options = options = host.options
        self.linger_ns = options.linger_ms * NS_PER_MS
        self.backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms)
        self.trouble = SinkBackoff(self.backoff, native, host.report)
        self.places = Places(native)
        self.metrics = SenderMetrics(native.now_ns(), self.places)
        self.naps = Naps(native, self.linger_ns)
        self.lending = Lending(half, native, self.places)
        self.splitting = Splitting(half, self.lending)
        self.identity = ProducerIdentity(half, host, sink, self.lending)
