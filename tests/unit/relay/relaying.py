# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of relays: inputs and outputs in one log, and a sender in a thread."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shmaccum.arena import Arena
from shmaccum.config import LogSinkOptions
from shmaccum.log.consumer import ConsumerRecord
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.producer import Producer
from shmaccum.relay import Relay
from shmaccum.sender import Sender
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import make_batch

INPUT, OUTPUT = "flights", "delays"
GROUP = "delays"
PARTITIONS = 2


def make_log(folder: Path, numbers: range) -> None:
    """A log with numbered inputs in two partitions, and an empty topic of outputs."""
    with LogDirectory(folder, LogSinkOptions(partitions=PARTITIONS)) as directory:
        for topic in (INPUT, OUTPUT):
            directory.create_topic(topic)
            for partition in range(PARTITIONS):
                directory.partition(topic, partition)
        for number in numbers:
            directory.partition(INPUT, number % PARTITIONS).append([make_batch([b"%d" % number])])


@contextlib.contextmanager
def sending(arena: Arena, folder: Path | None) -> Iterator[Sender]:
    """Run a sender of the arena to the log until the block ends. If the log is None, it delivers nothing."""
    sink = "null:" if folder is None else f"log:{folder}"
    sender = Sender(arena, sink, linger_ms=0)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        wait_until(lambda: sender.is_open or not thread.is_alive(), "the sender has its sink")
        yield sender
    finally:
        sender.stop()
        thread.join(WATCHDOG_S)


def make_relay(folder: Path, producer: Producer, **options: Any) -> Relay:
    return Relay(folder, INPUT, group_id=GROUP, producer=producer, **{"outputs": [OUTPUT], **options})


def send_outputs(relay: Relay, record: ConsumerRecord) -> None:
    """Send two outputs of each input, one to each partition."""
    for number in range(2):
        relay.send(record, OUTPUT, record.value + b".%d" % number, partition=number)


def relay_all(relay: Relay, count: int) -> None:
    """Relays until it has received this many inputs."""
    done = 0
    while done < count:
        with relay.turn(timeout_ms=1000) as records:
            for record in records:
                send_outputs(relay, record)
        done += len(records)


def outputs(folder: Path) -> Counter[bytes]:
    """Count each output in the log."""
    log = LogReader(folder)
    places = [place for place in log.topic_partitions() if place.topic == OUTPUT]
    return Counter(record.value or b"" for place in places for record in log.partition(*place).records())


def each_once(numbers: range) -> Counter[bytes]:
    """The expected outputs of these inputs, once each."""
    return Counter(b"%d.%d" % (number, output) for number in numbers for output in range(2))
