# SPDX-License-Identifier: Apache-2.0
"""A record expires only if a working sender cannot deliver it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shmaccum._native import SenderHalf, Token
from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, read_reports
from shmaccum.arena.results import BatchResult
from shmaccum.sender import Sender
from shmaccum.sender.delivery_clock import STEP_MAX_NS
from shmaccum.sender.sinks.log import LogSink
from shmaccum.sender.sinks.sink import Ack, Sink, WireBatch
from tests.support.sender import MS, FailingSink, ScriptedSink, Sending, rests_of

TIMEOUT_MS = 120_000
HOUR_MS = 3_600_000
STEP_MAX_MS = STEP_MAX_NS // MS

Open = Callable[..., Sending]


@pytest.fixture
def open_sending(arena: Arena) -> Iterator[Open]:
    opened: list[Sending] = []

    def open_one(sink: Sink | None = None, **options: object) -> Sending:
        opened.append(Sending(arena, sink, **options))
        return opened[-1]

    yield open_one
    for sending in opened:
        sending.close()


class CountingSink(FailingSink):
    """A sink that also reports how many responses it received."""

    answers: int | None = None

    @property
    def answer_count(self) -> int | None:
        return self.answers


def blocked(sending: Sending) -> list[Token]:
    """Append a record of a partition to which nothing is delivered."""
    sending.scripted.plan_filter = lambda _: False
    tokens = sending.append()
    sending.run()
    return tokens


def with_failing(open_sending: Open, **options: object) -> tuple[Sending, CountingSink]:
    sink = CountingSink()
    sink.plan_filter = lambda _: False
    return open_sending(sink, **options), sink


# --- the sender


def test_a_partition_that_cannot_be_delivered_to_expires_while_the_sender_lives(open_sending: Open) -> None:
    sending = open_sending()
    (token,) = blocked(sending)
    sending.sleep(TIMEOUT_MS - 1)
    sending.run()
    assert sending.result(token) is None
    sending.sleep(1)
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED


def test_a_sender_waits_no_longer_than_until_the_next_expiry(open_sending: Open) -> None:
    sending = open_sending()
    rests = rests_of(sending)
    blocked(sending)
    sending.sleep(TIMEOUT_MS - 20)
    sending.run()
    assert rests[-1] == pytest.approx(0.020)


@pytest.mark.parametrize(("age_ms", "reason"), [(TIMEOUT_MS - 1, "the disk is full"), (TIMEOUT_MS, "")])
def test_an_expiry_has_the_last_trouble_of_its_delivery_timeout(open_sending: Open, age_ms: int, reason: str) -> None:
    sending = open_sending()
    assert sending.scripted.host is not None
    blocked(sending)
    sending.sleep(TIMEOUT_MS - age_ms)
    sending.scripted.host.report("the disk is full")
    sending.sleep(age_ms)
    sending.run()
    (expiry,) = [report for report in read_reports(sending.arena.native) if report.kind is Kind.EXPIRED]
    assert expiry.detail == reason


def test_what_waited_for_a_sender_is_delivered(open_sending: Open) -> None:
    """Start a sender with all defaults after many hours without one."""
    sending = open_sending()
    sending.sender.close()
    tokens = sending.append(count=100)
    sending.jump(8 * HOUR_MS)
    with Sender(sending.arena, sending.scripted) as sender:
        sender.open()
        while sending.result(tokens[-1]) is None:
            sender.run_once()
    assert {sending.result(token) for token in tokens} == {BatchResult.SUCCEEDED}
    assert sending.values() == list(range(100))


def test_a_sender_that_was_stopped_counts_little_of_that(open_sending: Open) -> None:
    """A stop is SIGSTOP, a suspend of the host or a blocked write."""
    sending = open_sending()
    (token,) = blocked(sending)
    for _ in range(TIMEOUT_MS // STEP_MAX_MS - 1):
        sending.jump(HOUR_MS)
        sending.run()
    assert sending.result(token) is None
    sending.jump(HOUR_MS)
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED


def test_the_successor_of_a_dead_sender_continues_with_the_spans(open_sending: Open) -> None:
    sending = open_sending()
    (token,) = blocked(sending)
    sending.sleep(TIMEOUT_MS // 2)
    sending.run()
    sending.sender.close()
    sending.jump(8 * HOUR_MS)
    sink = ScriptedSink()
    sink.plan_filter = lambda _: False
    sending.sender = Sender(sending.arena, sink)
    sending.sender.open()
    sending.sleep(TIMEOUT_MS // 2 - 1)
    sending.run()
    assert sending.result(token) is None
    sending.sleep(1)
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED


def test_always_counts_the_time_without_a_sender(open_sending: Open) -> None:
    sending = open_sending()
    sending.sender.close()
    (token,) = sending.append()
    sending.jump(TIMEOUT_MS)
    with Sender(sending.arena, sending.scripted, delivery_timeout_counts="always") as sender:
        sender.open()
        sender.run_once()
    assert sending.result(token) is BatchResult.EXPIRED


def test_always_counts_an_outage(open_sending: Open) -> None:
    sending, sink = with_failing(open_sending, delivery_timeout_counts="always")
    (token,) = sending.append()
    sink.reason = "nobody answers"
    sending.run()
    sending.jump(TIMEOUT_MS)
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED


# --- the sink


def test_an_outage_of_the_sink_ages_no_record(open_sending: Open) -> None:
    sending, sink = with_failing(open_sending)
    (token,) = sending.append()
    sending.sleep(TIMEOUT_MS - 1000)
    sink.reason = "nobody answers"
    for _ in range(20):
        sending.sleep(TIMEOUT_MS)
        sending.run()
    assert sending.result(token) is None
    sink.reason = None
    sending.sleep(1)  # it began in the outage
    sending.sleep(999)
    sending.run()
    assert sending.result(token) is None
    sending.sleep(1)
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED


def test_every_process_reports_an_outage(open_sending: Open, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    sending, sink = with_failing(open_sending)
    sending.append()
    sink.reason = "kein Platz für Bäume " * 20
    sending.run()
    told = sending.arena.native.delivery_clock()
    assert told["outage_since_ns"] == sending.now_ms * MS
    assert sink.reason.encode().startswith(told["outage"])
    assert 250 < len(told["outage"]) < 256
    assert (told["timeout_ns"], told["counts_always"]) == (TIMEOUT_MS * MS, False)
    assert any(text.startswith("the sink does not work: kein Platz") for text in sending.errors())
    sending.sleep(90_000)
    sink.reason = "another reason"
    sending.run()
    assert sending.arena.native.delivery_clock()["outage"] == b"another reason"
    sink.reason = None
    sending.run()
    assert sending.arena.native.delivery_clock()["outage_since_ns"] == 0
    assert "the sink works again after 1.5 min" in caplog.text


def test_time_that_no_answer_has_proved_does_not_count(open_sending: Open) -> None:
    sending, sink = with_failing(open_sending)
    sink.answers = 1
    (token,) = sending.append()
    sending.run()
    sending.sleep(TIMEOUT_MS)
    sending.run()
    assert sending.result(token) is None
    sink.answers = 2  # it worked the whole time
    sending.run()
    assert sending.result(token) is BatchResult.EXPIRED


class RecordingHalf:
    """A sender half that notes for each expired batch whether its reason was already reported."""

    def __init__(self, half: SenderHalf, arena: Arena) -> None:
        self._half = half
        self._arena = arena
        self.is_reason_known: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._half, name)

    def expire(self, timeout_ns: int, now_ns: int | None = None) -> tuple[int, int | None]:
        is_known = any(report.kind is Kind.EXPIRED for report in read_reports(self._arena.native))
        count, next_ns = self._half.expire(timeout_ns, now_ns)
        self.is_reason_known += [is_known] * count
        return count, next_ns


@pytest.mark.parametrize(
    ("options", "is_proved_late"), [({}, False), ({}, True), ({"delivery_timeout_counts": "always"}, False)]
)
def test_the_reason_of_an_expiry_is_there_before_its_result(
    open_sending: Open, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], is_proved_late: bool
) -> None:
    sending, sink = with_failing(open_sending, **options)
    sink.answers = 1 if is_proved_late else None
    (token,) = sending.append()
    sending.run()
    assert sending.sender._rounds is not None
    half = RecordingHalf(sending.sender._half, sending.arena)
    monkeypatch.setattr(sending.sender._rounds._expiry, "_half", half)
    sending.sleep(TIMEOUT_MS)
    sending.run()
    if is_proved_late:
        assert sending.result(token) is None
        sink.answers = 2
        sending.run()
    assert half.is_reason_known == [True]


def test_what_no_answer_proved_before_an_outage_is_thrown_away(open_sending: Open) -> None:
    sending, sink = with_failing(open_sending)
    sink.answers = 1
    (token,) = sending.append()
    sending.run()
    sending.sleep(TIMEOUT_MS)
    sink.reason = "nobody answers"
    sending.run()
    sink.reason, sink.answers = None, 2
    sending.run(2)
    assert sending.result(token) is None


# --- the log


class FullDisk(LogSink):
    """A log on a full disk, while ``is_full`` is true."""

    error_number = errno.ENOSPC
    is_full = True

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        segment: Any = self.directory.partition(batches[0].topic, batches[0].partition)._active
        write = segment.write
        if self.is_full:
            segment.write = lambda _buffers, _size: (0, OSError(self.error_number, "injected"))
        try:
            return super().write(batches)
        finally:
            segment.write = write


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_disk_that_is_full_for_longer_than_the_timeout_loses_nothing(
    open_sending: Open, tmp_path: Path, error_number: int
) -> None:
    sink = FullDisk(str(tmp_path / "log"))
    sink.error_number = error_number
    sending = open_sending(sink)
    tokens = sending.append(count=3)
    for _ in range(5):
        sending.run(2)
        sending.sleep(TIMEOUT_MS)
    assert "injected" not in str(sink.outage)
    assert str(sink.outage).endswith("Nothing is lost, it will be tried again")
    assert [sending.result(token) for token in tokens] == [None] * 3
    sink.is_full = False
    sending.run(2)
    assert sink.outage is None
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * 3


def test_a_partition_whose_file_cannot_be_written_expires(open_sending: Open, tmp_path: Path) -> None:
    sink = FullDisk(str(tmp_path / "log"))
    sink.error_number = errno.EACCES
    sending = open_sending(sink)
    (token,) = sending.append()
    sending.run(2)
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    assert sink.outage is None
    assert sending.result(token) is BatchResult.EXPIRED


# --- a stop


def test_a_stop_during_an_outage_takes_as_long_as_the_timeout_and_reports_what_is_left(
    open_sending: Open, caplog: pytest.LogCaptureFixture
) -> None:
    sending, sink = with_failing(open_sending)
    (token,) = sending.append()
    sink.reason = "nobody answers"
    sending.run()
    sending.sender.stop()
    assert not sending.sender._is_over()
    sending.sleep(TIMEOUT_MS)
    assert sending.sender._is_over()
    sending.sender.close()
    assert sending.result(token) is None
    assert "delivers the batches that are left: 1 batch" in caplog.text
