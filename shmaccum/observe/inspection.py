# SPDX-License-Identifier: Apache-2.0
"""The contents of an arena's slots: decode words and records, and build batches in Kafka's wire format.

The code reads live and damaged arenas and trusts no bytes: every index and size is checked, and a chain is followed for
at most as many slots as exist. Header and bytes of an open batch are read until both are consistent: the slot word was
the same before and after, and every append changes the word first (native/arena/layout.h, `meta`).

The header of a batch is written when the batch is drained. Before that (OPEN, and READY before a sender has seen it),
its bytes are zeros, and the slot header has all its fields. `batch_bytes` builds the header from them, so it always
returns a complete record batch.

An export of transactional batches has no marker, and each batch has the transactional attribute and a producer id.
While an arena holds records of a transaction, the transaction is not committed. So readers with ``read_committed`` see
none of them, and other readers see all.
"""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgpack

from shmaccum import _native
from shmaccum.arena import Arena, tables
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.arena.slot_word import SLOT_STATES
from shmaccum.common.format.batch_header import HEADER_SIZE, MAGIC, TRANSACTIONAL, BatchHeader, sealed_header
from shmaccum.exceptions import InvalidArgumentError, ShmaccumError

TRIES = 100
NO_LEADER_EPOCH = -1
SEQUENCE_IS_ASSIGNED = 1 << 16
LEGAL_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
INDEX_NAME = "index.msgpack"
SEGMENT_NAME = "00000000000000000000.log"
FILLED_STATES = ("OPEN", "READY", "DONE", "BAD")
WAITING_STATES = ("OPEN", "READY", "BAD")


@dataclass(frozen=True)
class SlotFacts:
    """One slot. If the slot has no batch, the fields of a batch are None.

    Attributes:
        holder: for GRANT, the waiter entry; for OWNED, the process entry; for CONT, the first slot of the batch.
        is_checksum_right: whether the records match the stored checksum, or None without records.
        data: the bytes up to the end of the last committed record, from all slots of the batch. If the batch was
            drained, the first 61 bytes are its header.
    """

    slot_index: int
    state: str
    generation: int
    holder: int | None = None
    topic: str | None = None
    partition: int | None = None
    seq: int | None = None
    record_count: int | None = None
    size: int | None = None
    age_ns: int | None = None
    left_ns: int | None = None
    base_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None
    producer_id: int | None = None
    producer_epoch: int | None = None
    base_sequence: int | None = None
    attempt_count: int | None = None
    chain: tuple[int, ...] = ()
    is_checksum_right: bool | None = None
    data: bytes = field(default=b"", repr=False)

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON document with stable keys, without the bytes."""
        return {name: value for name, value in asdict(self).items() if name != "data"}


@dataclass(frozen=True)
class CompletionFacts:
    """One result in the ring."""

    number: int
    topic: str
    partition: int
    seq: int
    first_record: int
    record_count: int
    result: str
    base_offset: int
    log_append_time_ms: int
    error_code: int

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON document with stable keys."""
        return asdict(self)


@dataclass(frozen=True)
class ExportedBatch:
    """One entry of the index that `export` writes."""

    slot_index: int
    state: str
    topic: str
    partition: int
    seq: int
    record_count: int
    size: int
    file: str
    position: int
    base_offset: int
    """The base offset in the exported file, or -1 for raw bytes."""
    is_checksum_right: bool


def _filled(number: int | None) -> int:
    """Return a number that every slot with a batch has.

    Raises:
        struct.error: the slot has no batch.
    """
    if number is None:
        raise struct.error("the slot has no batch")
    return number


class Inspector:
    """Reads the slots of one arena, which may be opened in any mode, including read-only."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.slot_count = arena.geometry["slot_count"]
        self._batch_size = arena.geometry["batch_size"]
        self._stride = arena.geometry["slot_stride"]
        self._names = arena.native.partitions()

    # --- slots

    def slots(self, states: frozenset[str] | None = None, topic: str | None = None) -> Iterator[SlotFacts]:
        """Yields every slot, or those in one of the states, or with a batch of the topic."""
        words = self.arena.slot_table()["word"].copy()
        found = tables.slot_state(words)
        for slot_index in range(self.slot_count):
            if states is not None and SLOT_STATES[int(found[slot_index])] not in states:
                continue
            facts = self.slot(slot_index)
            if topic is None or facts.topic == topic:
                yield facts

    def slot(self, slot_index: int) -> SlotFacts:
        """Returns one slot.

        Raises:
            InvalidArgumentError: the slot does not exist.
        """
        if not 0 <= slot_index < self.slot_count:
            raise InvalidArgumentError(f"there is no slot {slot_index}: the arena has slots 0 to {self.slot_count - 1}")
        header, data = self._consistent(slot_index)
        state, payload = _state(header), int(header["word"]) & (2**43 - 1)
        generation = int(tables.slot_generation(header["word"]))
        if state not in FILLED_STATES:
            return SlotFacts(slot_index, state, generation, holder=_holder(state, payload))
        return self._filled(slot_index, state, generation, header, data)

    def _consistent(self, slot_index: int) -> tuple[Any, bytes]:
        """Returns a consistent header with its bytes. If the slot changes all the time, they may be inconsistent."""
        words = self.arena.slot_table()["word"]
        header, data = self._read(slot_index)
        for _ in range(TRIES):
            if words[slot_index] == header["word"]:
                break
            header, data = self._read(slot_index)
        return header, data

    def _read(self, slot_index: int) -> tuple[Any, bytes]:
        header = self.arena.slot_table()[slot_index].copy()
        return header, self._bytes(slot_index, _size(header)) if _state(header) in FILLED_STATES else b""

    def _filled(self, slot_index: int, state: str, generation: int, header: Any, data: bytes) -> SlotFacts:
        """Returns the facts of a slot with a batch."""
        from crc32c import crc32c  # slow to import; independent of the code that computed the checksum

        topic, partition = self._partition(int(header["partition_index"]))
        count, size = _count(header), _size(header)
        meta = header["meta"][count & 1]
        epoch = int(header["producer_epoch"])
        is_numbered = bool(epoch & SEQUENCE_IS_ASSIGNED)
        clock = DeliveryClockReading.of(self.arena.native)
        return SlotFacts(
            slot_index=slot_index,
            state=state,
            generation=generation,
            topic=topic,
            partition=partition,
            seq=int(header["seq"]),
            record_count=count,
            size=size,
            age_ns=max(clock.now_ns - int(header["created_ns"]), 0),
            left_ns=clock.left_ns(int(header["created_ns"]), int(header["delivery_stamp_ms"])),
            base_timestamp_ms=int(header["base_timestamp_ms"]),
            max_timestamp_ms=int(meta["max_timestamp_ms"]),
            producer_id=int(header["producer_id"]) if is_numbered else -1,
            producer_epoch=epoch & (SEQUENCE_IS_ASSIGNED - 1) if is_numbered else -1,
            base_sequence=int(header["base_sequence"]) if is_numbered else -1,
            attempt_count=int(header["attempt_count"]),
            chain=tuple(self._chain(slot_index, size))[1:],
            is_checksum_right=crc32c(data[HEADER_SIZE:]) == int(meta["records_crc"]),
            data=data,
        )

    def _partition(self, partition_index: int) -> tuple[str, int]:
        return self._names[partition_index] if partition_index < len(self._names) else ("?", -1)

    def _chain(self, slot_index: int, size: int) -> Iterator[int]:
        """Yields the slots of a batch of that size, in order. Ends early if the chain is broken."""
        slot_table = self.arena.slot_table()
        for _ in range(min(-(-size // self._batch_size), self.slot_count)):
            yield slot_index
            following = int(slot_table["chain_next"][slot_index])
            if not 0 < following <= self.slot_count:
                return
            slot_index = following - 1

    # --- bytes

    def _bytes(self, slot_index: int, size: int) -> bytes:
        """Returns the first `size` bytes of the batch that starts in the slot."""
        data = self.arena.native.region("slot_data")
        starts = [index * self._stride for index in self._chain(slot_index, size)]
        return b"".join(bytes(data[start : start + self._batch_size]) for start in starts)[:size]

    def batch_bytes(self, facts: SlotFacts, base_offset: int = 0) -> bytes:
        """Returns the batch in Kafka's wire format, with a header built from the slot header.

        Raises:
            struct.error: a field of the slot header is damaged and does not fit.
        """
        records = facts.data[HEADER_SIZE:]
        count = facts.record_count or 0
        is_transactional = bool(self.arena.geometry["is_transactional"])
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=NO_LEADER_EPOCH,
            magic=MAGIC,
            crc=0,
            attributes=TRANSACTIONAL if is_transactional else 0,
            last_offset_delta=count - 1,
            base_timestamp_ms=_filled(facts.base_timestamp_ms),
            max_timestamp_ms=_filled(facts.max_timestamp_ms),
            producer_id=_filled(facts.producer_id),
            producer_epoch=_filled(facts.producer_epoch),
            base_sequence=_filled(facts.base_sequence),
            record_count=count,
        )
        return sealed_header(header, records) + records

    def records(self, facts: SlotFacts) -> list[Any] | None:
        """Returns the records of a slot's batch from `decode_batch`, or None if they cannot be decoded."""
        with contextlib.suppress(ShmaccumError, ValueError, struct.error):
            return _native.decode_batch(self.batch_bytes(facts))
        return None

    # --- results

    def completions(self, count: int) -> list[CompletionFacts]:
        """Returns the last `count` results, newest first. Results that were overwritten meanwhile are omitted."""
        ring = self.arena.completion_table()
        tail = self.arena.native.completion_tail
        numbers = range(tail - 1, max(tail - min(count, len(ring)), 0) - 1, -1)
        results = (self._completion(ring[number % len(ring)].copy(), number) for number in numbers)
        return [result for result in results if result is not None]

    def _completion(self, cell: Any, number: int) -> CompletionFacts | None:
        if int(cell["number"]) != number + 1:
            return None
        topic, partition = self._partition(int(cell["partition_index"]))
        return CompletionFacts(
            number=number,
            topic=topic,
            partition=partition,
            seq=int(cell["seq"]),
            first_record=int(cell["first_record"]),
            record_count=int(cell["record_count"]),
            result=RESULT_NAMES.get(int(cell["result"]), "?"),
            base_offset=int(cell["base_offset"]),
            log_append_time_ms=int(cell["log_append_time_ms"]),
            error_code=int(cell["error_code"]),
        )


RESULT_NAMES: Mapping[int, str] = {
    _native.RESULT_SUCCEEDED: "succeeded",
    _native.RESULT_FAILED: "failed",
    _native.RESULT_EXPIRED: "expired",
    _native.RESULT_ABORTED: "aborted",
    _native.RESULT_CORRUPT: "corrupt",
}


def _state(header: Any) -> str:
    return SLOT_STATES[int(tables.slot_state(header["word"]))]


def _count(header: Any) -> int:
    return int(tables.slot_record_count(header["word"]))


def _size(header: Any) -> int:
    return int(tables.slot_size(header["word"]))


def _holder(state: str, payload: int) -> int | None:
    """Return the holder of a slot without a batch, from its word (native/arena/slot_word.h)."""
    if state == "GRANT":
        return payload >> 31 & (2**12 - 1)
    if state == "OWNED":
        return (payload & (2**12 - 1)) - 1
    return payload >> 18 & (2**24 - 1) if state == "CONT" else None


# --- export


class _Export:
    """A folder for exported batches: segments for those with a right checksum, raw bytes for the others."""

    def __init__(self, inspector: Inspector, folder: Path) -> None:
        self._inspector = inspector
        self._folder = folder
        self._offsets: dict[str, int] = {}
        self.index: list[ExportedBatch] = []

    def take(self, facts: SlotFacts) -> None:
        topic, partition = facts.topic or "?", facts.partition if facts.partition is not None else -1
        if self._is_sound(facts):
            name = f"{topic}-{partition}/{SEGMENT_NAME}"
            base_offset = self._offsets.get(name, 0)
            payload = self._inspector.batch_bytes(self._identified(facts), base_offset)
            self._offsets[name] = base_offset + (facts.record_count or 0)
        else:
            name, base_offset = f"damaged/slot-{facts.slot_index:06}.bin", -1
            payload = facts.data
        position = self._append(name, payload)
        self.index.append(
            ExportedBatch(
                slot_index=facts.slot_index,
                state=facts.state,
                topic=topic,
                partition=partition,
                seq=facts.seq or 0,
                record_count=facts.record_count or 0,
                size=len(payload),
                file=name,
                position=position,
                base_offset=base_offset,
                is_checksum_right=bool(facts.is_checksum_right),
            )
        )

    def _identified(self, facts: SlotFacts) -> SlotFacts:
        """Returns the batch with a producer id, which readers need for transactions. Undelivered batches have none."""
        arena = self._inspector.arena
        if not arena.geometry["is_transactional"] or (facts.producer_id or 0) >= 0:
            return facts
        producer_id, epoch, _ = arena.native.producer_identity
        return replace(facts, producer_id=max(producer_id, 0), producer_epoch=max(epoch, 0))

    def _is_sound(self, facts: SlotFacts) -> bool:
        """Returns whether the batch is intact. A damaged topic name must not lead out of the folder."""
        is_named = LEGAL_TOPIC.fullmatch(facts.topic or "") is not None and facts.topic not in {".", ".."}
        return is_named and bool(facts.is_checksum_right) and self._inspector.records(facts) is not None

    def _append(self, name: str, payload: bytes) -> int:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        with open(path, "ab") as stream:
            position = stream.tell()
            stream.write(payload)
        return position

    def write_index(self) -> None:
        packed = msgpack.packb([asdict(batch) for batch in self.index])
        (self._folder / INDEX_NAME).write_bytes(packed)


def export(arena: Arena, folder: Path) -> list[ExportedBatch]:
    """Copy every waiting batch (OPEN, READY, BAD) to a new folder, without changing the arena.

    Sound batches are written in order to ``TOPIC-PARTITION/00000000000000000000.log``, with offsets from 0. These
    segments have Kafka's format, for our log reader and Kafka's tools. The bytes of damaged batches are written
    unchanged to ``damaged/slot-N.bin``. ``index.msgpack`` lists all batches. Readers with ``read_committed`` see no
    batch of a transaction.

    Raises:
        FileExistsError: the folder exists.
        OSError: the folder cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True)  # records are private, whatever the umask
    inspector = Inspector(arena)
    exported = _Export(inspector, folder)
    for slot_index, seq in _waiting(inspector):
        facts = inspector.slot(slot_index)
        if facts.seq == seq and facts.state in WAITING_STATES:  # otherwise, it was delivered meanwhile
            exported.take(facts)
    exported.write_index()
    return exported.index


def _waiting(inspector: Inspector) -> list[tuple[int, int]]:
    """Return slot and seq of the waiting batches, by partition, oldest first, without their bytes."""
    waiting = [
        (facts.topic or "", facts.partition or 0, facts.seq or 0, facts.slot_index)
        for facts in inspector.slots(frozenset(WAITING_STATES))
        if facts.record_count or facts.state == "BAD"
    ]
    return [(slot_index, seq) for _, _, seq, slot_index in sorted(waiting)]
