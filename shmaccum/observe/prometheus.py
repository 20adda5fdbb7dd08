# SPDX-License-Identifier: Apache-2.0
"""An arena and its sender as Prometheus sees them (package prometheus_client).

Two families of names:

``shmaccum_*``
    What lies in the arena and who works on it. Any process may tell it, whether a sender lives or not: it is read from
    the arena and nobody is asked.
``kafka_producer_*``, ``kafka_producer_node_*`` and ``kafka_producer_topic_*``
    Kafka's producer metrics of the whole host, named as Micrometer names the Java producer's: ``record-send-total`` is
    ``kafka_producer_record_send_total``. Only the sender's own process knows them. Times are in milliseconds, where the
    name does not say nanoseconds. docs/reference/metrics.rst lists them.

``kafka_server_*``, ``kafka_network_*``, ``kafka_coordinator_*`` and ``kafka_consumergroup_lag``
    Kafka's broker metrics of a served log, named as Prometheus' JMX exporter names them.

Those of an arena have the label ``arena``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

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
"""Name, sentence, names of the labels, and the values by those of the labels."""

PREFIX = "shmaccum_"
KAFKA_PREFIX = "kafka_producer_"
TAGS: Final[Mapping[str, str]] = {"node": "node_id", "topic": "topic"}
"""The word behind a name and its dot -> the label that it becomes."""
TOTAL = "_total"
LIMITED_TOPIC_COUNT_MAX = 50
"""Topics at a limit that have rows of their own: those that are stuck, and then those that hold most."""
WAIT_LABEL = "nanoseconds spent waiting for a buffer"
SENDER_ANSWER_S = 2.0
"""How long a scrape waits for the sender's numbers: it answers between two rounds, which last a second at most."""

ARENA_GAUGES: Final[Mapping[str, tuple[str, Callable[[Observation], float]]]] = {
    "buffer_bytes": ("Bytes for batches, of all processes together", lambda seen: seen.buffer_memory),
    "fill_ratio": ("Share of the buffers that are not free", lambda seen: seen.fill),
    "queued_batches": ("Batches that wait to be sent", lambda seen: seen.queued_batch_count),
    "queued_records": ("Records that wait to be sent", lambda seen: seen.queued_record_count),
    "queued_bytes": ("Bytes that wait to be sent", lambda seen: seen.queued_size),
    "oldest_batch_age_seconds": (
        "Age of the batch that waits longest, 0 when none waits",
        lambda seen: seen.oldest_batch.age_ns / NS_PER_S if seen.oldest_batch else 0,
    ),
    "oldest_batch_left_seconds": (
        "The rest of the sender's delivery timeout for that batch, 0 when none waits",
        lambda seen: (seen.oldest_batch.left_ns or 0) / NS_PER_S if seen.oldest_batch else 0,
    ),
    "outage_seconds": (
        "For how long the sink of the living sender has not worked, 0 while it works",
        lambda seen: (seen.delivery_clock.outage_ns or 0) / NS_PER_S,
    ),
    "overflow_batches": ("Batches in the sender's overflow on disk", lambda seen: seen.overflow.batch_count),
    "overflow_records": ("Records in the sender's overflow on disk", lambda seen: seen.overflow.record_count),
    "overflow_bytes": ("Bytes of the sender's overflow on disk", lambda seen: seen.overflow.size),
    "overflow_seconds": (
        "For how long something has lain in the sender's overflow, 0 when nothing does",
        lambda seen: (seen.overflow.age_ns or 0) / NS_PER_S,
    ),
    "oversized_bytes": ("Bytes of buffers that records larger than a buffer hold", lambda seen: seen.oversized_bytes),
    "oversized_max_bytes": ("The most that these may hold", lambda seen: seen.oversized_bytes_max),
    "limited_topics": (
        "Topics that are stuck, or hold their share while threads wait",
        lambda seen: len(seen.limited_topics),
    ),
    "waiting_threads": ("Threads that wait for a buffer", lambda seen: seen.waiting_count),
    "poisoned": ("1 when the arena takes no more work", lambda seen: seen.poisoned is not None),
    "removed": ("1 when the arena lost its name and takes no more records", lambda seen: seen.is_removed),
    "transaction_age_seconds": (
        "Since the open transaction began, 0 while none is open",
        lambda seen: (seen.transaction.age_ns or 0) / NS_PER_S if seen.transaction else 0,
    ),
    "sender_alive": ("1 while a process has the role of the sender", lambda seen: seen.sender.is_alive),
    "idle": (
        "1 while no sender lives and none is needed: nothing waits, and the last one left in order",
        lambda seen: seen.is_idle,
    ),
    "sender_heartbeat_age_seconds": (
        "Since the sender gave its last sign of life, 0 before the first",
        lambda seen: (seen.sender.heartbeat_age_ns or 0) / NS_PER_S,
    ),
}
LIMITED_TOPIC_GAUGES: Final[Mapping[str, tuple[str, Callable[[LimitedTopic, Observation], float]]]] = {
    "topic_stuck_seconds": (
        "For how long a partition of a topic at a limit has been stuck, 0 while none is",
        lambda topic, _seen: (topic.stuck_age_ns or 0) / NS_PER_S,
    ),
    "topic_held_bytes": ("Bytes of buffers that a topic at a limit holds", lambda topic, _seen: topic.held_size),
    "topic_needs_free_bytes": (
        "Bytes that have to be free before a topic at a limit gets its next buffer, 0 when it gets one now",
        lambda topic, seen: topic.free_needed * seen.batch_size,
    ),
    "topic_waiting_threads": (
        "Threads that wait because their topic is at a limit",
        lambda topic, _seen: topic.waiting_count,
    ),
}
"""Each topic that is stuck, or holds its share while threads wait, has them."""
ARENA_COUNTERS: Final[Mapping[str, tuple[str, Callable[[Observation], float]]]] = {
    "appended_records": ("Records appended by all processes", lambda seen: seen.record_count),
    "appended_bytes": ("Bytes these take at most", lambda seen: seen.record_bytes),
    "wait_seconds": ("Time spent waiting for a buffer", lambda seen: seen.counters[WAIT_LABEL] / NS_PER_S),
    "deliverable_seconds": (
        "Time in which somebody could deliver: only this time counts for the delivery timeout",
        lambda seen: seen.delivery_clock.clock_ns / NS_PER_S,
    ),
    "senders": ("How often the role of the sender was taken", lambda seen: seen.sender.epoch),
}


def _families() -> Any:
    """prometheus_client's families.

    Raises:
        PackageMissingError: the package is not there.
    """
    with needed("prometheus_client", "metrics", "metrics need"):
        from prometheus_client import core
    return core


class ArenaCollector:
    """The numbers of one arena, read anew at every scrape.

    Args:
        arena: opened in any way; read-only is enough.

    Attributes:
        arena: the same.

    Raises:
        PackageMissingError: the package prometheus_client is not there.
    """

    def __init__(self, arena: Arena) -> None:
        from shmaccum.observe.observation import Observer

        self._core = _families()
        self.arena = arena
        self._observer = Observer(arena)

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        seen = self._observer.observe()
        for name, (sentence, read) in ARENA_GAUGES.items():
            yield self._family(name, sentence, {(): read(seen)})
        for name, (sentence, read) in ARENA_COUNTERS.items():
            yield self._family(name + TOTAL, sentence, {(): read(seen)})
        yield self._family(
            "slots", "Buffers by state", {(state,): count for state, count in seen.slots.items()}, "state"
        )
        yield self._family(
            "sender_info",
            "1, with the sink to which the living sender delivers",
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
            "Records of a topic in batches that were quarantined and are kept",
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
        events: dict[tuple[str, ...], int] = {  # times are no events: they have names of their own
            (label.replace(" ", "_"),): count
            for label, count in seen.counters.items()
            if not label.startswith("nanoseconds ")
        }
        yield self._family("events" + TOTAL, "Rare events since the arena was made", events, "event")
        yield self._family(
            "partition_queued_bytes",
            "Bytes of a partition that wait to be sent",
            {(queue.topic, str(queue.partition)): queue.size for queue in seen.partitions},
            "topic",
            "partition",
        )

    def _limited_topics(self, seen: Observation) -> Iterator[Metric]:
        """Topics that are stuck or hold their share; none of the others, so that their number has a bound."""
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
    """A counter when its name says so, else a gauge."""
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
    """Kafka's producer metrics of the sender of this process.

    Args:
        arena_name: the label of all of them.
        read: Kafka's names -> numbers; of one broker with ``.node-ID`` behind the name, of one topic with
            ``.topic-NAME``. When it raises a `ShmaccumError` or TimeoutError, this scrape has none of them.

    Raises:
        PackageMissingError: the package prometheus_client is not there.
    """

    def __init__(self, arena_name: str, read: Callable[[], Mapping[str, float]]) -> None:
        self._core = _families()
        self._arena_name = arena_name
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape; none while the sender has no role or does not answer."""
        families: dict[str, Any] = {}
        for name, number in sorted(self.numbers().items()):
            self._add(families, name, number)
        yield from families.values()

    def numbers(self) -> Mapping[str, float]:
        """Kafka's names -> numbers; none while the sender has no role or does not answer."""
        try:
            return self._read()
        except (ShmaccumError, TimeoutError) as error:
            logger.debug("this scrape goes without the sender's metrics: %s", error)
            return {}

    def _add(self, families: dict[str, Any], name: str, number: float) -> None:
        prefix, metric, tags = _split_name(name)
        labels = {"arena": self._arena_name, **tags}
        full = prefix + metric.replace("-", "_")
        if full not in families:
            families[full] = _family_of(self._core, full, f"Kafka's producer metric {metric}", list(labels))
        families[full].add_metric(list(labels.values()), number)


def _split_name(name: str) -> tuple[str, str, dict[str, str]]:
    """(prefix, metric, labels) of ``METRIC``, ``METRIC.node-ID`` or ``METRIC.topic-NAME``; a topic may have dots."""
    metric, _, tag = name.partition(".")
    kind, _, value = tag.partition("-")
    if kind not in TAGS:
        return KAFKA_PREFIX, name.replace(".", "_"), {}
    return f"{KAFKA_PREFIX}{kind}_", metric, {TAGS[kind]: value}


class ServerCollector:
    """The metrics of Kafka's broker, of the server of a log in this process.

    Args:
        read: the families of the server. When it raises a `ShmaccumError`, this scrape has none of them.

    Raises:
        PackageMissingError: the package prometheus_client is not there.
    """

    def __init__(self, read: Callable[[], Iterable[ServerFamily]]) -> None:
        self._core = _families()
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape; none while the server does not answer."""
        try:
            found = list(self._read())
        except ShmaccumError as error:
            logger.debug("this scrape goes without the server's metrics: %s", error)
            return
        for name, sentence, labels, values in found:
            family = _family_of(self._core, name, sentence, list(labels))
            for label_values, value in values.items():
                family.add_metric(list(label_values), float(value))
            metric: Metric = family
            yield metric


# --- telling


def _registry(collectors: Iterable[Any]) -> Any:
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return registry


def exposition(*collectors: ArenaCollector | SenderCollector | ServerCollector) -> str:
    """One scrape as text, as a textfile collector takes it."""
    from prometheus_client import generate_latest

    return bytes(generate_latest(_registry(collectors))).decode()


def metrics_application(
    *collectors: ArenaCollector | SenderCollector | ServerCollector,
) -> Callable[[Any, Any], Iterable[bytes]]:
    """A WSGI application that answers each request with a scrape."""
    from prometheus_client import make_wsgi_app

    application: Callable[[Any, Any], Iterable[bytes]] = make_wsgi_app(_registry(collectors))
    return application
