# SPDX-License-Identifier: Apache-2.0
"""The contract between the sender and a sink: the place that batches go to, and the sink's word on their fate.

Picture, one thread, one round of the sender::

    sender                                                 sink
      open(host) ──────────────────────────────────────────> connects, opens files; knows its identity then
      producer_ids.new_producer_id() ──────────────────────> (id, epoch), or None while it asks for one
      plan(ready partitions) ──────────────────────────────> one list per delivery, of what may go now
      deliver(batches of one list) ────────────────────────> begins; the bytes are lent from here ...
      poll(timeout, doorbell) ─────────────────────────────> waits for its own I/O or the doorbell
      <───────────────────────────────────────────── acks    ... until its ack was returned from poll
      transactions.end_transaction(producer, commit?) ─────> of an arena with transactions: its end, when it is over
      close(timeout) ──────────────────────────────────────> gives back what is lent, with or without an ack

Life
    A sink is made by `open_sink` without touching anything outside, opened once, while the sender role of the arena is
    held, and closed once, before the role is left. It is never opened again. `identity` is known after `open`.

Threads
    Every method is called by the one thread of the sender. A sink may have threads of its own (compression, disk); they
    keep to the lent bytes and to `SinkHost.wake`, which makes `poll` come back from any thread.

Bytes
    `WireBatch.buffers` are the arena's own memory, read-only and complete: header, checksum, sequence. They belong to
    the batch until its Ack was *returned* by `poll`, however long that takes; neither expiry nor an abort takes them
    away earlier. With the Ack the sink has let go of them: no view, slice or array over them is left, no socket and no
    thread reads them. A view that is left over keeps the batch's memory from being reused, and is reported.
    A sink whose limits say `takes_files` may get batches of a shipper whose header is in memory and whose records lie
    in a file (`WireBatch.records`). Nobody has read these records, so only their receiver finds damage in them.
    A sink whose `fast_path` is `Sockets` lends the sockets behind it. Batches that a borrower sends by them get no Ack,
    unless they are given back without an answer. Between `lend` and `give_back` no other method is called.
    One whose `fast_path` is `LogEnds` has logs to which the sender appends ordinary batches; they get no Ack, either.

Answers
    Each delivered batch gets exactly one Ack, with the WireBatch that was delivered; in any order, in any later poll.
    Many that were all delivered may get theirs in one: `Acks`.
    A batch may expire while it is lent: it has its result then (`Batch.is_ended`), which it keeps. A sink begins no
    request with such a batch, and gives it an Ack like any other.
    The sink does not retry: it answers RETRY, and the sender waits, counts attempts, and gives up in time. It changes
    no bytes between attempts: a batch that is delivered again is the same, up to its last bit, and an idempotent sink
    recognises it by (producer id, epoch, base sequence).

Errors
    An exception of `deliver` says that nothing of that delivery was begun: all of it is retried. One of `plan`, `poll`,
    `new_producer_id` or `partition_count` is reported as a sentence and tried again after a pause; batches that were
    lent stay lent. One of `open` ends the sender. No exception loses a batch.

Outage
    The `peer` of a sink says whether it works: `outage` is None or a sentence, and `answer_count` counts answers. While
    a sink does not work nobody could deliver, and no record grows older for `delivery_timeout_ms`
    (sender/delivery_clock.py). A partition that cannot be delivered to in a sink that works is no outage.

Identity
    A name is no proof: a file, a folder or a topic that was removed, moved or replaced keeps its open descriptor, and a
    topic that was made again has the former name. A sink that keeps files answers DELIVERED only when it has looked
    whether the path still leads to the file that it wrote (device and inode), with all of its bytes. What fails is an
    `outage`, whose sentence names the place and the remedy. The sink writes nothing to another object of that name, and
    goes on by itself when the place holds again what was written.

Durability
    `SinkHost.durability` is the level at which the giver keeps records through a power cut. An Ack frees them there, so
    a sink returns the Ack of a batch, and the end of a transaction, after it has forced them to disk, or has an answer
    that says as much, unless the level is "process". A name of a file counts when its folder is on disk, too.
    An option of the sink that is unset follows the giver. `open` refuses a lower level that was given explicitly, and
    names the remedy. Where the peer decides (acks of Kafka), the sink reports a lower level once.
    A sink that keeps nothing (``null:``, ``memory:``) takes any level. `shmaccum.common.durability` has the levels.

Order
    The batches of one partition come in the order of their sequences, at most `limits.in_flight_max` without an Ack,
    and a batch that is retried comes alone. A sink delivers those of one partition in the order they came, or answers
    RETRY or OUT_OF_SEQUENCE. Partitions know nothing of each other.

Waiting
    `deliver` and `plan` never wait for a network or a peer. A partition that cannot go now (no leader, no connection,
    throttled, a full socket) is left out of the plan, and `poll` comes back when it can go. One connection
    never waits for another.

Transactions
    Batches of an arena with a transactional_id say in their header that they belong to a transaction. A sink with
    `transactions` shows them to nobody who wants committed records alone, until `end_transaction`. That call comes
    when each batch has its Ack. It comes again after a death, so a transaction that is over is no mistake.
    A sink that has to know more after a death keeps it by `HostTransactions.keep`. A sink that finds out that a
    transaction cannot be committed says so by `HostTransactions.fail`.

After the sender's death
    The next sender delivers every lent batch again, with the same bytes, to a new sink of the same `identity`.
    A sink that remembers producer id, epoch and the last sequences (`producer_ids`) therefore has each batch once; one
    that does not may have it twice. Nothing else has to survive in the sink.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shmaccum._native import Batch, LogEnd
from shmaccum.arena.doorbell import wait_readable
from shmaccum.arena.results import TransactionWhy
from shmaccum.common.format.batch_header import PRODUCER_EPOCH_MAX
from shmaccum.config import SenderOptions
from shmaccum.exceptions import OtherSinkError

if TYPE_CHECKING:
    from typing_extensions import Self

    from shmaccum.config import ServerOptions
    from shmaccum.log.files.directory import LogDirectory
    from shmaccum.log.files.log_file import FileRange

NO_PRODUCER_ID = (-1, -1)
"""The names of batches without sequences."""

IDENTITY_SIZE = 16
IN_FLIGHT_MAX = 5
"""A broker remembers the last five batches of a producer (ProducerStateEntry.NUM_BATCHES_TO_RETAIN)."""
REQUEST_SIZE_MAX = 1 << 20


@dataclass(slots=True, eq=False)
class WireBatch:
    """One record batch as it goes over the wire: a drained batch, or a part of one that was too large.

    Equal only to itself, so that a sink may keep it as a key.
    """

    topic: str
    partition: int
    partition_index: int
    """The partition's place in the arena's table."""
    buffers: tuple[memoryview, ...]
    """The bytes, header first: one piece, or several for a record that is larger than a buffer of the arena."""
    size: int
    """Bytes of all pieces together."""
    record_count: int
    producer_id: int
    """-1 without idempotence, as the two below."""
    producer_epoch: int
    base_sequence: int
    max_timestamp_ms: int
    attempt_count: int
    """Deliveries begun, this one included, those of dead senders, too."""
    batch: Batch
    """The arena's batch behind it; for the sender."""
    first_record: int = 0
    """Place of the first record in that batch; above 0 for later parts of a split one."""
    shared_crc: int | None = None
    """The CRC, where the bytes lie in the arena, which other processes can write; None: they lie in private memory."""
    records: FileRange | None = None
    """The bytes behind those of `buffers`, for a sink that takes files; None: there are no more."""

    @property
    def pieces(self) -> tuple[memoryview | FileRange, ...]:
        """All its bytes."""
        return self.buffers if self.records is None else (*self.buffers, self.records)

    @classmethod
    def of(cls, batch: Batch, place: tuple[str, int], buffers: tuple[memoryview, ...]) -> Self:
        """A whole batch.

        Args:
            place: its topic and partition.
            buffers: the answer of `Batch.buffers`; their holder lets go of them.
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


class Loan(NamedTuple):
    """A plain socket to a broker, between two frames, and the partitions that the broker leads.

    Nothing is in flight on it. The borrower writes Produce requests and reads their answers, all before its next call
    of the sink, which is `give_back`.
    """

    node_id: int
    socket: int
    version: int
    """The version of its Produce requests."""
    client_id: str
    acks: int
    requests_max: int
    """Requests without an answer at once."""
    correlation_id: int
    """Of the first request; the next ones count on from it, from 0 again behind 2**31 - 1."""
    partition_indices: Sequence[int]
    topic_ids: Mapping[str, bytes]
    """By topic; empty below version 13."""
    transactional_id: str | None = None
    """The name of the producer whose transaction the batches belong to; None: they belong to none."""


class Unanswered(NamedTuple):
    """A Produce request that a borrower began, and whose answer did not come before the socket was given back."""

    correlation_id: int
    age_s: float
    """Seconds since it began."""
    sent_size: int
    """Bytes of it that are written."""
    wires: Sequence[WireBatch]
    """Its batches, in its order. The sink has them now as if they had come by `deliver`."""


class SocketEnd(NamedTuple):
    """How a borrower leaves a socket: the sink goes on from there. `Delivered` tells what went by the socket."""

    is_broken: bool = False
    """The socket is at its end: its connection is closed."""
    throttle_ms: int = 0
    """The broker wants a pause."""
    received: bytes = b""
    """Bytes that came by the socket and were not used. The sink reads them before those that come next."""
    unanswered: Sequence[Unanswered] = ()
    """Requests that are in flight, in their order; only the last one may be half written."""


DeliveredRow = tuple[int, int, int, int, int]
"""Partition index, batches, records, bytes, and the errno for which an index has no entry of them; 0: it has."""


class Delivered(NamedTuple):
    """Sums over the batches that a native call delivered, or over those of one loan or stream of it; times in ns.

    A number that the call does not measure is 0, or None where 0 would be a measurement.
    """

    batch_count: int = 0
    record_count: int = 0
    size: int = 0
    """Bytes of all batches."""
    largest_size: float = 0
    """Bytes of the largest batch; of a stream, the average."""
    age_sum_ns: int | None = None
    """The times from the opening of a batch to its request, or to its append, added."""
    age_max_ns: int = 0
    latency_sum_ns: int | None = None
    """The times from there to the result, added; of a loan, those of its requests."""
    latency_max_ns: int = 0
    largest_record: int = 0
    """Bytes; 0 when no record is larger than those known before."""
    linger_ns: int = -1
    """The shortest linger that a producer set; -1: none did."""
    last_begun_ns: int = 0
    """When the last request began, on the arena's clock; 0: there are no requests."""
    rows: Sequence[DeliveredRow] = ()
    """Of each partition; one may have several."""
    request_count: int = 0
    """Of a loan: requests that were answered, and the bytes that went and came."""
    sent_size: int = 0
    received_size: int = 0

    @classmethod
    def of_rows(cls, rows: Iterable[DeliveredRow]) -> Delivered:
        """The sums over rows; one without batches is left out."""
        its = [row for row in rows if row[1]]
        return cls(
            batch_count=sum(row[1] for row in its),
            record_count=sum(row[2] for row in its),
            size=sum(row[3] for row in its),
            largest_size=max((row[3] / row[1] for row in its), default=0),
            rows=its,
        )


class Verdict(enum.Enum):
    """The fate of a delivered batch."""

    DELIVERED = "delivered"
    """It is where it should be; a duplicate of what was there already, too."""
    RETRY = "retry"
    """Not this time, or nobody knows: deliver the same bytes again."""
    REFUSED = "refused"
    """Never: its records fail with `error_code` and `message`."""
    TOO_LARGE = "too large"
    """Not in one piece: the sender splits it; a single record is refused."""
    OUT_OF_SEQUENCE = "out of sequence"
    """The sink does not have it, and does not take its sequence: the partition starts over, with a new epoch."""


@dataclass(slots=True, eq=False)
class Ack:
    """A sink's answer for one delivered batch."""

    wire: WireBatch
    verdict: Verdict
    base_offset: int = -1
    """Offset of the first record, -1 when the sink does not tell."""
    log_append_time_ms: int = -1
    """The sink's own timestamp for all records, -1 where the records' hold."""
    error_code: int = 0
    """Kafka's number of the error (org.apache.kafka.common.protocol.Errors); 0 when there is none."""
    message: str = ""
    """A sentence for people: why it was not delivered."""
    retry_after_ms: int | None = None
    """With RETRY: None leaves the pause to the sender (KIP-580), 0 is at once (the leader has changed, KIP-951)."""
    record_errors: Sequence[int] = field(default=())
    """With REFUSED: places of the records that are to blame, in this wire batch; empty when all are (KIP-467)."""


@dataclass(slots=True, eq=False)
class Acks:
    """The acks of batches that were all delivered, in one: the usual case takes the short way.

    Iterating gives the Ack of each.
    """

    wires: Sequence[WireBatch]
    base_offsets: Sequence[int]
    log_append_times_ms: Sequence[int]

    def __iter__(self) -> Iterator[Ack]:
        for wire, base_offset, time_ms in zip(self.wires, self.base_offsets, self.log_append_times_ms, strict=True):
            yield Ack(wire, Verdict.DELIVERED, base_offset, time_ms)


def each_ack(acks: Iterable[Ack | Acks]) -> Iterator[Ack]:
    """One by one."""
    for ack in acks:
        if isinstance(ack, Acks):
            yield from ack
        else:
            yield ack


class Ended(NamedTuple):
    """A transaction is over in the sink."""

    producer_id: int
    """The producer id of the next transaction, -1 when there was none."""
    producer_epoch: int
    why: TransactionWhy = TransactionWhy.NOT
    """Why it was not committed, although the arena had decided it."""


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
        """How far the newest transaction has come, as the core names it."""

    @property
    def producer_identity(self) -> tuple[int, int, bytes]:
        """The arena's producer id (-1: none yet), its epoch, and the identity of the sink that gave it."""

    @property
    def standing(self) -> int:
        """The 64 bits that were kept last, by this sender or a former one; 0: none, or the id is to be taken anew."""

    def keep(self, standing: int) -> None:
        """Keeps 64 bits for the next sender. The two highest are `FENCED_STANDING` and `LOST_STANDING`."""

    def fail(self, why: TransactionWhy, sentence: str) -> None:
        """The transaction can only be aborted, if it is not decided or over; people read the sentence."""


def check_is_same_sink(transactions: HostTransactions, identity: bytes, arena_name: str) -> None:
    """Refuses a sink that does not have the transaction that is open.

    Args:
        transactions: of the arena.
        identity: of the sink.
        arena_name: for people.

    Raises:
        OtherSinkError: another sink has it.
    """
    producer_id, _, known = transactions.producer_identity
    if transactions.state != "none" and producer_id >= 0 and known != identity:
        raise OtherSinkError(
            f"transaction {transactions.number} of {arena_name} is {transactions.state} in another sink: start a "
            "sender with that sink until the transaction is over, or remove the arena"
        )


class Giver(Protocol):
    """A store that frees a record when a receiver has it: an arena, or the log of a shipper."""

    @property
    def arena_name(self) -> str:
        """Its name as it was opened, for people."""

    @property
    def durability(self) -> str:
        """The level at which it keeps records: "process", "interval" or "sync" (see *Durability* above)."""

    @property
    def sync_interval_ms(self) -> int | None:
        """With the level "interval": a power cut may cost the records of this time."""


class SinkHost(Giver, Protocol):
    """The sender as the sink that it opened may use it."""

    @property
    def permissions(self) -> tuple[int, int, int]:
        """User, group and mode of the arena: what the sink makes lets in the same users."""

    @property
    def batch_size_max(self) -> int:
        """Bytes of the largest batch the arena can hold, header included."""

    @property
    def transactions(self) -> HostTransactions | None:
        """Of the arena; None: it has no transactional_id."""

    @property
    def options(self) -> SenderOptions:
        """The sender's options: acks, request_timeout_ms, max_request_size, enable_idempotence and so on."""

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        """Topic and partition of an index of `Sink.plan`."""

    def partition_count(self, topic: str) -> int:
        """How many partitions the arena says a topic has: told by who created it, or by the last sink; 0 unknown."""

    def report(self, sentence: str) -> None:
        """Puts a sentence where people look: the arena's error log and the sender's own log.

        Equal sentences are counted, so say the same thing in the same words.
        """

    def show_life(self) -> None:
        """Call it in the sender's thread between the parts of what takes long, as the recovery of many partitions.

        A sender that shows no life for the time of `replace_stalled_ms` is taken for wedged, and may be killed.
        """

    def end_backoff(self, partition_index: int) -> None:
        """The reason of a pause is gone (another leader is known now): retried batches of the partition may go."""

    def set_available(self, partition_index: int, is_available: bool) -> None:
        """Nobody takes the partition's batches at the moment (no leader), or somebody does again (KIP-794).

        Producers choose others meanwhile, where they may choose.
        """

    def wake(self) -> None:
        """Makes `Sink.poll` come back; from any thread."""


class Limits(NamedTuple):
    """What a sink takes at once."""

    in_flight_max: int = IN_FLIGHT_MAX
    """Batches of one partition in flight at once."""
    request_size_max: int = REQUEST_SIZE_MAX
    """Bytes of one delivery; a larger batch goes alone."""
    takes_files: bool = False
    """Its batches may have records that lie in a file."""


class ProducerIds(abc.ABC):
    """The producer ids of a sink that recognises a batch delivered again, and takes sequences only in order."""

    compares_records: bool = False
    """It takes a batch for a duplicate only if its records are those that it has, and not by the sequences alone."""

    @property
    def knows_producer_id(self) -> bool:
        """False: the producer id that this sink gave the arena is not good any more, and is asked for again."""
        return True

    @abc.abstractmethod
    def new_producer_id(self) -> tuple[int, int] | None:
        """(producer id, epoch) nobody else has, None while it is being asked for; nothing is drained before.

        Called again until it answers.
        """


class SinkTransactions(abc.ABC):
    """The transactions of a sink that takes the batches of an arena with transactions."""

    @abc.abstractmethod
    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended | None:
        """Commits or aborts what was delivered since the last call. None: it is under way, so call again.

        After an abort the sink lacks sequences of batches that were thrown away. So the next transaction has another
        producer epoch then.

        Args:
            producer_id: the arena's; its transaction may be over in the sink already. -1: it never had one.
            producer_epoch: the arena's latest.
            is_commit: False: it is aborted.

        Raises:
            OSError: it is not ended, and is tried again.
        """


class LogEnds(abc.ABC):
    """The ends of the logs of a sink, to which the sender appends ordinary batches itself, in C."""

    log_ends: Mapping[int, LogEnd]
    """Partition index -> the open end of its log. All batches of other partitions come by `Sink.deliver`."""

    @abc.abstractmethod
    def appended(self, rows: Sequence[DeliveredRow]) -> None:
        """The sender appended batches to ends of its logs; at least one in each row."""

    @property
    def log(self) -> tuple[LogDirectory, ServerOptions] | None:
        """The log that it writes and the options by which a server serves it; None where nothing can be served."""
        return None


class Sockets(abc.ABC):
    """The sockets of a sink, by which a borrower sends ordinary batches itself, in C.

    The borrower is the sender, for its arena and for its overflow, or a shipper.
    """

    is_carried: bool = False
    """The sender may send the batches of its arena by them."""

    @abc.abstractmethod
    def lend(self, partition_indices: Sequence[int]) -> Sequence[Loan]:
        """Sockets for the ordinary rounds of a borrower, to the leaders of those partitions that may go now.

        A partition is left out when it has to go by `plan` and `deliver`: nobody leads it, its leader is busy, or its
        first batch goes alone.
        """

    @abc.abstractmethod
    def give_back(self, loan: Loan, delivered: Delivered, end: SocketEnd) -> None:
        """The socket of a loan is not used any more.

        Args:
            delivered: by the socket.
            end: how the socket is left.
        """


class Peer:
    """What is behind a sink and can fail: the brokers of a cluster, the medium of a log. By default it always works."""

    @property
    def outage(self) -> str | None:
        """Why nothing can be delivered to it at the moment, as a sentence without the time; None: it works.

        The sender asks in each round.
        """
        return None

    @property
    def is_full(self) -> bool:
        """True when no delivery can begin before an answer or a connection comes: no news of a producer helps it.

        The sender asks before it sleeps, and is rung by processes that wait for it alone then.
        """
        return False

    @property
    def answer_count(self) -> int | None:
        """How often it has proved that it works, by an answer; None where it gives none.

        Time between two answers counts when the second one has come. Without answers `outage` is proof enough.
        """
        return None

    def ask_again(self, topic: str) -> None:
        """A producer waits for a partition that `Sink.partition_count` does not tell: find out whether it is there.

        It is called again as long as the producer waits, some ten times in a second at most.
        """


ALWAYS_WORKS = Peer()
"""The peer of a sink behind which nothing can fail."""


class Sink(abc.ABC):
    """The place that batches go to. The contract stands at the head of this module.

    A sink that can more than take batches names the object that does it, often itself: `producer_ids`, `transactions`,
    `fast_path` and `peer`. None of the first three is needed.
    """

    name: str = ""
    """Where it delivers, for people and to compare: its URL in one spelling (sender/sinks/names.py). Empty where it has
    none:
    the arena is told its class then."""
    limits: Limits = Limits()
    """What it takes at once; known after `open`."""
    producer_ids: ProducerIds | None = None
    """None: it may have a batch twice that is delivered again. Known after `open`."""
    transactions: SinkTransactions | None = None
    """None: it does not take the batches of an arena with transactions."""
    fast_path: LogEnds | Sockets | None = None
    """The way by which the sender delivers ordinary batches itself, in C. None: all batches come by `deliver`."""
    peer: Peer = ALWAYS_WORKS
    """The part of it that can fail."""

    @property
    @abc.abstractmethod
    def identity(self) -> bytes:
        """16 bytes that name what is behind the sink (a log directory, a cluster), the same each time it is opened.

        The arena remembers them with its producer id, and asks for a new id when they change. A sink that finds out
        later what is behind it answers zeros until then, and has no producer id either.
        """

    @abc.abstractmethod
    def open(self, host: SinkHost) -> None:
        """Gets ready, under the sender role.

        Raises:
            OSError, ShmaccumError: it cannot be used; the message says what to do.
        """

    @abc.abstractmethod
    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has, None while that is being found out. Called now and then for each topic.

        Raises:
            UnknownTopicError: there is none of that name, and there will be none.
        """

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        """Which of the ready partitions may be drained now: one sequence of partition indices per delivery.

        A partition that is named n times gives up to n batches, of which all but the first were sealed already. A
        batch that finds no room in a delivery comes first the next time. By default everything goes in one delivery.
        """
        return [ready]

    @abc.abstractmethod
    def deliver(self, batches: Sequence[WireBatch]) -> None:
        """Begins the delivery of the batches that one sequence of the plan gave; at least one."""

    @abc.abstractmethod
    def poll(self, timeout_s: float, doorbell: int) -> Sequence[Ack | Acks]:
        """Waits for its own I/O or until `doorbell` is readable, and answers what is acked.

        Comes back at once when there are acks already, and whenever `plan` might now answer otherwise.

        Args:
            timeout_s: 0 looks only.
            doorbell: a file descriptor; never read it.
        """

    @abc.abstractmethod
    def close(self, timeout_s: float) -> None:
        """Finishes or breaks off what is under way, within the time, and lets go of all bytes.

        The arena keeps a batch without an Ack, and the next sender delivers it.
        """

    def metrics(self) -> Mapping[str, float]:
        """Numbers of its own, by Kafka's names where there are such; they take the place of the sender's of that name.

        Those of a broker end in ``.node-ID``, those of a topic in ``.topic-NAME`` (docs/reference/metrics.rst).
        """
        return {}


def logs_of(sink: Sink) -> LogEnds | None:
    """The logs to which the sender appends; None: it reaches the sink another way."""
    return sink.fast_path if isinstance(sink.fast_path, LogEnds) else None


def sockets_of(sink: Sink) -> Sockets | None:
    """The sockets that the sink lends; None: it lends none."""
    return sink.fast_path if isinstance(sink.fast_path, Sockets) else None


def ended(sink_ids: ProducerIds | None, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
    """The end of a transaction in a sink that gives out epochs itself. An abort raises the epoch (KIP-360).

    Args:
        sink_ids: of the sink; they answer at once.
        producer_id, producer_epoch: those of the transaction.
    """
    if is_commit or producer_id < 0:
        return Ended(producer_id, producer_epoch)
    if producer_epoch < PRODUCER_EPOCH_MAX:
        return Ended(producer_id, producer_epoch + 1)
    found = NO_PRODUCER_ID if sink_ids is None else sink_ids.new_producer_id()
    assert found is not None, "only a sink that asks others gives no producer id at once"
    return Ended(*found)


class SynchronousSink(Sink):
    """A sink that has done a delivery when `write` comes back: a file, a list, nothing at all."""

    def __init__(self) -> None:
        self._acks: list[Ack] = []

    @abc.abstractmethod
    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        """Delivers the batches; one Ack for each, in any order.

        Raises:
            OSError: nothing was delivered, or nobody knows: all of it is retried.
        """

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        """One delivery, in which each partition gives all it may have in flight, one partition after another."""
        return [[partition_index for partition_index in ready for _ in range(self.limits.in_flight_max)]]

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        self._acks.extend(self.write(batches))

    def poll(self, timeout_s: float, doorbell: int) -> Sequence[Ack]:
        if not self._acks and timeout_s > 0:
            wait_readable([doorbell], timeout_s)
        acks, self._acks = self._acks, []
        return acks

    def close(self, timeout_s: float) -> None:
        """Nothing is under way."""
