# SPDX-License-Identifier: Apache-2.0
"""How many bytes per second does a sender write to a socket whose other end discards them?

A sender empties an arena of 512 MiB by its pump (native/sender/pump.h). Requests have 1 MiB, and at most five are in
flight. Batches have 16 KiB (Kafka's batch.size) or 128 KiB. Each batch is drained, verified by its checksum, sent and
completed, and its buffer is freed. The peer drains the same batches before its measurement. It sends their buffers
by a bare ``sendmsg`` and ignores the contents of the responses. Two parts of the sender's time are not the pump's: the
first request, which Python sends, and the 10 ms after which a pump without work returns.

The floors are a plain C program (bench/native/socket_floor.c): ``sendmsg`` alone, with one checksum pass before it, and
with zeroed buffers after the responses. A sender that verifies its batches cannot do less than the second one, and a
sender that leaves free buffers zeroed cannot do less than the third.
"""

from __future__ import annotations

import functools

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Elapsed
from bench.parts.bare_socket import sent_bare
from bench.parts.draining_broker import draining_broker
from bench.parts.full_arenas import emptied, full_arena
from shmaccum.sender.sinks import open_sink

OURS, PEER = "shmaccum, batches of 16 KiB", "bare sendmsg, batches of 16 KiB"
PEER_OF_LARGE = "bare sendmsg, batches of 128 KiB"
FLOORS = {
    "floor in C: sendmsg": "send",
    "floor in C: a checksum pass, sendmsg": "sum",
    "floor in C: a checksum pass, sendmsg, zeroing": "sum-zero",
    "floor in C: sendmsg with MSG_ZEROCOPY": "zerocopy",
}
SMALL, LARGE = 16 << 10, 128 << 10
REQUEST_SIZE = 1 << 20
BUFFER_MEMORY = 512 << 20
VALUE_SIZE = 1000
"""Larger records fill an arena faster with the same number of bytes."""


def _measurement(batch_count: int, batch_size: int, elapsed: Elapsed) -> Measurement:
    size = batch_count * batch_size
    return {"bytes_per_s": size / elapsed.wall_s, "cpu_us_per_request": elapsed.cpu_s * 1e6 * REQUEST_SIZE / size}


def _through_the_sender(batch_size: int) -> Measurement:
    partition_count = REQUEST_SIZE // batch_size
    with (
        full_arena(batch_size, partition_count, BUFFER_MEMORY, VALUE_SIZE) as arena,
        draining_broker(partition_count) as (port, _),
    ):
        sink = open_sink(f"kafka:127.0.0.1:{port}")
        batch_count, elapsed = emptied(arena, sink)
    return _measurement(batch_count, batch_size, elapsed)


def _bare(batch_size: int) -> Measurement:
    partition_count = REQUEST_SIZE // batch_size
    with full_arena(batch_size, partition_count, BUFFER_MEMORY, VALUE_SIZE) as arena:
        batch_count, elapsed = sent_bare(arena, partition_count)
    return _measurement(batch_count, batch_size, elapsed)


def _floor(mode: str) -> Measurement:
    report = run_program(native_program("socket_floor"), mode, str(BUFFER_MEMORY >> 20))
    cpu_us = report["cpu_s_per_byte"] * 1e6 * REQUEST_SIZE
    return {"bytes_per_s": report["bytes_per_s"], "cpu_us_per_request": cpu_us}


def contenders() -> list[Contender]:
    """Return the sender and its peer with batches of two sizes, and the floors in C."""
    return [
        Contender(OURS, lambda: _through_the_sender(SMALL)),
        Contender(PEER, lambda: _bare(SMALL)),
        Contender("shmaccum, batches of 128 KiB", lambda: _through_the_sender(LARGE), peer=PEER_OF_LARGE),
        Contender(PEER_OF_LARGE, lambda: _bare(LARGE)),
        *[Contender(name, functools.partial(_floor, mode)) for name, mode in FLOORS.items()],
    ]


QUESTION = Question(
    title="bytes to a draining loopback socket, requests of 1 MiB",
    figures=(
        Figure("bytes_per_s", "GB/s", 1e-9, "higher"),
        Figure("cpu_us_per_request", "µs", 1, "lower", "processor time of the sender, per request"),
    ),
    contenders=contenders,
    peer=PEER,
    limit_s=240.0,
    goals=(
        Goal("drain to a loopback socket, of a bare ``sendmsg``", OURS, "bytes_per_s", 0.95, is_ratio=True),
        Goal("drain to a loopback socket, of its processor time", OURS, "cpu_us_per_request", 1.2, is_ratio=True),
    ),
    reason=(
        "A sender verifies each batch and zeroes its buffer. A C program that does this and nothing else "
        "besides ``sendmsg`` reaches {floor in C: a checksum pass, sendmsg, zeroing} of ``sendmsg`` alone."
    ),
)
