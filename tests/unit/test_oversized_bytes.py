# SPDX-License-Identifier: Apache-2.0
"""The counter of oversized bytes counts whole buffers, is shown, and does not exceed its limit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError, RecordTooLargeError
from shmaccum.observe.observation import Observer
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all

BATCH_SIZE = 4096
LIMIT = 4 * BATCH_SIZE + 100
"""Four buffers, because the remainder is less than one."""
SMALL = bytes(100)
TWO_BUFFERS = bytes(5000)
THREE_BUFFERS = bytes(9000)
FIVE_BUFFERS = bytes(18000)


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    """16 buffers of 4 KiB, of which oversized records may hold four."""
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size=BATCH_SIZE, oversized_max_bytes=LIMIT) as created:
        yield created


def append(accumulator: Accumulator, value: bytes, max_block_ms: int = 0) -> None:
    accumulator.append("topic", 0, 1, None, value, None, max_block_ms)


def test_each_buffer_of_an_oversized_record_is_charged_until_it_is_delivered(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        append(accumulator, SMALL)
        assert arena.statistics().oversized_bytes == 0
        append(accumulator, TWO_BUFFERS)
        assert arena.statistics().oversized_bytes == 2 * BATCH_SIZE
        accumulator.become_sender()
        deliver_all(accumulator)
        assert arena.statistics().oversized_bytes == 0


def test_the_limit_is_in_bytes_and_the_error_shows_them(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        append(accumulator, THREE_BUFFERS)
        with pytest.raises(BufferExhaustedError) as refused:
            append(accumulator, TWO_BUFFERS, max_block_ms=50)
        assert f"hold {3 * BATCH_SIZE} of at most {LIMIT} bytes" in str(refused.value)
        append(accumulator, SMALL)
        assert arena.statistics().oversized_bytes == 3 * BATCH_SIZE, "the wait that ended is charged for nothing"
        with pytest.raises(RecordTooLargeError, match="oversized_max_bytes"):
            append(accumulator, FIVE_BUFFERS)


def test_an_observer_reports_both_numbers(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        append(accumulator, TWO_BUFFERS)
        seen = Observer(arena).observe().as_json()
    assert (seen["oversized_bytes"], seen["oversized_bytes_max"]) == (2 * BATCH_SIZE, LIMIT)
