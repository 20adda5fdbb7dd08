# SPDX-License-Identifier: Apache-2.0
"""Traffic of the connections, and waits of the loop: the metrics of Kafka's Selector (SelectorMetrics).

Code that reads and writes only counts. Rates are computed from the counts at the end of a window (see
`shmaccum.sender.sinks.sensors`). The loop is the sender's own thread, as in Kafka. It waits in `select` for brokers,
timers, and wake-ups by producers. Its I/O time is the work with connections between two such waits, and the writing
of a request when it is handed over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.sender.sinks.sensors import Sensor, TotalRates, average_of, maximum_of


def _new_sensor() -> Sensor:
    return Sensor(clock.monotonic_ns())


@dataclass(slots=True)
class NodeTraffic:
    """Counts of the connections to one broker, since the start."""

    connections_created: int = 0
    connections_closed: int = 0
    logins: int = 0
    """Successful logins of connections that need one: a TLS handshake, a SASL login, or both."""
    logins_failed: int = 0
    operations: int = 0
    """Reads and writes that transferred bytes."""
    requests: int = 0
    """Requests whose last byte is written."""
    responses: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    request_size: Sensor = field(default_factory=_new_sensor)

    def request_written(self, size: int) -> None:
        """Count a request whose last byte is written."""
        self.requests += 1
        self.request_size.add(size, clock.monotonic_ns())


@dataclass(slots=True)
class LoopTimes:
    """The times of the loop, since the start."""

    select_count: int = 0
    wait_ns: int = 0
    io_ns: int = 0


NODE_COUNTS: Mapping[str, str] = {
    "connection-creation": "connections_created",
    "connection-close": "connections_closed",
    "request": "requests",
    "response": "responses",
    "outgoing-byte": "bytes_sent",
    "incoming-byte": "bytes_received",
}
COUNTS: Mapping[str, str] = {
    **NODE_COUNTS,
    "network-io": "operations",
    "successful-authentication": "logins",
    "failed-authentication": "logins_failed",
}
SELECTS, WAIT_NS, IO_NS = "select", "io-wait-time-ns", "io-time-ns"


class Traffic:
    """The traffic of all brokers. Those of a bootstrap list have ids of their own."""

    def __init__(self, times: LoopTimes) -> None:
        self._nodes: dict[Any, NodeTraffic] = {}
        self._times = times
        self._rates = TotalRates(clock.monotonic_ns())

    def node(self, node_id: Any) -> NodeTraffic:
        return self._nodes.setdefault(node_id, NodeTraffic())

    def sample(self) -> None:
        """End a window."""
        self._rates.sample(self._totals(), clock.monotonic_ns())

    def _totals(self) -> dict[str, float]:
        """Return the totals by the first part of the metric's name. Those of a broker end in its id."""
        totals: dict[str, float] = {SELECTS: self._times.select_count}
        for name, attribute in COUNTS.items():
            totals[name] = sum(getattr(node, attribute) for node in self._nodes.values())
        for node_id, node in self._nodes.items():
            totals.update((f"{name}.node-{node_id}", getattr(node, each)) for name, each in NODE_COUNTS.items())
        return {**totals, WAIT_NS: self._times.wait_ns, IO_NS: self._times.io_ns}

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the metrics by Kafka's names. Those of one broker end in ``.node-ID``."""
        totals = self._totals()
        rates = self._rates.read(totals, now_ns)
        return {**self._read_gauges(now_ns), **_read_loop(totals, rates), **_read_meters(totals, rates)}

    def _read_gauges(self, now_ns: int) -> dict[str, float]:
        nodes = self._nodes
        named: dict[str, float] = {
            "connection-count": sum(node.connections_created - node.connections_closed for node in nodes.values())
        }
        suffixed = {"": list(nodes.values()), **{f".node-{node_id}": [node] for node_id, node in nodes.items()}}
        for suffix, those in suffixed.items():
            sizes = [node.request_size for node in those]
            named[f"request-size-avg{suffix}"] = average_of(sizes, now_ns)
            named[f"request-size-max{suffix}"] = maximum_of(sizes, now_ns)
        return named


def _read_meters(totals: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, float]:
    named = {}
    for key in totals.keys() - {WAIT_NS, IO_NS}:
        name, dot, node = key.partition(".")
        named[f"{name}-rate{dot}{node}"] = rates[key]
        named[f"{name}-total{dot}{node}"] = totals[key]
    return named


def _read_loop(totals: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, float]:
    named = {}
    for name, ratio in ((WAIT_NS, "io-wait-ratio"), (IO_NS, "io-ratio")):
        named[f"{name}-total"] = totals[name]
        named[f"{name}-avg"] = rates[name] / rates[SELECTS] if rates[SELECTS] else 0
        named[ratio] = rates[name] / NS_PER_S
    return named
