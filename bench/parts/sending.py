# SPDX-License-Identifier: Apache-2.0
"""The work "send": records of 100 bytes, one by one, by a function of topic, value and optional key."""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.question import Measurement
from bench.harness.stopwatch import Elapsed, Stopwatch
from bench.parts.arenas import TOPIC

RECORD_COUNT = 400_000
VALUE = bytes(100)
KEYS = [b"key-%05d" % number for number in range(1000)]


def send_plain(send: Callable[..., object], record_count: int = RECORD_COUNT) -> Measurement:
    """Send all records without a key."""
    stopwatch = Stopwatch()
    for _ in range(record_count):
        send(TOPIC, VALUE)
    return per_record(stopwatch.elapsed(), record_count)


def send_keyed(send: Callable[..., object], record_count: int = RECORD_COUNT) -> Measurement:
    """Send all records with a thousand keys in turn."""
    stopwatch = Stopwatch()
    for _ in range(record_count // len(KEYS)):
        for key in KEYS:
            send(TOPIC, VALUE, key)
    return per_record(stopwatch.elapsed(), record_count)


def per_record(elapsed: Elapsed, record_count: int = RECORD_COUNT) -> Measurement:
    """Return the figures of this work."""
    return {
        "ns_per_record": elapsed.wall_s * 1e9 / record_count,
        "cpu_ns_per_record": elapsed.cpu_s * 1e9 / record_count,
    }
