# SPDX-License-Identifier: Apache-2.0
"""Sends the ordinary batches of many partitions to brokers, in one native call (native/sender/batch_loop.h).

::

    ordinary partitions ── hand_over ──> sockets ── native call ──> reports ── take, return_socket ──> sink

Rules
    The native call sends a partition when its window is empty, the sink has acked a batch of its producer and epoch,
    and the place of the next header is known. The window (send_window.py) handles everything else: the first batch
    of the partition, another producer, damage, the end of a segment, and a batch that the broker does not take.
    The native call handles no errors. If a response is not ordinary, the partition is read again from its position and
    its batches are sent again, and the sink reports the problem. The broker drops duplicates.
    The native call writes the positions: those of a shipper in the format of `PositionsFile`, those of an overflow in
    the format of `SpillFile`, after it has recorded the results of their batches. It puts its results into a list,
    which is read in a `finally` block. So a signal handler that raises loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar, final

from shmaccum.sender.send_window import PartitionStream
from shmaccum.sender.sinks.sink import BorrowedSocket, SocketEnd, Sockets
from shmaccum.sender.sinks.stream_end import StreamEnd, delivered_by

AnyStream = TypeVar("AnyStream", bound=PartitionStream)


@final
class BatchLoop(Generic[AnyStream]):
    """Partitions, and the sockets to the brokers that lead them, for one native call.

    Args:
        sockets: of the sink.
        handed_over: the sockets that it has handed over.
        streams: by the number of the partition.
        take_positions: called with `ends`, and with the native call's report on the files of positions. Returns True
            if the files are intact.

    Attributes:
        streams: grouped by socket, and within a socket by topic.
        ends: the state in which the native call left each partition.
        has_failed: positions could not be written.
        is_broken: a connection is closed or unusable.
    """

    def __init__(
        self,
        sockets: Sockets,
        handed_over: Sequence[BorrowedSocket],
        streams: Mapping[int, AnyStream],
        take_positions: Callable[[Mapping[AnyStream, StreamEnd], Any], bool],
    ) -> None:
        self._sockets = sockets
        self._take_positions = take_positions
        self._by_socket = [
            (one, sorted((streams[index] for index in one.partition_indices), key=lambda stream: stream.target))
            for one in handed_over
        ]
        self.streams = [stream for _, its in self._by_socket for stream in its]
        self.ends: dict[AnyStream, StreamEnd] = {}
        self.has_failed = False
        self.is_broken = False

    def run(self, native_call: Callable[..., object], request_size_max: int) -> None:
        """Send until time is up, a wake-up, or a batch that is not ordinary.

        Args:
            native_call: takes links, streams and found (native/python/sender/batch_loop_parts.h).
            request_size_max: bytes of the batches of a request.
        """
        links = tuple(
            (one.socket, one.version, one.client_id, one.acks, one.requests_max, request_size_max, len(its))
            for one, its in self._by_socket
        )
        streams = tuple(
            stream.row(one.topic_ids.get(stream.target.topic)) for one, its in self._by_socket for stream in its
        )
        found: list[tuple[Any, ...]] = []
        try:
            native_call(links=links, streams=streams, found=found)
        finally:
            if found:
                self._take(*found)

    def _take(
        self, reports: Sequence[tuple[Any, ...]], uses: Sequence[tuple[Any, ...]], positions: tuple[Any, bool]
    ) -> None:
        """Read the results of the native call."""
        self.ends = {
            stream: StreamEnd.of(stream.index, report) for stream, report in zip(self.streams, reports, strict=True)
        }
        for stream, end in self.ends.items():
            stream.take(end)
        self.has_failed = not self._take_positions(self.ends, positions[0]) or positions[1]
        for (one, its), use in zip(self._by_socket, uses, strict=True):
            is_broken, throttle_ms, request_count, sent_size, received_size = use
            delivered = delivered_by(self.ends[stream] for stream in its)._replace(
                request_count=request_count, sent_size=sent_size, received_size=received_size
            )
            self._sockets.return_socket(one, delivered, SocketEnd(is_broken, throttle_ms))
            self.is_broken |= is_broken
