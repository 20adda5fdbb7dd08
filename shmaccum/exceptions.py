# SPDX-License-Identifier: Apache-2.0
"""Everything shmaccum raises on purpose.

A failed system call is a plain ``OSError`` with its errno.

A class of its own is an event that callers handle in a way of its own, or that another contract names: a built-in
exception, or an error of a Kafka client. Any other event shares a class, and the message names it. A name that a class
had before it was merged into another one stands at the end of this file.

``shmaccum`` exports every name of this module, so a name that is not public begins with an underscore.
"""

from errno import ESTALE as _ESTALE


class ShmaccumError(Exception):
    """Base of all errors of this package."""


class InvalidArgumentError(ShmaccumError, ValueError):
    """An argument is out of range or contradicts another one."""


class PackageMissingError(InvalidArgumentError, ImportError):
    """An optional package that a call needs is not installed; the message has the command that installs it."""


class ArenaError(ShmaccumError):
    """Something is wrong with an arena as a whole."""


class ArenaExistsError(ArenaError, FileExistsError):
    """An arena of that name exists already: attach to it, or remove it first."""


class ArenaNotFoundError(ArenaError, FileNotFoundError):
    """There is no arena of that name: create it first."""


class NotAnArenaError(ArenaError):
    """The file is something else than an arena."""


class UnfinishedArenaError(ArenaError):
    """The arena's creator died before it was finished: remove it and create it again."""


class LayoutMismatchError(ArenaError):
    """The arena has another layout: drain it with the version that made it, or remove it."""


class ArenaForbiddenError(ArenaError, PermissionError):
    """The arena belongs to another user, or is open to others without being made so on purpose."""


class ArenaBusyError(ArenaError):
    """Another process has what this one wanted alone.

    That process is the arena's sender. Or it creates or recovers the arena and does not finish, so it is probably
    stopped. Or it has begun a transaction, of which an arena has one at a time.
    """


class ArenaInUseError(ArenaError, BufferError):
    """The arena cannot be closed while accumulators, batches or views of this process use it: close those first."""


class ArenaClosedError(ArenaError):
    """This process is not attached: the arena was closed here, or was opened read-only. Attach to it."""


class ArenaRemovedError(ArenaError):
    """The arena was removed while this process was attached, so it takes no more records: attach to the new one.

    The arena's sender delivers the records that were sent before. It exports the records that it cannot deliver.
    """


class ArenaPoisonedError(ArenaError):
    """An invariant of the arena broke. It takes no more work; look at it with ``shmaccum inspect``."""


class CorruptArenaError(ArenaError):
    """Bytes in the arena contradict each other, or its file is shorter than its superblock says."""


class OtherSinkError(ArenaError):
    """The arena's living sender delivers to another sink than the one asked for; the message says what to do."""


class TableFullError(ArenaError):
    """A table of the arena is full: create the arena with a larger one.

    The message names the table: of processes (``process_count``), of waiters (``waiter_count``), or of topics and
    partitions (``topic_count``, ``partition_count``, ``name_heap_size``).
    """


class BufferExhaustedError(ShmaccumError, TimeoutError):
    """No buffer became free within ``max_block_ms`` (Kafka: ``BufferExhaustedException``). Nothing was appended."""


class ProcessShareUsedError(BufferExhaustedError):
    """This process held its share of the arena (``max_process_share``) for ``max_block_ms``. Nothing was appended.

    Others may still append.
    """


class RecordTooLargeError(ShmaccumError, ValueError):
    """The record is larger than ``max_request_size`` or the arena can hold (Kafka: ``RecordTooLargeException``)."""


class NoTransactionError(ShmaccumError):
    """A record was sent to an arena with transactions while none was open."""


class TransactionEndedError(ShmaccumError):
    """The transaction that a producer joined, or that was to be ended, is not open any more."""


class ProducerFencedError(ShmaccumError):
    """Another arena or producer has the transactional_id by now (Kafka: ``ProducerFencedException``)."""


class TransactionOutcomeUnknownError(ShmaccumError, TimeoutError):
    """The transaction is being committed, and its outcome was not known in time; or the brokers do not tell it."""


class ProducerClosedError(ShmaccumError):
    """The producer was closed: make another one. Nothing was appended."""


class UnknownPartitionError(ShmaccumError, ValueError):
    """The topic has no partition of that number. Nothing was appended."""


class PartitionCountUnknownError(ShmaccumError, TimeoutError):
    """No sender told within ``max_block_ms`` how many partitions the topic has. Nothing was appended."""


class FlushTimeoutError(ShmaccumError, TimeoutError):
    """Not everything was delivered, or known to be on disk, in time. The records stay in the arena and will be sent."""


class UnknownTopicError(ShmaccumError, LookupError):
    """The sink has no topic of that name and will not make one (Kafka: ``UnknownTopicOrPartitionException``)."""


class SenderNotStartedError(ShmaccumError):
    """A sender was to be started for an arena that had none, and did not begin: the message has its reason."""


class NotSenderError(ShmaccumError):
    """Only the process with the sender role may do this: call ``become_sender`` first.

    A batch that was drained in that role can be used until it is ended.
    """


class BatchInUseError(ShmaccumError, BufferError):
    """Buffers of the batch are still exported: release the memoryviews before the batch is ended."""


class LogError(ShmaccumError):
    """Something is wrong with a log directory."""


class NotALogError(LogError):
    """The directory holds something else than a segment log of ours: name a new or an empty one."""


class LogBusyError(LogError):
    """Another living process uses what one process at a time may change: a log directory, or a consumer group.

    Attributes:
        arena_name: of the arena whose sender writes the directory; empty where the writer is no sender, or did not say.
        pid: of the writer, as it said; empty where it did not.
    """

    def __init__(self, sentence: str, arena_name: str = "", pid: str = "") -> None:
        super().__init__(sentence)
        self.arena_name = arena_name
        self.pid = pid


class GroupModeError(LogBusyError):
    """A group has one mode at a time: a server coordinates it, or consumers on the log's host share it."""


class LogForbiddenError(LogError, PermissionError):
    """This user may not write, or not read, the log directory."""


class NotARegularFileError(LogError, OSError):
    """A FIFO, a socket, a device or a folder has the name of a file of the log.

    Attributes:
        path: of it.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is no regular file, and a log has only those under such names: remove it"


class LogLostError(LogError, OSError):
    """A name of the log does not lead any more to the file or folder that its writer has open.

    Somebody removed, moved, replaced or cut it. Nothing is acknowledged until it is there again.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(_ESTALE, sentence)

    def __str__(self) -> str:
        return str(self.args[1])

    def __reduce__(self) -> tuple[type["LogLostError"], tuple[str]]:
        return LogLostError, (str(self),)


class LogPartitionNotFoundError(LogError, LookupError):
    """The log directory has no such topic or partition."""


class OffsetOutOfRangeError(LogError, LookupError):
    """The offset was retained away already, or was not given out yet (Kafka: ``OffsetOutOfRangeException``)."""


class CorruptLogError(LogError):
    """Bytes of a segment are damaged.

    Attributes:
        segment: path of the ``.log`` file.
        position: where in it the damage begins, in bytes.
        resume_position: where whole batches go on after it; the file's size when none does.
        next_offset: the offset of the record after the damage; None where only the batches after it tell.
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
        seek = "" if self.next_offset is None else f" A consumer goes on after it by seek to offset {self.next_offset}."
        return (
            f"{self.segment} is damaged from position {self.position} to {self.resume_position}: {self.problem}. "
            f'Read it with on_corrupt="skip" to go on behind the damage.{seek}'
        )


class TransactionOverError(LogError):
    """The transaction is over, or was given up: nothing is taken for it any more.

    Attributes:
        is_aborted: it was given up for good, none of its records are in the log.
    """

    def __init__(self, sentence: str, *, is_aborted: bool = False) -> None:
        super().__init__(sentence)
        self.is_aborted = is_aborted


class TransactionNotAppliedError(LogError):
    """Staged records of a transaction were not committed; the message says whether the same commit again will do."""


class CodecMissingError(LogError):
    """A batch is compressed, and no package that can decompress it is installed."""


class ConsumerError(ShmaccumError):
    """A consumer could not do what it was asked for."""


class ConsumerStateError(ConsumerError):
    """The call does not fit the consumer's state.

    It is closed or belongs to the process that forked this one, it has no group, a partition is not assigned to it, or
    nothing says where to begin in a partition: seek there, or set ``auto_offset_reset``.
    """


class GroupBusyError(ConsumerError, TimeoutError):
    """Another member of the group has been writing its files for too long; the member is probably stopped."""


class RecordDeserializationError(ConsumerError, ValueError):
    """A deserializer refused a record; the consumer stands at this record, and ``seek`` passes it.

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
            f"{self.problem}. Seek to offset {self.offset + 1} to go on behind it."
        )


class DeliveryError(ShmaccumError):
    """A record that was appended was not delivered, or nobody knows."""


class DeliveryTimeoutError(DeliveryError, TimeoutError):
    """The record was not delivered within ``delivery_timeout_ms`` (KIP-91).

    Attributes:
        timeout_ms: the sender's ``delivery_timeout_ms``; None where no sender has told it.
        counts_always: True: all time since the record was sent counted. False: only time in which a sender ran and its
            sink worked.
    """

    def __init__(self, sentence: str, timeout_ms: int | None = None, counts_always: bool = False) -> None:
        super().__init__(sentence)
        self.timeout_ms = timeout_ms
        self.counts_always = counts_always


class DeliveryFailedError(DeliveryError):
    """The sink refused the record, its batch was damaged in memory, or a user gave it up with the overflow it lay in.

    Attributes:
        error_code: the sink's own number (Kafka's error code); 0 none.
    """

    def __init__(self, sentence: str, error_code: int = 0) -> None:
        super().__init__(sentence)
        self.error_code = error_code


class DeliveryAbortedError(DeliveryError):
    """The sender was closed by force before the record was sent."""


class ResultExpiredError(DeliveryError):
    """The result was overwritten in the completion ring before it was read: it is not known, and is not guessed."""


class ResultPendingError(DeliveryError, TimeoutError):
    """The result is not known yet: the record is in the arena and will be sent."""


# Names of classes that were merged. Programs and pickles that have such a name go on to work.
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
