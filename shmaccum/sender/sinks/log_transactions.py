# SPDX-License-Identifier: Apache-2.0
"""The transactions of an arena in the log that its sender writes.

::

    batches of the transaction ──> partitions of the log, where readers of committed records do not see them
    end ──> a marker in each partition where the transaction is open

    DIR/transactional-arenas    {transactional id: producer id of the arena that has it}

Rules: the arena decides how a transaction ends (native/arena/transaction.h), and the log stores no decision. A
transactional id belongs to the arena that got a producer id for it last. That arena fences the former one, and aborts
its open transaction.

Deaths: if a sender dies between two markers, the next one ends the transaction again. It does not know the partitions,
so it checks all partitions of the log. A partition with its marker has no open transaction.
If an arena is lost, with its host or by hand, its transaction stays open in the log until the next arena with this id
gets its producer id.
"""

from __future__ import annotations

import json
import os

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogError, LogPartitionNotFoundError, ProducerFencedError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import TRANSACTIONAL_ARENAS_FILE
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import replace_file_synced
from shmaccum.sender.sinks.sink import HostTransactions


class LogTransactions:
    """The open transaction of an arena, in the partitions of a log.

    Args:
        directory: open for writing.
        host: the transactions of the arena.
        arena_name: for messages.

    Raises:
        ProducerFencedError: another arena has the transactional_id now.
        LogError: the file of the ids is damaged.
        OSError: the file cannot be read.
    """

    def __init__(self, directory: LogDirectory, host: HostTransactions, arena_name: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory.path, TRANSACTIONAL_ARENAS_FILE)
        self._id = host.transactional_id
        self._places: set[TopicPartition] = set()
        self._is_first = True
        """True if the transaction may have been begun by a former sender, so that its partitions are not known."""
        self._check_is_ours(host, arena_name)

    def _check_is_ours(self, host: HostTransactions, arena_name: str) -> None:
        producer_id, _, identity = host.producer_identity
        owner = self._read().get(self._id)
        if producer_id >= 0 and identity == self._directory.uuid and owner not in (None, producer_id):
            raise ProducerFencedError(
                f"another arena has the transactional_id {self._id!r} of {arena_name} in {self._directory.path} "
                f"now: remove {arena_name}, or create it again with another id"
            )

    def _read(self) -> dict[str, int]:
        try:
            with open(self._path, "rb", opener=open_regular) as file:
                content = file.read()
        except FileNotFoundError:
            return {}
        try:
            return {str(name): int(producer_id) for name, producer_id in json.loads(content).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise LogError(
                f"{self._path} is damaged ({error}): remove it if no other arena writes transactions to this log"
            ) from None

    def begin_producer(self, producer_id: int) -> None:
        """Assign the arena's transactional_id to it, with this producer id.

        Raises:
            OSError, LogError: nothing was assigned; try again.
        """
        owners = self._read()
        former = owners.get(self._id)
        if former is not None:
            self._abort_former(former)
        replace_file_synced(self._path, json.dumps({**owners, self._id: producer_id}).encode())

    def _abort_former(self, producer_id: int) -> None:
        for topic in self._directory.topics():
            for partition in range(self._directory.partition_count(topic)):
                log = self._directory.partition(topic, partition)
                if _is_open(log, producer_id):
                    _mark(log, producer_id, log.producers.batches_of(producer_id)[-1].epoch, is_commit=False)

    def add(self, place: TopicPartition) -> None:
        """Note that a batch of the transaction was appended to a partition."""
        self._places.add(place)

    def end(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> None:
        """Write the missing markers.

        Raises:
            OSError: some are still missing; try again.
        """
        for topic, partition in sorted(self._every_place() if self._is_first else self._places):
            try:
                log = self._directory.partition(topic, partition)
            except LogPartitionNotFoundError:  # the topic was deleted
                continue
            if _is_open(log, producer_id):
                _mark(log, producer_id, producer_epoch, is_commit=is_commit)
        self._places.clear()
        self._is_first = False

    def _every_place(self) -> set[TopicPartition]:
        counts = {topic: self._directory.partition_count(topic) for topic in self._directory.topics()}
        return {TopicPartition(topic, partition) for topic, count in counts.items() for partition in range(count)}


def _is_open(log: PartitionLog, producer_id: int) -> bool:
    return log.producers.transactions.first_offset_of(producer_id) is not None


def _mark(log: PartitionLog, producer_id: int, producer_epoch: int, *, is_commit: bool) -> None:
    outcome = log.end_transaction(producer_id, producer_epoch, is_commit=is_commit)
    if isinstance(outcome, Rejection):
        raise OSError(outcome.errno, f"the marker of a transaction is not in {log.place}: {outcome.message}")
