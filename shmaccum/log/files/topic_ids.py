# SPDX-License-Identifier: Apache-2.0
"""The ids of the topics of a log directory, for readers that store data about a topic.

A topic that is deleted and created again has the same name and another id (KIP-516). So an offset or a position is
stored with the id of its topic, and is valid only for a topic with that id.

Rule: an offset is hidden or deleted only if it provably belongs to a former topic. The proof is another id, or a log
without a folder of this name. If the id of a topic cannot be read because its file is damaged, the topic counts as the
same. If the log itself cannot be read, the caller gets an error: a server returns an error that clients retry.
"""

from __future__ import annotations

import os
from typing import NamedTuple, final

from shmaccum.log.files.file_names import PARTITION_METADATA_FILE
from shmaccum.log.files.partition_folders import partitions_of
from shmaccum.log.files.small_files import read_topic_id


class _KnownIds(NamedTuple):
    path: str
    key: tuple[int, int, int]
    topic_id: bytes


@final
class TopicIds:
    """The ids of topics. A look-up costs one system call if the topic's file is unchanged.

    Args:
        directory: the path of the log.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._known: dict[str, _KnownIds] = {}

    def of(self, topic: str) -> bytes | None:
        """The id of a topic, or None if the topic does not exist or none of its folders has an id."""
        known = self._known.get(topic)
        if known is None or _key(known.path) != known.key:
            self._known.pop(topic, None)
            self._find(topic)
            known = self._known.get(topic)
        return None if known is None else known.topic_id

    def is_another(self, topic: str, topic_id: bytes) -> bool:
        """True if this name provably belongs to a topic with another id, or to no topic.

        Raises:
            OSError: if the log cannot be read.
        """
        found = self.of(topic)
        if found is None:
            if not any(place.topic == topic for place in partitions_of(self._directory)):
                return True
            found = self.of(topic)  # it may have been created between the two look-ups
        return found is not None and found != topic_id

    def _find(self, topic: str) -> None:
        try:
            places = [place for place in partitions_of(self._directory) if place.topic == topic]
        except FileNotFoundError:
            return
        for place in places:
            folder = os.path.join(self._directory, str(place))
            path = os.path.join(folder, PARTITION_METADATA_FILE)
            key, topic_id = _key(path), read_topic_id(folder)
            if key is not None and topic_id is not None:
                self._known[topic] = _KnownIds(path, key, topic_id)
                return


def _key(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
