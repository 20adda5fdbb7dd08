# SPDX-License-Identifier: Apache-2.0
"""The metrics of an arena and its sender for Prometheus (package prometheus_client).

Three families of names:

``shmaccum_*``
    The state of the arena and its processes. They are read from the arena, so any process can report them, with or
    without a live sender, and no process is contacted.
``kafka_producer_*``, ``kafka_producer_node_*`` and ``kafka_producer_topic_*``
    Kafka's producer metrics of the whole host, named as Micrometer names the Java producer's: ``record-send-total`` is
    ``kafka_producer_record_send_total``. Only the sender's process has them. Times are in milliseconds, unless the name
    has nanoseconds. docs/reference/metrics.rst and metrics-arena.rst list them.

``kafka_server_*``, ``kafka_network_*``, ``kafka_coordinator_*`` and ``kafka_consumergroup_lag``
    Kafka's broker metrics of a served log, named as by Prometheus' JMX exporter.

The metrics of an arena have the label ``arena``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from shmaccum import __version__
from shmaccum.arena import Arena
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.packages import needed
from shmaccum.exceptions import ShmaccumError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from shmaccum.observe.limited_topics import LimitedTopic
    from shmaccum.observe.observation import Observation

logger = logging.getLogger(__name__)

ServerFamily = tuple[str, str, tuple[str, ...], Mapping[tuple[str, ...], float]]
"""Name, sentence, label names, and the values by label values."""

PREFIX = "shmaccum_"
KAFKA_PREFIX = "kafka_producer_"
TAGS: Final[Mapping[str, str]] = {"node": "node_id", "topic": "topic"}
"""The label for each word after the dot of a name."""
TOTAL = "_total"
LIMITED_TOPIC_COUNT_MAX = 50
"""The most topics at a limit with their own rows: stuck ones first, then by buffers held."""
WAIT_LABEL = "nanoseconds spent waiting for a buffer"
SENDER_ANSWER_S = 2.0
"""The longest wait of a scrape for the sender's metrics. The sender answers between rounds of at most a second."""

ARENA_GAUGES: Final[Mapping[str, tuple[str, Callable[[Observation], float]]]] = {
    "buffer_bytes": ("Bytes for batches, of all processes together", lambda seen: seen.buffer_memory),
    "fill_ratio": ("Share of the buffers that are not free", lambda seen: seen.fill),
    "queued_batches": ("Batches that wait to be sent", lambda seen: seen.queued_batch_count),
    "queued_records": ("Records that wait to be sent", lambda seen: seen.queued_record_count),
    "queued_bytes": ("Bytes that wait to be sent", lambda seen: seen.queued_size),
    "oldest_batch_age_seconds": (
        "Age of the batch that has waited longest, 0 if none waits",
        lambda seen: seen.oldest_batch.age_ns / NS_PER_S if seen.oldest_batch else 0,
    ),
    "oldest_batch_left_seconds": (
        "Time left of the delivery timeout of that batch, 0 if none waits",
        lambda seen: (seen.oldest_batch.left_ns or 0) / NS_PER_S if seen.oldest_batch else 0,
    ),
    "outage_seconds": (
        "Time for which the sink of the live sender has not worked, 0 if it works",
        lambda seen: (seen.delivery_clock.outage_ns or 0) / NS_PER_S,
    ),
    "overflow_batches": ("Batches in the sender's overflow on disk", lambda seen: seen.overflow.batch_count),
    "overflow_records": ("Records in the sender's overflow on disk", lambda seen: seen.overflow.record_count),
    "overflow_bytes": ("Bytes of the sender's overflow on disk", lambda seen: seen.overflow.size),
    "overflow_seconds": (
        "Time for which the sender's overflow has had batches, 0 if it is empty",
        lambda seen: (seen.overflow.age_ns or 0) / NS_PER_S,
    ),
    "oversized_bytes": ("Bytes of buffers that records larger than a buffer hold", lambda seen: seen.oversized_bytes),
    "oversized_max_bytes": ("The most that these may hold", lambda seen: seen.oversized_bytes_max),
    "limited_topics": (
        "Topics that are stuck, or hold their share while threads wait",
        lambda seen: len(seen.limited_topics),
    ),
    "waiting_threads": ("Threads that wait for a buffer", lambda seen: seen.waiting_count),
    "poisoned": ("1 if the arena accepts no more work", lambda seen: seen.poisoned is not None),
    "removed": ("1 if the arena lost its name and accepts no more records", lambda seen: seen.is_removed),
    "transaction_age_seconds": (
        "Time since the open transaction began, 0 if none is open",
        lambda seen: (seen.transaction.age_ns or 0) / NS_PER_S if seen.transaction else 0,
    ),
    "sender_alive": ("1 if a process has the role of the sender", lambda seen: seen.sender.is_alive),
    "idle": (
        "1 if no sender is running and none is needed: no record waits, and the last sender exited cleanly",
        lambda seen: seen.is_idle,
    ),
    "sender_heartbeat_age_seconds": (
        "Time since the last heartbeat of the sender, 0 before the first",
        lambda seen: (seen.sender.heartbeat_age_ns or 0) / NS_PER_S,
    ),
}
LIMITED_TOPIC_GAUGES: Final[Mapping[str, tuple[str, Callable[[LimitedTopic, Observation], float]]]] = {
    "topic_stuck_seconds": (
        "Time for which a partition of a topic at a limit has been stuck, 0 if none is",
        lambda topic, _seen: (topic.stuck_age_ns or 0) / NS_PER_S,
    ),
    "topic_held_bytes": ("Bytes of buffers that a topic at a limit holds", lambda topic, _seen: topic.held_size),
    "topic_needs_free_bytes": (
        "Bytes that must be free before a topic at a limit gets its next buffer, 0 if it gets one now",
        lambda topic, seen: topic.free_needed * seen.batch_size,
    ),
    "topic_waiting_threads": (
        "Threads that wait because their topic is at a limit",
        lambda topic, _seen: topic.waiting_count,
    ),
}
"""The gauges of each topic that is stuck, or holds its share while threads wait."""
ARENA_COUNTERS: Final[Mapping[str, tuple[str, Callable[[Observation], float]]]] = {
    "appended_records": ("Records appended by all processes", lambda seen: seen.record_count),
    "appended_bytes": ("Bytes of these records, at most", lambda seen: seen.record_bytes),
    "wait_seconds": ("Time spent waiting for a buffer", lambda seen: seen.counters[WAIT_LABEL] / NS_PER_S),
    "deliverable_seconds": (
        "Time in which delivery was possible: only this time counts for the delivery timeout",
        lambda seen: seen.delivery_clock.clock_ns / NS_PER_S,
    ),
    "senders": ("Number of times that the role of the sender was taken", lambda seen: seen.sender.epoch),
}


def _families() -> Any:
    """Return the module with prometheus_client's families.

    Raises:
        PackageMissingError: the package is not installed.
    """
    with needed("prometheus_client", "metrics", "metrics need"):
        from prometheus_client import core
    return core


class ArenaCollector:
    """The metrics of one arena, read again at every scrape.

    Args:
        arena: opened in any mode, including read-only.

    Attributes:
        arena: the same arena.

    Raises:
        PackageMissingError: the package prometheus_client is not installed.
    """

    def __init__(self, arena: Arena) -> None:
        from shmaccum.observe.observation import Observer

        self._core = _families()
        self.arena = arena
        self._observer = Observer(arena)

    def collect(self) -> Iterator[Metric]:
        """Yields the families of one scrape."""
        seen = self._observer.observe()
        for name, (sentence, read) in ARENA_GAUGES.items():
            yield self._family(name, sentence, {(): read(seen)})
        for name, (sentence, read) in ARENA_COUNTERS.items():
            yield self._family(name + TOTAL, sentence, {(): read(seen)})
        native = self.arena.native
        created_by = native.features["build"].removeprefix("shmaccum ")
        yield self._family(
            "build_info",
            "1, with the versions of this process and of its arena layout, and the version that created the arena",
            {(__version__, str(native.layout["version"]), created_by): 1},
            "version",
            "layout",
            "created_by",
        )
        yield self._family(
            "slots", "Buffers by state", {(state,): count for state, count in seen.slots.items()}, "state"
        )
        yield self._family(
            "sender_info",
            "1, with the sink of the live sender",
            {(seen.sender.sink,): 1} if seen.sender.sink else {},
            "sink",
        )
        yield self._family(
            "transaction_state",
            "1, with the state of the arena's transaction; none without a transactional_id",
            {(seen.transaction.state.replace(" ", "_"),): 1} if seen.transaction else {},
            "state",
        )
        yield self._family(
            "damaged_records",
            "Records of a topic in quarantined batches",
            {(topic,): count for topic, count in seen.damaged.items()},
            "topic",
        )
        yield self._family(
            "overflow_topic_batches",
            "Batches of a topic in the sender's overflow on disk, at most",
            {(topic,): count for topic, count in seen.overflow.topics.items()},
            "topic",
        )
        yield from self._limited_topics(seen)
        yield self._family("processes", "Attached processes", _process_counts(seen), "role", "state")
        events: dict[tuple[str, ...], int] = {  # times are separate metrics, not events
            (label.replace(" ", "_"),): count
            for label, count in seen.counters.items()
            if not label.startswith("nanoseconds ")
        }
        yield self._family("events" + TOTAL, "Rare events since the arena was created", events, "event")
        yield self._family(
            "partition_queued_bytes",
            "Bytes of a partition that wait to be sent",
            {(queue.topic, str(queue.partition)): queue.size for queue in seen.partitions},
            "topic",
            "partition",
        )

    def _limited_topics(self, seen: Observation) -> Iterator[Metric]:
        """Yields families of topics that are stuck or at their share, and no others, to bound their number."""
        topics = seen.limited_topics[:LIMITED_TOPIC_COUNT_MAX]
        yield self._family(
            "stuck_partitions",
            "Partitions of a topic to which nothing can be delivered now, by reason",
            {(one.topic, reason): count for one in topics for reason, count in one.reasons.items()},
            "topic",
            "reason",
        )
        for name, (sentence, read) in LIMITED_TOPIC_GAUGES.items():
            yield self._family(name, sentence, {(one.topic,): read(one, seen) for one in topics}, "topic")

    def _family(self, name: str, sentence: str, values: Mapping[tuple[str, ...], float], *labels: str) -> Metric:
        family = _family_of(self._core, PREFIX + name, sentence, ["arena", *labels])
        for label_values, value in values.items():
            family.add_metric([self.arena.name, *label_values], float(value))
        metric: Metric = family
        return metric


def _family_of(core: Any, name: str, sentence: str, labels: list[str]) -> Any:
    """Return a counter if the name ends in ``_total``, or a gauge."""
    kind = core.CounterMetricFamily if name.endswith(TOTAL) else core.GaugeMetricFamily
    return kind(name, sentence, labels=labels)


def _process_counts(seen: Observation) -> dict[tuple[str, ...], int]:
    counts: dict[tuple[str, ...], int] = {}
    for process in seen.processes:
        is_well = process.is_alive and not process.is_stopped
        state = "fallback" if process.is_on_fallback else "alive"
        key = (process.role.lower(), state if is_well else process.state)
        counts[key] = counts.get(key, 0) + 1
    return counts


class SenderCollector:
    """Kafka's producer metrics of the sender in this process.

    Args:
        arena_name: the label of all metrics.
        read: returns the numbers by Kafka's names. Metrics of a broker end in ``.node-ID``, those of a topic in
            ``.topic-NAME``. If it raises a `ShmaccumError` or TimeoutError, the scrape has no metrics of the sender.

    Raises:
        PackageMissingError: the package prometheus_client is not installed.
    """

    def __init__(self, arena_name: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._core = _families()
        self._arena_name = arena_name
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yields the families of one scrape, or none if the sender has no role or does not answer."""
        families: dict[str, Any] = {}
        for name, number in sorted(self.numbers().items()):
            self._add(families, name, number)
        yield from families.values()

    def numbers(self) -> Mapping[str, float]:
        """Returns the numbers by Kafka's names, or none if the sender has no role or does not answer."""
        try:
            return self._read()
        except (ShmaccumError, TimeoutError) as error:
            logger.debug("this scrape has no metrics of the sender: %s", error)
            return {}

    def _add(self, families: dict[str, Any], name: str, number: float) -> None:
        prefix, metric, tags = _split_name(name)
        labels = {"arena": self._arena_name, **tags}
        full = prefix + metric.replace("-", "_")
        if full not in families:
            families[full] = _family_of(self._core, full, f"Kafka's producer metric {metric}", list(labels))
        families[full].add_metric(list(labels.values()), number)


def _split_name(name: str) -> tuple[str, str, dict[str, str]]:
    """Split ``METRIC``, ``METRIC.node-ID`` or ``METRIC.topic-NAME`` into prefix, metric and labels. Topics may have
    dots."""
    metric, _, tag = name.partition(".")
    kind, _, value = tag.partition("-")
    if kind not in TAGS:
        return KAFKA_PREFIX, name.replace(".", "_"), {}
    return f"{KAFKA_PREFIX}{kind}_", metric, {TAGS[kind]: value}


class ServerCollector:
    """Kafka's broker metrics of the log server in this process.

    Args:
        read: returns the families of the server. If it raises a `ShmaccumError`, the scrape has no metrics of the
            server.

    Raises:
        PackageMissingError: the package prometheus_client is not installed.
    """

    def __init__(self, read: Callable[[], Iterable[ServerFamily]]) -> None:
        self._core = _families()
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yields the families of one scrape, or none if the server does not answer."""
        try:
            found = list(self._read())
        except ShmaccumError as error:
            logger.debug("this scrape has no metrics of the server: %s", error)
            return
        for name, sentence, labels, values in found:
            family = _family_of(self._core, name, sentence, list(labels))
            for label_values, value in values.items():
                family.add_metric(list(label_values), float(value))
            metric: Metric = family
            yield metric


# --- output


def _registry(collectors: Iterable[Any]) -> Any:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return registry


def exposition(*collectors: ArenaCollector | SenderCollector | ServerCollector) -> str:
    """Return one scrape as text, for a textfile collector."""
    from prometheus_client import generate_latest

    return bytes(generate_latest(_registry(collectors))).decode()


def metrics_application(
    *collectors: ArenaCollector | SenderCollector | ServerCollector,
) -> Callable[[Any, Any], Iterable[bytes]]:
    """Return a WSGI application that answers each request with a scrape."""
    from prometheus_client import make_wsgi_app

    application: Callable[[Any, Any], Iterable[bytes]] = make_wsgi_app(_registry(collectors))
    return application
