# SPDX-License-Identifier: Apache-2.0
"""Reports that processes note in the arena's error log, for people and for the futures of other processes.

::

    entry of the log    note: kind 8 bits | Kafka's number of the error 16 bits      text: name, newline, detail

A result in the completion ring has room for Kafka's number of an error, not for the reason. The error log has, but it
keeps a limited number of reports and cuts the detail of a long one, so a report that is not found is no error. A kind,
a name, a number and a detail cross; `Report.sentence` makes the words where somebody reads them. A text without a kind
is a sentence as it stands. The log is input: a kind that nobody knows is shown as its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shmaccum import _native
    from shmaccum.arena.results import BatchResult

INNOCENT = -2
"""Error code of a record that was refused because others of its batch were to blame; Kafka has no number for it."""

KIND_MASK = 0xFF
NUMBER_MASK = 0xFFFF
NUMBER_SHIFT = 8


class Reason(NamedTuple):
    """Why a batch failed."""

    result: BatchResult
    error_code: int
    message: str


class Kind(IntEnum):
    """The kind of a report; the comment tells its name and its detail."""

    SENTENCE = 0  # no name; the whole sentence
    RETRIED = 1  # the topic-partition of a batch that is delivered again; why
    REFUSED = 2  # the topic-partition of a batch that failed, with Kafka's number; the sink's sentence
    EXPIRED = 3  # the timeout of the batches that expired; the last trouble, or nothing
    EXPORTED = 4  # no name; the folder with the records that were left in a removed arena
    NOT_KEPT = 5  # no name; why a keeper has no sender
    FAILED_TRANSACTION = 6  # no name; why the sink refuses a transaction
    IMPAIRED = 7  # no name; something beside the sink that does not work: told each second or so while that lasts
    GIVEN_UP = 8  # the topic-partition whose batches in an overflow were given up; their first number, blank, the end


class Report(NamedTuple):
    """One report.

    Attributes:
        name: the thing that it is about, as `Kind` has it.
        error_code: Kafka's number (org.apache.kafka.common.protocol.Errors), of REFUSED alone.
    """

    kind: Kind
    detail: str
    name: str = ""
    error_code: int = 0

    @property
    def sentence(self) -> str:
        """The report in words."""
        if self.kind is Kind.RETRIED:
            return f"{self.name} is tried again: {self.detail}"
        if self.kind is Kind.REFUSED:
            return f"{self.name} failed with error {self.error_code}: {self.detail}"
        if self.kind is Kind.EXPIRED:
            lately = f" (lately: {self.detail})" if self.detail else ""
            return f"batches expired: they could not be delivered within {self.name}{lately}"
        if self.kind is Kind.EXPORTED:
            return f"the arena was removed, and the records that were left in it were exported to {self.detail}"
        if self.kind is Kind.NOT_KEPT:
            return f"no sender is kept: {self.detail}"
        if self.kind is Kind.FAILED_TRANSACTION:
            return f"a transaction failed: {self.detail}"
        if self.kind is Kind.GIVEN_UP:
            return f"the records of {self.name} in the overflow were given up: they are lost"
        return self.detail

    def record(self, native: _native.Arena) -> None:
        """Notes the report in the arena's error log."""
        detail = self.detail.replace("\0", "?")  # a damaged arena may have a name with one
        if self.kind is Kind.SENTENCE:
            native.record_error(detail)
        else:
            number = (self.error_code & NUMBER_MASK) << NUMBER_SHIFT
            name = self.name.replace("\0", "?")
            native.record_error(f"{name}\n{detail}", self.kind | number)


class Entry(NamedTuple):
    """A report as it stands in the error log.

    Attributes:
        status: the core's name of the error; a report from Python has OS.
        report_count: how often it was made.
        last_ns: when it was made last, nanoseconds of the arena's clock.
    """

    report: Report
    status: str
    report_count: int
    last_ns: int


def read_entries(native: _native.Arena) -> list[Entry]:
    """The arena's error log, in the order in which the reports came first."""
    return [
        Entry(_report(error["note"], error["text"]), error["status"], error["count"], error["last_ns"])
        for error in native.errors()
    ]


def read_reports(native: _native.Arena) -> list[Report]:
    """The reports of the arena's error log, in the order in which they came first."""
    return [entry.report for entry in read_entries(native)]


def _report(note: int, text: str) -> Report:
    try:
        kind = Kind(note & KIND_MASK)
    except ValueError:
        kind = Kind.SENTENCE
    if kind is Kind.SENTENCE:
        return Report(kind, text)
    name, _, detail = text.partition("\n")
    number = note >> NUMBER_SHIFT & NUMBER_MASK
    return Report(kind, detail, name, number - (NUMBER_MASK + 1 if number > NUMBER_MASK // 2 else 0))


# --- the reason of a result

FAILURES = (Kind.FAILED_TRANSACTION, Kind.REFUSED, Kind.EXPIRED)


def reason_of_failed_transaction(entries: Iterable[Entry], since_ns: int) -> str:
    """The newest report on why a transaction, or a batch of it, failed; empty: there is none since that time.

    Args:
        entries: of the error log.
        since_ns: on the arena's clock.
    """
    found = [one for one in entries if one.report.kind in FAILURES and one.last_ns >= since_ns]
    return max(found, key=lambda one: one.last_ns).report.sentence if found else ""


def reason_of_abortion(reports: Iterable[Report]) -> str:
    """Where the records of a removed arena are; empty: no report tells."""
    return next((report.sentence for report in reports if report.kind is Kind.EXPORTED), "")


def reason_of_giving_up(reports: Iterable[Report], place: str, seq: int) -> str:
    """Why a batch of that topic-partition is lost; empty: no report tells that it was given up.

    Args:
        reports: of the error log.
        place: the topic-partition.
        seq: the number of the batch.
    """
    given_up = [report for report in reports if (report.kind, report.name) == (Kind.GIVEN_UP, place)]
    return next((report.sentence for report in given_up if _has(report.detail, seq)), "")


def _has(numbers: str, seq: int) -> bool:
    """True for a number between the two of a text."""
    first, _, end = numbers.partition(" ")
    return first.isdecimal() and end.isdecimal() and int(first) <= seq < int(end)


def reason_of_expiry(reports: Iterable[Report], place: str) -> str:
    """The reason why a batch of that topic-partition was not delivered, as far as the reports tell.

    It is the last retry of the place, or else the trouble when batches expired; empty: no report tells one.
    """
    known = list(reports)
    retried = [report.detail for report in known if report.kind is Kind.RETRIED and report.name == place]
    troubles = [report.detail for report in known if report.kind is Kind.EXPIRED and report.detail]
    return (retried or troubles or [""])[-1]


def reason_of_refusal(reports: Iterable[Report], place: str, error_code: int) -> str:
    """The last report on that error in that topic-partition, in words; without one, the number alone."""
    if error_code == INNOCENT:
        return f"{place}: other records of its batch are to blame, send it again (KIP-467)"
    wanted = (Kind.REFUSED, place, error_code)
    found = [report for report in reports if (report.kind, report.name, report.error_code) == wanted]
    return found[-1].sentence if found else f"{place} failed with error {error_code}"
