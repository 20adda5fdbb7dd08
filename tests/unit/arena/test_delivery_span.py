# SPDX-License-Identifier: Apache-2.0
"""The delivery clock as futures, flush, stat, inspect and metrics show it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.arena.delivery_span import NO_SENDER, DeliveryClockReading
from shmaccum.exceptions import FlushTimeoutError, ResultPendingError
from shmaccum.observe.inspection import Inspector
from shmaccum.observe.observation import Observer
from tests.support.sender import MS, TOPIC, FailingSink, Sending

TIMEOUT_MS = 120_000


@pytest.fixture
def sink() -> FailingSink:
    sink = FailingSink()
    sink.plan_filter = lambda _: False
    return sink


@pytest.fixture
def sending(arena: Arena, sink: FailingSink) -> Iterator[Sending]:
    sending = Sending(arena, sink)
    yield sending
    sending.close()


def test_a_clock_runs_while_the_sink_works(sending: Sending) -> None:
    clock = DeliveryClockReading.of(sending.arena.native)
    assert (clock.timeout_ns, clock.counts_always) == (TIMEOUT_MS * MS, False)
    assert (clock.outage, clock.outage_ns, clock.stands_still, clock.sentence()) == (None, None, False, "")


def test_a_clock_stands_still_without_a_sender(arena: Arena) -> None:
    clock = DeliveryClockReading.of(arena.native)
    assert (clock.timeout_ns, clock.outage, clock.outage_ns, clock.stands_still) == (None, NO_SENDER, None, True)
    assert clock.sentence() == "no sender runs; no record expires meanwhile"
    assert clock.left_ns(0, 0) is None


def test_an_outage_has_a_length_and_a_reason(sending: Sending, sink: FailingSink) -> None:
    sink.reason = "the disk is full"
    sending.run()
    sending.sleep(90_000)
    clock = DeliveryClockReading.of(sending.arena.native)
    assert clock.outage_ns == 90_000 * MS
    assert clock.sentence() == "the sink has not worked for 1.5 min: the disk is full; no record expires meanwhile"
    assert clock.as_json()["stands_still"] is True


def test_the_span_is_counted_as_the_sender_counts_it(sending: Sending, sink: FailingSink) -> None:
    """At any moment, also in an outage, the displayed span ends when the batch expires."""
    (token,) = sending.append()
    observer = Observer(sending.arena)

    def left_ms() -> int:
        oldest = observer.observe().oldest_batch
        assert oldest is not None
        assert oldest.left_ns is not None
        assert Inspector(sending.arena).slot(oldest.slot_index).left_ns == oldest.left_ns
        return oldest.left_ns // MS

    sending.sleep(20_000)
    assert left_ms() == TIMEOUT_MS - 20_000
    sink.reason = "the disk is full"
    sending.run()
    sending.sleep(600_000)
    assert left_ms() == TIMEOUT_MS - 20_000
    sink.reason = None
    sending.run()
    sending.sleep(30_000)
    assert left_ms() == TIMEOUT_MS - 50_000
    sending.sleep(left_ms())
    assert left_ms() == 0
    assert sending.result(token) is None
    sending.run()
    assert sending.result(token) is not None


@pytest.mark.parametrize(
    ("created_ms", "stamp_ms", "age_ms"),
    [
        (400, 700, 100),  # opened 600 ms ago, of which the clock has run 100
        (950, 0, 50),  # the clock, after a late sender has advanced it
        (400, 900, 600),  # a stamp ahead of the clock
        (2**40, 700, 100),  # a time that the clock never had
        (1200, 800, 0),  # opened while we looked
    ],
)
def test_the_age_of_a_batch(created_ms: int, stamp_ms: int, age_ms: int) -> None:
    clock = DeliveryClockReading(1000 * MS, 800 * MS, TIMEOUT_MS * MS, counts_always=False, outage=None, outage_ns=None)
    assert clock.age_ns(created_ms * MS, stamp_ms) == age_ms * MS


def test_always_shows_the_time_since_a_record_was_appended() -> None:
    clock = DeliveryClockReading(1000 * MS, 0, 700 * MS, counts_always=True, outage="full", outage_ns=MS)
    assert clock.left_ns(400 * MS, 0) == 100 * MS
    assert not clock.stands_still
    assert clock.sentence().endswith("records expire nevertheless")


def test_a_future_and_a_flush_say_what_is_left_and_why_nothing_moves(sending: Sending, sink: FailingSink) -> None:
    with Producer(sending.arena) as producer:
        sending.arena.native.set_topic_partition_count(TOPIC, 1)
        future = producer.send(TOPIC, b"value")
        sink.reason = "the disk is full"
        sending.run()
        expected = r"2 min of its delivery timeout are left; the sink has not worked for 0 s: the disk is full"
        with pytest.raises(ResultPendingError, match=expected):
            future.get(timeout=0)
        assert "pending: 2 min of its delivery timeout" in repr(future)
        with pytest.raises(FlushTimeoutError, match=r"at most 1 record, not lost: .*disk is full; no record expires"):
            producer.flush(timeout=0)
        sending.sender.abort()
        sending.sender.run()
        assert repr(future) == f"<DeliveryFuture of {TOPIC}-0, failed>"


def test_without_a_sender_a_future_reports_it(arena: Arena) -> None:
    arena.native.set_topic_partition_count(TOPIC, 1)
    with Producer(arena, max_block_ms=100) as producer:
        future = producer.send(TOPIC, b"value")
        with pytest.raises(ResultPendingError, match=r"ask again \(no sender runs; no record expires meanwhile\)"):
            future.get(timeout=0)
        producer.close(0)
