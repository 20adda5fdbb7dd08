# SPDX-License-Identifier: Apache-2.0
"""A Produce request on its way, and the meaning of the broker's answer for each of its batches.

A batch that the broker finds out of sequence is one of two. Either a batch before it was lost on this attempt and comes
again: then this one comes again behind it, unchanged. Or nothing is coming that could fill the gap: then the partition
starts over in a new epoch (KIP-360). Which of the two it is shows in the batches of its partition that were in flight
when it was delivered: the sender drains a partition's oldest batch first, so every older batch that still exists was
among them. This needs no memory of sequences, and so holds for a sender that has just taken over, too.

Nearly every answer says that all is well, and costs nothing per batch here. This module keeps facts of requests, and
looks for a batch in them only after an error.
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
    from shmaccum.log.files.log_file import FileRange  # which brings the whole log
    from shmaccum.sender.sinks.compression import Form

Topic: TypeAlias = "tuple[str, bytes | None, tuple[int, ...], tuple[tuple[bytes | memoryview | FileRange, ...], ...]]"
"""The parts of a ProduceRequest: a topic's name and id, and its partitions with their bytes."""
COMES_AGAIN = frozenset({None, Verdict.RETRY, Verdict.TOO_LARGE})
"""Fates of a batch that may yet arrive; None while it is in flight."""


@dataclass(slots=True, eq=False)
class Delivery:
    """One Produce request: at most one batch of each partition, those of a topic in a row."""

    node_id: int
    wires: Sequence[WireBatch]
    predecessors: Sequence[Delivery]
    """Those that were in flight when it began: in one of them is the batch before each of its own, if there is one."""
    compressed: Sequence[Form | None] = ()
    """Empty: none is."""
    fates: dict[int, Verdict] = field(default_factory=dict)
    """Of its batches that were not delivered, by partition index."""
    is_over: bool = False
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    """As they were when it was sent: a topic may be deleted and created again meanwhile (KAFKA-19397)."""

    def partition_indices(self) -> list[int]:
        """The partition index of each batch."""
        return [wire.partition_index for wire in self.wires]

    def topics(self, topic_id: Callable[[str], uuid.UUID | None]) -> tuple[Topic, ...]:
        """As the request wants them; remembers the ids."""
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
        """Its batches, and the bytes that each has on the wire."""
        return ((wire, wire.size if own is None else sum(map(len, own))) for wire, own in self._with_compressed())

    def _with_compressed(self) -> Iterator[tuple[WireBatch, Form | None]]:
        return zip(self.wires, self.compressed or [None] * len(self.wires), strict=True)

    def _runs(self) -> Iterator[tuple[str, int]]:
        """Topics, and how many batches each has."""
        names = [wire.topic for wire in self.wires]
        return ((name, names.count(name)) for name in dict.fromkeys(names))

    def answers(self, answered: Sequence[PartitionAnswer]) -> Iterator[tuple[WireBatch, PartitionAnswer]]:
        """Each batch with its answer; one that the broker left out counts as lost on the way."""
        lost = no_answer(NETWORK_EXCEPTION, "the broker did not answer for this partition")
        names: Mapping[Any, Any] = self.topic_names
        by_place = {(names.get(answer.topic, answer.topic), answer.partition): answer for answer in reversed(answered)}
        return ((wire, by_place.get((wire.topic, wire.partition), lost)) for wire in self.wires)

    def leave_out_ended(self) -> list[WireBatch]:
        """Takes out, and answers, the batches that have their result already: they are not for the broker any more.

        A batch behind one of them finds a gap that nothing will fill.
        """
        ended = [wire for wire in self.wires if wire.batch.is_ended]
        if ended:
            self.fates.update((wire.partition_index, Verdict.REFUSED) for wire in ended)
            kept = [(wire, own) for wire, own in self._with_compressed() if wire not in ended]
            self.wires = [wire for wire, _ in kept]
            self.compressed = [own for _, own in kept]
        return ended

    def end(self) -> None:
        """All its batches have their answers."""
        self.is_over = True
        self.predecessors = ()

    def fate(self, partition_index: int) -> Verdict | None:
        """The verdict of its batch of a partition; DELIVERED also when it has no such batch."""
        if self.is_over or partition_index in self.fates:
            return self.fates.get(partition_index, Verdict.DELIVERED)
        return None if partition_index in self.partition_indices() else Verdict.DELIVERED

    def sequence_verdict(self, wire: WireBatch) -> Verdict:
        """The verdict that "out of order" means for one of its batches."""
        fates = {before.fate(wire.partition_index) for before in self.predecessors}
        return Verdict.RETRY if fates & COMES_AGAIN else Verdict.OUT_OF_SEQUENCE


Node = TypeVar("Node")


def in_requests(wires: Sequence[WireBatch], node_of: Callable[[int], Node]) -> list[tuple[Node, list[WireBatch]]]:
    """One request per node, and more only where a partition comes more than once; those of a topic in a row.

    Args:
        node_of: from a partition index to the node that leads it.
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
    """In place of an answer that did not come."""
    return PartitionAnswer("", -1, error_code, -1, -1, message, (), -1, -1)


VERDICTS: Mapping[Action, Verdict] = {
    Action.DELIVER: Verdict.DELIVERED,
    Action.RETRY: Verdict.RETRY,
    Action.REFUSE: Verdict.REFUSED,
    Action.SPLIT: Verdict.TOO_LARGE,
}


def ack_of(delivery: Delivery | None, wire: WireBatch, answer: PartitionAnswer) -> Ack:
    """The verdict that an error means in the contract.

    Args:
        delivery: that the batch was in; None: it was in none yet.
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
    """A sentence with the partition, the error, and the broker's words, also on single records (KIP-467)."""
    blamed = [f"record {place}: {message}" for place, message in answer.record_errors if message]
    detail = "; ".join([answer.message, *blamed] if answer.message else blamed)
    return f"{wire.topic}-{wire.partition}: {sentence(answer.error_code, detail or None)}"
