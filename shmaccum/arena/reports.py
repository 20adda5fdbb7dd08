# SPDX-License-Identifier: Apache-2.0
"""Reports in the arena's error log, for people and for the futures of other processes.

::

    entry of the log    note: kind 8 bits | Kafka's number of the error 16 bits      text: name, newline, detail

A completion has space for Kafka's error code, but not for the reason, so the reason is in the error log. The log holds
a limited number of reports and truncates long details, so a missing report is not an error. A report consists of a
kind, a name, an error code and a detail, and `Report.sentence` makes the sentence when it is read. A text without a
kind is a complete sentence. The log is input: a report of an unknown kind is shown as its text.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shmaccum import _native
    from shmaccum.arena.results import BatchResult

UNAFFECTED = -2
"""The error code of a valid record that failed because of other records in its batch. Kafka has no such code."""

KIND_MASK = 0xFF
NUMBER_MASK = 0xFFFF
NUMBER_SHIFT = 8


class Reason(NamedTuple):
    """Why a batch failed."""

    result: BatchResult
    error_code: int
    message: str


class Kind(IntEnum):
    """The kind of a report. The comments describe its name and its detail."""

    SENTENCE = 0  # no name; the whole sentence
    RETRIED = 1  # the topic-partition of a batch that is delivered again; the reason
    REFUSED = 2  # the topic-partition of a batch that failed, with Kafka's error code; the sink's sentence
    EXPIRED = 3  # the timeout of the batches that expired; the last error, or nothing
    EXPORTED = 4  # no name; the folder with the remaining records of a removed arena
    NOT_KEPT = 5  # no name; the reason why a supervisor has no sender
    FAILED_TRANSACTION = 6  # no name; the reason why the sink rejects a transaction
    IMPAIRED = 7  # no name; a fault outside the sink, reported about every second while it lasts
    GIVEN_UP = 8  # a topic-partition whose batches in an overflow were discarded; first number, space, end number


class Report(NamedTuple):
    """One report.

    Attributes:
        name: the subject, as described in `Kind`.
        error_code: Kafka's error code (org.apache.kafka.common.protocol.Errors), only of REFUSED.
    """

    kind: Kind
    detail: str
    name: str = ""
    error_code: int = 0

    @property
    def sentence(self) -> str:
        """The report as a sentence."""
        if self.kind is Kind.RETRIED:
            return f"{self.name} is retried: {self.detail}"
        if self.kind is Kind.REFUSED:
            return f"{self.name} failed with error {self.error_code}: {self.detail}"
        if self.kind is Kind.EXPIRED:
            lately = f" (last error: {self.detail})" if self.detail else ""
            return f"batches expired: they could not be delivered within {self.name}{lately}"
        if self.kind is Kind.EXPORTED:
            return f"the arena was removed, and its remaining records were exported to {self.detail}"
        if self.kind is Kind.NOT_KEPT:
            return f"the supervisor has no sender: {self.detail}"
        if self.kind is Kind.FAILED_TRANSACTION:
            return f"a transaction failed: {self.detail}"
        if self.kind is Kind.GIVEN_UP:
            return f"the records of {self.name} in the overflow were discarded: they are lost"
        return self.detail

    def record(self, native: _native.Arena) -> None:
        """Writes the report into the arena's error log."""
        detail = self.detail.replace("\0", "?")  # a name in a damaged arena may contain a NUL
        if self.kind is Kind.SENTENCE:
            native.record_error(detail)
        else:
            number = (self.error_code & NUMBER_MASK) << NUMBER_SHIFT
            name = self.name.replace("\0", "?")
            native.record_error(f"{name}\n{detail}", self.kind | number)


class Entry(NamedTuple):
    """A report in the error log.

    Attributes:
        status: the core's name of the error, or OS for a report from Python.
        report_count: the number of times it was made.
        last_ns: the time of the last one, in nanoseconds of the arena's clock.
    """

    report: Report
    status: str
    report_count: int
    last_ns: int


def read_entries(native: _native.Arena) -> list[Entry]:
    """Returns the arena's error log, in the order of first occurrence."""
    return [
        Entry(_report(error["note"], error["text"]), error["status"], error["count"], error["last_ns"])
        for error in native.errors()
    ]


def read_reports(native: _native.Arena) -> list[Report]:
    """Returns the reports of the arena's error log, in the order of first occurrence."""
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
    """Returns the newest report on a failed transaction, or a failed batch of it. Empty if none is new enough.

    Args:
        entries: the entries of the error log.
        since_ns: the time on the arena's clock. Older reports are ignored.
    """
    found = [one for one in entries if one.report.kind in FAILURES and one.last_ns >= since_ns]
    return max(found, key=lambda one: one.last_ns).report.sentence if found else ""


def reason_of_abort(reports: Iterable[Report]) -> str:
    """Returns where the records of a removed arena are. Empty if there is no report."""
    return next((report.sentence for report in reports if report.kind is Kind.EXPORTED), "")


def reason_of_giving_up(reports: Iterable[Report], place: str, seq: int) -> str:
    """Returns why a batch of a topic-partition is lost. Empty if there is no report that it was discarded.

    Args:
        reports: the reports of the error log.
        place: the topic-partition.
        seq: the number of the batch.
    """
    given_up = [report for report in reports if (report.kind, report.name) == (Kind.GIVEN_UP, place)]
    return next((report.sentence for report in given_up if _has(report.detail, seq)), "")


def _has(numbers: str, seq: int) -> bool:
    """True if a text such as "7 9" is a range that contains this number."""
    first, _, end = numbers.partition(" ")
    return first.isdecimal() and end.isdecimal() and int(first) <= seq < int(end)


def reason_of_expiry(reports: Iterable[Report], place: str) -> str:
    """Returns the reported reason why a batch of a topic-partition was not delivered.

    It is the reason of the last retry there, or else the last error when batches expired, or else empty.
    """
    known = list(reports)
    retried = [report.detail for report in known if report.kind is Kind.RETRIED and report.name == place]
    troubles = [report.detail for report in known if report.kind is Kind.EXPIRED and report.detail]
    return (retried or troubles or [""])[-1]


def reason_of_refusal(reports: Iterable[Report], place: str, error_code: int) -> str:
    """Returns the last report on an error in a topic-partition, or only the error code if there is none."""
    if error_code == UNAFFECTED:
        return f"{place}: its batch was rejected because of other records, send it again (KIP-467)"
    wanted = (Kind.REFUSED, place, error_code)
    found = [report for report in reports if (report.kind, report.name, report.error_code) == wanted]
    return found[-1].sentence if found else f"{place} failed with error {error_code}"
