# SPDX-License-Identifier: Apache-2.0
"""The folders of the partitions: which partitions a directory has, and how a folder is created.

Rule for writers: a folder is created as `UNFINISHED`, gets its files, and is renamed to its final name at the end.
The lock admits one writer, so there is at most one such folder. If a writer dies, the next one removes it. Kafka's
LogManager treats a folder of this name as one that is to be deleted.

Rules for readers: a folder without a topic id and without a segment does not exist yet. The highest folder of a topic
is created first, and determines the number of partitions. A lower partition without a folder exists, and is empty.
These two rules apply to logs of shmaccum. A broker has the folders of some partitions only, and each of them counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import LOG, is_shmaccum_log, offsets_with, parse_folder
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.small_files import make_partition_files, read_topic_id

UNFINISHED = f"unfinished-0.{'0' * 32}-delete"
"""The name of a folder that its writer is creating."""
SETTLED_NS = 10**9
LISTED_MAX = 64
"""The number of directories whose partitions this process caches."""
FOLDERLESS_MAX = 10_000
"""If a topic lacks more folders, it was not created by shmaccum, and has only the partitions with folders."""


@dataclass
class _Listing:
    """The partitions of a directory, and the folders that are known to be complete, by name and inode."""

    key: tuple[int, int, int] | None
    places: tuple[TopicPartition, ...]
    whole: set[tuple[str, int]] = field(default_factory=set)


_listed_before: dict[str, _Listing] = {}


def partitions_of(directory: str) -> list[TopicPartition]:
    """Every partition of a directory, sorted. The module docstring has the rules.

    The result is cached until the directory's modification time changes. It is not cached if the time is so recent
    that a later change could leave it the same, or if a folder is incomplete: completing it does not change the time.
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
    """The present partitions, and those whose folder is incomplete."""
    known = set() if former is None else former.whole
    with os.scandir(directory) as entries:
        found = {place: (entry.name, entry.inode()) for entry in entries if (place := _partition_of(entry))}
    new = {place for place, folder in found.items() if folder not in known}
    begun = {place for place in new if not _is_whole(os.path.join(directory, found[place][0]))}
    lacking = _missing_partitions(found.keys() - begun)
    if (begun or lacking) and not is_shmaccum_log(directory):
        begun, lacking = set(), []
    places = tuple(sorted([*(found.keys() - begun), *lacking]))
    return _Listing(None, places, {folder for place, folder in found.items() if place not in begun}), begun


def _partition_of(entry: os.DirEntry[str]) -> TopicPartition | None:
    return parse_folder(entry.name) if entry.is_dir() else None


def _is_whole(folder: str) -> bool:
    """True if the folder of a partition has a topic id or a segment. False if it was deleted."""
    try:
        return read_topic_id(folder) is not None or bool(offsets_with(folder, LOG))
    except FileNotFoundError:
        return False


def _missing_partitions(found: Collection[TopicPartition]) -> list[TopicPartition]:
    """The partitions without a folder, below the highest one of their topic."""
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
    """The id of a topic, from the first of its folders that has one, or None.

    Raises:
        OSError: if a file cannot be read.
    """
    folders = (os.path.join(directory, str(TopicPartition(topic, number))) for number in range(partition_count))
    return next((found for found in map(read_topic_id, folders) if found is not None), None)


def make_partition_folder(folder: str, topic_id: bytes, *, is_synced: bool = False) -> None:
    """Create the folder of a partition, or complete one of an earlier version. Only for the writer of the log.

    Args:
        folder: the path of the folder.
        topic_id: the id of its topic.
        is_synced: If True, the files are on disk before the folder gets its name. The caller syncs the directory.

    Raises:
        OSError: if the folder was not created, or is incomplete.
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
    """Remove the unfinished folder of a dead writer. Only for the writer of the log.

    Raises:
        OSError: if it still exists.
    """
    from shutil import rmtree  # slow to import, and there is seldom such a folder

    unfinished = os.path.join(directory, UNFINISHED)
    if os.path.lexists(unfinished):
        rmtree(unfinished)
