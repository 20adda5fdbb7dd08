# SPDX-License-Identifier: Apache-2.0
"""Finalizers and signal handlers may close a consumer at any moment of any thread."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shmaccum import Consumer
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.consumer import change_waiter
from shmaccum.log.consumer.shared_watch import _CurrentWatch
from shmaccum.log.files import LogDirectory
from shmaccum.log.groups import shared_offsets
from tests.support.processes import WATCHDOG_S

TOPIC = "t"


@pytest.fixture
def log(tmp_path: Any) -> Iterator[LogDirectory]:
    with LogDirectory(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1)
        yield directory


@contextmanager
def held(*locks: Any) -> Iterator[None]:
    """Hold the locks in another thread, like a thread that garbage collection interrupts."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        is_held.set()
        is_over.wait(2 * WATCHDOG_S)
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_consumer_that_is_collected_takes_no_lock_and_gives_its_partitions_up(log: LogDirectory) -> None:
    gc.collect()
    forgotten = Consumer(f"log:{log.path}", TOPIC, group_id="g")
    forgotten.poll()
    watch = _CurrentWatch.watch
    assert watch is not None
    collected = threading.Event()

    def collect(parts: list[Consumer]) -> None:
        parts.clear()
        gc.collect()
        collected.set()

    parts = [forgotten]
    del forgotten
    with held(watch._lock, _CurrentWatch.lock, shared_offsets._OpenFiles.lock):
        threading.Thread(target=collect, args=(parts,), daemon=True).start()
        assert collected.wait(WATCHDOG_S), "the finalizer waits for a lock"
    with Consumer(f"log:{log.path}", TOPIC, group_id="g") as second:
        assert change_waiter._forgotten.empty()
        second.poll()
        assert second.assignment() == {TopicPartition(TOPIC, 0)}


def test_a_new_consumer_closes_the_descriptors_of_one_that_was_collected(log: LogDirectory) -> None:
    Consumer(f"log:{log.path}")
    gc.collect()
    with Consumer(f"log:{log.path}"):
        assert change_waiter._forgotten.empty()


CLOSED_IN_HANDLER = """
import signal, sys, threading
import shmaccum
from tests.support.processes import wait_until
consumer = shmaccum.Consumer("log:" + sys.argv[1], "t", group_id="g")
signal.signal(signal.SIGUSR1, lambda *_: consumer.close())
main = threading.main_thread().ident
def interrupt():
    wait_until(lambda: consumer._waiter in consumer._waiter._shared._waiting, "it waits")
    signal.pthread_kill(main, signal.SIGUSR1)
threading.Thread(target=interrupt).start()
try:
    consumer.poll(50_000)
except shmaccum.ConsumerStateError as error:
    print(error)
print(consumer._waiter)
"""


def test_close_in_a_handler_ends_the_poll_that_it_interrupts(log: LogDirectory) -> None:
    command = [sys.executable, "-c", CLOSED_IN_HANDLER, log.path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "was closed: create a new one\nNone" in done.stdout
