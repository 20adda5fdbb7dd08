# SPDX-License-Identifier: Apache-2.0
"""Kill or stop random brokers, one after another, and let each work again after a random time."""

from __future__ import annotations

import signal
import time
from random import Random

from tests.kafka.broker import Broker, Cluster

PERIOD_S = (0.5, 8.0)
"""The shortest and the longest time of an injury, and between two injuries."""


def send_signal(broker: Broker, number: signal.Signals) -> None:
    """Send a signal to the process of a broker."""
    assert broker.process is not None
    broker.process.send_signal(number)


class InjuredBrokers:
    """Injures one broker at a time.

    Args:
        cluster: a running cluster.
        random: draws the broker, the injury and the times.

    Attributes:
        kill_count, stop_count: injuries of each kind.
    """

    def __init__(self, cluster: Cluster, random: Random) -> None:
        self._cluster = cluster
        self._random = random
        self._stopped: Broker | None = None
        self._killed: Broker | None = None
        self._due_s = 0.0
        self.kill_count = self.stop_count = 0

    def act(self) -> None:
        """Injure or repair a broker if its time has come."""
        if time.monotonic() < self._due_s:
            return
        if self._stopped or self._killed:
            self.repair()
        else:
            self._injure()
        self._due_s = time.monotonic() + self._random.uniform(*PERIOD_S)

    def _injure(self) -> None:
        broker = self._random.choice(self._cluster.brokers)
        if self._random.random() < 0.5:
            broker.kill()
            self._killed = broker
            self.kill_count += 1
        else:
            send_signal(broker, signal.SIGSTOP)
            self._stopped = broker
            self.stop_count += 1

    def repair(self) -> None:
        """Continue or start the injured broker. Return before it serves."""
        if self._stopped:
            send_signal(self._stopped, signal.SIGCONT)
        if self._killed:
            self._killed.start()
        self._stopped = self._killed = None
