# SPDX-License-Identifier: Apache-2.0
"""The two sides of a convoy: sockets that a sink lends, and the lanes that go by them (native/sender/convoy.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from shmaccum.sender.sinks.sink import Delivered, Loan, SocketEnd

NOT_SYNCED = -1
"""In place of `LaneEnd.synced_size`: the records of a lane go whether they are on disk or not."""


class LaneState(enum.IntEnum):
    """How a convoy left a lane (native/sender/lane.h)."""

    GOES = 0
    """The next batch may be ordinary."""
    ENDS = 1
    """No ordinary batch follows: the lane looks why."""
    BROKEN = 2
    """A batch was not acked, or its fate is unknown: all behind the position go again."""


class LaneEnd(NamedTuple):
    """How a convoy left a lane: a place in the lane's log, from which it goes on, and what it delivered behind it."""

    state: int
    offset: int
    """On disk, as the next two."""
    byte: int
    """Of the segment, where the batch with the offset begins."""
    leader_epoch: int
    synced_size: int
    """Bytes of the segment that were forced to disk; NOT_SYNCED where that is not asked for."""
    delivered: Delivered

    @classmethod
    def of(cls, partition_index: int, report: tuple[int, ...]) -> LaneEnd:
        """As the native call tells it (native/python/sender/convoy_parts.c)."""
        state, offset, byte, leader_epoch, synced_size, *sums = report
        batch_count, record_count, size = sums
        row = partition_index, batch_count, record_count, size, 0
        return cls(state, offset, byte, leader_epoch, synced_size, Delivered.of_rows([row]))


def links_of(loans: Iterable[tuple[Loan, int]], request_size_max: int) -> tuple[tuple[Any, ...], ...]:
    """Loans, each with the number of its lanes, as the native call takes them."""
    return tuple(
        (loan.socket, loan.version, loan.client_id, loan.acks, loan.requests_max, request_size_max, lane_count)
        for loan, lane_count in loans
    )


def delivered_by(lanes: Iterable[LaneEnd]) -> Delivered:
    """The sums over all of the lanes."""
    return Delivered.of_rows(row for lane in lanes for row in lane.delivered.rows)


def given_back(use: tuple[Any, ...], lanes: Iterable[LaneEnd]) -> tuple[Delivered, SocketEnd]:
    """The sums over the lanes of a loan, and how they left its socket, as the sink is told of it.

    Args:
        use: of the link, as the native call tells it.
        lanes: of the link.
    """
    is_broken, throttle_ms, request_count, sent_size, received_size = use
    delivered = delivered_by(lanes)._replace(
        request_count=request_count, sent_size=sent_size, received_size=received_size
    )
    return delivered, SocketEnd(is_broken, throttle_ms)
