# SPDX-License-Identifier: Apache-2.0
"""The native layer leaks and loses no reference: many valid and invalid calls leave the counts unchanged."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from shmaccum import _native
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, drain

ROUNDS = 200


def reference_counts(objects: list[Any]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(each) for each in objects]


def append_good(sender: Accumulator, parts: dict[str, Any]) -> None:
    sender.append("t", 0, 1, parts["key"], parts["value"], parts["headers"], 0)


def append_bad(sender: Accumulator, parts: dict[str, Any]) -> None:
    with contextlib.suppress(TypeError):
        headers = [*parts["headers"], ("h", "text")]
        sender.append("t", 0, 1, parts["key"], parts["value"], headers)


def append_many_good(sender: Accumulator, parts: dict[str, Any]) -> None:
    sender.append_many("t", 0, [parts["value"]] * 5, [parts["key"]] * 5, None, [parts["headers"]] * 5)


def append_many_bad(sender: Accumulator, parts: dict[str, Any]) -> None:
    with contextlib.suppress(TypeError):
        sender.append_many("t", 0, [parts["value"], "text"], [parts["key"]] * 2)


def drain_and_look(sender: Accumulator, parts: dict[str, Any]) -> None:
    sender.append("t", 0, 1, parts["key"], parts["value"])
    for batch in drain(sender):
        buffers = batch.buffers
        batch.decode()
        for buffer in buffers:
            buffer.release()
        sender.complete(batch, BatchResult.SUCCEEDED)


def look_at_the_arena(sender: Accumulator, _parts: dict[str, Any]) -> None:
    native = sender.arena.native
    native.record_error("one error")
    for report in (native.counters, native.errors, native.processes, native.topics, native.partitions):
        report()
    sender.arena.verify(is_idle=False)
    sender.flush_begin()
    place = _native.BufferWait.join(native, 1)
    place.cancel()


@pytest.mark.parametrize(
    "call", [append_good, append_bad, append_many_good, append_many_bad, drain_and_look, look_at_the_arena]
)
def test_no_reference_is_kept_or_lost(
    arena: Arena, sender: Accumulator, call: Callable[[Accumulator, dict[str, Any]], None]
) -> None:
    parts: dict[str, Any] = {"key": b"a key", "value": bytearray(b"a value"), "headers": [("name", b"content")]}
    watched: list[Any] = [*parts.values(), *parts["headers"], *parts["headers"][0], arena.native, sender.half, None]
    watched += [_native.Token, _native.Batch, _native.FlushTicket, _native.BufferWait]
    for _ in range(3):  # these create topic, partition and cache
        call(sender, parts)
        deliver_all(sender)
    before = reference_counts(watched)
    for _ in range(ROUNDS):
        call(sender, parts)
        deliver_all(sender)
    after = reference_counts(watched)
    assert max(abs(late - early) for early, late in zip(before, after, strict=True)) < ROUNDS // 2
