# SPDX-License-Identifier: Apache-2.0
"""The exceptions that shmaccum raises.

A failed system call raises a plain ``OSError`` with its errno.

An event has its own class if callers handle it differently, or if it corresponds to a built-in exception or to an
error of a Kafka client. Other events share a class, and the message names the event. Former names of merged classes
are at the end of this file.

``shmaccum`` exports every name of this module that does not begin with an underscore.
"""

from errno import ESTALE as _ESTALE


class ShmaccumError(Exception):
    """The base class of all errors of this package."""


class InvalidArgumentError(ShmaccumError, ValueError):
    """An argument is out of range or contradicts another argument."""


class PackageMissingError(InvalidArgumentError, ImportError):
    """A required optional package is not installed. The message contains the command that installs it."""


class UnsupportedPlatformError(ShmaccumError, NotImplementedError):
    """The operating system is not Linux, so it has no arenas. The producers of ``shmaccum.compat`` work everywhere."""


class ArenaError(ShmaccumError):
    """The base class of errors about an arena as a whole."""


class ArenaExistsError(ArenaError, FileExistsError):
    """An arena with this name already exists. Attach to it, or remove it first."""


class ArenaNotFoundError(ArenaError, FileNotFoundError):
    """No arena has this name. Create it first."""


class NotAnArenaError(ArenaError):
    """The file is not an arena."""


class UnfinishedArenaError(ArenaError):
    """The arena's creator died before the arena was complete. Remove the arena and create it again."""


class LayoutMismatchError(ArenaError):
    """The arena has a different layout. Drain it with the version that created it, or remove it."""


class ArenaForbiddenError(ArenaError, PermissionError):
    """The arena belongs to another user, or its permissions are wider than this process accepts."""


class ArenaBusyError(ArenaError):
    """Another process exclusively uses what this process requested.

    The other process is the arena's sender, or has begun a transaction (an arena has one at a time), or creates or
    recovers the arena. If creation or recovery does not finish, the process is probably stopped. An append to a new
    topic raises this after ``max_block_ms`` if a process was stopped while it created another topic.
    """


class ArenaInUseError(ArenaError, BufferError):
    """The arena cannot be closed while producers, senders, batches or views of this process use it. Close these."""


class ArenaClosedError(ArenaError):
    """This process is not attached to the arena. It closed the arena, or opened it read-only. Attach to it."""


class ArenaRemovedError(ArenaError):
    """The arena was removed while this process was attached, and accepts no more records. Attach to the new arena.

    The arena's sender delivers the records that were sent before the removal, and exports the others.
    """


class ArenaPoisonedError(ArenaError):
    """An invariant of the arena is violated. The arena accepts no more work. Use ``shmaccum inspect`` to examine it."""


class CorruptArenaError(ArenaError):
    """The arena's data is inconsistent, or its file is shorter than its superblock states."""


class OtherSinkError(ArenaError):
    """The arena's running sender delivers to a different sink than the requested one. The message has the remedy."""


class TableFullError(ArenaError):
    """A table of the arena is full. Create the arena with a larger table.

    The message names the table: processes (``process_count``), waiters (``waiter_count``), or topics and partitions
    (``topic_count``, ``partition_count``, ``name_heap_size``).
    """


class BufferExhaustedError(ShmaccumError, TimeoutError):
    """No buffer became free within ``max_block_ms`` (Kafka: ``BufferExhaustedException``). Nothing was appended."""


class ProcessShareUsedError(BufferExhaustedError):
    """This process held its share of the arena (``max_process_share``) for ``max_block_ms``. Nothing was appended.

    Other processes may still append.
    """


class RecordTooLargeError(ShmaccumError, ValueError):
    """The record exceeds ``max_request_size`` or the capacity of the arena (Kafka: ``RecordTooLargeException``)."""


class NoTransactionError(ShmaccumError):
    """A record was sent to a transactional arena, or a transaction was ended, while no transaction was open."""


class TransactionEndedError(ShmaccumError):
    """The transaction that the producer joined, or tries to end, is no longer open."""


class ProducerFencedError(ShmaccumError):
    """Another arena or producer has taken over the transactional_id (Kafka: ``ProducerFencedException``)."""


class TransactionOutcomeUnknownError(ShmaccumError, TimeoutError):
    """The outcome of a commit was not known within the timeout, or the brokers do not report it."""


class ProducerClosedError(ShmaccumError):
    """The producer is closed. Create a new one. Nothing was appended."""


class UnknownPartitionError(ShmaccumError, ValueError):
    """The topic has no partition with this number. Nothing was appended."""


class PartitionCountUnknownError(ShmaccumError, TimeoutError):
    """No sender reported the topic's partition count within ``max_block_ms``. Nothing was appended."""


class FlushTimeoutError(ShmaccumError, TimeoutError):
    """Some records were not delivered, or not confirmed on disk, in time. They stay in the arena and will be sent."""


class UnknownTopicError(ShmaccumError, LookupError):
    """The sink has no topic with this name and does not create one (Kafka: ``UnknownTopicOrPartitionException``)."""


class SenderNotStartedError(ShmaccumError):
    """The arena had no sender, and starting one failed. The message contains the reason."""


class NotSenderError(ShmaccumError):
    """The operation requires the sender role. Call ``become_sender`` first.

    A batch that was drained in this role remains usable until it is completed.
    """


class BatchInUseError(ShmaccumError, BufferError):
    """Buffers of the batch are still exported. Release the memoryviews before completing the batch."""


class LogError(ShmaccumError):
    """The base class of errors about a log directory."""


class NotALogError(LogError):
    """The directory contains something other than a shmaccum log. Use a new or empty directory."""


class LogBusyError(LogError):
    """Another running process exclusively uses the log directory or the consumer group.

    Attributes:
        arena_name: the arena whose sender writes the directory. Empty if the writer is not a sender, or is unknown.
        pid: the process id that the writer recorded. Empty if it is unknown.
    """

    def __init__(self, sentence: str, arena_name: str = "", pid: str = "") -> None:
        super().__init__(sentence)
        self.arena_name = arena_name
        self.pid = pid


class GroupModeError(LogBusyError):
    """The group is in the other mode. Either a server coordinates a group, or consumers on the log's host share it."""


class LogForbiddenError(LogError, PermissionError):
    """This user may not read, or may not write, the log directory."""


class NotARegularFileError(LogError, OSError):
    """A file of the log is a FIFO, a socket, a device or a folder.

    Attributes:
        path: the path of the file.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is not a regular file, but the log needs a regular file there: remove it"


class LogLostError(LogError, OSError):
    """A path of the log no longer refers to the file or folder that its writer has open.

    Another process removed, moved, replaced or truncated it. Nothing is acknowledged until it is restored.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(_ESTALE, sentence)

    def __str__(self) -> str:
        return str(self.args[1])

    def __reduce__(self) -> tuple[type["LogLostError"], tuple[str], dict[str, object]]:
        return LogLostError, (str(self),), vars(self)


class LogPartitionNotFoundError(LogError, LookupError):
    """The log directory has no such topic or partition."""


class OffsetOutOfRangeError(LogError, LookupError):
    """The offset was deleted by retention, or is not assigned yet (Kafka: ``OffsetOutOfRangeException``)."""


class CorruptLogError(LogError):
    """Bytes of a segment are damaged.

    Attributes:
        segment: the path of the ``.log`` file.
        position: the position of the damage in the file, in bytes.
        resume_position: the position of the next whole batch, or the file size if there is none.
        next_offset: the offset of the first record after the damage, or None if only the following batches contain it.
    """

    def __init__(
        self, segment: str, position: int, resume_position: int, problem: str, next_offset: int | None = None
    ) -> None:
        super().__init__(segment, position, resume_position, problem, next_offset)
        self.next_offset = next_offset
        self.segment = segment
        self.position = position
        self.resume_position = resume_position
        self.problem = problem

    def __str__(self) -> str:
        seek = "" if self.next_offset is None else f" A consumer can seek to offset {self.next_offset} after it."
        return (
            f"{self.segment} is damaged from position {self.position} to {self.resume_position}: {self.problem}. "
            f'Read it with on_corrupt="skip" to skip the damage.{seek}'
        )


class TransactionOverError(LogError):
    """The transaction has ended and accepts no more records.

    Attributes:
        is_aborted: True if the transaction was aborted, so that none of its records are in the log.
    """

    def __init__(self, sentence: str, *, is_aborted: bool = False) -> None:
        super().__init__(sentence)
        self.is_aborted = is_aborted


class TransactionNotAppliedError(LogError):
    """Staged records of a transaction were not committed. The message states whether to repeat the commit."""


class CodecMissingError(LogError):
    """No installed package can decompress a batch."""


class ConsumerError(ShmaccumError):
    """The base class of errors of a consumer."""


class ConsumerStateError(ConsumerError):
    """The state of the consumer does not allow the call.

    The consumer is closed, belongs to the parent process, has no group, is not assigned the partition, or has no start
    position in it. In the last case, seek, or set ``auto_offset_reset``.
    """


class GroupBusyError(ConsumerError, TimeoutError):
    """Another member has been writing the group's files for too long. The member is probably stopped."""


class RecordDeserializationError(ConsumerError, ValueError):
    """A deserializer failed on a record. The consumer's position is this record. Use ``seek`` to skip it.

    Attributes:
        topic: the record's topic.
        partition: the record's partition.
        offset: the record's offset.
    """

    def __init__(self, topic: str, partition: int, offset: int, problem: str) -> None:
        super().__init__(topic, partition, offset, problem)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"the record at offset {self.offset} of {self.topic}-{self.partition} cannot be deserialized: "
            f"{self.problem}. Seek to offset {self.offset + 1} to skip the record."
        )


class DeliveryError(ShmaccumError):
    """An appended record was not delivered, or its outcome is unknown."""


class DeliveryTimeoutError(DeliveryError, TimeoutError):
    """The record was not delivered within ``delivery_timeout_ms`` (KIP-91).

    Attributes:
        timeout_ms: the sender's ``delivery_timeout_ms``, or None if no sender has published it.
        counts_always: True if all time since the record was sent counted. False if only time with a running sender and
            a working sink counted.
    """

    def __init__(self, sentence: str, timeout_ms: int | None = None, counts_always: bool = False) -> None:
        super().__init__(sentence)
        self.timeout_ms = timeout_ms
        self.counts_always = counts_always


class DeliveryFailedError(DeliveryError):
    """The sink rejected the record, its batch was damaged in memory, or a user discarded the overflow that held it.

    Attributes:
        error_code: the sink's error code (Kafka's number), or 0 if there is none.
    """

    def __init__(self, sentence: str, error_code: int = 0) -> None:
        super().__init__(sentence)
        self.error_code = error_code


class DeliveryAbortedError(DeliveryError):
    """The sender was forced to stop before it sent the record."""


class ResultExpiredError(DeliveryError):
    """The result was overwritten in the completion ring before it was read. The outcome is unknown."""


class ResultPendingError(DeliveryError, TimeoutError):
    """The result is not known yet. The record is in the arena and will be sent."""


# Former names of merged classes, which existing programs and pickles may use.
BatchCompletedError = NotSenderError
CommitFailedError = ConsumerStateError
ConsumerClosedError = ConsumerStateError
GroupInUseError = LogBusyError
NoOffsetForPartitionError = ConsumerStateError
NoPartitionEntryError = TableFullError
NoProcessEntryError = TableFullError
NoWaiterEntryError = TableFullError
ArenaReadOnlyError = ArenaClosedError
RecordCorruptError = DeliveryFailedError
SenderBusyError = ArenaBusyError
ServerUnreachableError = LogError
StagingLostError = TransactionNotAppliedError
SyncTimeoutError = FlushTimeoutError
TruncatedArenaError = CorruptArenaError
