# SPDX-License-Identifier: Apache-2.0
"""Words about the sender of an arena, in exceptions and warnings and where people look at the arena."""

from __future__ import annotations

from shmaccum.arena.arena import Arena
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.arena.reports import Kind, read_entries

FRESH_NS = 60 * 10**9


def readable_name(name: bytes) -> str:
    """A text for people of any bytes in the arena. Bytes that are no text, or would move a cursor, become escapes."""
    text = name.decode(errors="backslashreplace")
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def sender_state(arena: Arena) -> str:
    """One or two sentences on whether a sender runs, what to do, and the keeper's report of the last minute."""
    if arena.native.sender_is_alive:
        outage = DeliveryClockReading.of(arena.native).sentence()
        return f"The sender is running, but {outage}." if outage else "The sender is running."
    advice = f"No sender runs: start one (shmaccum sender {arena.name} --sink ..., or Producer(..., sink=...))."
    reason = _reported(arena)
    return f"{advice} Its keeper reports: {reason}." if reason else advice


def _reported(arena: Arena) -> str:
    """The newest reason for which a keeper has no sender; empty when there is none, or it is old."""
    now_ns = arena.native.now_ns()
    told = [entry for entry in read_entries(arena.native) if entry.report.kind is Kind.NOT_KEPT]
    newest = max(told, key=lambda entry: entry.last_ns, default=None)
    if newest is None or now_ns - newest.last_ns > FRESH_NS:
        return ""
    return newest.report.detail.rstrip(".")
