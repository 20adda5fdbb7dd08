# SPDX-License-Identifier: Apache-2.0
"""Logs in Kafka's on-disk format, with one writer and any number of readers.

::

    with LogDirectory("/data/log") as directory:                        # the sink log:DIR does this
        directory.create_topic("flights", 4)
        directory.partition("flights", 0).append(batches)

    partition = LogReader("/data/log").partition("flights", 0)
    for record in partition.records(offset=4711):
        print(record.offset, record.timestamp_ms, record.key, record.value, record.headers)

Write: `directory` (all partitions; the one writer), `partition_log` (append, roll, retain), `segment`, `log_file` and
`index_file` (the bytes), `append_time` (LogAppendTime), `record_writer` (batches from records), `duplicates` and
`producer_state` (duplicate batches), `leader_epochs`, `topic_settings`, `topic_ids`, `writer_level` (when the writer
syncs), `shipping_positions` (how far a log was shipped), `broker_error` (the codes of rejections).
Files: `file_names` (the layout of a directory), `partition_folders`, `small_files`, `regular_files` (no blocking open),
`lock_file` and `lock_descriptor` (the right to write), `permissions`.
After a death: `recovery`, `walk` (batches past damage), `inspection` (damage, for people).
Records that become visible together: `transactions` (the decision), `staging` (an attempt), `transaction_applier`
(the writer), `transaction_files` (the states). For Kafka's transactions: `transaction_index`, `transaction_marker`,
`open_transactions`, `transaction_view` (for readers).
Read: `reader` (partitions, offsets, time), `start` (where reading starts), `segment_view` (a file that may still
grow), `log_batch`, `codecs`, `columns` (records as arrays), `record_times`, `log_watch` (detects appends),
`record_sync` (forces records to disk before a commit).
"""

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.inspection import LogFinding, check_log
from shmaccum.log.files.log_batch import LogBatch, LogRecord
from shmaccum.log.files.partition_log import Outcome, PartitionLog
from shmaccum.log.files.producer_state import Appendable, Rejection
from shmaccum.log.files.reader import Cursor, LogReader, OffsetAndTimestamp, PartitionReader
from shmaccum.log.files.staging import StagedAttempt
from shmaccum.log.files.transaction_files import TransactionId, Winner

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
    "Rejection",
    "StagedAttempt",
    "TopicPartition",
    "TransactionId",
    "Winner",
    "check_log",
]
