# SPDX-License-Identifier: Apache-2.0
"""Workers of one host that produce to Apache Kafka on the same host, through one arena or with a client each.

A fleet is started once for many runs, so that no run includes the start of an interpreter or a connection. All fleets
do the same in a run: they send keyed records of 100 bytes to one topic, and flush. The time runs from the start of the
job to the last flush. Processor time (user and system) is measured for all processes of the client's side, including
the sender, and separately for the broker. The numbers of records and batches are read from the broker's files. The
broker has the JVM options of kafka-server-start.sh. The records of a run are deleted after they are counted, so that
they are not written to the disk.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from bench.harness.question import Measurement
from bench.parts import apache_kafka
from bench.parts.apache_kafka import LINGER_MS, PARTITION_COUNT
from bench.parts.arenas import temporary_arena
from bench.parts.sending import VALUE
from shmaccum.log.files.reader import LogReader

KEYS = [b"key-%d" % number for number in range(256)]
BATCH_SIZE = 16_384
PACED_BURST = 5
"""Records that a paced worker sends at once, like an event that causes several records."""

Send = Callable[[bytes], None]


@dataclass(frozen=True)
class Job:
    """The work of each worker in a run.

    Attributes:
        record_count: the number of records. If it is 0, the worker sends as many as it can in `seconds`.
        rate: records a second. If it is 0, the worker sends without a pause.
        seconds: the time for which it sends if `record_count` is 0.
        is_dry: a worker does everything except the send.
    """

    record_count: int = 0
    rate: int = 0
    seconds: float = 0.0
    is_dry: bool = False


# --- Apache Kafka

SHORT_LIVED = {"segment_bytes": str(32 << 20), "file_delete_delay_ms": "0"}
"""The settings of topics whose records are deleted."""
TIMEOUT_S = 60
"""The time-out of a request to the broker."""


def cluster() -> Any:
    """Return the broker of all fleets."""
    return apache_kafka.cluster(has_kafkas_jvm=True)


class Arrivals:
    """The records of one topic in the broker's files. They are deleted after they were counted."""

    def __init__(self, topic: str) -> None:
        self._reader = LogReader(cluster().brokers[0].log_directory, verify_crc=False)
        self._topic = topic
        self._offsets = [0] * PARTITION_COUNT

    def since_last(self) -> tuple[int, int]:
        """Return the numbers of records and batches since the last call."""
        records = batches = 0
        for partition, offset in enumerate(self._offsets):
            for batch in self._reader.partition(self._topic, partition).batches(offset):
                records += batch.record_count
                batches += 1
                self._offsets[partition] = batch.next_offset
        self._delete()
        return records, batches

    def _delete(self) -> None:
        from confluent_kafka import TopicPartition

        ends = [TopicPartition(self._topic, *end) for end in enumerate(self._offsets)]
        admin = cluster().admin()  # its requests end when it is collected
        for deleted in admin.delete_records(ends).values():
            deleted.result(TIMEOUT_S)


# --- waits for a core


def core_wait_s(processes: Iterable[Any]) -> float:
    """Return the seconds that threads of these processes waited for a core, or 0 without schedstat."""
    return sum(_thread_wait_s(thread) for each in processes for thread in Path(f"/proc/{each.pid}/task").glob("*"))


def _thread_wait_s(thread: Path) -> float:
    try:
        return int((thread / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:  # the process has ended, or the kernel has no schedstat
        return 0.0


# --- workers


def produce(job: Job, send: Send) -> int:
    """Do a job, the same for every client. Return the number of records."""
    if job.rate:
        return _produce_paced(job, send)
    if job.record_count:
        for number in range(job.record_count):
            send(KEYS[number & 255])
        return job.record_count
    count, end_s = 0, time.perf_counter() + job.seconds
    while time.perf_counter() < end_s:
        for key in KEYS:
            send(key)
        count += len(KEYS)
    return count


def _produce_paced(job: Job, send: Send) -> int:
    begin_s = time.perf_counter()
    for first in range(0, job.record_count, PACED_BURST):
        wait_s = begin_s + first / job.rate - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        for number in range(first, min(first + PACED_BURST, job.record_count)):
            send(KEYS[number & 255])
    return job.record_count


def send_nothing(_key: bytes) -> None:
    """Send nothing. It replaces the send in a dry job."""


def serve_jobs(pipe: Connection, send: Send, flush: Callable[[], object]) -> None:
    """Do each job from the pipe, and report the number of records and the processor time."""
    send(KEYS[0])
    flush()
    pipe.send("warm")
    while (job := pipe.recv()) is not None:
        begin_cpu_s = time.process_time()
        count = produce(job, send_nothing if job.is_dry else send)
        flush()
        pipe.send((count, time.process_time() - begin_cpu_s))


def work_with_arena(pipe: Connection, topic: str, arena: str) -> None:
    """Run a worker with shmaccum's producer."""
    from shmaccum import Producer

    producer = Producer(arena, linger_ms=LINGER_MS)
    send_one = producer.send

    def send(key: bytes) -> None:
        send_one(topic, VALUE, key)

    serve_jobs(pipe, send, producer.flush)
    producer.close()


def work_with_client(pipe: Connection, topic: str, options: dict[str, Any]) -> None:
    """Run a worker with confluent-kafka's producer."""
    import confluent_kafka

    producer = confluent_kafka.Producer(options)
    serve_jobs(pipe, send_by_client(producer, topic), producer.flush)


def send_by_client(producer: Any, topic: str) -> Send:
    """Return a send as the documentation of confluent-kafka recommends: poll, and poll longer if the queue is full."""

    def send(key: bytes) -> None:
        while not is_queued(key):
            producer.poll(0.01)
        producer.poll(0)

    def is_queued(key: bytes) -> bool:
        try:
            producer.produce(topic, VALUE, key)
        except BufferError:
            return False
        return True

    return send


# --- a fleet


def _brokers() -> list[psutil.Process]:
    return [psutil.Process(broker.process.pid) for broker in cluster().brokers]


def cpu_s_of(processes: list[psutil.Process]) -> float:
    """Return the user and system time of processes since their start."""
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)


class Workers:
    """Processes that wait for jobs."""

    def __init__(self, topic: str, worker_count: int, target: Callable[..., None], extra: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        self.processes = []
        for _ in range(worker_count):
            mine, theirs = context.Pipe()
            worker = context.Process(target=target, args=(theirs, topic, extra), daemon=True)
            worker.start()
            self._pipes.append(mine)
            self.processes.append(worker)
        for pipe in self._pipes:
            assert pipe.recv() == "warm"

    def work(self, job: Job) -> list[tuple[Any, ...]]:
        """Do a job in all workers, and return their reports."""
        for pipe in self._pipes:
            pipe.send(job)
        return [pipe.recv() for pipe in self._pipes]

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for worker in self.processes:
            worker.join(10)


class Fleet:
    """Workers that wait for runs, and their helper processes."""

    def __init__(self, topic: str, worker_count: int, target: Callable[..., None], extra: Any) -> None:
        cluster().create_topic(topic, PARTITION_COUNT, **SHORT_LIVED)
        self.helpers: list[psutil.Process] = []
        self._workers = Workers(topic, worker_count, target, extra)
        self._arrivals = Arrivals(topic)
        self._arrivals.since_last()

    def run(self, job: Job) -> Measurement:
        """Do one run with all workers.

        Raises:
            RuntimeError: a record is missing or doubled.
        """
        before_s, broker_before_s = cpu_s_of(self.helpers), cpu_s_of(_brokers())
        begin_s = time.perf_counter()
        reports = self._workers.work(job)
        elapsed_s = time.perf_counter() - begin_s
        cpu_s = sum(worker_cpu_s for _, worker_cpu_s in reports) + cpu_s_of(self.helpers) - before_s
        broker_cpu_s = cpu_s_of(_brokers()) - broker_before_s
        wanted = sum(count for count, _ in reports)
        records, batches = self._arrivals.since_last()
        if records != wanted:
            raise RuntimeError(f"{wanted} records were flushed, and the broker has {records} of them")
        return {
            "record_count": float(records),
            "records_per_s": records / elapsed_s,
            "cpu_us_per_record": cpu_s * 1e6 / records,
            "cores": cpu_s / elapsed_s,
            "broker_cpu_us_per_record": broker_cpu_s * 1e6 / records,
            "broker_cores": broker_cpu_s / elapsed_s,
            "connections": float(self._connection_count()),
            "records_per_batch": records / batches,
        }

    def pacing_cpu_us(self, job: Job) -> float:
        """Return the processor time per record of a paced job in which nothing is sent."""
        reports = self._workers.work(replace(job, is_dry=True))
        return float(sum(cpu_s for _, cpu_s in reports) * 1e6 / sum(count for count, _ in reports))

    def core_wait_s(self) -> float:
        """Return the seconds that threads of the client's side have waited for a core so far."""
        return core_wait_s([*self._workers.processes, *self.helpers])

    def _connection_count(self) -> int:
        """Return the number of established connections of all client processes to the broker."""
        port = int(cluster().bootstrap.rpartition(":")[2])
        processes = [psutil.Process(worker.pid) for worker in self._workers.processes] + self.helpers
        found = [connection for process in processes for connection in process.net_connections("tcp")]
        return sum(each.status == psutil.CONN_ESTABLISHED and each.raddr.port == port for each in found)

    def close(self) -> None:
        """End the workers."""
        self._workers.close()


@contextlib.contextmanager
def sender_of(arena: str, bootstrap: str, *settings: str) -> Iterator[psutil.Process]:
    """Run a sender in a new process with the fleet's linger and these settings."""
    options = [part for setting in (f"linger_ms={LINGER_MS}ms", *settings) for part in ("--set", setting)]
    command = [sys.executable, "-m", "shmaccum.sender", arena, "--sink", f"kafka:{bootstrap}", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        sender.stdout.read()  # the sender closes it when it is open
        try:
            yield psutil.Process(sender.pid)
        finally:
            sender.terminate()
            sender.wait(20)


@contextlib.contextmanager
def arena_fleet(worker_count: int, batch_size: int = BATCH_SIZE, *settings: str) -> Iterator[Fleet]:
    """Yield workers that share an arena, whose sender has these settings."""
    with (
        temporary_arena(buffer_memory="32MiB", batch_size=batch_size) as arena,
        sender_of(arena.name, cluster().bootstrap, *settings) as sender,
    ):
        fleet = Fleet(f"arena-{worker_count}-{batch_size}", worker_count, work_with_arena, arena.name)
        fleet.helpers.append(sender)
        try:
            yield fleet
        finally:
            fleet.close()


@contextlib.contextmanager
def client_fleet(worker_count: int, **options: Any) -> Iterator[Fleet]:
    """Yield workers with a confluent-kafka producer each."""
    shared = {"bootstrap.servers": cluster().bootstrap, "linger.ms": LINGER_MS, "enable.idempotence": True}
    fleet_options = {**shared, "acks": "all", "log_level": 0, **options}
    topic = "-".join(["clients", str(worker_count), *map(str, options.values())])
    fleet = Fleet(topic, worker_count, work_with_client, fleet_options)
    try:
        yield fleet
    finally:
        fleet.close()
