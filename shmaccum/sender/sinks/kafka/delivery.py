# SPDX-License-Identifier: Apache-2.0
"""A Produce request in flight, and the effect of the broker's response on each of its batches.

If the broker finds a batch out of sequence, there are two cases. If a batch before it failed in this attempt and will
be sent again, this one is sent again after it, unchanged. If no batch will fill the gap, the partition starts over in a
new epoch (KIP-360). The batches of the partition that were in flight when this one was delivered decide the case. The
sender drains a partition's oldest batch first, so every older batch that still exists was among them. This needs no
memory of sequences, so it also works for a sender that has just taken over.

The usual response has no errors, and costs nothing per batch here. This module stores facts about requests, and
searches them for a batch only after an error.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from shmaccum.sender.sinks.kafka.errors import NETWORK_EXCEPTION, Action, sentence, treatment
from shmaccum.sender.sinks.kafka.produce import PartitionAnswer
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch

if TYPE_CHECKING:
    from shmaccum.log.files.log_file import FileRange  # imports the whole log
    from shmaccum.sender.sinks.compression import Form

Topic: TypeAlias = "tuple[str, bytes | None, tuple[int, ...], tuple[tuple[bytes | memoryview | FileRange, ...], ...]]"
"""The parts of a ProduceRequest: a topic's name and id, and its partitions with their bytes."""
COMES_AGAIN = frozenset({None, Verdict.RETRY, Verdict.TOO_LARGE})
"""Verdicts of a batch that may still be delivered; None while it is in flight."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One Produce request: at most one batch of each partition, with the batches of a topic adjacent."""

    node_id: int
    wires: Sequence[WireBatch]
    predecessors: Sequence[Delivery]
    """Requests that were in flight when it started. They contain the predecessor of each of its batches, if any."""
    compressed: Sequence[Form | None] = ()
    """Empty if no batch is compressed."""
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    """The verdicts of its batches that were not delivered, by partition index."""
    is_over: bool = False
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    """The names at the time of sending: a topic may be deleted and recreated meanwhile (KAFKA-19397)."""

    def partition_indices(self) -> list[int]:
        return [wire.partition_index for wire in self.wires]

    def topics(self, topic_id: Callable[[str], uuid.UUID | None]) -> tuple[Topic, ...]:
        """Return the topics as the request needs them, and remember their ids."""
        bodies = [wire.pieces if own is None else own for wire, own in self._with_compressed()]
        topics: list[Topic] = []
        first = 0
        for name, count in self._runs():
            end = first + count
            named = topic_id(name)
            if named is not None:
                self.topic_names[named] = name
            partitions = tuple([wire.partition for wire in self.wires[first:end]])
            topics.append((name, None if named is None else named.bytes, partitions, tuple(bodies[first:end])))
            first = end
        return tuple(topics)

    def with_sizes(self) -> Iterator[tuple[WireBatch, int]]:
        """Return its batches with their sent sizes."""
        return ((wire, wire.size if own is None else sum(map(len, own))) for wire, own in self._with_compressed())

    def _with_compressed(self) -> Iterator[tuple[WireBatch, Form | None]]:
        return zip(self.wires, self.compressed or [None] * len(self.wires), strict=True)

    def _runs(self) -> Iterator[tuple[str, int]]:
        """Return the topics, with the number of batches of each."""
        names = [wire.topic for wire in self.wires]
        return ((name, names.count(name)) for name in dict.fromkeys(names))

    def answers(self, answered: Sequence[PartitionAnswer]) -> Iterator[tuple[WireBatch, PartitionAnswer]]:
        """Return each batch with its response. A batch that the broker omitted counts as lost."""
        lost = no_answer(NETWORK_EXCEPTION, "the broker did not answer for this partition")
        names: Mapping[Any, Any] = self.topic_names
        by_place = {(names.get(answer.topic, answer.topic), answer.partition): answer for answer in reversed(answered)}
        return ((wire, by_place.get((wire.topic, wire.partition), lost)) for wire in self.wires)

    def leave_out_ended(self) -> list[WireBatch]:
        """Remove and return the batches that have their results already, and must not be sent any more.

        A batch that follows one of them in its partition finds a gap that no batch will fill.
        """
        ended = [wire for wire in self.wires if wire.batch.is_ended]
        if ended:
            self.verdicts.update((wire.partition_index, Verdict.REFUSED) for wire in ended)
            kept = [(wire, own) for wire, own in self._with_compressed() if wire not in ended]
            self.wires = [wire for wire, _ in kept]
            self.compressed = [own for _, own in kept]
        return ended

    def end(self) -> None:
        """Note that all its batches have their responses."""
        self.is_over = True
        self.predecessors = ()

    def verdict_of(self, partition_index: int) -> Verdict | None:
        """Return the verdict of its batch of a partition; DELIVERED if it has no such batch."""
        if self.is_over or partition_index in self.verdicts:
            return self.verdicts.get(partition_index, Verdict.DELIVERED)
        return None if partition_index in self.partition_indices() else Verdict.DELIVERED

    def sequence_verdict(self, wire: WireBatch) -> Verdict:
        """Return the verdict for one of its batches that the broker found out of sequence."""
        verdicts = {before.verdict_of(wire.partition_index) for before in self.predecessors}
        return Verdict.RETRY if verdicts & COMES_AGAIN else Verdict.OUT_OF_SEQUENCE


Node = TypeVar("Node")


def in_requests(wires: Sequence[WireBatch], node_of: Callable[[int], Node]) -> list[tuple[Node, list[WireBatch]]]:
    """Return one request per node, or more if a partition occurs more than once. Batches of a topic are adjacent.

    Args:
        node_of: returns the leader's node id of a partition index.
    """
    requests: list[tuple[Node, dict[str, dict[int, WireBatch]]]] = []
    newest: dict[Node, dict[str, dict[int, WireBatch]]] = {}
    for wire in wires:
        node_id = node_of(wire.partition_index)
        topics = newest.get(node_id)
        if topics is None or wire.partition in topics.get(wire.topic, ()):
            topics = newest[node_id] = {}
            requests.append((node_id, topics))
        topics.setdefault(wire.topic, {})[wire.partition] = wire
    return [
        (node_id, [wire for partitions in topics.values() for wire in partitions.values()])
        for node_id, topics in requests
    ]


def no_answer(error_code: int, message: str) -> PartitionAnswer:
    """Return the substitute for a missing response."""
    return PartitionAnswer("", -1, error_code, -1, -1, message, (), -1, -1)


VERDICTS: Mapping[Action, Verdict] = {
    Action.DELIVER: Verdict.DELIVERED,
    Action.RETRY: Verdict.RETRY,
    Action.REFUSE: Verdict.REFUSED,
    Action.SPLIT: Verdict.TOO_LARGE,
}


def ack_of(delivery: Delivery | None, wire: WireBatch, answer: PartitionAnswer) -> Ack:
    """Return the Ack of a batch for a broker's response.

    Args:
        delivery: the request of the batch; None if it was in no request yet.
    """
    row = treatment(answer.error_code)
    if row.action is not Action.SEQUENCE:
        verdict = VERDICTS[row.action]
    else:
        verdict = Verdict.OUT_OF_SEQUENCE if delivery is None else delivery.sequence_verdict(wire)
    return Ack(
        wire,
        verdict,
        base_offset=answer.base_offset if row.action is Action.DELIVER else -1,
        log_append_time_ms=answer.log_append_time_ms,
        error_code=answer.error_code,
        message=_explain(wire, answer),
        record_errors=[place for place, _ in answer.record_errors],
    )


def _explain(wire: WireBatch, answer: PartitionAnswer) -> str:
    """Return a sentence with the partition, the error, and the broker's messages, also for single records (KIP-467)."""
    invalid = [f"record {place}: {message}" for place, message in answer.record_errors if message]
    detail = "; ".join([answer.message, *invalid] if answer.message else invalid)
    return f"{wire.topic}-{wire.partition}: {sentence(answer.error_code, detail or None)}"
