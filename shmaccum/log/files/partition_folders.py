# SPDX-License-Identifier: Apache-2.0
"""The folders of the partitions: which partitions a directory has, and how the folder of one is made.

Rule for writers: a folder is made under `UNFINISHED`, gets its files, and is renamed to its name as the last step. The
writer's lock allows one writer, so there is one such folder at most. The next writer removes the one of a dead writer.
Kafka's LogManager takes a folder of this name for one that is to be deleted.

Rules for readers: a folder that has neither the id of its topic nor a segment does not exist yet. The highest folder of
a topic is made first, and tells how many partitions the topic has. A lower partition without a folder exists, and is
empty. Both rules hold for logs of ours. A broker's directory has the folders of some partitions, and each counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import LOG, is_ours, offsets_with, parse_folder
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.small_files import make_partition_files, read_topic_id

UNFINISHED = f"unfinished-0.{'0' * 32}-delete"
"""The name of a folder that its writer is still making."""
SETTLED_NS = 10**9
LISTED_MAX = 64
"""Directories of which this process keeps the partitions."""
FOLDERLESS_MAX = 10_000
"""A topic that lacks more folders than that was not made by us, and has the partitions that have folders."""


@dataclass
class _Listing:
    """The partitions of a directory, and the folders that were seen to be whole, by name and inode."""

    key: tuple[int, int, int] | None
    places: tuple[TopicPartition, ...]
    whole: set[tuple[str, int]] = field(default_factory=set)


_listed_before: dict[str, _Listing] = {}


def partitions_of(directory: str) -> list[TopicPartition]:
    """Every partition of a directory, in order; see the rules above.

    A directory that has not changed since the last call is not read again. Its time tells that, once it is so old that
    a further change would have another time. A folder that gets its files later does not change this time, so a
    directory with such a folder is read each time.
    """
    status = os.stat(directory)
    key = status.st_dev, status.st_ino, status.st_mtime_ns
    former = _listed_before.get(directory)
    if former is not None and former.key == key:
        return list(former.places)
    listing, begun = _listed(directory, former)
    is_settled = not begun and time.time_ns() - status.st_mtime_ns > SETTLED_NS
    listing.key = key if is_settled else None
    if len(_listed_before) >= LISTED_MAX:
        _listed_before.clear()
    _listed_before[directory] = listing
    return list(listing.places)


def _listed(directory: str, former: _Listing | None) -> tuple[_Listing, Collection[TopicPartition]]:
    """The partitions that are there now, and those whose folder is not complete."""
    known = set() if former is None else former.whole
    with os.scandir(directory) as entries:
        found = {place: (entry.name, entry.inode()) for entry in entries if (place := _partition_of(entry))}
    new = {place for place, folder in found.items() if folder not in known}
    begun = {place for place in new if not _is_whole(os.path.join(directory, found[place][0]))}
    lacking = _lacking(found.keys() - begun)
    if (begun or lacking) and not is_ours(directory):
        begun, lacking = set(), []
    places = tuple(sorted([*(found.keys() - begun), *lacking]))
    return _Listing(None, places, {folder for place, folder in found.items() if place not in begun}), begun


def _partition_of(entry: os.DirEntry[str]) -> TopicPartition | None:
    return parse_folder(entry.name) if entry.is_dir() else None


def _is_whole(folder: str) -> bool:
    """True when the folder of a partition has the id of its topic, or a segment; False when it was deleted."""
    try:
        return read_topic_id(folder) is not None or bool(offsets_with(folder, LOG))
    except FileNotFoundError:
        return False


def _lacking(found: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions that have no folder, below the highest one of their topic."""
    highest: dict[str, int] = {}
    counts: dict[str, int] = {}
    for topic, partition in found:
        highest[topic] = max(highest.get(topic, 0), partition)
        counts[topic] = counts.get(topic, 0) + 1
    return [
        place
        for topic, last in highest.items()
        if 0 <= last - counts[topic] < FOLDERLESS_MAX
        for partition in range(last)
        if (place := TopicPartition(topic, partition)) not in found
    ]


def topic_id_in(directory: str, topic: str, partition_count: int) -> bytes | None:
    """The id of a topic, from the first of its folders that has one; None when none has.

    Raises:
        OSError: a file cannot be read.
    """
    folders = (os.path.join(directory, str(TopicPartition(topic, number))) for number in range(partition_count))
    return next((found for found in map(read_topic_id, folders) if found is not None), None)


def make_partition_folder(folder: str, topic_id: bytes, *, is_synced: bool = False) -> None:
    """Makes the folder of a partition, or completes one that a former version left; for the writer of the log.

    Args:
        folder: path of the folder.
        topic_id: the id of its topic.
        is_synced: its files are on disk before it has its name. The caller syncs the directory.

    Raises:
        OSError: there is no folder of this name, or an incomplete one.
    """
    if os.path.isdir(folder):
        make_partition_files(folder, topic_id, is_synced=is_synced)
        return
    directory = os.path.dirname(folder)
    unfinished = os.path.join(directory, UNFINISHED)
    make_folder(directory)
    remove_unfinished(directory)
    make_folder(unfinished)
    make_partition_files(unfinished, topic_id, is_synced=is_synced)
    os.rename(unfinished, folder)


def remove_unfinished(directory: str) -> None:
    """Removes the folder that a dead writer was making; for the writer of the log.

    Raises:
        OSError: it is still there.
    """
    from shutil import rmtree  # slow to import, and there is seldom such a folder

    unfinished = os.path.join(directory, UNFINISHED)
    if os.path.lexists(unfinished):
        rmtree(unfinished)
