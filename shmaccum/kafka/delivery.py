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


@dataclass(slots=True, eq=False)
class InFlight:
    """A batch between `deliver` and its ack."""

    wire: WireBatch
    predecessors: Sequence[InFlight]
    """The older batches of its partition that were in flight when it was delivered."""
    verdict: Verdict | None = None
    """None while it is in flight."""
    compressed: bytes | None = None

    def end(self, ack: Ack) -> Ack:
        """Notes the verdict for those behind it."""
        self.verdict = ack.verdict
        self.predecessors = ()
        return ack

    def sequence_verdict(self) -> Verdict:
        """What "out of order" means here."""
        fates = {before.verdict for before in self.predecessors}
        return Verdict.RETRY if fates & {None, Verdict.RETRY, Verdict.TOO_LARGE} else Verdict.OUT_OF_SEQUENCE


@dataclass(slots=True, eq=False)
class Delivery:
    """One Produce request: at most one batch of each partition."""

    node_id: int
    batches: dict[tuple[str, int], InFlight] = field(default_factory=dict)
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    """As they were when it was sent: a topic may be deleted and created again meanwhile (KAFKA-19397)."""

    @property
    def record_count(self) -> int:
        return sum(batch.wire.record_count for batch in self.batches.values())

    def topics(self, topic_id: Callable[[str], uuid.UUID | None]) -> list[TopicRecords]:
        """Grouped as the request wants it; remembers the ids."""
        grouped: dict[str, list[PartitionRecords]] = {}
        for (topic, partition), batch in self.batches.items():
            wire, compressed = batch.wire, batch.compressed
            whole = (wire.buffers, wire.size) if compressed is None else ((compressed,), len(compressed))
            grouped.setdefault(topic, []).append(PartitionRecords(partition, *whole))
        topic_ids = {topic: topic_id(topic) for topic in grouped}
        self.topic_names = {found: topic for topic, found in topic_ids.items() if found}
        return [TopicRecords(topic, topic_ids[topic], partitions) for topic, partitions in grouped.items()]

    def answers(self, answered: Sequence[PartitionAnswer]) -> Iterator[tuple[InFlight, PartitionAnswer]]:
        """Each batch with its answer; one that the broker left out counts as lost on the way."""
        names: Mapping[Any, str] = self.topic_names
        found = {(names.get(answer.topic, answer.topic), answer.partition): answer for answer in answered}
        for key, batch in self.batches.items():
            yield batch, found.get(key) or no_answer(NETWORK_EXCEPTION, "the broker did not answer for this partition")


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
    """The answer in the words of the contract."""
    if answer.error_code == 0:
        return Ack(batch.wire, Verdict.DELIVERED, answer.base_offset, answer.log_append_time_ms)
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
