# SPDX-License-Identifier: Apache-2.0
"""One round of the question ``outage``: records accumulate while Apache Kafka is away, and are delivered afterwards.

1. A worker opens its client and sends a record, so that the connection and the topic are known. The broker is stopped
   with SIGSTOP, as if its network had failed. It is warmed up, and is not restarted, because a new one would first
   compile its code.
2. The worker sends records of `VALUE_SIZE` bytes as fast as its client takes them. A client that keeps records in
   memory refuses those that do not fit, and its program continues without them.
3. When the files of the queue no longer grow, the page cache is dropped, and the files are read once. This is the
   sequential read. Then the page cache is dropped again.
4. The broker continues. The drain is measured from the arrival of the first record to that of the last one.

A record is lost if the worker called send and the log of the broker does not have it. A record is doubled if the log
has another one of the same number. Memory is the largest resident set of the process that keeps the records: the
helper's, including the arena, or the worker's.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

from bench.harness.packages import load
from bench.harness.question import Measurement, UnavailableError
from bench.parts.agents import rsyslog, syslog_ng
from bench.parts.apache_kafka import PARTITION_COUNT
from bench.parts.arenas import temporary_arena
from bench.parts.draining_broker import TOPIC, draining_process
from bench.parts.host_clients import ArenaClient, RefusingClient
from bench.parts.host_helpers import ACKS, LINGER_MS, Helper, OpenWay, Way, agent, stopped
from bench.parts.host_workers import KEYS, Workers, job_of, number_of, value_of
from bench.parts.one_host import Broker
from shmaccum.arena import Arena

VALUE_SIZE = 1000
JOB = 1
DISK_PARTS = 3
"""The size of the disk in units of the data. The queue and the log of the broker are on the disk at once, and a queue
may be half as large again as its records.
"""
MEMORY_PARTS = 4
"""The queue of confluent-kafka may have this fraction of the host's memory."""
WARM_SIZE, BATCH_SIZES = 600_000_000, (16_384, 1_000_000)
READ_SIZE = 1 << 20
POLL_S = 0.02
SETTLE_S = 1.0
REST_S = 0.5
"""After no record has arrived for this time, the records are counted."""
FIRST_S, STALL_S = 180.0, 15.0
"""If the first record, or a later one, does not arrive within this time, all missing records count as lost."""
PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
DROP_CACHES = Path("/proc/sys/vm/drop_caches")


# --- the page cache and the files of a queue


def files_of(folder: Path) -> list[Path]:
    """Return the regular files below a folder in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(folder: Path) -> int:
    """Return the allocated bytes of the files of a folder."""
    total = 0
    for path in files_of(folder):
        with contextlib.suppress(FileNotFoundError):  # the queue has removed the file
            total += path.stat().st_blocks * 512
    return total


def drop_cache(folder: Path) -> None:
    """Write the files of a folder to the disk, and drop their pages from the cache. With root's rights, drop all clean
    pages.
    """
    for path in files_of(folder):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with contextlib.suppress(OSError):  # not root, or a container
        DROP_CACHES.write_text("3", encoding="ascii")


def read_s(folder: Path) -> float:
    """Return the seconds for one read of all files of a folder."""
    buffer = bytearray(READ_SIZE)
    begin_s = time.perf_counter()
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin_s


def _settle(folder: Path) -> None:
    """Wait until the files of a folder have not grown for `SETTLE_S`."""
    size, since_s = size_of(folder), time.monotonic()
    while time.monotonic() < since_s + SETTLE_S:
        time.sleep(POLL_S)
        if (now := size_of(folder)) != size:
            size, since_s = now, time.monotonic()


def peak_size(pid: int) -> int:
    """Return the bytes of the largest resident set of a process so far."""
    match = PEAK.search(Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert match is not None
    return int(match[1]) * 1024


def check_disk(size: int) -> None:
    """Check that the folder for temporary files has space for the queue and the log of the broker.

    Raises:
        UnavailableError: it is too small, or in memory.
    """
    folder, needed = Path(tempfile.gettempdir()), DISK_PARTS * size
    if _file_system(folder) in ("tmpfs", "ramfs"):
        raise UnavailableError(f"{folder} is in memory: set TMPDIR to a folder on a disk")
    if (free := shutil.disk_usage(folder).free) < needed:
        raise UnavailableError(f"{needed / 1e9:.1f} GB of disk are needed, {free / 1e9:.1f} are free: --megabytes N")


def _file_system(path: Path) -> str:
    """Return the type of the file system of a path: that of the longest mount point above it."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    above = [(len(mount[1]), mount[2]) for mount in mounts if path.is_relative_to(mount[1])]
    return max(above)[1]


# --- the ways


def arena(size: int, batch_size: str = "16KiB") -> OpenWay:
    """Return the way through an arena whose sender has an overflow."""

    @contextlib.contextmanager
    def open_way(bootstrap: str, _topic: str) -> Iterator[Way]:
        with temporary_arena(batch_size=batch_size) as shared, tempfile.TemporaryDirectory() as folder:
            options = {"linger_ms": f"{LINGER_MS}ms", "overflow": f"log:{folder}/overflow", "overflow_max_bytes": size}
            settings = [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
            command = [sys.executable, "-m", "shmaccum.sender", shared.name, "--no-log", "--sink", f"kafka:{bootstrap}"]
            with stopped(Helper([*command, *settings], lambda: shared.native.sender_is_alive)) as sender:
                yield Way(ArenaClient, (shared.name, LINGER_MS), sender, Path(folder))

    return open_way


def memory(size: int) -> OpenWay:
    """Return the way of confluent-kafka's producer. Its queue has space for all records, but at most a fraction of the
    memory.
    """

    @contextlib.contextmanager
    def open_way(bootstrap: str, _topic: str) -> Iterator[Way]:
        load("confluent_kafka", "confluent-kafka")
        most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MEMORY_PARTS
        options = {
            "queue.buffering.max.kbytes": min(size, most) // 1024,
            "queue.buffering.max.messages": 0,
            "message.timeout.ms": 0,
        }
        yield Way(RefusingClient, ({"bootstrap.servers": bootstrap, **ACKS, **options},))

    return open_way


WAYS: dict[str, Callable[[int], OpenWay]] = {
    "arena with overflow": arena,
    "arena with overflow, batches of 128 KiB": partial(arena, batch_size="128KiB"),
    "rsyslog, disk queue": lambda size: agent(rsyslog, disk_size=size),
    "syslog-ng, disk buffer": lambda size: agent(syslog_ng, disk_size=size),
    "confluent-kafka, in memory": memory,
}
"""Contender -> a function that returns the way with a queue of at most the given number of bytes."""


# --- a round


def fate(values: Iterable[bytes], record_count: int) -> tuple[int, int]:
    """Return the numbers of lost and doubled records of the job."""
    counts = bytearray(record_count)
    doubled = 0
    for value in values:
        if job_of(value) == JOB:
            number = number_of(value)
            doubled += counts[number]
            counts[number] = 1
    return counts.count(0), doubled


class Drain:
    """The arrivals of the records of a round, seen by the growth of the broker's files."""

    def __init__(self, broker: Broker, topic: str, record_count: int) -> None:
        self._broker, self._topic, self._record_count = broker, topic, record_count
        self._before = broker.log_size(topic)
        self._begin_s = time.monotonic()
        self.delay_s = 0.0
        self.drain_s = 0.0
        self.lost = self.doubled = 0

    def wait(self) -> None:
        """Wait until every record has arrived, or none arrives for `STALL_S`."""
        size = counted_size = self._before
        first_s = last_s = self._begin_s
        self.lost = self._record_count
        while self.lost and time.monotonic() < last_s + (FIRST_S if size == self._before else STALL_S):
            time.sleep(POLL_S)
            now = self._broker.log_size(self._topic)
            if now > size:
                first_s = time.monotonic() if size == self._before else first_s
                size, last_s = now, time.monotonic()
            elif size > counted_size and time.monotonic() > last_s + REST_S:
                counted_size = size
                self._count()
        self._count()
        self.delay_s, self.drain_s = first_s - self._begin_s, max(last_s - first_s, POLL_S)

    def _count(self) -> None:
        self.lost, self.doubled = fate(self._broker.values(self._topic), self._record_count)


@cache
def warm_broker() -> Broker:
    """Return the broker after it has received `WARM_SIZE` bytes in batches of each contender's size, so that its JVM
    has compiled the code.
    """
    broker = Broker()
    topic = broker.new_topic()
    for batch_size in BATCH_SIZES:
        producer = load("confluent_kafka", "confluent-kafka").Producer(
            {"bootstrap.servers": broker.bootstrap, **ACKS, "batch.size": batch_size}
        )
        for number in range(WARM_SIZE // len(BATCH_SIZES) // VALUE_SIZE):
            while not _is_taken(producer, topic, number):
                producer.poll(POLL_S)
        producer.flush()
    broker.delete(topic)
    return broker


def _is_taken(producer: Any, topic: str, number: int) -> bool:
    try:
        producer.produce(topic, value_of(0, 0, number, VALUE_SIZE), KEYS[number & 255])
    except BufferError:
        return False
    return True


def run(open_way: Callable[[int], OpenWay], size: int) -> Measurement:
    """Measure a way with `size` bytes of values."""
    check_disk(size)
    broker, workers = warm_broker(), Workers()
    topic = broker.new_topic()
    try:
        with open_way(2 * size)(broker.bootstrap, topic) as way:
            workers.start(1)
            return _run(broker, workers, way, topic, size // VALUE_SIZE)
    finally:
        workers.close()
        broker.delete(topic)


def order(workers: Workers, name: str, *arguments: object, **options: object) -> None:
    """Let the worker call a method, and wait for its answer."""
    workers.order([0], name, *arguments, **options)
    workers.answers([0])


def _run(broker: Broker, workers: Workers, way: Way, topic: str, record_count: int) -> Measurement:
    order(workers, "open", way.client, (topic, *way.arguments), 1, has_acks=False)
    broker.wait_for_records(topic, 1)
    broker.suspend()
    try:
        begin_s = time.perf_counter()
        order(workers, "fill", JOB, record_count, VALUE_SIZE)
        filled_s = time.perf_counter() - begin_s
        stored, sequential_s = _cold(way.queue) if way.queue else (0, 0.0)
    finally:
        broker.resume()
    drain = Drain(broker, topic, record_count)
    drain.wait()
    kept_in = way.helper.process.pid if way.helper else workers.pid(0)
    peak = peak_size(kept_in)
    order(workers, "close")
    arrived = record_count - drain.lost
    return {
        "lost": float(drain.lost),
        "doubled": float(drain.doubled),
        **({"of_read": sequential_s / drain.drain_s, "stored_bytes": float(stored)} if way.queue else {}),
        "peak_bytes": float(peak),
        "drain_bytes_per_s": arrived * VALUE_SIZE / drain.drain_s,
        "fill_bytes_per_s": record_count * VALUE_SIZE / filled_s,
        "delay_s": drain.delay_s,
    }


def run_discarding(size: int) -> Measurement:
    """Measure the arena with `size` bytes of values and a broker that discards them, so that only the sender works."""
    check_disk(size)
    workers = Workers()
    with (
        draining_process(PARTITION_COUNT, answers_each=True) as (port, _, pid),
        arena(2 * size)(f"127.0.0.1:{port}", TOPIC) as way,
        Arena.attach(way.arguments[0]) as shared,
    ):
        assert way.queue
        assert way.helper
        workers.start(1)
        try:
            order(workers, "open", way.client, (TOPIC, *way.arguments), 1, has_acks=False)
            os.kill(pid, signal.SIGSTOP)
            order(workers, "fill", JOB, size // VALUE_SIZE, VALUE_SIZE)
            stored, sequential_s = _cold(way.queue)
            begin_s = time.monotonic()
            os.kill(pid, signal.SIGCONT)
            while shared.native.spilled()["partitions"]:
                time.sleep(POLL_S)
            drain_s = time.monotonic() - begin_s
            order(workers, "close")
        finally:
            os.kill(pid, signal.SIGCONT)
            workers.close()
    return {"drain_bytes_per_s": stored / drain_s, "of_read": sequential_s / drain_s, "stored_bytes": float(stored)}


def _cold(folder: Path) -> tuple[int, float]:
    """Return the bytes of a queue and the seconds for reading them once. Afterwards, no page of the queue is in the
    cache.
    """
    _settle(folder)
    drop_cache(folder)
    seconds = read_s(folder)
    drop_cache(folder)
    return size_of(folder), seconds
