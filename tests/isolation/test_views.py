# SPDX-License-Identifier: Apache-2.0
"""Every view names the topic to which nothing can be delivered, the reason, the age, its buffers and its threads.

A broker that leads no partition, or does not answer, makes the topic stuck. No state of the arena is planted.
"""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from shmaccum.cli import main
from shmaccum.observe import health
from shmaccum.observe.prometheus import ArenaCollector
from shmaccum.observe.server import MetricsServer
from tests.isolation.fake_outage import DEAD, LIVE, LONG_MS, NO_ANSWER, NO_LEADER, FakeOutage, fake_outage
from tests.support.processes import Child, wait_until

SLOT_COUNT = 64
DEAD_COUNT = 3
SMALL = 1000
WATCHDOG_S = 30


class Stuck(NamedTuple):
    """A fault, and the reason that views give for it."""

    fault: str
    reason: str
    why: str


FAULTS = {
    NO_LEADER: Stuck(NO_LEADER, "no_leader", "it has no leader"),
    NO_ANSWER: Stuck(NO_ANSWER, "silent", "its broker does not answer, while brokers of other partitions do"),
}


def is_marked(outage: FakeOutage) -> bool:
    """Return True if the sender has marked each partition of the dead topic. The live topic is delivered meanwhile."""
    assert outage.failures(LIVE, 1, LONG_MS) == []
    return len(outage.arena.native.stuck_partitions()) == DEAD_COUNT


def is_full(outage: FakeOutage) -> bool:
    """Return True if the dead topic has half of the buffers. The live topic has none then, so no more become free."""
    outage.fill(DEAD, SMALL)
    native = outage.arena.native
    (index, *_), *_ = native.stuck_partitions()
    return int(native.partition_limit(index, 1)["held"]) == SLOT_COUNT // 2


@contextlib.contextmanager
def stuck_topic(stuck: Stuck, arena_name: str, folder: Path) -> Iterator[FakeOutage]:
    """Yield an outage in which the dead topic has as many slots as it may, and a thread of another process waits for
    more.
    """
    with fake_outage(arena_name, folder, SLOT_COUNT, dead_count=DEAD_COUNT) as outage:
        outage.begin(stuck.fault)
        wait_until(partial(is_marked, outage), "the topic is stuck")
        wait_until(partial(is_full, outage), "the topic holds half of the buffers")
        child = Child(outage.send_alone, DEAD, SMALL)
        wait_until(lambda: outage.arena.statistics().waiting_count == 1, "a thread waits")
        yield outage
        outage.count_sent(DEAD, 1)
        outage.end(child.has_ended)
        assert child.join() == "None"


def shown(*arguments: str) -> str:
    """Return the output of a command, which must succeed."""
    result = CliRunner(env={"COLUMNS": "160"}).invoke(main, arguments)
    assert result.exit_code in {0, 1}, result.output
    return result.output


def page(outage: FakeOutage) -> dict[str, Any]:
    """Return the document of the page in the browser."""
    with (
        closing(MetricsServer("127.0.0.1:0", ArenaCollector(outage.arena))) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/arena.json", timeout=WATCHDOG_S) as answer,
    ):
        document: dict[str, Any] = json.loads(answer.read())
    return document


def check_row(row: dict[str, Any], stuck: Stuck) -> None:
    """Check that a row of JSON has every value."""
    assert row["topic"] == DEAD
    assert (row["stuck_partition_count"], row["partition_count"]) == (DEAD_COUNT, DEAD_COUNT)
    assert row["reasons"] == {stuck.reason: DEAD_COUNT}
    assert row["why"] == stuck.why
    assert row["stuck_age_ns"] > 0
    assert row["held_slot_count"] == row["held_size"] / 4096 >= SLOT_COUNT // 2
    assert row["free_needed"] == SLOT_COUNT // 2 + 1
    assert row["waiting_count"] == 1


def check_tables(text: str, stuck: Stuck) -> None:
    """Check that a view on a terminal has the row."""
    (row,) = re.findall(rf"^{DEAD} .*$", text, re.MULTILINE)
    held = re.search(rf"(\d+) of {SLOT_COUNT} +{SLOT_COUNT // 2 + 1} +1  ", row)
    assert held is not None, row
    assert int(held[1]) >= SLOT_COUNT // 2
    assert f" {DEAD_COUNT} of {DEAD_COUNT} " in row
    assert stuck.why in row
    assert "waiting" in text


def check_metrics(text: str, stuck: Stuck) -> None:
    """A scrape has the numbers of the stuck topic, and of no other one."""
    samples = re.findall(r'^shmaccum_(\w+)\{.*topic="(\w+)"\} (\S+)$', text, re.MULTILINE)
    found = {name: float(value) for name, topic, value in samples if topic == DEAD}
    assert found.pop("topic_stuck_seconds") > 0
    assert found.pop("topic_held_bytes") >= SLOT_COUNT // 2 * 4096
    assert found.pop("partition_queued_bytes") > 0
    assert found == {
        "stuck_partitions": DEAD_COUNT,
        "topic_needs_free_bytes": (SLOT_COUNT // 2 + 1) * 4096,
        "topic_waiting_threads": 1,
    }
    assert {name for name, topic, _ in samples if topic == LIVE} == {"partition_queued_bytes"}
    assert f'reason="{stuck.reason}"' in text


def check_error(outage: FakeOutage, stuck: Stuck) -> None:
    """An append that finds no buffer names the partition, the reason, the age, and the buffers of the topic."""
    (error,) = outage.failures(DEAD, 1, 1, SMALL)
    assert re.search(
        rf"partition 0 of topic '{DEAD}' has been stuck for \S+ m?s: {stuck.why}\. .* more than {SLOT_COUNT // 2} of "
        rf"{SLOT_COUNT} are free.* topic '{DEAD}' holds \d+ of the {SLOT_COUNT} buffers",
        error,
    ), error


@pytest.mark.parametrize("fault", FAULTS)
def test_each_view_names_the_stuck_topic(
    fault: str, arena_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE_NS_MAX", 0)
    stuck = FAULTS[fault]
    with stuck_topic(stuck, arena_name, tmp_path) as outage:
        (row,) = json.loads(shown("stat", arena_name, "--json"))["limited_topics"]
        check_row(row, stuck)
        for command in ("stat", "top"):
            check_tables(shown(command, arena_name, "--once"), stuck)
        (row,) = page(outage)["limited_topics"]
        check_row(row, stuck)
        check_metrics(shown("metrics", arena_name), stuck)
        for arguments in (("health", arena_name), ("ls",)):
            (sentence,) = re.findall(rf".*of topic '{DEAD}'.*", shown(*arguments).replace("\n", " "))
            assert (
                f"nothing has been delivered to {DEAD_COUNT} of {DEAD_COUNT} partitions of topic '{DEAD}' for"
                in sentence
            )
            assert stuck.why in sentence
            assert "1 thread waits for one" in sentence
        assert f"{arena_name} is ready" in shown("health", arena_name, "--ready")
        check_error(outage, stuck)
