# SPDX-License-Identifier: Apache-2.0
"""The two sides of a convoy: sockets that a sink lends, and the lanes that go by them (native/sender/convoy.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from shmaccum.sender.sinks.sink import Loan, Repayment

NOT_SYNCED = -1
"""In place of `LaneReport.synced_size`: the records of a lane go whether they are on disk or not."""


class LaneState(enum.IntEnum):
    """How a convoy left a lane (native/sender/lane.h)."""

    GOES = 0
    """The next batch may be ordinary."""
    ENDS = 1
    """No ordinary batch follows: the lane looks why."""
    BROKEN = 2
    """A batch was not acked, or its fate is unknown: all behind the position go again."""


class LaneReport(NamedTuple):
    """How far a lane came in a convoy."""

    state: int
    offset: int
    """On disk, as the next two."""
    byte: int
    """Of the segment, where the batch with the offset begins."""
    leader_epoch: int
    batch_count: int
    record_count: int
    byte_count: int
    synced_size: int
    """Bytes of the segment that were forced to disk; NOT_SYNCED where that is not asked for."""


def links_of(loans: Iterable[tuple[Loan, int]], request_size_max: int) -> tuple[tuple[Any, ...], ...]:
    """Loans, each with the number of its lanes, as the native call takes them."""
    return tuple(
        (loan.socket, loan.version, loan.client_id, loan.acks, loan.requests_max, request_size_max, lane_count)
        for loan, lane_count in loans
    )


def repayment_of(use: tuple[Any, ...], reports: Mapping[int, LaneReport]) -> Repayment:
    """The use of a loan, as the sink is told of it.

    Args:
        use: of the link, as the native call tells it.
        reports: of its lanes, by partition index.
    """
    is_broken, throttle_ms, request_count, sent_size, received_size = use
    acked = [index for index, report in reports.items() if report.record_count]
    record_count = sum(report.record_count for report in reports.values())
    return Repayment(is_broken, throttle_ms, request_count, record_count, sent_size, received_size, acked)
