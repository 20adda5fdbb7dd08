# SPDX-License-Identifier: Apache-2.0
"""The files of a log directory and their names, which are Kafka's (LogFileUtils, UnifiedLog).

::

    DIRECTORY/
      .lock                                   the writer's lock, and its process
      meta.properties                         uuid of the directory
      producer-ids                            the next producer id to assign
      recovery-point-offset-checkpoint        everything below these offsets was synced
      log-start-offset-checkpoint             the records below these offsets were deleted
      topic-settings.json                     the settings of individual topics (topic_settings)
      .staging/                               logs of attempts whose records are not visible yet (staging)
      .transactions/                          the decisions about them, and their progress (transactions)
      .groups/                                the offsets of consumer groups (shmaccum/log/groups)
      transactional-ids                       the states of transactional ids (shmaccum/log/server/transactions_file)
      transactional-arenas                    the arenas that write transactions
      (shmaccum/sender/sinks/log_transactions)
      .shipping/                              the progress of shipping the log to a sink (shipped)
      staging-for-kafka                       marks a directory in which tasks stage for a Kafka cluster (staging)
      .overflow/                              in an overflow: its batches in the arena (shmaccum/sender/spill_file)
      flights-0/                              topic "flights", partition 0
        00000000000000000000.log              a segment: record batches, as on the wire, from this base offset on
        00000000000000000000.index            offset -> position, one entry about every 4 KiB
        00000000000000000000.timeindex        timestamp -> offset
        00000000000000000000.txnindex         the aborted transactions whose marker is in it (transaction_index)
        00000000000000004711.log              the active segment
        00000000000000004711.index
        00000000000000004711.timeindex
        00000000000000004711.snapshot         the producers' last sequences and open transactions, below this offset
        leader-epoch-checkpoint               the first offset of each epoch (leader_epochs)
        partition.metadata                    the id of the topic
      unfinished-0.000...-delete/             the folder of a partition that is being created (partition_folders)
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files.regular_files import open_regular

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TRANSACTION_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
TEMPORARY = ".tmp"
OF_A_SEGMENT = (LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX)

LOCK_FILE = ".lock"
META_FILE = "meta.properties"
META_UUID_KEY = "directory.id"
META_VERSION_KEY = "shmaccum.version"
PRODUCER_IDS_FILE = "producer-ids"
RECOVERY_POINTS_FILE = "recovery-point-offset-checkpoint"
START_OFFSETS_FILE = "log-start-offset-checkpoint"
TOPIC_SETTINGS_FILE = "topic-settings.json"
TRANSACTIONAL_IDS_FILE = "transactional-ids"
TRANSACTIONAL_ARENAS_FILE = "transactional-arenas"
STAGING_FOR_KAFKA_FILE = "staging-for-kafka"
LEADER_EPOCHS_FILE = "leader-epoch-checkpoint"
PARTITION_METADATA_FILE = "partition.metadata"
STAGING_FOLDER = ".staging"
TRANSACTIONS_FOLDER = ".transactions"
GROUPS_FOLDER = ".groups"
SHIPPING_FOLDER = ".shipping"
OVERFLOW_FOLDER = ".overflow"

OF_A_NEW_DIRECTORY = {LOCK_FILE, META_FILE + TEMPORARY, STAGING_FOLDER, TRANSACTIONS_FOLDER, GROUPS_FOLDER}

OFFSET_DIGITS = 20
TOPIC_SIZE_MAX = 249
TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
PARTITION_FOLDER = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})")
OFFSET_FILE = re.compile(r"[0-9]{20}")
OFFSET_MAX = 2**62
"""No log reaches this offset. A file with a larger number is not a segment, and later offsets fit into 64 bits."""


def check_topic(topic: str) -> None:
    """Reject a topic name that Kafka rejects, because it is used as the name of a folder.

    Raises:
        InvalidArgumentError: if it is empty, too long, or has characters other than ``[a-zA-Z0-9._-]``.
    """
    if not TOPIC.fullmatch(topic) or topic in {".", ".."} or len(topic) > TOPIC_SIZE_MAX:
        raise InvalidArgumentError(
            f"{topic!r} cannot be a topic of a segment log: use at most {TOPIC_SIZE_MAX} of a-z A-Z 0-9 . _ -"
        )


def parse_folder(name: str) -> TopicPartition | None:
    """The partition for the name of a folder, or None for another name."""
    match = PARTITION_FOLDER.fullmatch(name)
    return TopicPartition(match["topic"], int(match["partition"])) if match else None


def offset_file(folder: str, offset: int, suffix: str) -> str:
    """The path of a file that is named by an offset."""
    return os.path.join(folder, f"{offset:0{OFFSET_DIGITS}d}{suffix}")


def offsets_with(folder: str, suffix: str) -> list[int]:
    """The offsets of all files of a folder that have this suffix, ascending."""
    return sorted(_offsets_with(folder, suffix))


def _offsets_with(folder: str, suffix: str) -> Iterator[int]:
    for name in os.listdir(folder):
        stem, dot, found = name.partition(".")
        if dot + found == suffix and OFFSET_FILE.fullmatch(stem) and int(stem) <= OFFSET_MAX:
            yield int(stem)


def foreign_files_in(directory: str) -> list[str]:
    """The files of a directory that do not belong to a log."""
    if os.path.lexists(os.path.join(directory, META_FILE)):
        return []
    return sorted(set(os.listdir(directory)) - OF_A_NEW_DIRECTORY)


def is_shmaccum_log(directory: str) -> bool:
    """True if shmaccum created the directory: its ``meta.properties`` has a key that a broker's does not have."""
    path = os.path.join(directory, META_FILE)
    try:
        with open(path, encoding="utf-8", errors="replace", opener=open_regular) as file:
            return any(line.startswith(META_VERSION_KEY + "=") for line in file)
    except FileNotFoundError:
        return False
