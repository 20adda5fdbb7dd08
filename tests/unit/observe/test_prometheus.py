# SPDX-License-Identifier: Apache-2.0
"""The page for Prometheus, parsed by Prometheus' own parser and compared with the arena."""

from __future__ import annotations

import re
import sys
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from setup import ROOT
from shmaccum import __version__
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError, NotSenderError
from shmaccum.observe.prometheus import ArenaCollector, SenderCollector, exposition
from shmaccum.observe.server import MetricsServer, split_address
from shmaccum.sender import Sender
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all
from tests.support.processes import wait_until

WATCHDOG_S = 30


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Maps (name, labels without the arena's) to the value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "arena"))
            found[sample.name, labels] = sample.value
    return found


def arenas_named(text: str) -> set[str]:
    return {sample.labels["arena"] for family in text_string_to_metric_families(text) for sample in family.samples}


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=16, waiter_count=16) as arena:
        yield arena


def test_an_arena_reports_what_is_in_it(arena: Arena) -> None:
    collector = ArenaCollector(arena)
    with Accumulator(arena) as accumulator:
        for number in range(3):
            accumulator.append("flights", 2, 1, None, b"%d" % number)
        told = samples(exposition(collector))
        assert told["shmaccum_queued_records", ()] == 3
        assert told["shmaccum_appended_records_total", ()] == 3
        assert told["shmaccum_slots", (("state", "OPEN"),)] == 1
        assert told["shmaccum_slots", (("state", "FREE"),)] == 15
        assert told["shmaccum_fill_ratio", ()] == pytest.approx(1 / 16)
        assert told["shmaccum_partition_queued_bytes", (("partition", "2"), ("topic", "flights"))] > 0
        assert told["shmaccum_processes", (("role", "producer"), ("state", "alive"))] == 1
        assert told["shmaccum_sender_alive", ()] == 0
        assert told["shmaccum_oldest_batch_age_seconds", ()] > 0
        assert told["shmaccum_events_total", (("event", "batches_opened"),)] == 1
        assert told["shmaccum_idle", ()] == 0
        accumulator.become_sender()
        deliver_all(accumulator)
        told = samples(exposition(collector))
        assert told["shmaccum_idle", ()] == 0
        assert told["shmaccum_queued_records", ()] == 0
        assert told["shmaccum_oldest_batch_age_seconds", ()] == 0
        assert told["shmaccum_sender_alive", ()] == 1
        assert told["shmaccum_events_total", (("event", "records_completed"),)] == 3
    assert arenas_named(exposition(collector)) == {arena.name}


def test_the_versions_are_labels(arena: Arena) -> None:
    labels = {"version": __version__, "layout": str(arena.native.layout["version"]), "created_by": __version__}
    assert samples(exposition(ArenaCollector(arena)))["shmaccum_build_info", tuple(sorted(labels.items()))] == 1


def test_a_process_whose_records_go_elsewhere_is_counted_as_such(arena: Arena) -> None:
    collector = ArenaCollector(arena)
    with Accumulator(arena):
        arena.native.show_fallback()
        told = samples(exposition(collector))
        assert told["shmaccum_processes", (("role", "producer"), ("state", "fallback"))] == 1


def test_the_page_of_metrics_names_those_of_an_arena(arena: Arena) -> None:
    page = (ROOT / "docs" / "reference" / "metrics-arena.rst").read_text(encoding="utf-8")
    told = set(re.findall(r"^# HELP (shmaccum_\w+)", exposition(ArenaCollector(arena)), re.MULTILINE))
    assert set(re.findall(r"``(shmaccum_\w+)", page)) == told


def test_an_arena_is_idle_while_nothing_waits_and_no_sender_died(arena: Arena) -> None:
    collector = ArenaCollector(arena)
    assert samples(exposition(collector))["shmaccum_idle", ()] == 1
    with Sender(arena, "null:") as sender:
        sender.open()
        assert samples(exposition(collector))["shmaccum_idle", ()] == 0
    assert samples(exposition(collector))["shmaccum_idle", ()] == 1


def test_the_senders_numbers_keep_kafkas_names() -> None:
    numbers = {"record-send-total": 7, "batch-size-avg": 1.5, "request-total": 3, "request-total.node-1": 3}
    text = exposition(SenderCollector("events", lambda: numbers))
    told = samples(text)
    assert told["kafka_producer_record_send_total", ()] == 7
    assert told["kafka_producer_batch_size_avg", ()] == 1.5
    assert told["kafka_producer_request_total", ()] == 3
    assert told["kafka_producer_node_request_total", (("node_id", "1"),)] == 3
    assert "# TYPE kafka_producer_record_send_total counter" in text
    assert "# TYPE kafka_producer_batch_size_avg gauge" in text


@pytest.mark.parametrize("error", [NotSenderError("no role"), TimeoutError("too busy")])
def test_a_scrape_goes_without_a_sender_that_does_not_answer(error: Exception) -> None:
    def read() -> dict[str, float]:
        raise error

    assert exposition(SenderCollector("events", read)) == ""


def scraped(port: int) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WATCHDOG_S) as answer:
        return samples(answer.read().decode())


def test_a_running_sender_answers_scrapes_between_its_rounds(arena: Arena) -> None:
    sender = Sender(arena, "null:", metrics_listen="127.0.0.1:0")
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        wait_until(lambda: sender.is_open, "the sender works")
        with Accumulator(arena) as accumulator:
            accumulator.append("flights", 0, 1, None, b"one")
            assert accumulator.flush(WATCHDOG_S)
        port = sender.metrics_port
        assert port is not None
        told: dict[Any, float] = {}

        def has_answered() -> bool:
            told.update(scraped(port))
            return ("kafka_producer_record_send_total", ()) in told

        wait_until(has_answered, "the sender has answered in time, which a busy machine may prevent")
        assert told["kafka_producer_record_send_total", ()] == 1
        assert told["shmaccum_sender_alive", ()] == 1
    finally:
        sender.stop()
        thread.join(WATCHDOG_S)
    assert sender.metrics_port is None


def test_a_sender_that_cannot_serve_its_metrics_leaves_the_role(arena: Arena) -> None:
    server = MetricsServer("127.0.0.1:0", ArenaCollector(arena))
    try:
        with Sender(arena, "null:", metrics_listen=f"127.0.0.1:{server.port}") as sender:
            with pytest.raises(InvalidArgumentError, match="metrics cannot be served at"):
                sender.open()
            assert not arena.native.sender_is_alive
    finally:
        server.close()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9308", ("127.0.0.1", 9308)), (":9308", ("127.0.0.1", 9308)), ("[::1]:80", ("::1", 80))],
)
def test_an_address(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", "9308", "host:", "host:port", "host:65536"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not an address to listen on"):
        split_address(text)


def test_without_the_package_a_sentence_reports_what_to_install(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(InvalidArgumentError, match=r"pip install '.\[metrics\]'"):
        ArenaCollector(arena)
