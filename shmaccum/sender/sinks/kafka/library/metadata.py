# SPDX-License-Identifier: Apache-2.0
"""The library's metadata of the cluster, extended by errors of topics, and protected from outdated leaders."""

from __future__ import annotations

from typing import Any

from kafka.cluster import ClusterMetadata
from kafka.protocol.metadata import MetadataResponse
from kafka.util import ensure_valid_topic_name

from shmaccum.common import clock


class TopicErrorMetadata(ClusterMetadata):  # type: ignore[misc]
    """Cluster metadata that remembers the errors of topics."""

    def __init__(self, **configs: Any) -> None:
        super().__init__(**configs)
        self.topic_errors: dict[str, int] = {}
        self.update_count = 0
        self._asked_topics: frozenset[str] = frozenset()

    @property
    def age_s(self) -> float:
        """Seconds since the last metadata; 0 before the first."""
        refreshed_ms: float = self._last_successful_refresh_ms
        return max(clock.monotonic() - refreshed_ms / 1000, 0.0) if refreshed_ms else 0.0

    def metadata_request(self) -> Any:
        """Return the next request, and remember its topics."""
        self._asked_topics = frozenset(self._topics)
        return super().metadata_request()

    def update_metadata(self, metadata: Any) -> None:
        """Apply a response, except for leaders of which newer ones are known."""
        self._keep_newer_leaders(metadata)
        self.update_count += 1
        self.topic_errors = {topic.name: topic.error_code for topic in metadata.topics if topic.error_code}
        super().update_metadata(metadata)
        # The library treats a response as the answer to every request, even if a topic was added while it was in
        # flight. New topics do not wait for the backoff. (Metadata.java, requestUpdateForNewTopics)
        if not self._topics <= self._asked_topics:
            self._last_refresh_ms = 0
            self.request_update()

    def _keep_newer_leaders(self, metadata: Any) -> None:
        """Replace outdated leaders in a response of a broker that lags. The library would apply them.

        Epochs of different topics are not comparable, even if the topics have had the same name. (Metadata.java,
        updateLatestMetadata)
        """
        for topic in metadata.topics:
            if topic.topic_id and topic.topic_id == self.topic_id(topic.name):
                known = self._partitions.get(topic.name, {})
                for partition in topic.partitions:
                    former = known.get(partition.partition_index, partition)
                    if 0 <= partition.leader_epoch < former.leader_epoch:
                        partition.leader_id, partition.leader_epoch = former.leader_id, former.leader_epoch

    def watch(self, topic: str) -> None:
        """Include the topic in requests. Raise ValueError if Kafka does not allow its name."""
        if topic in self._topics:
            return
        if self._manager.bootstrapped:
            self.add_topic(topic)
        else:
            ensure_valid_topic_name(topic)
            self._topics.add(topic)

    def unwatch(self, topic: str) -> None:
        """Remove the topic from requests."""
        self._topics.discard(topic)
        self.topic_errors.pop(topic, None)

    def add_node(self, node: tuple[int, str, int, str | None]) -> None:
        """Add a broker that is not in the metadata yet (KIP-951)."""
        self._brokers.setdefault(node[0], MetadataResponse.MetadataResponseBroker(*node))
