# SPDX-License-Identifier: Apache-2.0
"""The workers of the question ``one_host``: processes that open a client, do paced jobs, and report.

The workers start once for all contenders, from a fork server that has imported everything, so that hundreds of them
are cheap. Each round opens the clients of one way to Kafka and closes them again.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from bench.parts.host_clients import Client

BURST = 5
"""Records that a worker sends at once, like an event that causes several records."""
VALUE_SIZE = 100
KEYS = [b"key-%d" % number for number in range(256)]
LEAD_S = 0.05
"""The time between the order of a job and its start. All workers receive the order within this time."""
REPORT_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
IMPORTED = ["__main__", "confluent_kafka", "shmaccum", __name__]


@dataclass(frozen=True)
class Job:
    """The work of all workers: each sends `record_count` records.

    Attributes:
        number: distinguishes the records of jobs.
        rate: records a second of one worker.
        begin_s: the time on the host's monotonic clock at which the job begins. Each worker sends its bursts at other
        times.
        is_dry: the workers do everything except the sends.
        is_fatal: each worker kills itself right after its last send.
    """

    number: int
    record_count: int
    rate: float
    begin_s: float = 0.0
    is_dry: bool = False
    is_fatal: bool = False


@dataclass(frozen=True)
class Result:
    """The result of a job in one worker. There are no latencies if the client has no acks."""

    cpu_s: float
    latencies_ns: array[int]


class Latencies:
    """The time from the send of each record to the report of its ack."""

    def __init__(self, record_count: int) -> None:
        self._sent_ns = array("q", bytes(8 * record_count))
        self._acked_ns = array("q", bytes(8 * record_count))
        self._left = record_count

    def sent(self, number: int) -> None:
        """Note the time before a send."""
        self._sent_ns[number] = time.perf_counter_ns()

    def acked(self, number: int) -> None:
        """Note the time of an ack. A second one for the same record is ignored."""
        self._left -= self._acked_ns[number] == 0
        self._acked_ns[number] = time.perf_counter_ns()

    def wait(self) -> array[int]:
        """Wait until every ack is reported, and return the latencies.

        Raises:
            RuntimeError: an ack is missing.
        """
        end_s = time.monotonic() + REPORT_TIMEOUT_S
        while self._left:
            if time.monotonic() > end_s:
                raise RuntimeError(f"{self._left} acks were not reported within {REPORT_TIMEOUT_S:g} s")
            time.sleep(0.001)
        return array("q", (acked - sent for sent, acked in zip(self._sent_ns, self._acked_ns, strict=True)))


def value_of(job: int, worker: int, number: int, size: int = VALUE_SIZE) -> bytes:
    """Return the value of a record. It contains the numbers of the job and of the worker, and the worker's number of
    the record.
    """
    return (b"%06d %06d %09d " % (job, worker, number)).ljust(size, b"x")


def job_of(value: bytes) -> int:
    """Return the number of the job of a value."""
    return int(value[:6])


def number_of(value: bytes) -> int:
    """Return the number that the worker gave to the record."""
    return int(value[14:23])


def do(job: Job, client: Client | None, worker: int, worker_count: int, latencies: Latencies) -> None:
    """Do a job. Without a client, it is a dry job. The workers begin one after the other, so that bursts are
    distributed.
    """
    wait = client.wait if client else time.sleep
    begin_s = job.begin_s + worker / worker_count * BURST / job.rate
    for first in range(0, job.record_count, BURST):
        wait_s = begin_s + first / job.rate - time.perf_counter()
        if wait_s > 0:
            wait(wait_s)
        for number in range(first, min(first + BURST, job.record_count)):
            value, key = value_of(job.number, worker, number), KEYS[(worker + number) & 255]
            latencies.sent(number)
            if client:
                client.send(number, key, value)
    if job.is_fatal:
        os.kill(os.getpid(), signal.SIGKILL)


class _Worker:
    """The state of a worker's process."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._worker_count = 1
        self._client: Any = None
        self._has_acks = False
        self._latencies = Latencies(1)

    def open(self, make: Callable[..., Client], arguments: Sequence[Any], worker_count: int, *, has_acks: bool) -> None:
        """Open a client, and send a record that belongs to no job, so that the connection exists and the metadata is
        known.
        """
        self._has_acks, self._worker_count = has_acks, worker_count
        self._latencies = Latencies(1)
        self._client = make(self._report if has_acks else None, *arguments)
        self._client.send(0, KEYS[self._number & 255], value_of(0, self._number, 0))
        self._client.flush()
        if has_acks:
            self._latencies.wait()

    def _report(self, number: int) -> None:
        self._latencies.acked(number)

    def do(self, job: Job) -> Result:
        """Do a job."""
        self._latencies = Latencies(job.record_count)
        begin_cpu_s = time.process_time()
        do(job, None if job.is_dry else self._client, self._number, self._worker_count, self._latencies)
        if job.is_dry:
            return Result(time.process_time() - begin_cpu_s, array("q"))
        self._client.flush()
        latencies_ns = self._latencies.wait() if self._has_acks else array("q")
        return Result(time.process_time() - begin_cpu_s, latencies_ns)

    def fill(self, job: int, record_count: int, size: int) -> None:
        """Send records of `size` bytes as fast as possible, and wait for no ack."""
        for number in range(record_count):
            self._client.send(number, KEYS[number & 255], value_of(job, self._number, number, size))

    def close(self) -> None:
        """Close the client."""
        self._client.close()
        self._client = None


def _work(pipe: Connection, number: int) -> None:
    """Carry out orders until the pipe ends. An order is the name of a method and its arguments."""
    worker = _Worker(number)
    with contextlib.suppress(EOFError):
        while True:
            name, arguments, options = pipe.recv()
            pipe.send(getattr(worker, name)(*arguments, **options))


class Workers:
    """The processes of all workers. They start when they are first needed, and wait for orders between rounds."""

    def __init__(self) -> None:
        _, descriptor_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor_limit, descriptor_limit))
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(IMPORTED)
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, Any] = {}

    def start(self, count: int) -> None:
        """Start those of the first `count` workers that do not run yet."""
        for number in range(count):
            if number not in self._processes or not self._processes[number].is_alive():
                self._start_one(number)

    def _start_one(self, number: int) -> None:
        self._pipes[number], theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, number), daemon=True)
        process.start()
        theirs.close()
        self._processes[number] = process

    def order(self, numbers: Sequence[int], name: str, *arguments: Any, **options: Any) -> None:
        """Order some workers to call a method."""
        for number in numbers:
            self._pipes[number].send((name, arguments, options))

    def answers(self, numbers: Sequence[int]) -> list[Any]:
        """Wait for the answers of the last order.

        Raises:
            EOFError: a worker has ended.
        """
        return [self._pipes[number].recv() for number in numbers]

    def pid(self, number: int) -> int:
        """Return the process id of a worker."""
        return int(self._processes[number].pid)

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes.values():
            pipe.close()
        for process in self._processes.values():
            process.join(END_TIMEOUT_S)

    def wait_for_death(self, number: int) -> None:
        """Wait until a worker has killed itself."""
        self._processes[number].join(END_TIMEOUT_S)
        assert self._processes[number].exitcode == -signal.SIGKILL
