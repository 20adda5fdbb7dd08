# SPDX-License-Identifier: Apache-2.0
"""How the sender notes in the arena's error log what a sink said of records it refused, and how futures find it there.

A result in the completion ring has room for Kafka's number of an error, not for a sentence. The error log has, but it
keeps only the youngest sentences, and cuts what is too long: a sentence that is not found is no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from shmaccum.arena.results import BatchResult

INNOCENT = -2
"""Error code of a record that was refused because others of its batch were to blame; Kafka has no number for it."""


EXPIRED = "batches expired:"
EXPORTED = "the arena was removed, and the records that were left in it were exported to "
LATELY = " (lately: "


class Reason(NamedTuple):
    """Why a batch failed."""

    result: BatchResult
    error_code: int
    message: str


def refusal_text(place: str, error_code: int, sentence: str) -> str:
    """A line of the error log.

    Args:
        place: topic and partition, as in ``flights-3``.
        error_code: Kafka's number (org.apache.kafka.common.protocol.Errors).
        sentence: the sink's.
    """
    return f"{place} failed with error {error_code}: {sentence}"


def retry_text(place: str, sentence: str) -> str:
    """A line of the error log: why a batch has to be delivered again."""
    return f"{place} is tried again: {sentence}"


def expiry_text(timeout_ms: int, trouble: str) -> str:
    """A line of the error log: batches have expired.

    Args:
        trouble: the last report while the batches waited; empty: none.
    """
    head = f"{EXPIRED} they could not be delivered within {timeout_ms} ms"
    return f"{head}{LATELY}{trouble})" if trouble else head


def removal_text(folder: str) -> str:
    """A line of the error log: the records of a removed arena were exported."""
    return f"{EXPORTED}{folder}"


def find_removal(texts: Iterable[str]) -> str:
    """The line that says where the records of a removed arena are; empty: there is none."""
    return next((text for text in texts if text.startswith(EXPORTED)), "")


def find_expiry(texts: Iterable[str], place: str) -> str:
    """The reason why a batch of that place was not delivered, as far as the lines tell: its last retry, or else the
    trouble when batches expired; empty: no line tells one."""
    known = list(texts)
    retried = [text for text in known if text.startswith(retry_text(place, ""))]
    if retried:
        return retried[-1].removeprefix(retry_text(place, ""))
    expired = [text for text in known if text.startswith(EXPIRED) and LATELY in text]
    return expired[-1].partition(LATELY)[2].removesuffix(")") if expired else ""


def find_refusal(texts: Iterable[str], place: str, error_code: int) -> str:
    """The last of the lines about that error in that place; without one, the number alone."""
    if error_code == INNOCENT:
        return f"{place}: other records of its batch are to blame, send it again (KIP-467)"
    begin = refusal_text(place, error_code, "")
    found = [text for text in texts if text.startswith(begin)]
    return found[-1] if found else begin.removesuffix(": ")
