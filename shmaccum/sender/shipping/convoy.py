# SPDX-License-Identifier: Apache-2.0
"""The ordinary rounds of many lanes in one native call (native/sender/convoy.h).

::

    lanes that are ordinary ── lend ──> sockets ── ship_convoy ──> how far each lane is ── give_back ──> sink

Rules
    A lane goes in a convoy when its window is empty, the sink has acked a batch of its epoch, and it knows where the
    next header stands. Everything else goes the lane's own way: the first batch, damage, the end of a segment, and a
    batch that the broker does not take.
    The native call knows no errors. Where an answer is not ordinary the lane reads on at its position and sends again,
    and the sink tells it what is wrong. The broker drops batches that it has.
    Positions are written by the native call, in the format of `PositionsFile`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shmaccum._native import ship_convoy
from shmaccum.log.files.shipped import PositionsFile
from shmaccum.sender.shipping.lane import Lane
from shmaccum.sender.sinks.convoy import LaneEnd, given_back, links_of
from shmaccum.sender.sinks.sink import Loan, Sockets

OFFSET_MAX = 2**63 - 1


class StreamBatchLoop:
    """Lanes, and the sockets that they go by.

    Args:
        loans: of the sink.
        lanes: by partition index.
    """

    def __init__(self, loans: Sequence[Loan], lanes: Mapping[int, Lane]) -> None:
        self._loans = loans
        self._lanes = [sorted((lanes[index] for index in loan.partition_indices), key=_order_of) for loan in loans]

    def run(
        self,
        sockets: Sockets,
        positions: PositionsFile,
        bell: int,
        *,
        request_size_max: int,
        time_ms: int,
        answer_time_ms: int,
    ) -> bool:
        """Ships until the time is over, the bell rings, or something is not ordinary.

        Returns:
            False when the positions could not be written.
        """
        rows = tuple(
            _row(lane, loan.topic_ids) for loan, lanes in zip(self._loans, self._lanes, strict=True) for lane in lanes
        )
        found: list[tuple[Any, ...]] = []
        try:
            ship_convoy(
                links_of(zip(self._loans, map(len, self._lanes), strict=True), request_size_max),
                rows,
                found,
                positions.descriptor,
                positions.shipped.size,
                positions.size_max,
                bell,
                time_ms,
                answer_time_ms,
            )
        finally:
            is_kept = self._take(found, sockets, positions)
        return is_kept

    def _take(self, found: Sequence[tuple[Any, ...]], sockets: Sockets, positions: PositionsFile) -> bool:
        """Takes the outcome over."""
        if not found:
            return True
        reports, uses, (size, has_failed) = found
        every = [lane for lanes in self._lanes for lane in lanes]
        ends = {lane: LaneEnd.of(lane.route.index, report) for lane, report in zip(every, reports, strict=True)}
        for lane, end in ends.items():
            lane.take(end)
        kept = {lane.place: lane.position for lane, end in ends.items() if end.delivered.record_count}
        has_failed |= not positions.appended(size, kept)
        for loan, lanes, use in zip(self._loans, self._lanes, uses, strict=True):
            sockets.give_back(loan, *given_back(use, [ends[lane] for lane in lanes]))
        return not has_failed


def _order_of(lane: Lane) -> tuple[str, int]:
    """The lanes of a topic stand in a row."""
    return lane.route.topic, lane.place.partition


def _row(lane: Lane, topic_ids: Mapping[str, bytes]) -> tuple[Any, ...]:
    assert lane.unread_place is not None
    file, byte = lane.unread_place
    position = lane.position
    return (
        lane.route.topic,
        topic_ids.get(lane.route.topic),
        lane.place.partition,
        file,
        byte,
        position.offset,
        OFFSET_MAX if lane.end_offset is None else lane.end_offset,
        lane.synced_size,
        lane.route.producer_id,
        position.producer_epoch,
        position.origin,
        position.leader_epoch,
        json.dumps(str(lane.place)).encode(),
        json.dumps(position.topic_id).encode(),
    )
