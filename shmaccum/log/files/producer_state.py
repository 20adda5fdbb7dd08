# SPDX-License-Identifier: Apache-2.0
"""The state of a partition's producers, by which each batch is accepted once (Kafka's ProducerStateManager, KIP-98).

The rules are those of a broker. For each producer id, the last batches are known by their first and last sequence:

* A batch with the sequences of a known batch is a duplicate, and its outcome is the offset of that batch. The log also
  compares the records (`shmaccum.log.files.duplicates`).
* A batch with an older producer epoch is rejected (47). A newer epoch must start with sequence 0.
* Otherwise the first sequence must follow the last one, where 0 follows 2^31 - 1. If not, the batch is rejected (45).
* An unknown producer id may start with any sequence.
* The marker of a transaction has no sequence. A marker with a newer epoch fences the older epoch: the next batch must
  start with sequence 0.

On disk (``.snapshot``, big-endian), the state below the offset that names the file:

::

    | version i16 = 1 | crc u32 of all bytes after it | count i32 | rows |
    row: producer id i64, epoch i16, last sequence i32, last offset i64, last offset delta i32, timestamp i64,
         coordinator epoch i32 = -1, first offset of the open transaction i64 (-1: none)            46 bytes

Kafka writes one row per producer, so after a restart it recognizes only the last batch. Here, each remembered batch has
a row, oldest first. Kafka's reader uses the last row, and shmaccum recognizes all batches that were in flight when a
sender died. All rows of a producer contain its open transaction. A damaged or missing snapshot loses nothing: the state
is rebuilt from batch headers.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, Protocol

from shmaccum._native import PRODUCER_ROWS_KEPT, crc32c
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.open_transactions import OpenTransactions

KEPT_COUNT = PRODUCER_ROWS_KEPT
"""A broker remembers 5 batches. A log sink has more in flight, so that it needs fewer system calls."""
SEQUENCE_MASK = 0x7FFF_FFFF
NO_SEQUENCE = -1
NO_OFFSET = -1

SNAPSHOT_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_START = 6
_new_tuple = tuple.__new__
_ROW = struct.Struct(">qhiqiqiq")


class Rejection(NamedTuple):
    """The reason why a batch was not appended: a code for programs, and a message for people."""

    error_code: BrokerError
    message: str
    errno: int = 0
    """The errno of the system call that caused a storage error; 0 for any other rejection."""
    record_indexes: tuple[int, ...] = ()
    """The indexes in the batch of the records that caused the rejection (KIP-467). Empty if all did, or unknown."""

    @property
    def is_retriable(self) -> bool:
        """True if the same batch may be accepted later."""
        return self.error_code == BrokerError.KAFKA_STORAGE_ERROR


class Appendable(Protocol):
    """A record batch that can be appended: the sender's WireBatch, or a LogBatch that was read from another log."""

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The wire bytes. The first buffer contains at least the whole header."""

    @property
    def size(self) -> int:
        """The size of all buffers, in bytes."""

    @property
    def record_count(self) -> int:
        """At least 1. The batch has as many offsets."""

    @property
    def producer_id(self) -> int:
        """The producer id, or -1 if the batch is not idempotent."""

    @property
    def producer_epoch(self) -> int:
        """The epoch of the producer id."""

    @property
    def base_sequence(self) -> int:
        """The sequence of the first record."""

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp."""


def shared_crc(batch: Appendable) -> int | None:
    """The CRC of a batch in memory that other processes can write; None for a batch in private memory."""
    crc: int | None = getattr(batch, "shared_crc", None)
    return crc


class KnownBatch(NamedTuple):
    """A batch of a producer in the log. A marker that fences an epoch is stored as one without sequences (-1)."""

    epoch: int
    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class ProducerState:
    """The producers of one partition.

    Attributes:
        transactions: the open transactions.
        known: producer id -> its batches, oldest first. An append in C adds batches, too.
    """

    def __init__(self) -> None:
        self.transactions = OpenTransactions()
        self.known: dict[int, list[KnownBatch]] = {}
        self._touched: set[int] = set()

    def admit(self, batch: Appendable, offset: int) -> int | Rejection | None:
        """Accept or reject a batch that would get this base offset; remember it if it is to be written.

        Returns:
            None if the batch is to be written, the base offset of the first one if it is a duplicate, or the rejection.
        """
        producer_id = batch.producer_id
        if producer_id < 0:
            return None
        epoch, first, count = batch.producer_epoch, batch.base_sequence, batch.record_count
        known = self.known.get(producer_id)
        if known is None:
            known = self.known[producer_id] = []
        elif epoch != known[-1].epoch or first != (known[-1].last_sequence + 1) & SEQUENCE_MASK:
            answer = _classify(producer_id, known, epoch, first, count)
            if answer is not None:
                return answer
        if producer_id not in self._touched:
            self._touched.add(producer_id)
        last = (first + count - 1) & SEQUENCE_MASK
        known.append(_new_tuple(KnownBatch, (epoch, first, last, offset, offset + count - 1, batch.max_timestamp_ms)))
        return None

    def admit_of_transaction(self, batch: Appendable, offset: int) -> int | Rejection | None:
        """As `admit`, for a batch of a transaction. The first one that is to be written begins the transaction."""
        known = self.admit(batch, offset)
        if known is None:
            self.transactions.begin(batch.producer_id, offset)
        return known

    def admit_marker(self, batch: Appendable, offset: int) -> Rejection | None:
        """Accept or reject a marker. The transaction stays open until `end_transaction` is called after the write.

        Returns:
            None if the marker is to be written, or a rejection if its epoch is older than that of an earlier batch.
        """
        known = self.known.setdefault(batch.producer_id, [])
        if known and batch.producer_epoch < known[-1].epoch:
            return _fenced(batch.producer_id, known[-1].epoch, batch.producer_epoch)
        self._touched.add(batch.producer_id)
        self._fence(known, batch.producer_epoch, offset, batch.max_timestamp_ms)
        return None

    @staticmethod
    def _fence(known: list[KnownBatch], epoch: int, offset: int, timestamp_ms: int) -> None:
        if not known or epoch > known[-1].epoch:
            known.append(KnownBatch(epoch, NO_SEQUENCE, NO_SEQUENCE, offset, offset, timestamp_ms))

    def end_transaction(self, producer_id: int) -> int | None:
        """End a transaction after its marker was written; return its first offset, or None if none was open."""
        return self.transactions.end(producer_id)

    def timestamp_ms(self, producer_id: int, base_offset: int) -> int | None:
        """The timestamp of a producer's batch at this offset; None if the batch is not remembered."""
        known = self.known.get(producer_id, ())
        return next((batch.timestamp_ms for batch in known if batch.base_offset == base_offset), None)

    def confirm(self) -> None:
        """Confirm that the admitted batches are written, and forget the batches before the last few."""
        for producer_id in self._touched:
            del self.known[producer_id][:-KEPT_COUNT]
        self._touched.clear()

    def cut(self, log_end_offset: int) -> None:
        """Remove the admitted batches from this offset on, because they were not written."""
        self.transactions.cut(log_end_offset)
        for producer_id in self._touched:
            known = self.known[producer_id]
            while known and known[-1].base_offset >= log_end_offset:
                known.pop()
            if not known:
                del self.known[producer_id]
        self._touched.intersection_update(self.known)
        self.confirm()

    def replay(self, producer_id: int, batch: KnownBatch) -> None:
        """Remember a batch that was found in the log, without a check."""
        known = self.known.setdefault(producer_id, [])
        known.append(batch)
        del known[:-KEPT_COUNT]

    def replay_of_transaction(self, producer_id: int, batch: KnownBatch) -> None:
        """As `replay`, for a batch of a transaction."""
        self.replay(producer_id, batch)
        self.transactions.begin(producer_id, batch.base_offset)

    def replay_marker(self, producer_id: int, epoch: int, offset: int, timestamp_ms: int) -> int | None:
        """Replay a marker that was found in the log. Returns the same as `end_transaction`."""
        self._fence(self.known.setdefault(producer_id, []), epoch, offset, timestamp_ms)
        return self.end_transaction(producer_id)

    def forget_before(self, log_start_offset: int) -> None:
        """Forget producers without batches in the log, unless their transaction is open."""
        gone = [
            key
            for key, known in self.known.items()
            if known[-1].last_offset < log_start_offset and self.transactions.first_offset_of(key) is None
        ]
        for producer_id in gone:
            del self.known[producer_id]

    def forget(self, producer_id: int) -> None:
        """Forget a producer that will send no more batches."""
        self.known.pop(producer_id, None)

    def producer_ids(self) -> list[int]:
        """Every producer that is remembered."""
        return list(self.known)

    def batches_of(self, producer_id: int) -> list[KnownBatch]:
        """The remembered batches of one producer, oldest first."""
        return list(self.known.get(producer_id, ()))

    # --- snapshot

    def snapshot(self) -> bytes:
        """The state in Kafka's format."""
        rows = [
            _row(producer_id, batch, self.transactions.first_offset_of(producer_id))
            for producer_id, known in self.known.items()
            for batch in known
        ]
        body = struct.pack(">i", len(rows)) + b"".join(rows)
        return _HEAD.pack(SNAPSHOT_VERSION, crc32c(body), len(rows)) + b"".join(rows)

    @classmethod
    def from_snapshot(cls, content: bytes) -> ProducerState | None:
        """The state in a snapshot, or None if the snapshot is damaged."""
        if len(content) < _HEAD.size:
            return None
        version, crc, count = _HEAD.unpack_from(content)
        is_whole = len(content) == _HEAD.size + count * _ROW.size and crc32c(content[_CRC_START:]) == crc
        if version != SNAPSHOT_VERSION or not is_whole:
            return None
        state = cls()
        begun = {}
        for producer_id, epoch, last_sequence, last_offset, delta, timestamp, _, begin in _ROW.iter_unpack(
            content[_HEAD.size :]
        ):
            first_sequence = (last_sequence - delta) & SEQUENCE_MASK if last_sequence >= 0 else NO_SEQUENCE
            known = KnownBatch(epoch, first_sequence, last_sequence, last_offset - delta, last_offset, timestamp)
            state.replay(producer_id, known)
            if begin >= 0:
                begun[producer_id] = begin
        state.transactions = OpenTransactions(begun.items())
        return state


def _classify(producer_id: int, known: list[KnownBatch], epoch: int, first: int, count: int) -> int | Rejection | None:
    """Classify a batch that does not follow the last one: a duplicate, a new epoch, or an error."""
    last = known[-1]
    if epoch == last.epoch:
        last_sequence = (first + count - 1) & SEQUENCE_MASK
        for batch in reversed(known[-KEPT_COUNT:]):
            if batch.epoch == epoch and batch.first_sequence == first and batch.last_sequence == last_sequence:
                return batch.base_offset
        expected = (last.last_sequence + 1) & SEQUENCE_MASK
    elif epoch < last.epoch:
        return _fenced(producer_id, last.epoch, epoch)
    elif first == 0:
        return None
    else:
        expected = 0
    return Rejection(
        BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {producer_id} (epoch {epoch}) sent sequence {first} where {expected} was expected: "
        "batches in between are missing",
    )


def _fenced(producer_id: int, epoch: int, former_epoch: int) -> Rejection:
    return Rejection(
        BrokerError.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} now has epoch {epoch}, but a batch of epoch {former_epoch} came: "
        "its sender was replaced",
    )


def _row(producer_id: int, batch: KnownBatch, begin: int | None) -> bytes:
    delta = batch.last_offset - batch.base_offset
    first_offset = NO_OFFSET if begin is None else begin
    return _ROW.pack(
        producer_id,
        batch.epoch,
        batch.last_sequence,
        batch.last_offset,
        delta,
        batch.timestamp_ms,
        -1,
        first_offset,
    )
