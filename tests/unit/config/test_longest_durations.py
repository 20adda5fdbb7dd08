# SPDX-License-Identifier: Apache-2.0
"""The maximum of each duration works in its process: producer, sender, each sink, consumer and shipper."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.config import LONG_MAX, ConsumerOptions, LogSinkOptions, Options, ProducerOptions, SenderOptions
from shmaccum.config.kafka import KafkaSinkOptions
from shmaccum.config.shipper import ShipperOptions
from shmaccum.log.consumer import Consumer
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.shipping import Shipper
from shmaccum.sender.sinks import open_sink
from tests.support.log_server import served

WATCHDOG_S = 60


def longest(table: type[Options], **others: Any) -> dict[str, Any]:
    return {name: LONG_MAX for name, option in table.table().items() if option.kind == "duration"} | others


def delivers(arena: Arena, sink: Any, producer_options: dict[str, Any], sender_options: dict[str, Any]) -> None:
    """Send one record and wait for its delivery."""
    with Producer(arena, **producer_options) as producer, Sender(arena, sink, **sender_options) as sender:
        future = producer.send("words", b"hello")
        sender.open()
        is_over = threading.Event()
        thread = threading.Thread(target=run_until, args=(sender, is_over), daemon=True)
        thread.start()
        try:
            for timeout in (WATCHDOG_S, 1e300, math.inf, None):
                assert future.get(timeout=timeout).topic == "words"
                producer.flush(timeout)
        finally:
            is_over.set()
            thread.join(WATCHDOG_S)


def run_until(sender: Sender, is_over: threading.Event) -> None:
    while not is_over.is_set():
        sender.run_once()


@pytest.fixture
def topic(arena: Arena) -> Arena:
    arena.declare_topic("words", 1)
    return arena


SENDER = [name for name, option in SenderOptions.table().items() if option.kind == "duration"]
TOGETHER = {
    "linger_ms": ("delivery_timeout_ms",),
    "request_timeout_ms": ("delivery_timeout_ms",),
    "retry_backoff_ms": ("retry_backoff_max_ms",),
}
"""Durations that contradict the default of another option."""


@pytest.mark.parametrize("kind", ["memory", "log"])
@pytest.mark.parametrize("name", SENDER)
def test_a_sender_delivers(topic: Arena, tmp_path: Path, name: str, kind: str) -> None:
    sink = "memory:" if kind == "memory" else f"log:{tmp_path}/log"
    delivers(topic, sink, {"linger_ms": 0}, dict.fromkeys((name, *TOGETHER.get(name, ())), LONG_MAX))


def test_a_producer_sends_and_closes(topic: Arena, tmp_path: Path) -> None:
    options = longest(ProducerOptions, linger_ms=0)
    delivers(topic, f"log:{tmp_path}/log", options, longest(SenderOptions))


def test_a_log_takes_records(topic: Arena, tmp_path: Path) -> None:
    sink = open_sink(f"log:{tmp_path}/log", **longest(LogSinkOptions, sync="interval"))
    delivers(topic, sink, {"linger_ms": 0}, {})


def test_a_broker_takes_records(topic: Arena, tmp_path: Path) -> None:
    pytest.importorskip("kafka")
    with served(tmp_path / "served") as address:
        sink = open_sink(f"kafka:{address}", **longest(KafkaSinkOptions))
        delivers(topic, sink, {"linger_ms": 0}, longest(SenderOptions))


def test_a_consumer_reads_and_a_shipper_ships(topic: Arena, tmp_path: Path) -> None:
    delivers(topic, f"log:{tmp_path}/log", {"linger_ms": 0}, {})
    options = longest(ConsumerOptions, group_id="readers", auto_offset_reset="earliest", group_instance_id="one")
    with Consumer(tmp_path / "log", "words", **options) as consumer:
        assert next(iter(consumer)).value == b"hello"
    with Shipper(tmp_path / "log", "memory:", **longest(ShipperOptions)) as shipper:
        assert shipper.run(follow=False).record_count == 1
