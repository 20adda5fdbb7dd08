# SPDX-License-Identifier: Apache-2.0
"""The ordinary rounds of a sender whose sink hands over its sockets, in one native call (native/sender/pump.h).

::

    ready ── hand_over ──> sockets ── SenderHalf.pump ──> deliveries ──> metrics
                                          │
                                          ├──> requests without a response ──> return_socket ──> the sink reads them
                                          └──> batches that are not ordinary ──> `Sink.deliver`

A partition is carried if the sink has handed over the socket to its leader. The native call handles no errors. It
returns when a response is not ordinary, and the sink reads that response. So errors, retries and pauses have one place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from shmaccum._native import Batch
from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.sender.duties.duty import Shared
from shmaccum.sender.sinks.sink import (
    BorrowedSocket,
    Delivered,
    DeliveredRow,
    SocketEnd,
    Sockets,
    Unanswered,
    WireBatch,
)

RUN_NS = 1000 * NS_PER_MS
"""The longest call. A stop or a request for metrics ends it earlier, and every other duty is less frequent."""
FOREIGN_NS = NS_PER_MS
"""A call ends after this time if a partition that it does not carry is ready."""
TURN_NS = 30_000 * NS_PER_MS
"""A partition that had no batch for one to two turns of this length is left out of the plans."""
STUCK_NS = 100 * NS_PER_MS
"""Replaces `FOREIGN_NS` if the sink could not take such a partition in the round before."""


class PumpResult(NamedTuple):
    batch_count: int
    """Batches of requests that were started, including those without a response."""
    left: Sequence[Batch]
    """Batches that were drained and are not ordinary."""


class PumpRunner:
    """Runs the pump on sockets of the sink.

    Args:
        holds: returns True for a partition whose batches in the arena must not be sent now.
    """

    def __init__(self, shared: Shared, sockets: Sockets, holds: Callable[[int], bool]) -> None:
        self._half = shared.half
        self._native = shared.native
        self._sockets = sockets
        self._holds = holds
        self._limits = shared.sink.limits
        self._sink_batches = shared.sink_batches
        self._places = shared.places
        self._metrics = shared.metrics
        self._short_waits = shared.short_waits
        self._wake_fifo = shared.wake_fifo
        self._on_results = shared.results_waker.wake_if_awaited
        self._linger_ns = shared.linger_ns
        self._request_timeout_ms = shared.options.request_timeout_ms
        self._recent: dict[int, None] = {}
        """Partitions of this turn and of the previous one."""
        self._of_turn: dict[int, None] = {}
        self._turn_at_ns = 0
        self._carried: frozenset[int] = frozenset()

    @property
    def may_run(self) -> bool:
        """True if the sink lets the sender send the batches of its arena."""
        return self._sockets.is_carried

    def carries(self, partition_index: int) -> bool:
        """True if the last run carried the partition."""
        return partition_index in self._carried

    def run(self, ready: Iterable[int], due_ns: int, *, is_stuck: bool) -> PumpResult | None:
        """Run the pump until something is due or not ordinary. Return None if the sink hands over no socket now.

        Args:
            due_ns: the time on the arena's clock at which another duty is due.
            is_stuck: there are ready partitions that the sink cannot take.
        """
        now_ns = self._native.now_ns()
        self._record_recent(dict.fromkeys(ready), now_ns)
        handed_over = self._sockets.hand_over([index for index in self._recent if not self._holds(index)])
        self._carried = frozenset(index for borrowed in handed_over for index in borrowed.partition_indices)
        if not handed_over:
            return None
        short_wait_ns, short_wait_us = self._short_waits.depth
        found: list[Any] = []
        try:
            self._half.pump(
                self._plan(handed_over),
                found,
                min(due_ns, now_ns + RUN_NS),
                now_ns + (STUCK_NS if is_stuck else FOREIGN_NS),
                short_wait_ns,
                short_wait_us,
                self._metrics.largest_record(now_ns),
            )
        finally:
            carried = self._take(handed_over, found)
        return carried

    def _record_recent(self, partitions: dict[int, None], now_ns: int) -> None:
        """Record the partitions for the next plans. A plan with all recent partitions is seldom ended by one that it
        lacks.
        """
        if now_ns >= self._turn_at_ns:
            self._turn_at_ns = now_ns + TURN_NS
            self._recent, self._of_turn = self._of_turn, {}
        self._of_turn.update(partitions)
        self._recent.update(partitions)

    def _plan(self, handed_over: Sequence[BorrowedSocket]) -> tuple[Any, ...]:
        topics: dict[str, tuple[int, bytes | None]] = {}
        places = []
        for number, borrowed in enumerate(handed_over):
            for index in borrowed.partition_indices:
                topic, partition = self._places[index]
                topic_number, _ = topics.setdefault(topic, (len(topics), borrowed.topic_ids.get(topic)))
                places.append((index, number, topic_number, partition))
        return (
            tuple(map(self._link, handed_over)),
            tuple((topic, topic_id) for topic, (_, topic_id) in topics.items()),
            tuple(places),
            self._linger_ns,
            self._limits.request_size_max,
            self._limits.in_flight_max,
            self._wake_fifo.fileno(),
            self._on_results,
        )

    def _link(self, borrowed: BorrowedSocket) -> tuple[Any, ...]:
        limits = self._request_timeout_ms, borrowed.requests_max
        head = borrowed.socket, borrowed.version, borrowed.client_id, borrowed.acks
        return *head, *limits, borrowed.correlation_id, borrowed.transactional_id

    # --- what was found

    def _take(self, handed_over: Sequence[BorrowedSocket], found: Sequence[Any]) -> PumpResult:
        """Return every socket to the sink. If the call reported no results, the sockets are returned as broken.

        If the sink raises for one socket, the others are still returned. Otherwise they would be reused in the middle
        of a request.
        """
        now_ns = self._native.now_ns()
        uses, left, numbers = [*found, *[None] * 3][:3]
        pumped = Delivered() if numbers is None else Delivered(*numbers)
        rows = {row[0]: row for row in pumped.rows}
        begun_count = pumped.batch_count
        with contextlib.ExitStack() as given_back:
            for number, borrowed in enumerate(handed_over):
                its = [rows[index] for index in borrowed.partition_indices if index in rows]
                delivered, end = self._end(None if uses is None else uses[number], its, now_ns)
                begun_count += sum(len(unanswered.wires) for unanswered in end.unanswered)
                given_back.callback(self._sockets.return_socket, borrowed, delivered, end)
        if pumped.batch_count:
            self._short_waits.record_sent(pumped.largest_size, pumped.linger_ns, pumped.last_begun_ns)
            self._metrics.delivered(pumped, now_ns)
            self._record_recent(dict.fromkeys(rows), now_ns)
        return PumpResult(begun_count, left or ())

    def _end(
        self, use: tuple[Any, ...] | None, rows: Sequence[DeliveredRow], now_ns: int
    ) -> tuple[Delivered, SocketEnd]:
        delivered = Delivered.of_rows(rows)
        if use is None:
            return delivered, SocketEnd(is_broken=True)
        is_broken, throttle_ms, request_count, sent_size, received_size, *others = use
        latency_sum_ns, latency_max_ns, received, requests = others
        delivered = delivered._replace(
            latency_sum_ns=latency_sum_ns,
            latency_max_ns=latency_max_ns,
            request_count=request_count,
            sent_size=sent_size,
            received_size=received_size,
        )
        unanswered = [self._unanswered(request, now_ns) for request in requests]
        return delivered, SocketEnd(is_broken, throttle_ms, received, unanswered)

    def _unanswered(self, request: tuple[int, int, int, Sequence[Batch]], now_ns: int) -> Unanswered:
        """Record that the sink has the batches of such a request, as after any delivery."""
        correlation_id, begun_ns, sent_size, batches = request
        wires = [WireBatch.of(batch, self._places[batch.partition_index], batch.buffers) for batch in batches]
        self._sink_batches.add(wires, begun_ns)
        self._metrics.sent(wires, now_ns)
        return Unanswered(correlation_id, (now_ns - begun_ns) / NS_PER_S, sent_size, wires)
