# SPDX-License-Identifier: Apache-2.0
"""The contract between the sender and a sink: where batches are delivered, and how the sink reports each outcome.

One round of the sender, in one thread::

    sender                                                 sink
      open(host) ──────────────────────────────────────────> connects, opens files; `identity` is known afterwards
      producer_ids.new_producer_id() ──────────────────────> returns (id, epoch), or None until it has one
      plan(ready partitions) ──────────────────────────────> returns, per delivery, the partitions to drain now
      deliver(batches of one list) ────────────────────────> starts; from here on it may read the batches' bytes ...
      poll(timeout, wake_fd) ──────────────────────────────> waits for its own I/O or a wake-up
      <───────────────────────────────────────────── acks    ... until poll has returned their acks
      transactions.end_transaction(producer, commit?) ─────> commits or aborts, for an arena with transactions
      close(timeout) ──────────────────────────────────────> releases all bytes, with or without an ack

Lifecycle
    `open_sink` creates a sink and touches nothing outside it. The sender opens the sink once, after taking the sender
    role, and closes it once, before leaving the role. A closed sink is never reopened.

Threads
    The one thread of the sender calls every method. A sink may have threads of its own (compression, disk). They may
    read the bytes of delivered batches, and may call `SinkHost.wake`, which makes `poll` return.

Bytes
    `WireBatch.buffers` are read-only views of the arena's memory: header, checksum, sequence and records. The sink may
    read them until `poll` has *returned* the Ack, however long that takes. Expiry and aborts do not end this earlier.
    Before it returns the Ack, the sink releases them: no view, slice or array over them is left, and no socket and no
    thread reads them. A view that is left prevents the reuse of the batch's memory, and is reported.
    If `Limits.takes_files` is set, a shipper may deliver batches whose header is in memory and whose records are in a
    file (`WireBatch.records`). The shipper has not read these records, so only their receiver detects damage.
    If `fast_path` is a `Sockets`, a borrower sends batches through the sink's sockets. These batches get no Ack, unless
    they are returned without a response. No other method is called between `hand_over` and `return_socket`.
    If `fast_path` is a `LogEnds`, the sender appends ordinary batches to the sink's logs. They get no Ack either.

Acks
    Each delivered batch gets exactly one Ack, which holds the WireBatch that was delivered. Acks may be returned in
    any order, by any later poll. One `Acks` may stand for many batches that were all delivered.
    A batch may expire while the sink has it. Its result is then final (`Batch.is_ended`). The sink starts no request
    with such a batch, and acks it like any other.
    The sink does not retry. It returns RETRY; the sender waits, counts attempts, and eventually gives up. The bytes
    of a batch are identical in each attempt, so an idempotent sink recognises it by (producer id, epoch, base
    sequence).

Errors
    If `deliver` raises, it started nothing, and the sender retries the whole delivery. If `plan`, `poll`,
    `new_producer_id` or `partition_count` raises, the sender reports the error and calls again after a pause; the sink
    keeps the batches it has. If `open` raises, the sender ends. No exception loses a batch.

Outage
    `Sink.peer` states whether the sink works: `outage` is None or a sentence, and `answer_count` counts responses.
    During an outage, the time does not count towards `delivery_timeout_ms` (sender/delivery_clock.py). One partition
    that cannot be delivered to is not an outage.

Identity
    A name proves nothing. A file, folder or topic that was removed, moved or replaced keeps its open descriptor, and a
    recreated topic has the former name. A sink that writes files returns DELIVERED only after it has checked that the
    path leads to the file that it wrote (device and inode), with all of its bytes. If the check fails, `outage` is a
    sentence with the place and the remedy. The sink writes nothing to another object of that name, and resumes without
    help when the place holds the written data again.

Durability
    `SinkHost.durability` is the level at which the source (an arena or a log) preserves records across a power cut. An
    Ack frees them there. So unless the level is "process", the sink returns an Ack, or the end of a transaction, only
    after it has forced the data to disk, or a peer has confirmed that. A new file also needs its folder to be on disk.
    An unset option of the sink follows the source. `open` refuses a lower level that was given explicitly, and names
    the remedy. If the level depends on the peer (acks of Kafka), the sink does not refuse a lower one, but reports it
    once.
    A sink that stores nothing (``null:``, ``memory:``) accepts any level. `shmaccum.common.durability` has the levels.

Order
    The batches of a partition arrive in the order of their sequences, at most `limits.in_flight_max` of them unacked.
    A retried batch is delivered alone. A sink delivers the batches of a partition in that order, or returns RETRY or
    OUT_OF_SEQUENCE. Partitions are independent of each other.

Waiting
    `deliver` and `plan` never wait for a network or a peer. `plan` omits a partition that cannot be sent to now (no
    leader, no connection, throttled, a full socket), and `poll` returns when it can. Connections never wait for each
    other.

Transactions
    In an arena with a transactional_id, the batch header marks the batch as part of a transaction. A sink with
    `transactions` hides such batches from readers of committed records until `end_transaction`. The sender calls it
    after each batch has its Ack, and again after a crash, so ending a finished transaction is no error.
    A sink stores what it needs after a crash with `HostTransactions.save_recovery_state`. If a transaction cannot be
    committed, the sink calls `HostTransactions.fail`.

After the sender's death
    The next sender delivers every unacked batch again, with the same bytes, to a new sink of the same `identity`.
    A sink that remembers producer id, epoch and the last sequences (`producer_ids`) therefore stores each batch once.
    Any other sink may store it twice. Nothing else has to survive in the sink.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shmaccum._native import Batch, LogEnd
from shmaccum.arena.results import TransactionReason
from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.common.format.batch_header import PRODUCER_EPOCH_MAX
from shmaccum.config import SenderOptions
from shmaccum.exceptions import OtherSinkError

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmaccum.config import ServerOptions
    from shmaccum.log.files.directory import LogDirectory
    from shmaccum.log.files.log_file import FileRange

NO_PRODUCER_ID = (-1, -1)
"""The producer id and epoch of batches without sequences."""

IDENTITY_SIZE = 16
IN_FLIGHT_MAX = 5
"""A broker remembers the last five batches of a producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
REQUEST_SIZE_MAX = 1 << 20


@dataclass(slots=True, eq=False)
class WireBatch:
    """One record batch as it is sent: a drained batch, or a part of one that was too large.

    It compares by identity, so a sink may use it as a dictionary key.
    """

    topic: str
    partition: int
    partition_index: int
    """The index of the partition in the arena's table."""
    buffers: tuple[memoryview, ...]
    """The bytes, header first. A record that is larger than a buffer of the arena has several pieces."""
    size: int
    """Bytes of all pieces."""
    record_count: int
    producer_id: int
    """-1 without idempotence, as are the epoch and the sequence."""
    producer_epoch: int
    base_sequence: int
    max_timestamp_ms: int
    attempt_count: int
    """Deliveries started, including this one and those of former senders."""
    batch: Batch
    """The batch of the arena; for the sender."""
    first_record: int = 0
    """Index of the first record in that batch; above 0 for later parts of a split one."""
    shared_crc: int | None = None
    """The CRC, if the bytes are in the arena, where other processes can write; None if they are in private memory."""
    records: FileRange | None = None
    """The bytes that follow `buffers`, for a sink that takes files; None if there are none."""

    @property
    def pieces(self) -> tuple[memoryview | FileRange, ...]:
        """All bytes of the batch."""
        return self.buffers if self.records is None else (*self.buffers, self.records)

    @classmethod
    def of(cls, batch: Batch, place: tuple[str, int], buffers: tuple[memoryview, ...]) -> Self:
        """Return the WireBatch of a whole batch.

        Args:
            place: its topic and partition.
            buffers: the value of `Batch.buffers`; the caller releases them.
        """
        topic, partition = place
        return cls(
            topic,
            partition,
            batch.partition_index,
            buffers,
            batch.size,
            batch.record_count,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.max_timestamp_ms,
            batch.attempt_count,
            batch,
            shared_crc=batch.crc,
        )


class BorrowedSocket(NamedTuple):
    """A plain socket to a broker, between two frames, and the partitions that the broker leads.

    No request is in flight on it. The borrower writes Produce requests and reads the responses, all before its next
    call of the sink, which is `return_socket`.
    """

    node_id: int
    socket: int
    version: int
    """The version of the Produce requests."""
    client_id: str
    acks: int
    requests_max: int
    """The largest number of requests without a response."""
    correlation_id: int
    """The id of the first request. Each further request adds one, and 0 follows 2**31 - 1."""
    partition_indices: Sequence[int]
    topic_ids: Mapping[str, bytes]
    """By topic; empty below version 13."""
    transactional_id: str | None = None
    """The transactional id of the batches' producer; None outside of transactions."""


class Unanswered(NamedTuple):
    """A Produce request that a borrower started, and whose response had not arrived when the socket was returned."""

    correlation_id: int
    age_s: float
    """Seconds since the request started."""
    sent_size: int
    """Bytes of it that were written."""
    wires: Sequence[WireBatch]
    """Its batches, in their order. The sink now has them as if `deliver` had been called with them."""


class SocketEnd(NamedTuple):
    """The state in which a borrower returns a socket. `Delivered` has what was sent through it."""

    is_broken: bool = False
    """The connection is closed or unusable."""
    throttle_ms: int = 0
    """The broker asks for a pause of this length."""
    received: bytes = b""
    """Bytes that were received and not used. The sink reads them before the next bytes of the socket."""
    unanswered: Sequence[Unanswered] = ()
    """Requests in flight, in their order; only the last one may be written in part."""


DeliveredRow = tuple[int, int, int, int, int]
"""Partition index, batches, records, bytes, and the errno for which an index entry is missing; 0 if none is missing."""


class Delivered(NamedTuple):
    """Sums over the batches that a native call delivered, or over those of one socket or stream of it; times in ns.

    A number that the call does not measure is 0, or None where 0 would be a measurement.
    """

    batch_count: int = 0
    record_count: int = 0
    size: int = 0
    """Bytes of all batches."""
    largest_size: float = 0
    """Bytes of the largest batch; for a stream, the average."""
    age_sum_ns: int | None = None
    """The sum of the times from the opening of a batch to its request or append."""
    age_max_ns: int = 0
    latency_sum_ns: int | None = None
    """The sum of the times from the request or append to the result; for a socket, per request."""
    latency_max_ns: int = 0
    largest_record: int = 0
    """Bytes; 0 if no record is larger than those known before."""
    linger_ns: int = -1
    """The shortest linger that a producer set; -1 if none did."""
    last_begun_ns: int = 0
    """The time at which the last request started, on the arena's clock; 0 if there was none."""
    rows: Sequence[DeliveredRow] = ()
    """One or more rows for each partition."""
    request_count: int = 0
    """For a socket: requests with a response, and the bytes sent and received."""
    sent_size: int = 0
    received_size: int = 0

    @classmethod
    def of_rows(cls, rows: Iterable[DeliveredRow]) -> Delivered:
        """Return the sums over the rows. A row without batches is omitted."""
        its = [row for row in rows if row[1]]
        return cls(
            batch_count=sum(row[1] for row in its),
            record_count=sum(row[2] for row in its),
            size=sum(row[3] for row in its),
            largest_size=max((row[3] / row[1] for row in its), default=0),
            rows=its,
        )


class Verdict(enum.Enum):
    """The outcome of a delivered batch."""

    DELIVERED = "delivered"
    """The batch is stored, or was already (a duplicate)."""
    RETRY = "retry"
    """Not stored, or unknown: deliver the same bytes again."""
    REFUSED = "refused"
    """Rejected permanently: the records fail with `error_code` and `message`."""
    TOO_LARGE = "too large"
    """Too large for one piece: the sender splits it; a single record is rejected."""
    OUT_OF_SEQUENCE = "out of sequence"
    """Not stored, and its sequence is not accepted: the partition starts over with a new epoch."""


@dataclass(slots=True, eq=False)
class Ack:
    """A sink's result for one delivered batch."""

    wire: WireBatch
    verdict: Verdict
    base_offset: int = -1
    """Offset of the first record; -1 if the sink does not report it."""
    log_append_time_ms: int = -1
    """The sink's timestamp for all records; -1 if the records' own timestamps are valid."""
    error_code: int = 0
    """Kafka's error code (org.apache.kafka.common.protocol.Errors); 0 if there is none."""
    message: str = ""
    """The reason for a failure, as a sentence for people."""
    retry_after_ms: int | None = None
    """The pause before a RETRY. If None, the sender chooses it (KIP-580). 0 follows a change of leader (KIP-951)."""
    record_errors: Sequence[int] = field(default=())
    """For REFUSED: indices in this wire batch of the invalid records; empty if all are invalid (KIP-467)."""


@dataclass(slots=True, eq=False)
class Acks:
    """The acks of batches that were all delivered, in one object, for speed.

    Iterating yields one Ack per batch.
    """

    wires: Sequence[WireBatch]
    base_offsets: Sequence[int]
    log_append_times_ms: Sequence[int]

    def __iter__(self) -> Iterator[Ack]:
        for wire, base_offset, time_ms in zip(self.wires, self.base_offsets, self.log_append_times_ms, strict=True):
            yield Ack(wire, Verdict.DELIVERED, base_offset, time_ms)


def each_ack(acks: Iterable[Ack | Acks]) -> Iterator[Ack]:
    """Yield each Ack."""
    for ack in acks:
        if isinstance(ack, Acks):
            yield from ack
        else:
            yield ack


class Ended(NamedTuple):
    """The result of a transaction that the sink has ended."""

    producer_id: int
    """The producer id of the next transaction; -1 if there was none."""
    producer_epoch: int
    why: TransactionReason = TransactionReason.NOT
    """The reason why it was not committed, although the arena had decided to commit."""


class HostTransactions(Protocol):
    """The transactions of an arena, as its sink may use them."""

    @property
    def transactional_id(self) -> str:
        """The name by which the sink knows the arena's transactions."""

    @property
    def timeout_ms(self) -> int:
        """The longest time that a transaction may be open."""

    @property
    def number(self) -> int:
        """The number of the newest transaction."""

    @property
    def state(self) -> str:
        """The state of the newest transaction, by the core's name."""

    @property
    def producer_identity(self) -> tuple[int, int, bytes]:
        """The arena's producer id (-1 if it has none yet), its epoch, and the identity of the sink that gave it."""

    @property
    def recovery_state(self) -> int:
        """The 64 bits saved last, by any sender; 0 if there are none, or if the id must be acquired again."""

    def save_recovery_state(self, recovery_state: int) -> None:
        """Save 64 bits for the next sender. The two highest are `FENCED_STATE` and `LOST_STATE`."""

    def fail(self, why: TransactionReason, sentence: str) -> None:
        """Make the transaction abort only, unless it is decided or over. The sentence is reported."""


def check_is_same_sink(transactions: HostTransactions, identity: bytes, arena_name: str) -> None:
    """Refuse a sink that does not have the open transaction.

    Args:
        transactions: of the arena.
        identity: of the sink.
        arena_name: for the message.

    Raises:
        OtherSinkError: another sink has the open transaction.
    """
    producer_id, _, known = transactions.producer_identity
    if transactions.state != "none" and producer_id >= 0 and known != identity:
        raise OtherSinkError(
            f"transaction {transactions.number} of {arena_name} is {transactions.state} in another sink: start a "
            "sender with that sink until the transaction is over, or remove the arena"
        )


class RecordSource(Protocol):
    """A store that frees a record after its receiver has it: an arena, or the log of a shipper."""

    @property
    def arena_name(self) -> str:
        """The name by which it was opened."""

    @property
    def durability(self) -> str:
        """The level at which it preserves records: "process", "interval" or "sync" (see *Durability* above)."""

    @property
    def sync_interval_ms(self) -> int | None:
        """For the level "interval", the time whose records a power cut may lose; otherwise None."""


class SinkHost(RecordSource, Protocol):
    """The part of the sender that its sink may use."""

    @property
    def permissions(self) -> tuple[int, int, int]:
        """User, group and mode of the arena. Files that the sink creates admit the same users."""

    @property
    def transactions(self) -> HostTransactions | None:
        """The transactions of the arena; None if it has no transactional_id."""

    @property
    def options(self) -> SenderOptions:
        """The sender's options: acks, request_timeout_ms, max_request_size, enable_idempotence and so on."""

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        """Return topic and partition of an index of `Sink.plan`."""

    def partition_count(self, topic: str) -> int:
        """Return the partition count of a topic in the arena, set by its creator or the last sink; 0 if unknown."""

    def report(self, sentence: str) -> None:
        """Log a sentence, and write it to the arena's error log.

        Equal sentences are counted, so use the same words for the same problem.
        """

    def show_life(self) -> None:
        """Call it in the sender's thread during long work, such as the recovery of many partitions.

        A sender that does not call it for `replace_stalled_ms` is considered stalled, and may be killed.
        """

    def end_backoff(self, partition_index: int) -> None:
        """End the pause of a partition whose reason is gone (it has a new leader): retried batches may be sent."""

    def set_available(self, partition_index: int, is_available: bool) -> None:
        """Set whether the partition's batches can be sent now (it has a leader, KIP-794).

        While they cannot, producers choose other partitions where they are free to choose.
        """

    def wake(self) -> None:
        """Make `Sink.poll` return. May be called from any thread."""


class Limits(NamedTuple):
    """The limits of a sink."""

    in_flight_max: int = IN_FLIGHT_MAX
    """Unacked batches of one partition."""
    request_size_max: int = REQUEST_SIZE_MAX
    """Bytes of one delivery; a larger batch is delivered alone."""
    takes_files: bool = False
    """The records of a batch may be in a file."""


class ProducerIds(abc.ABC):
    """The producer ids of a sink that recognises redelivered batches, and accepts sequences only in order."""

    compares_records: bool = False
    """A duplicate must have the same records as the stored batch, not only the same sequences."""

    @property
    def knows_producer_id(self) -> bool:
        """False if the producer id that this sink gave the arena is no longer valid, and must be acquired again."""
        return True

    @abc.abstractmethod
    def new_producer_id(self) -> tuple[int, int] | None:
        """Return a new, unique (producer id, epoch), or None while the sink is acquiring one.

        The sender calls it until it returns an id, and drains nothing before.
        """


class SinkTransactions(abc.ABC):
    """The transactions of a sink that takes the batches of an arena with transactions."""

    @abc.abstractmethod
    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended | None:
        """Commit or abort what was delivered since the last call. Return None while that is under way; call again.

        After an abort, the sink lacks the sequences of the discarded batches. The next transaction therefore has
        another producer epoch.

        Args:
            producer_id: of the arena; -1 if it never had one. The sink may have ended its transaction already.
            producer_epoch: the arena's latest.
            is_commit: commit if true, otherwise abort.

        Raises:
            OSError: the transaction is not ended. The sender tries again.
        """


class LogEnds(abc.ABC):
    """The ends of a sink's logs, to which the sender appends ordinary batches itself, in C."""

    log_ends: Mapping[int, LogEnd]
    """Partition index -> the open end of its log. Batches of all other partitions are passed to `Sink.deliver`."""

    @abc.abstractmethod
    def appended(self, rows: Sequence[DeliveredRow]) -> None:
        """Note that the sender appended batches to its logs. Each row counts at least one batch."""

    @property
    def log(self) -> tuple[LogDirectory, ServerOptions] | None:
        """The log that the sink writes, and the options by which a server serves it; None if it cannot be served."""
        return None


class Sockets(abc.ABC):
    """The sockets of a sink, through which a borrower sends ordinary batches itself, in C.

    The borrower is the sender, for its arena and for its overflow, or a shipper.
    """

    is_carried: bool = False
    """The sender may send the batches of its arena through them."""

    @abc.abstractmethod
    def hand_over(self, partition_indices: Sequence[int]) -> Sequence[BorrowedSocket]:
        """Hand over sockets to the leaders of those partitions that may be sent to now.

        A partition is omitted if it has to be sent by `plan` and `deliver`: it has no leader, its leader is busy, or
        its first batch must be sent alone.
        """

    @abc.abstractmethod
    def return_socket(self, borrowed: BorrowedSocket, delivered: Delivered, end: SocketEnd) -> None:
        """Take back a socket that was handed over.

        Args:
            delivered: sums over the batches sent through it.
            end: the state of the socket.
        """


class Peer:
    """The part of a sink that can fail: the brokers of a cluster, the medium of a log. The default always works."""

    @property
    def outage(self) -> str | None:
        """The reason why nothing can be delivered now, as a sentence without the time; None if the peer works.

        The sender reads it in each round.
        """
        return None

    @property
    def is_full(self) -> bool:
        """True if no delivery can start before a response or a connection arrives, so new records change nothing.

        The sender reads it before it sleeps. If it is true, only processes that wait for the sender wake it.
        """
        return False

    @property
    def answer_count(self) -> int | None:
        """How many responses have proved that the peer works; None if it sends none.

        The time between two responses counts once the second has arrived. Without responses, `outage` alone decides.
        """
        return None

    def ask_again(self, topic: str) -> None:
        """Refresh the partition count of a topic: a producer waits for a partition beyond `Sink.partition_count`.

        It is called about ten times a second while the producer waits.
        """


ALWAYS_WORKS = Peer()
"""The peer of a sink that cannot fail."""


class Sink(abc.ABC):
    """A place to which batches are delivered. The contract is the docstring of this module.

    A sink with further abilities names the objects that have them, often itself: `producer_ids`, `transactions`,
    `fast_path` and `peer`. The first three are optional.
    """

    name: str = ""
    """Where the sink delivers: its URL in one spelling (sender/sinks/names.py), for messages and comparisons. If empty,
    the arena records the sink's class instead."""
    limits: Limits = Limits()
    """The limits; known after `open`."""
    producer_ids: ProducerIds | None = None
    """None if the sink may store a redelivered batch twice. Known after `open`."""
    transactions: SinkTransactions | None = None
    """None if the sink does not take the batches of an arena with transactions."""
    fast_path: LogEnds | Sockets | None = None
    """How the sender delivers ordinary batches itself, in C. None if all batches are passed to `deliver`."""
    peer: Peer = ALWAYS_WORKS
    """The part of the sink that can fail."""

    @property
    @abc.abstractmethod
    def identity(self) -> bytes:
        """16 bytes that name the target (a log directory, a cluster), the same each time it is opened.

        The arena stores them with its producer id, and acquires a new id when they change. A sink that learns its
        target later returns zeros until then, and has no producer id before.
        """

    @abc.abstractmethod
    def open(self, host: SinkHost) -> None:
        """Open the sink, while the sender holds its role.

        Raises:
            OSError, ShmaccumError: the sink cannot be used; the message names the remedy.
        """

    @abc.abstractmethod
    def partition_count(self, topic: str) -> int | None:
        """Return the partition count of a topic, or None until it is known. Called repeatedly for each topic.

        Raises:
            UnknownTopicError: there is no such topic, and there will be none.
        """

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the partitions to drain now: one sequence of partition indices per delivery.

        A partition that is named n times yields up to n batches; all but the first were sealed already. A batch that
        does not fit into a delivery comes first the next time. The default puts everything into one delivery.
        """
        return [ready]

    @abc.abstractmethod
    def deliver(self, batches: Sequence[WireBatch]) -> None:
        """Start the delivery of at least one batch, drained by one sequence of the plan."""

    @abc.abstractmethod
    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        """Wait for the sink's own I/O or until `wake_fd` is readable, and return the acks.

        It returns at once if there are acks, and whenever the result of `plan` may have changed.

        Args:
            timeout_s: if 0, do not wait.
            wake_fd: a file descriptor; never read it.
        """

    @abc.abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finish or cancel the work in progress, within the time, and release all bytes.

        The arena keeps a batch without an Ack, and the next sender delivers it.
        """

    def metrics(self) -> Mapping[str, float]:
        """Return the sink's metrics, by Kafka's names where they exist. They replace the sender's of the same name.

        Those of a broker end in ``.node-ID``, those of a topic in ``.topic-NAME`` (docs/reference/metrics.rst).
        """
        return {}


def logs_of(sink: Sink) -> LogEnds | None:
    """Return the logs to which the sender appends; None if the sink has none."""
    return sink.fast_path if isinstance(sink.fast_path, LogEnds) else None


def sockets_of(sink: Sink) -> Sockets | None:
    """Return the sockets that the sink hands over; None if it has none."""
    return sink.fast_path if isinstance(sink.fast_path, Sockets) else None


def ended(sink_ids: ProducerIds | None, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
    """Return the end of a transaction in a sink that assigns epochs itself. An abort raises the epoch (KIP-360).

    Args:
        sink_ids: of the sink; they return an id at once.
        producer_id, producer_epoch: those of the transaction.
    """
    if is_commit or producer_id < 0:
        return Ended(producer_id, producer_epoch)
    if producer_epoch < PRODUCER_EPOCH_MAX:
        return Ended(producer_id, producer_epoch + 1)
    found = NO_PRODUCER_ID if sink_ids is None else sink_ids.new_producer_id()
    assert found is not None, "only a sink that asks a peer may have no producer id yet"
    return Ended(*found)


class SynchronousSink(Sink):
    """A sink whose `write` completes a delivery before it returns: a file, a list, nothing at all."""

    def __init__(self) -> None:
        self._acks: list[Ack] = []

    @abc.abstractmethod
    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        """Deliver the batches; return one Ack for each, in any order.

        Raises:
            OSError: nothing was delivered, or it is unknown what was: all of it is retried.
        """

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return one delivery, in which each partition yields as many batches as may be in flight."""
        return [[partition_index for partition_index in ready for _ in range(self.limits.in_flight_max)]]

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        self._acks.extend(self.write(batches))

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack]:
        if not self._acks and timeout_s > 0:
            wait_readable([wake_fd], timeout_s)
        acks, self._acks = self._acks, []
        return acks

    def close(self, timeout_s: float) -> None:
        """Do nothing: no work is in progress."""
