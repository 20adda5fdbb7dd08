# SPDX-License-Identifier: Apache-2.0
"""One Kafka producer per host, shared by every Python process through memory.

Exceptions are imported with the package. Every other public name is imported when it is first used, so a process that
only produces never loads the sender.
"""

import importlib
from typing import TYPE_CHECKING, Any

from shmaccum.common import former_names
from shmaccum.exceptions import (
    ArenaBusyError,
    ArenaClosedError,
    ArenaError,
    ArenaExistsError,
    ArenaForbiddenError,
    ArenaInUseError,
    ArenaNotFoundError,
    ArenaPoisonedError,
    ArenaReadOnlyError,
    ArenaRemovedError,
    BatchCompletedError,
    BatchInUseError,
    BufferExhaustedError,
    CodecMissingError,
    CommitFailedError,
    ConsumerClosedError,
    ConsumerError,
    ConsumerStateError,
    CorruptArenaError,
    CorruptLogError,
    DeliveryAbortedError,
    DeliveryError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    FlushTimeoutError,
    GroupBusyError,
    GroupInUseError,
    GroupModeError,
    InvalidArgumentError,
    LayoutMismatchError,
    LogBusyError,
    LogError,
    LogForbiddenError,
    LogLostError,
    LogPartitionNotFoundError,
    NoOffsetForPartitionError,
    NoPartitionEntryError,
    NoProcessEntryError,
    NotALogError,
    NotAnArenaError,
    NotARegularFileError,
    NoTransactionError,
    NotSenderError,
    NoWaiterEntryError,
    OffsetOutOfRangeError,
    OtherSinkError,
    PackageMissingError,
    PartitionCountUnknownError,
    ProcessShareUsedError,
    ProducerClosedError,
    ProducerFencedError,
    RecordCorruptError,
    RecordDeserializationError,
    RecordTooLargeError,
    ResultExpiredError,
    ResultPendingError,
    SenderBusyError,
    SenderNotStartedError,
    ServerUnreachableError,
    ShmaccumError,
    StagingLostError,
    SyncTimeoutError,
    TableFullError,
    TransactionEndedError,
    TransactionNotAppliedError,
    TransactionOutcomeUnknownError,
    TransactionOverError,
    TruncatedArenaError,
    UnfinishedArenaError,
    UnknownPartitionError,
    UnknownTopicError,
)

if TYPE_CHECKING:
    from shmaccum._native import DeliveryFuture
    from shmaccum.arena import Arena, ArenaStatistics, VerifyDepth
    from shmaccum.arena.results import BatchResult
    from shmaccum.common.format.topic_partition import TopicPartition
    from shmaccum.config import (
        ArenaOptions,
        ConsumerOptions,
        KafkaSinkOptions,
        LogSinkOptions,
        PlacelessSinkOptions,
        ProducerOptions,
        SenderOptions,
        ServerOptions,
        ShipperOptions,
        SparkSinkOptions,
        SparkSourceOptions,
    )
    from shmaccum.log.consumer import Consumer, ConsumerRecord, OffsetAndMetadata
    from shmaccum.producer.deliveries import Deliveries, DeliveryCounts, OffsetRange
    from shmaccum.producer.delivery import RecordMetadata
    from shmaccum.producer.transaction import Transaction
    from shmaccum.relay import Relay
    from shmaccum.sender import Sender
    from shmaccum.sender.shipping import Shipper, ShippingProgress
    from shmaccum.sender.sinks import open_sink
    from shmaccum.supervisor import ensure_sender
    from shmaccum.supervisor.kept_producer import Producer

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "ArenaBusyError",
    "ArenaClosedError",
    "ArenaError",
    "ArenaExistsError",
    "ArenaForbiddenError",
    "ArenaInUseError",
    "ArenaNotFoundError",
    "ArenaOptions",
    "ArenaPoisonedError",
    "ArenaReadOnlyError",
    "ArenaRemovedError",
    "ArenaStatistics",
    "BatchCompletedError",
    "BatchInUseError",
    "BatchResult",
    "BufferExhaustedError",
    "CodecMissingError",
    "CommitFailedError",
    "Consumer",
    "ConsumerClosedError",
    "ConsumerError",
    "ConsumerOptions",
    "ConsumerRecord",
    "ConsumerStateError",
    "CorruptArenaError",
    "CorruptLogError",
    "Deliveries",
    "DeliveryAbortedError",
    "DeliveryCounts",
    "DeliveryError",
    "DeliveryFailedError",
    "DeliveryFuture",
    "DeliveryTimeoutError",
    "FlushTimeoutError",
    "GroupBusyError",
    "GroupInUseError",
    "GroupModeError",
    "InvalidArgumentError",
    "KafkaSinkOptions",
    "LayoutMismatchError",
    "LogBusyError",
    "LogError",
    "LogForbiddenError",
    "LogLostError",
    "LogPartitionNotFoundError",
    "LogSinkOptions",
    "NoOffsetForPartitionError",
    "NoPartitionEntryError",
    "NoProcessEntryError",
    "NoTransactionError",
    "NoWaiterEntryError",
    "NotALogError",
    "NotARegularFileError",
    "NotAnArenaError",
    "NotSenderError",
    "OffsetAndMetadata",
    "OffsetOutOfRangeError",
    "OffsetRange",
    "OtherSinkError",
    "PackageMissingError",
    "PartitionCountUnknownError",
    "PlacelessSinkOptions",
    "ProcessShareUsedError",
    "Producer",
    "ProducerClosedError",
    "ProducerFencedError",
    "ProducerOptions",
    "RecordCorruptError",
    "RecordDeserializationError",
    "RecordMetadata",
    "RecordTooLargeError",
    "Relay",
    "ResultExpiredError",
    "ResultPendingError",
    "Sender",
    "SenderBusyError",
    "SenderNotStartedError",
    "SenderOptions",
    "ServerOptions",
    "ServerUnreachableError",
    "Shipper",
    "ShipperOptions",
    "ShippingProgress",
    "ShmaccumError",
    "SparkSinkOptions",
    "SparkSourceOptions",
    "StagingLostError",
    "SyncTimeoutError",
    "TableFullError",
    "TopicPartition",
    "Transaction",
    "TransactionEndedError",
    "TransactionNotAppliedError",
    "TransactionOutcomeUnknownError",
    "TransactionOverError",
    "TruncatedArenaError",
    "UnfinishedArenaError",
    "UnknownPartitionError",
    "UnknownTopicError",
    "VerifyDepth",
    "__version__",
    "ensure_sender",
    "open_sink",
]

_HOMES = {
    "DeliveryFuture": "shmaccum._native",
    "BatchResult": "shmaccum.arena.results",
    "Arena": "shmaccum.arena",
    "ArenaStatistics": "shmaccum.arena",
    "VerifyDepth": "shmaccum.arena",
    "ArenaOptions": "shmaccum.config",
    "ConsumerOptions": "shmaccum.config",
    "KafkaSinkOptions": "shmaccum.config",
    "LogSinkOptions": "shmaccum.config",
    "PlacelessSinkOptions": "shmaccum.config",
    "ProducerOptions": "shmaccum.config",
    "SenderOptions": "shmaccum.config",
    "ServerOptions": "shmaccum.config",
    "ShipperOptions": "shmaccum.config",
    "SparkSinkOptions": "shmaccum.config",
    "SparkSourceOptions": "shmaccum.config",
    "Consumer": "shmaccum.log.consumer",
    "ConsumerRecord": "shmaccum.log.consumer",
    "OffsetAndMetadata": "shmaccum.log.consumer",
    "ensure_sender": "shmaccum.supervisor",
    "Producer": "shmaccum.supervisor.kept_producer",
    "Deliveries": "shmaccum.producer.deliveries",
    "DeliveryCounts": "shmaccum.producer.deliveries",
    "OffsetRange": "shmaccum.producer.deliveries",
    "RecordMetadata": "shmaccum.producer.delivery",
    "Transaction": "shmaccum.producer.transaction",
    "TopicPartition": "shmaccum.common.format.topic_partition",
    "Relay": "shmaccum.relay",
    "Sender": "shmaccum.sender",
    "Shipper": "shmaccum.sender.shipping",
    "ShippingProgress": "shmaccum.sender.shipping",
    "open_sink": "shmaccum.sender.sinks",
}
"""Where each name is defined that is imported when it is first used."""

former_names.install()


def __getattr__(name: str) -> Any:
    """The public name, from the module that defines it."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    """Also the names that were not used yet."""
    return sorted({*globals(), *__all__})
