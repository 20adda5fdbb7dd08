# SPDX-License-Identifier: Apache-2.0
"""A batch that a process scribbled on: it is told at ERROR, counted by topic, and found by check."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.cli.drawing import Screen, drawn
from shmaccum.cli.stat_view import stat_view
from shmaccum.observe.observation import Observer, Rates
from shmaccum.observe.prometheus import ArenaCollector, exposition
from tests.sending import TOPIC, Sending
from tests.unit.cli.conftest import Shell


@pytest.fixture
def sending(arena: Arena) -> Iterator[Sending]:
    sending = Sending(arena, linger_ms=0, retry_backoff_ms=0)
    yield sending
    sending.close()


def scribble(arena: Arena, token: Token) -> None:
    """Changes a byte of the batch's first record, as a stray pointer of another process would."""
    position = arena.native.layout["slot_data"] + token.slot_index * arena.geometry["slot_stride"] + 65
    with open(f"/dev/shm/{arena.name}", "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


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


def test_a_dead_letter_that_was_scribbled_on_is_logged_too(
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


def test_check_finds_a_scribbled_batch_at_its_default_depth(sending: Sending) -> None:
    shell = Shell()
    (token,) = sending.append(0)
    assert "is sound (deep)" in shell("check", sending.arena.name).stdout
    scribble(sending.arena, token)
    said = shell("check", sending.arena.name, code=1).stdout
    assert f"slot {token.slot_index}: " in said
    assert "is sound" in shell("check", sending.arena.name, "--depth", "normal").stdout
    sending.run(2)
