# SPDX-License-Identifier: Apache-2.0
"""A corrupt batch is logged at ERROR, counted by topic, and found by check."""

from __future__ import annotations

import logging
import os
import re
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.arena.tables import SLOT
from shmaccum.cli.drawing import Screen, drawn
from shmaccum.cli.stat_view import stat_view
from shmaccum.observe.observation import Observer, Rates
from shmaccum.observe.prometheus import ArenaCollector, exposition
from shmaccum.sender import Sender
from shmaccum.sender.sinks.log import LogSink
from tests.support.accumulator import Accumulator
from tests.support.sender import TOPIC, ScriptedSink, Sending
from tests.unit.cli.conftest import Shell

DEEP = 2


@pytest.fixture
def sending(arena: Arena) -> Iterator[Sending]:
    sending = Sending(arena, linger_ms=0, retry_backoff_ms=0)
    yield sending
    sending.close()


def scribble(arena: Arena, token: Token) -> None:
    """Change a byte of the batch's first record, as a wild store of another process would."""
    position = arena.native.layout["slot_data"] + token.slot_index * arena.geometry["slot_stride"] + 65
    with open(f"/dev/shm/{arena.name}", "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def make_wild(arena: Arena, token: Token, field: str, count: int) -> None:
    """Change a time in the header of an open batch of `count` records."""
    place_of = {name: place for name, (_, place, *_) in (SLOT.fields or {}).items()}
    place = place_of["base_timestamp_ms"] if field == "base" else place_of["meta"] + 16 * (count & 1)
    layout = arena.native.layout
    with open(f"/dev/shm/{arena.name}", "r+b") as file:
        file.seek(layout["slot_headers"] + token.slot_index * SLOT.itemsize + place + 4)
        (word,) = struct.unpack("<I", file.read(4))
        file.seek(-4, os.SEEK_CUR)
        file.write(struct.pack("<I", word ^ 0x100))


def shown(arena: Arena) -> str:
    seen = Observer(arena).observe()
    return "\n".join(drawn(stat_view(seen, Rates.between(seen, seen)), Screen(110)))


def test_it_is_logged_with_topic_partition_records_and_checksum(
    sending: Sending, caplog: pytest.LogCaptureFixture
) -> None:
    (token, _) = sending.append(3, count=2)
    scribble(sending.arena, token)
    sending.run(2)
    assert sending.result(token) is BatchResult.CORRUPT
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    found = re.fullmatch(
        rf"a batch of {TOPIC}-3 with 2 records is quarantined in slot {token.slot_index}: its checksum is "
        r"(0x[0-9a-f]{8}) and should be (0x[0-9a-f]{8})\. Some process writes where it must not; .*",
        said,
    )
    assert found is not None, said
    assert found[1] != found[2]
    assert any(f"{TOPIC}-3 with 2 records is quarantined" in error["text"] for error in sending.arena.native.errors())


@pytest.mark.parametrize("field", ["base", "max"])
@pytest.mark.parametrize("sizes", [[10, 10], [20_000]], ids=["records", "a chain"])
@pytest.mark.parametrize("is_log", [False, True], ids=["deliver", "log"])
def test_a_time_in_the_header_that_no_record_has_is_found(
    arena: Arena, field: str, sizes: list[int], is_log: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = LogSink(str(tmp_path / "log"), partitions=8)
    with Accumulator(arena) as accumulator, Sender(arena, log if is_log else ScriptedSink(), linger_ms=0) as sender:
        sender.open()
        tokens = [accumulator.append(TOPIC, 0, 1_700_000_000_000, None, b"." * size) for size in sizes]
        make_wild(arena, tokens[0], field, len(sizes))
        other = accumulator.append(TOPIC, 1, 1_700_000_000_000, None, b"sound")
        sentences = [sentence for _, sentence in arena.native.verify(DEEP)]
        assert any("its times differ from those of its records" in one for one in sentences) == (len(sizes) > 1)
        deadline_s = time.monotonic() + 60
        while any(accumulator.find(token) is None for token in (*tokens, other)):
            assert time.monotonic() < deadline_s
            sender.run_once()
        found = [accumulator.find(token) for token in (*tokens, other)]
    results = [completion.result for completion in found if completion is not None]
    assert results == [BatchResult.CORRUPT] * len(tokens) + [BatchResult.SUCCEEDED]
    assert "its header says that its records are of" in caplog.text


def test_times_that_are_far_apart_are_delivered(arena: Arena) -> None:
    with Accumulator(arena) as accumulator, Sender(arena, ScriptedSink(), linger_ms=0) as sender:
        sender.open()
        times_ms = (1_700_000_000_000, 0, 2**45, 5)
        tokens = [accumulator.append(TOPIC, 0, time_ms, None, b"value") for time_ms in times_ms]
        deadline_s = time.monotonic() + 60
        while any(accumulator.find(token) is None for token in tokens):
            assert time.monotonic() < deadline_s
            sender.run_once()
        found = [accumulator.find(token) for token in tokens]
    assert [completion.result for completion in found if completion is not None] == [BatchResult.SUCCEEDED] * 4


def test_stat_and_metrics_count_it_by_topic(sending: Sending) -> None:
    pytest.importorskip("prometheus_client")
    assert "damaged" not in shown(sending.arena)
    (token, _) = sending.append(0, count=2)
    scribble(sending.arena, token)
    sending.run(2)
    seen = Observer(sending.arena).observe()
    assert seen.damaged == {TOPIC: 2}
    assert seen.as_json()["damaged"] == {TOPIC: 2}
    assert f"1 batch kept: {TOPIC} 2 records" in shown(sending.arena)
    assert f'shmaccum_damaged_records{{arena="{sending.arena.name}",topic="{TOPIC}"}} 2.0' in exposition(
        ArenaCollector(sending.arena)
    )


def test_a_dead_letter_that_was_changed_is_logged_too(
    arena: Arena, caplog: pytest.LogCaptureFixture, tmp_path: object
) -> None:
    sending = Sending(arena, linger_ms=0, dead_letter=f"log:{tmp_path}/dead", delivery_timeout_counts="always")
    sending.scripted.plan_filter = lambda _: False
    (token,) = sending.append(0)
    sending.run()
    scribble(arena, token)
    sending.sleep(200_000)
    sending.run(3)
    assert [r.levelno for r in caplog.records if "is quarantined in slot" in r.getMessage()] == [logging.ERROR]
    sending.close()


def test_check_finds_an_overwritten_batch_at_its_default_depth(sending: Sending) -> None:
    shell = Shell()
    (token,) = sending.append(0)
    assert "is sound (deep)" in shell("check", sending.arena.name).stdout
    scribble(sending.arena, token)
    said = shell("check", sending.arena.name, code=1).stdout
    assert f"slot {token.slot_index}: " in said
    assert "is sound" in shell("check", sending.arena.name, "--depth", "normal").stdout
    sending.run(2)
