# SPDX-License-Identifier: Apache-2.0
"""The metrics of a server, under the names of Kafka's broker as spelled by Prometheus' JMX exporter.

The server's thread counts. A scrape asks that thread for all families, so no state here is shared between threads.
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
        name: ends in ``_total`` for a counter; otherwise, it is a gauge.
        sentence: the meaning of the values.
        labels: the names of the labels.
        values: the values by label values.
    """

    name: str
    sentence: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]


class GroupLag(NamedTuple):
    """A group and its lag.

    Attributes:
        group_id: the group.
        state: the state as in DescribeGroups.
        lags: the number of records after the committed offset, by partition.
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

    def count_produced(self, topic: str, size: int, message_count: int) -> None:
        """Counts batches that a client appended to a topic."""
        self._bytes_in[topic] += size
        self._messages_in[topic] += message_count

    def count_fetched(self, topic: str, size: int) -> None:
        """Counts bytes of a topic that were sent to a client."""
        self._bytes_out[topic] += size

    def count_answered(self, api_name: str, took_s: float) -> None:
        """Counts a request. The time is that from its arrival to its response, including waits."""
        self._requests[api_name] += 1
        self._times_ms[api_name] += took_s * MS_PER_S

    def families(self, connection_count: int, groups: Iterable[GroupLag]) -> Iterator[Family]:
        """Yields all metrics."""
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
        "Records after the committed offset of a group",
        ("group", "topic", "partition"),
        lags,
    )
