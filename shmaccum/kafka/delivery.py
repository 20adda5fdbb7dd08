# SPDX-License-Identifier: Apache-2.0
"""A Produce request on its way, and what the broker's answer means for each of its batches.

A batch that the broker finds out of sequence is one of two. Either a batch before it was lost on this attempt and comes
again: then this one comes again behind it, unchanged. Or nothing is coming that could fill the gap: then the partition
starts over in a new epoch (KIP-360). Which of the two it is shows in the batches of its partition that were in flight
when it was delivered: the sender drains a partition's oldest batch first, so every older batch that still exists was
among them. This needs no memory of sequences, and so holds for a sender that has just taken over, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shmaccum.kafka.errors import NETWORK_EXCEPTION, Action, sentence, treatment
from shmaccum.kafka.produce import PartitionAnswer, PartitionRecords, TopicRecords
from shmaccum.sinks.sink import Ack, Verdict, WireBatch

_new_tuple = tuple.__new__
"""Makes a NamedTuple without its own __new__, which would take several times as long."""


@dataclass(slots=True, eq=False)
class PartitionState:
    """What the sink knows of a partition: where its batches go, and which are on their way."""

    partition_index: int
    topic: str
    partition: int
    node_id: int | None = None
    """Its leader, as long as nothing was heard of another one."""
    in_flight: list[InFlight] = field(default_factory=list)
    """In the order in which they were delivered."""
    delivery_number: int = 0
    """When it had a batch delivered last; 0 never."""
    acked: tuple[int, int] = (-1, -1)
    """Producer id and epoch that the broker has acked."""
    acked_s: float = 0.0

    def begin(self, wire: WireBatch) -> InFlight:
        """A batch is delivered, behind those that are in flight."""
        batch = InFlight(wire, self, tuple(self.in_flight) if self.in_flight else ())
        self.in_flight.append(batch)
        return batch

    def waits_for_first_ack(self, now_s: float, forgotten_s: float) -> bool:
        """True while its next batch might overtake the first that this broker sees of the producer."""
        if not self.in_flight:
            return False
        wire = self.in_flight[-1].wire
        return self.acked != (wire.producer_id, wire.producer_epoch) or now_s - self.acked_s > forgotten_s


@dataclass(slots=True, eq=False)
class InFlight:
    """A batch between `deliver` and its ack."""

    wire: WireBatch
    state: PartitionState
    predecessors: Sequence[InFlight]
    """The older batches of its partition that were in flight when it was delivered."""
    verdict: Verdict | None = None
    """None while it is in flight."""
    compressed: bytes | None = None

    def end(self, ack: Ack) -> Ack:
        """Notes the verdict for those behind it."""
        self.state.in_flight.remove(self)
        self.verdict = ack.verdict
        self.predecessors = ()
        return ack

    def end_delivered(self, answer: PartitionAnswer, now_s: float) -> Ack:
        """It is in the partition: what nearly always happens, and therefore takes the short way."""
        wire, state = self.wire, self.state
        state.acked = (wire.producer_id, wire.producer_epoch)
        state.acked_s = now_s
        return self.end(Ack(wire, Verdict.DELIVERED, answer.base_offset, answer.log_append_time_ms))

    def sequence_verdict(self) -> Verdict:
        """What "out of order" means here."""
        fates = {before.verdict for before in self.predecessors}
        return Verdict.RETRY if fates & {None, Verdict.RETRY, Verdict.TOO_LARGE} else Verdict.OUT_OF_SEQUENCE


@dataclass(slots=True, eq=False)
class Delivery:
    """One Produce request: at most one batch of each partition."""

    node_id: int
    topics: dict[str, dict[int, InFlight]] = field(default_factory=dict)
    """By topic and partition."""
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    """As they were when it was sent: a topic may be deleted and created again meanwhile (KAFKA-19397)."""

    def add(self, batch: InFlight) -> bool:
        """False when it has a batch of this partition already."""
        partitions = self.topics.get(batch.wire.topic)
        if partitions is None:
            partitions = self.topics[batch.wire.topic] = {}
        return partitions.setdefault(batch.wire.partition, batch) is batch

    def batches(self) -> list[InFlight]:
        """All of them."""
        return [batch for partitions in self.topics.values() for batch in partitions.values()]

    @property
    def wires(self) -> list[WireBatch]:
        """What the sender lent."""
        return [batch.wire for partitions in self.topics.values() for batch in partitions.values()]

    def records(self, topic_id: Callable[[str], uuid.UUID | None]) -> list[TopicRecords]:
        """As the request wants it; remembers the ids."""
        found = [
            TopicRecords(topic, topic_id(topic), [_records_of(batch) for batch in partitions.values()])
            for topic, partitions in self.topics.items()
        ]
        self.topic_names = {records.topic_id: records.topic for records in found if records.topic_id is not None}
        return found

    def answers(self, answered: Sequence[PartitionAnswer]) -> Iterator[tuple[InFlight, PartitionAnswer]]:
        """Each batch with its answer; one that the broker left out counts as lost on the way. Only once."""
        names: Mapping[Any, Any] = self.topic_names
        left, self.topics = self.topics, {}
        key, partitions = None, {}
        for answer in answered:
            if answer.topic is not key:  # those of a topic come together
                key = answer.topic
                partitions = left.get(names.get(key, key), {})
            batch = partitions.pop(answer.partition, None)
            if batch is not None:
                yield batch, answer
        lost = no_answer(NETWORK_EXCEPTION, "the broker did not answer for this partition")
        for missing in left.values():
            yield from ((batch, lost) for batch in missing.values())


def _records_of(batch: InFlight) -> PartitionRecords:
    wire, compressed = batch.wire, batch.compressed
    if compressed is None:
        return _new_tuple(PartitionRecords, (wire.partition, wire.buffers, wire.size))
    return PartitionRecords(wire.partition, (compressed,), len(compressed))


def no_answer(error_code: int, message: str) -> PartitionAnswer:
    """In place of an answer that did not come."""
    return PartitionAnswer("", -1, error_code, -1, -1, message, (), -1, -1)


VERDICTS: Mapping[Action, Verdict] = {
    Action.DELIVER: Verdict.DELIVERED,
    Action.RETRY: Verdict.RETRY,
    Action.REFUSE: Verdict.REFUSED,
    Action.SPLIT: Verdict.TOO_LARGE,
}


def ack_of(batch: InFlight, answer: PartitionAnswer) -> Ack:
    """What an error means, in the words of the contract."""
    row = treatment(answer.error_code)
    verdict = batch.sequence_verdict() if row.action is Action.SEQUENCE else VERDICTS[row.action]
    return Ack(
        batch.wire,
        verdict,
        base_offset=answer.base_offset if row.action is Action.DELIVER else -1,
        log_append_time_ms=answer.log_append_time_ms,
        error_code=answer.error_code,
        message=_explain(batch.wire, answer),
        record_errors=[place for place, _ in answer.record_errors],
    )


def _explain(wire: WireBatch, answer: PartitionAnswer) -> str:
    """Partition, error, and what the broker said, about single records too (KIP-467)."""
    blamed = [f"record {place}: {message}" for place, message in answer.record_errors if message]
    detail = "; ".join([answer.message, *blamed] if answer.message else blamed)
    return f"{wire.topic}-{wire.partition}: {sentence(answer.error_code, detail or None)}"
