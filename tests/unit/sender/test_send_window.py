# SPDX-License-Identifier: Apache-2.0
"""The window of batches that an overflow and a shipper send."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import OffsetOutOfRangeError
from shmaccum.log.files import LogReader
from shmaccum.log.files.reader import Cursor
from shmaccum.sender.backoff import Backoff
from shmaccum.sender.send_window import SendWindow, Shipment
from tests.support.segment_log import TOPIC, log_files, make_batches, open_log

PLACE = TopicPartition(TOPIC, 0)
BATCH_COUNT, RECORD_COUNT = 4, 3
PRODUCER_ID, EPOCH = 4711, 2
BACKOFF_MS = 100
NOW_NS = 10**9


class WeakShipment(Shipment):
    """A shipment to which there may be weak references."""


@pytest.fixture
def window(tmp_path: Path) -> SendWindow[WeakShipment]:
    """A window with all batches of a log."""
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1)
        directory.partition(*PLACE).append(make_batches(BATCH_COUNT))
    window: SendWindow[WeakShipment] = SendWindow(
        LogReader(tmp_path / "log").partition(*PLACE), Backoff(BACKOFF_MS, BACKOFF_MS)
    )
    while (batch := window.read_verified(window.next_offset(0))) is not None:
        shipment = WeakShipment(batch)
        shipment.build_wire(PLACE, 0, (PRODUCER_ID, EPOCH, batch.base_offset))
        window.shipments.append(shipment)
    return window


def send(window: SendWindow[WeakShipment], now_ns: int = NOW_NS) -> list[int]:
    """Send everything that may be sent, and return the offsets."""
    offsets = []
    while (shipment := window.next_to_send(now_ns)) is not None:
        window.sent(shipment)
        offsets.append(shipment.first_offset)
    return offsets


def test_the_first_batch_of_an_epoch_goes_alone_until_it_is_acked(window: SendWindow[WeakShipment]) -> None:
    for _ in range(2):
        assert send(window) == [window.shipments[0].first_offset]
        window.acked(window.shipments[0])
        assert len(send(window)) == len(window.shipments) - 1
        for shipment in list(window.shipments)[1:]:
            window.failed(shipment)
        window.failure_count = 0
        window.advance()
        window.start_over()


def test_a_batch_that_failed_goes_alone_and_after_its_pause(window: SendWindow[WeakShipment]) -> None:
    send(window)
    window.acked(window.shipments[0])
    send(window)
    _, second, third, fourth = window.shipments
    window.failed(second)
    assert send(window) == []
    window.settled(third)
    window.settled(fourth)
    window.pause(5, NOW_NS)
    assert send(window, NOW_NS + 4) == []
    assert send(window, NOW_NS + 5) == [second.first_offset]
    assert second.wire.attempt_count == 2


def test_the_position_passes_no_batch_without_a_result(window: SendWindow[WeakShipment]) -> None:
    send(window)
    window.acked(window.shipments[0])
    send(window)
    window.acked(window.shipments[2])
    assert window.is_first(window.shipments[1])
    assert not window.is_first(window.shipments[3])
    assert [shipment.end_offset for shipment in window.due()] == [RECORD_COUNT]
    assert len(window.advance()) == 1
    assert not window.due()
    window.acked(window.shipments[0])
    assert [shipment.end_offset for shipment in window.due()] == [2 * RECORD_COUNT, 3 * RECORD_COUNT]


def test_a_batch_that_left_the_window_leaves_the_memory(window: SendWindow[WeakShipment]) -> None:
    send(window)
    window.acked(window.shipments[0])
    left = weakref.ref(window.shipments[0])
    gc.disable()
    try:
        window.advance()
        assert left() is None
    finally:
        gc.enable()


def test_a_read_that_failed_is_not_the_end_of_the_log(
    window: SendWindow[WeakShipment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches past the end of an overflow count as lost."""
    window.shipments.clear()
    window.rest()
    with monkeypatch.context() as patched:
        patched.setattr(Cursor, "_open", _raise_out_of_range)
        with pytest.raises(OffsetOutOfRangeError):
            window.read_verified(0)
    batch = window.read_verified(0)
    assert batch is not None
    assert batch.base_offset == 0


def _raise_out_of_range(_cursor: Cursor) -> None:
    raise OffsetOutOfRangeError("not today")


def test_a_damaged_place_of_the_log_is_returned_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with open_log(log) as directory:
        directory.create_topic(TOPIC, 1)
        directory.partition(*PLACE).append(make_batches(BATCH_COUNT))
    (file,) = log_files(log)
    content = bytearray(file.read_bytes())
    content[HEADER_SIZE + 1] ^= 0xFF
    file.write_bytes(content)
    reader = LogReader(log, on_corrupt="skip").partition(*PLACE)
    window: SendWindow[WeakShipment] = SendWindow(reader, Backoff(BACKOFF_MS, BACKOFF_MS))
    batch = window.read_verified(0)
    assert batch is not None
    assert batch.base_offset == RECORD_COUNT
    assert len(window.take_damages()) == 1
    assert window.take_damages() == []
    window.rest()
