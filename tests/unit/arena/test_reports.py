# SPDX-License-Identifier: Apache-2.0
"""Reports cross the arena's error log as a kind, a name, a number and a detail."""

from __future__ import annotations

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.reports import (
    UNAFFECTED,
    Kind,
    Report,
    read_entries,
    read_reports,
    reason_of_abort,
    reason_of_expiry,
    reason_of_refusal,
)

REPORTS = [
    Report(Kind.SENTENCE, "the log is full"),
    Report(Kind.SENTENCE, "two\nlines: failed with error 3: x"),
    Report(Kind.RETRIED, "the broker\nis away", "flights-0"),
    Report(Kind.REFUSED, "no key", "flights-0", 87),
    Report(Kind.REFUSED, "no number", "flights-1", -1),
    Report(Kind.REFUSED, "the largest", "flights-1", 2**15 - 1),
    Report(Kind.REFUSED, "the smallest", "flights-1", -(2**15)),
    Report(Kind.EXPIRED, "", "30 ms"),
    Report(Kind.EXPIRED, "no broker", "30 ms"),
    Report(Kind.EXPORTED, "/somewhere/events.left"),
    Report(Kind.NOT_KEPT, "no such sink."),
]


def test_each_kind_keeps_its_number() -> None:
    """Processes of different builds read one error log."""
    names = "SENTENCE RETRIED REFUSED EXPIRED EXPORTED NOT_KEPT FAILED_TRANSACTION IMPAIRED GIVEN_UP"
    assert {kind.name: kind.value for kind in Kind} == {name: value for value, name in enumerate(names.split())}


def test_each_report_survives_a_round_trip(arena: Arena) -> None:
    for report in REPORTS:
        report.record(arena.native)
    REPORTS[3].record(arena.native)
    assert read_reports(arena.native) == REPORTS
    assert [entry.report_count for entry in read_entries(arena.native)] == [1, 1, 1, 2, *[1] * 7]
    assert {entry.status for entry in read_entries(arena.native)} == {"OS"}


def test_a_report_of_another_kind_is_another_one(arena: Arena) -> None:
    for kind in (Kind.RETRIED, Kind.EXPIRED):
        Report(kind, "d", "n").record(arena.native)
    assert [(entry.report.kind, entry.report_count) for entry in read_entries(arena.native)] == [
        (Kind.RETRIED, 1),
        (Kind.EXPIRED, 1),
    ]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: f"{report.kind.name}-{report.error_code}")
def test_a_report_is_a_sentence_where_it_is_shown(report: Report) -> None:
    assert report.detail in report.sentence
    assert report.name in report.sentence
    assert report.kind is not Kind.REFUSED or f"error {report.error_code}: " in report.sentence


def test_a_kind_that_is_unknown_is_shown_as_its_text(arena: Arena) -> None:
    arena.native.record_error("of a later build", 200)
    assert read_reports(arena.native) == [Report(Kind.SENTENCE, "of a later build")]


def test_a_report_without_a_name_is_read(arena: Arena) -> None:
    arena.native.record_error("scribbled", int(Kind.REFUSED))
    assert read_reports(arena.native) == [Report(Kind.REFUSED, "", "scribbled", 0)]


def test_a_long_report_keeps_its_kind_and_its_name(arena: Arena) -> None:
    Report(Kind.REFUSED, "x" * 1000, "flights-0", 3).record(arena.native)
    (report,) = read_reports(arena.native)
    assert report[:1] + report[2:] == (Kind.REFUSED, "flights-0", 3)
    assert 150 < len(report.detail) < 208


def test_the_reason_of_a_result_is_found_by_name_and_number() -> None:
    assert reason_of_refusal(REPORTS, "flights-0", 87) == "flights-0 failed with error 87: no key"
    assert reason_of_refusal(REPORTS, "flights-0", 3) == "flights-0 failed with error 3"
    assert "send it again" in reason_of_refusal(REPORTS, "flights-0", UNAFFECTED)
    assert reason_of_expiry(REPORTS, "flights-0") == "the broker\nis away"
    assert reason_of_expiry(REPORTS, "flights-9") == "no broker"
    assert reason_of_expiry([], "flights-9") == ""
    assert "/somewhere/events.left" in reason_of_abort(REPORTS)
    assert reason_of_abort([]) == ""


def test_a_name_of_a_damaged_arena_is_reported(arena: Arena) -> None:
    Report(Kind.REFUSED, "no\0topic", "\0\0-0", 3).record(arena.native)
    Report(Kind.SENTENCE, "a\0b").record(arena.native)
    told = read_reports(arena.native)
    assert {report.detail for report in told} == {"no?topic", "a?b"}
    assert {report.name for report in told} == {"??-0", ""}
