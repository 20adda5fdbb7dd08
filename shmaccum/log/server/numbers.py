# SPDX-License-Identifier: Apache-2.0
"""The numbers of a server, under the names of Kafka's broker as Prometheus' JMX exporter spells them.

The server's thread counts. A scrape asks that thread for all families, so nothing here is shared between threads.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, final

from shmaccum.common.format.topic_partition import TopicPartition

TOPIC_METRICS = "kafka_server_brokertopicmetrics_"
REQUEST_METRICS = "kafka_network_requestmetrics_"
GROUP_METRICS = "kafka_coordinator_group_groupmetadatamanager_"
MS_PER_S = 1000


class Family(NamedTuple):
    """One metric with all its values.

    Attributes:
        name: a counter when it ends in ``_total``, else a gauge.
        sentence: the meaning of the values.
        labels: their names.
        values: by the values of the labels.
    """

    name: str
    sentence: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


class GroupLag(NamedTuple):
    """A group, and the records that are left for it to consume.

    Attributes:
        group_id: the group.
        state: as DescribeGroups names it.
        lags: records behind the committed offset of each partition.
    """

    group_id: str
    state: str
    lags: Mapping[TopicPartition, int]


@final
class ServerNumbers:
    """The totals of a server since its start."""

    def __init__(self) -> None:
        self._bytes_in: Counter[str] = Counter()
        self._bytes_out: Counter[str] = Counter()
        self._messages_in: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._times_ms: defaultdict[str, float] = defaultdict(float)

    def note_produced(self, topic: str, size: int, message_count: int) -> None:
        """A client appended batches of so many bytes to a topic."""
        self._bytes_in[topic] += size
        self._messages_in[topic] += message_count

    def note_fetched(self, topic: str, size: int) -> None:
        """A client was sent so many bytes of a topic."""
        self._bytes_out[topic] += size

    def note_answered(self, api_name: str, took_s: float) -> None:
        """A request was answered; the time is that from its arrival to its answer, waiting included."""
        self._requests[api_name] += 1
        self._times_ms[api_name] += took_s * MS_PER_S

    def families(self, connection_count: int, groups: Iterable[GroupLag]) -> Iterator[Family]:
        """All of them."""
        topic, request = ("topic",), ("request",)
        yield Family(TOPIC_METRICS + "bytesin_total", "Bytes that clients produced", topic, _by_one(self._bytes_in))
        yield Family(TOPIC_METRICS + "bytesout_total", "Bytes that clients fetched", topic, _by_one(self._bytes_out))
        yield Family(
            TOPIC_METRICS + "messagesin_total", "Records that clients produced", topic, _by_one(self._messages_in)
        )
        yield Family(REQUEST_METRICS + "requests_total", "Requests answered", request, _by_one(self._requests))
        yield Family(
            REQUEST_METRICS + "totaltimems_total",
            "Milliseconds from the arrival of requests to their answers, waiting included",
            request,
            _by_one(self._times_ms),
        )
        yield Family(
            "kafka_server_socketservermetrics_connection_count", "Clients connected", (), {(): connection_count}
        )
        yield from _group_families(groups)


def _by_one(values: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(label,): value for label, value in values.items()}


def _group_families(groups: Iterable[GroupLag]) -> Iterator[Family]:
    states: Counter[tuple[str, ...]] = Counter()
    lags: dict[tuple[str, ...], float] = {}
    for group in groups:
        states[group.state,] += 1
        for place, lag in group.lags.items():
            lags[group.group_id, place.topic, str(place.partition)] = lag
    yield Family(GROUP_METRICS + "numgroups", "Consumer groups by state", ("state",), dict(states))
    yield Family(
        "kafka_consumergroup_lag",
        "Records behind the committed offset of a group",
        ("group", "topic", "partition"),
        lags,
    )
