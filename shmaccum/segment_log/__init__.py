# SPDX-License-Identifier: Apache-2.0
"""Logs in Kafka's on-disk format: written by one process, read by any.

::

    with LogDirectory("/data/log") as directory:                        # the sink log:DIR does this
        directory.create_topic("flights", 4)
        directory.partition("flights", 0).append(batches)

    partition = LogReader("/data/log").partition("flights", 0)
    for record in partition.records(offset=4711):
        print(record.offset, record.timestamp_ms, record.key, record.value, record.headers)

The files: `file_names` (what lies where), `lock_file` (the right to write), `segment` and `index_file` (the bytes),
`producer_state` (duplicates), `partition_log` (append, roll, retain), `recovery` (after a death), `directory` (all
partitions; the one writer).
Records that are to be seen all or not at all: `transactions` (who decides), `staging` (an attempt), `applying` (the
writer), `transaction_files` (the states).
Reading: `segment_view` (a file that may still grow), `reader` (partitions, offsets, time), `log_batch`, `codecs`,
`log_watch` (hears of appends).
"""

from shmaccum.format.topic_partition import TopicPartition
from shmaccum.segment_log.broker_error import BrokerError
from shmaccum.segment_log.directory import LogDirectory
from shmaccum.segment_log.inspection import LogFinding, check_log
from shmaccum.segment_log.log_batch import LogBatch, LogRecord
from shmaccum.segment_log.partition_log import Outcome, PartitionLog
from shmaccum.segment_log.producer_state import Appendable, Refusal
from shmaccum.segment_log.reader import Cursor, LogReader, OffsetAndTimestamp, PartitionReader
from shmaccum.segment_log.staging import StagedAttempt
from shmaccum.segment_log.transaction_files import TransactionId, Winner

__all__ = [
    "Appendable",
    "BrokerError",
    "Cursor",
    "LogBatch",
    "LogDirectory",
    "LogFinding",
    "LogReader",
    "LogRecord",
    "OffsetAndTimestamp",
    "Outcome",
    "PartitionLog",
    "PartitionReader",
    "Refusal",
    "StagedAttempt",
    "TopicPartition",
    "TransactionId",
    "Winner",
    "check_log",
]
