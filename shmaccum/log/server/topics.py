# SPDX-License-Identifier: Apache-2.0
"""The topics of a served log, by name and by id, and the end of each partition.

The directory is authoritative, because a sender may create topics while a server reads. So names are read from it when
all topics or an unknown topic are requested, and cached otherwise.
"""

from __future__ import annotations

import os
import uuid
from typing import final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import START_OFFSETS_FILE
from shmaccum.log.files.leader_epochs import LeaderEpochs
from shmaccum.log.files.partition_folders import partitions_of, topic_id_in
from shmaccum.log.files.small_files import read_offsets_checkpoint
from shmaccum.log.server.log_heads import LogHead, OpenFiles

NO_TOPIC_ID = uuid.UUID(int=0)
TopicKey = str | bytes
"""The name of a topic, or the 16 bytes of its id."""


@final
class LogTopics:
    """The topics of a log directory.

    Attributes:
        directory: the path of the log.
        files: the open files of all partitions.
        heads: the partitions that were requested, by topic name and by topic id.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.files = OpenFiles()
        self._counts: dict[str, int] = {}
        self._ids: dict[str, uuid.UUID] = {}
        self._names: dict[bytes, str] = {}
        self.heads: dict[tuple[TopicKey, int], LogHead] = {}
        self._places: list[TopicPartition] = []
        self._epochs: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        self.retain()

    def refresh(self) -> None:
        """Reads the directory again, unless it is unchanged."""
        places = partitions_of(self.directory)
        for head in set(self.heads.values()):
            if not head.has_its_name():  # it was deleted, recreated or replaced
                self._forget(head.place.topic)
                self._places = []
        if places == self._places:
            return
        self._places = places
        counts: dict[str, int] = {}
        for place in places:
            counts[place.topic] = max(counts.get(place.topic, 0), place.partition + 1)
        for gone in self._counts.keys() - counts.keys():
            self._forget(gone)
        self._counts = counts

    def _forget(self, topic: str) -> None:
        """Drops a deleted topic. A later topic of the same name is a different one."""
        topic_id = self._ids.pop(topic, None)
        if topic_id is not None:
            self._names.pop(topic_id.bytes, None)
        for key in [key for key, head in self.heads.items() if head.place.topic == topic]:
            self.files.forget(self.heads.pop(key).folder)

    def forget(self, topic: str) -> None:
        """Drops a topic that this server deleted."""
        self._counts.pop(topic, None)
        self._places = []
        self._forget(topic)

    def names(self) -> list[str]:
        """Returns the names of all topics, sorted."""
        self.refresh()
        return sorted(self._counts)

    def partition_count(self, topic: str) -> int:
        """Returns the number of partitions of a topic, or 0 if it does not exist."""
        if topic not in self._counts:
            self.refresh()
        return self._counts.get(topic, 0)

    def total_count(self) -> int:
        """Returns the number of partitions of all topics at the last read of the directory."""
        return sum(self._counts.values())

    def topic_id(self, topic: str) -> uuid.UUID:
        """Returns the id of a topic, or zero if none of its folders has it."""
        found = self._ids.get(topic)
        if found is None:
            written = topic_id_in(self.directory, topic, self.partition_count(topic))
            if written is None:
                return NO_TOPIC_ID
            found = uuid.UUID(bytes=written)
            self._ids[topic], self._names[written] = found, topic
        return found

    def name_of(self, topic_id: uuid.UUID | None) -> str | None:
        """Returns the topic that has this id, or None. None stands for the zero id in a decoded request."""
        return None if topic_id is None else self.name_of_key(topic_id.bytes)

    def name_of_key(self, topic: TopicKey) -> str | None:
        """Returns the name for a key, or None if no topic has this id."""
        if isinstance(topic, str):
            return topic
        if topic not in self._names:
            for each in self.names():
                self.topic_id(each)
        return self._names.get(topic)

    def head(self, topic: TopicKey, partition: int) -> LogHead | None:
        """Returns one partition, or None if it does not exist.

        Raises:
            OSError: the partition cannot be read.
        """
        return self.heads.get((topic, partition)) or self._new_head(topic, partition)

    def _new_head(self, topic: TopicKey, partition: int) -> LogHead | None:
        name = self.name_of_key(topic)
        if name is None or not 0 <= partition < self.partition_count(name):
            return None
        place = TopicPartition(name, partition)
        head = self.heads.get(place)
        if head is None:
            head = LogHead(self.directory, place, self.files)
            head.start_at(self._starts.get(place, 0))
        self.heads[place] = self.heads[topic, partition] = head
        return head

    def leader_epoch(self, place: TopicPartition) -> int:
        """Returns the latest leader epoch of a partition."""
        head = self.heads.get(place)
        if head is not None:
            return head.epochs.latest
        if place not in self._epochs:
            self._epochs[place] = LeaderEpochs(os.path.join(self.directory, str(place))).latest
        return self._epochs[place]

    def retain(self) -> None:
        """Applies deletions by retention or by clients. Called periodically.

        Raises:
            OSError: the log cannot be read.
        """
        self.refresh()
        starts = read_offsets_checkpoint(os.path.join(self.directory, START_OFFSETS_FILE))
        for head in set(self.heads.values()):
            head.start_at(starts.get(head.place, 0))
        self._starts = starts
        self._epochs.clear()
