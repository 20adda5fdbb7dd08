# SPDX-License-Identifier: Apache-2.0
"""Sentences about the sender of an arena, for exceptions, warnings and displays."""

from __future__ import annotations

from shmaccum.arena.arena import Arena
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.arena.reports import Kind, read_entries

FRESH_NS = 60 * 10**9


def readable_name(name: bytes) -> str:
    """Returns readable text for any bytes. Bytes that are not text, or would move a cursor, are escaped."""
    text = name.decode(errors="backslashreplace")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def sender_state(arena: Arena) -> str:
    """Describes whether a sender runs, the remedy, and the supervisor's report of the last minute."""
    if arena.native.sender_is_alive:
        outage = DeliveryClockReading.of(arena.native).sentence()
        return f"The sender is running, but {outage}." if outage else "The sender is running."
    advice = f"No sender runs: start one (shmaccum sender {arena.name} --sink ..., or Producer(..., sink=...))."
    reason = _reported(arena)
    return f"{advice} Its supervisor reports: {reason}." if reason else advice


def _reported(arena: Arena) -> str:
    """Returns the newest reason why a supervisor has no sender. Empty if there is none, or it is old."""
    now_ns = arena.native.now_ns()
    reports = [entry for entry in read_entries(arena.native) if entry.report.kind is Kind.NOT_KEPT]
    newest = max(reports, key=lambda entry: entry.last_ns, default=None)
    if newest is None or now_ns - newest.last_ns > FRESH_NS:
        return ""
    return newest.report.detail.rstrip(".")
