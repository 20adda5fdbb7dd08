# SPDX-License-Identifier: Apache-2.0
"""The ordinary batches of the overflow on their way to brokers, in one native call (native/sender/convoy.h).

::

    backlogs that are ordinary ── lend ──> sockets ── ship_overflow ──> how far each backlog is ── give_back ──> sink

Rules
    A backlog goes in a convoy when nothing of it is read ahead, the sink has acked a batch of its producer and epoch,
    and it knows where the next header stands. Everything else goes the backlog's own way: the first batch, another
    producer, damage, the end of a segment, and a batch that the broker does not take.
    The native call gives batches their results and writes the positions of the spill files, in this order. The ranges
    in the arena follow when it is over.
    A convoy is short, because the sender does nothing else meanwhile. It is never longer than an answer of the broker
    may take. A broker that takes longer gets no convoy for a while, and its batches go one request at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shmaccum._native import SenderHalf
from shmaccum.sender.backlog import Backlog
from shmaccum.sender.backoff import NS_PER_MS
from shmaccum.sender.sinks.convoy import LaneEnd, given_back, links_of
from shmaccum.sender.sinks.sink import Loan, Sink, sockets_of

CONVOY_MS = 25
"""No request begins after this time."""
ANSWER_MS_MAX = 2_000
"""An answer that takes longer ends its connection, and convoys for `PAUSE_NS`."""
PAUSE_NS = 10_000 * NS_PER_MS


class Convoy:
    """Takes backlogs to the sink.

    Args:
        half: holds the sender role.
        sink: opened already.
        arena: the arena's number in the rows of the spill files.
        answer_time_ms: so long an answer of the sink may take; `ANSWER_MS_MAX` bounds it.
        is_synced: positions are forced to disk.
    """

    def __init__(self, half: SenderHalf, sink: Sink, arena: int, *, answer_time_ms: int, is_synced: bool) -> None:
        self._half = half
        self._sink = sink
        self._sockets = sockets_of(sink)
        self._arena = arena
        self._answer_time_ms = min(answer_time_ms, ANSWER_MS_MAX)
        self._is_synced = is_synced
        self._not_before_ns = 0

    def may_take(self, backlog: Backlog, now_ns: int) -> bool:
        """True for a backlog whose next batches may go in a convoy, once nothing of it is read ahead."""
        is_time = self._sockets is not None and now_ns >= self._not_before_ns
        return is_time and backlog.position.identity == self._sink.identity and backlog.is_ordinary(now_ns)

    def run(self, backlogs: Mapping[int, Backlog], bell: int, now_ns: int) -> dict[Backlog, LaneEnd]:
        """Ships until the time is over, the bell rings, or something is not ordinary.

        Args:
            backlogs: by the index of their partition; nothing of them is read ahead.
            bell: a descriptor that is readable when the sender has to come back.
            now_ns: the arena's clock.

        Returns:
            How the convoy left each backlog that went; empty when the sink lent nothing.
        """
        loans = self._sockets.lend(list(backlogs)) if self._sockets is not None else ()
        lanes = [sorted((backlogs[index] for index in loan.partition_indices), key=_order_of) for loan in loans]
        if not loans:
            return {}
        found: list[tuple[Any, ...]] = []
        rows = [backlog.lane(loan.topic_ids) for loan, its in zip(loans, lanes, strict=True) for backlog in its]
        try:
            self._half.ship_overflow(
                links_of(zip(loans, map(len, lanes), strict=True), self._sink.limits.request_size_max),
                tuple(row for row, _ in rows),
                tuple(spill for _, spill in rows),
                found,
                bell,
                CONVOY_MS,
                self._answer_time_ms,
                self._arena,
                self._is_synced,
            )
        finally:
            ends = self._take(found, loans, lanes, now_ns)
        return ends

    def _take(
        self, found: Sequence[tuple[Any, ...]], loans: Sequence[Loan], lanes: Sequence[Sequence[Backlog]], now_ns: int
    ) -> dict[Backlog, LaneEnd]:
        """Takes the outcome over."""
        if not found:
            return {}
        reports, uses, spills, (has_failed,) = found
        every = [backlog for its in lanes for backlog in its]
        ends = {backlog: LaneEnd.of(backlog.index, report) for backlog, report in zip(every, reports, strict=True)}
        for (backlog, end), spill in zip(ends.items(), spills, strict=True):
            backlog.take(end, *spill)
        for loan, its, use in zip(loans, lanes, uses, strict=True):
            delivered, socket_end = given_back(use, [ends[backlog] for backlog in its])
            assert self._sockets is not None
            self._sockets.give_back(loan, delivered, socket_end)
            has_failed |= socket_end.is_broken
        if has_failed:
            self._not_before_ns = now_ns + PAUSE_NS
        return ends


def _order_of(backlog: Backlog) -> tuple[str, int]:
    """The lanes of a topic stand in a row."""
    return backlog.place
