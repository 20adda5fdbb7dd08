# SPDX-License-Identifier: Apache-2.0
"""One round of the question ``one_host``: a number of paced workers and one way to Apache Kafka.

A round opens the clients of all workers, and does four jobs:

1. A dry job. It measures the processor time of the sleeps and wake-ups, which is subtracted from that of the next job.
2. The measured job. A latency is the time from the call of send to the report of the ack. Processor time is measured
   until all records are in the broker's log, for the workers with the helper and separately for the broker. The
   connections are counted at the broker. The broker's live heap is the sum of the class histogram, for which the JVM
   collects all garbage.
3. A worker sends for a while, and kills itself right after its last send.
4. The helper is killed in the middle of a job of the other workers, and started again at once.

Then each surviving worker sends a last record, and the clients are closed when these are in the broker's log. A record
is lost if its send returned and the log does not have it. A record is doubled if the log has another one with the same
value.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import psutil

from bench.harness.form import job_seconds
from bench.harness.percentiles import percentiles
from bench.harness.question import Measurement, UnavailableError
from bench.parts.apache_kafka import PARTITION_COUNT
from bench.parts.host_helpers import OpenWay, Way
from bench.parts.host_workers import BURST, LEAD_S, Job, Result, Workers, job_of
from bench.parts.kafka_fleet import SHORT_LIVED, TIMEOUT_S, cluster
from shmaccum.log.files.reader import LogReader

HOST_RATE = 8_000
"""Records a second of all workers together, the same for each number of workers."""
JOB_S = 5.0
KILL_JOB_S = 1.0
WAIT_S = 60.0
LOOK_AGAIN_S = 0.005
PROCESS_CLOCK = 2
"""The bits of a clock id that select the processor time of a process; see clock_getcpuclockid(3)."""
HEAP = re.compile(r"^Total +\d+ +(\d+)", re.MULTILINE)

_topic_numbers = itertools.count()


@cache
def workers() -> Workers:
    """Return the workers of all rounds."""
    return Workers()


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    return time.clock_gettime((~pid << 3) | PROCESS_CLOCK)


# --- the broker


class Broker:
    """A broker of Apache Kafka, with the measurements of this question.

    Raises:
        UnavailableError: Kafka or ``jcmd`` is missing.
    """

    def __init__(self) -> None:
        if shutil.which("jcmd") is None:
            raise UnavailableError("the live heap of the broker needs `jcmd`: install a JDK (openjdk-17-jdk-headless)")
        self.bootstrap = cluster().bootstrap
        (self._broker,) = cluster().brokers
        self.pid = self._broker.process.pid
        self._process = psutil.Process(self.pid)

    def connection_count(self) -> int:
        """Return the number of connections of other processes."""
        own = {each.laddr.port for each in psutil.Process().net_connections("tcp")}
        found = self._process.net_connections("tcp")
        established = [each for each in found if each.status == psutil.CONN_ESTABLISHED]
        return sum(each.laddr.port == self._broker.port and each.raddr.port not in own for each in established)

    def heap_size(self) -> int:
        """Return the bytes of live objects."""
        command = ["jcmd", str(self.pid), "GC.class_histogram"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        match = HEAP.search(done.stdout)
        if match is None:
            raise RuntimeError(f"no total in the class histogram: {done.stdout[-500:]}")
        return int(match[1])

    def new_topic(self) -> str:
        """Create a topic for a round."""
        name = f"host-{next(_topic_numbers)}"
        cluster().create_topic(name, PARTITION_COUNT, **SHORT_LIVED)
        return name

    def record_count(self, topic: str) -> int:
        """Return the number of records of a topic."""
        reader = LogReader(self._broker.log_directory, verify_crc=False)
        return sum(reader.partition(topic, number).log_end_offset for number in range(PARTITION_COUNT))

    def wait_for_records(self, topic: str, count: int) -> None:
        """Wait until a topic has this many records."""
        _wait_until(lambda: self.record_count(topic) >= count, f"have {count} records arrived")

    def values(self, topic: str) -> Iterator[bytes]:
        """Yield the values of all records of a topic."""
        reader = LogReader(self._broker.log_directory, verify_crc=False)
        for number in range(PARTITION_COUNT):
            for record in reader.partition(topic, number).records(0):
                yield bytes(record.value or b"")

    def log_size(self, topic: str) -> int:
        """Return the bytes of the records of a topic on the disk, at little cost."""
        folders = [self._broker.log_directory / f"{topic}-{number}" for number in range(PARTITION_COUNT)]
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))

    def suspend(self) -> None:
        """Stop the broker, so that it responds to no request until `resume`."""
        self._process.suspend()

    def resume(self) -> None:
        """Let the broker continue."""
        self._process.resume()

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        admin = cluster().admin()  # keep a reference: its requests end when it is garbage collected
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def _wait_until(is_true: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_true():
        if time.monotonic() > end_s:
            raise RuntimeError(f"after {WAIT_S:g} s, not {what}")
        time.sleep(LOOK_AGAIN_S)


# --- a round


@dataclass(frozen=True)
class Loss:
    """The outcome of the records of a job."""

    lost: int
    doubled: int


def fate(values: Iterable[bytes], job_number: int, sent_count: int) -> Loss:
    """Compare the values in the log with the number of sent records of a job."""
    found = Counter(value for value in values if job_of(value) == job_number)
    return Loss(sent_count - len(found), found.total() - len(found))


class Round:
    """A round with a number of workers. `has_acks` is true if the ack of each record is reported."""

    def __init__(self, broker: Broker, worker_count: int, *, has_acks: bool) -> None:
        self._broker = broker
        self._numbers = range(worker_count)
        self._has_acks = has_acks
        self._rate = HOST_RATE / worker_count
        self._sent: dict[int, int] = {}
        workers().start(worker_count)

    def run(self, open_way: OpenWay) -> Measurement:
        """Measure one way to Kafka."""
        topic = self._broker.new_topic()
        with open_way(self._broker.bootstrap, topic) as way:
            self._open_clients(way, topic)
            pacing_cpu_s = sum(result.cpu_s for result in self._do(self._job(1, job_seconds(JOB_S), is_dry=True)))
            measured = self._measure(way, topic, pacing_cpu_s)
            measured["connections"] = self._broker.connection_count()
            measured["heap_mb"] = self._broker.heap_size() / 1e6
            self._kill_worker()
            self._kill_helper(way)
            self._close_clients(topic)
        _wait_until(lambda: self._broker.connection_count() == 0, "are all connections closed")
        values = list(self._broker.values(topic))
        self._broker.delete(topic)
        return {**measured, **self._losses(values)}

    def _open_clients(self, way: Way, topic: str) -> None:
        arguments = (topic, *way.arguments)
        workers().order(self._numbers, "open", way.client, arguments, len(self._numbers), has_acks=self._has_acks)
        workers().answers(self._numbers)

    def _job(self, number: int, seconds: float, *, is_dry: bool = False, is_fatal: bool = False) -> Job:
        record_count = max(BURST, round(self._rate * seconds))
        return Job(number, record_count, self._rate, is_dry=is_dry, is_fatal=is_fatal)

    def _order(self, job: Job, numbers: Sequence[int]) -> float:
        """Send a job to workers, which start it at the same time. Return this time."""
        begin_s = time.perf_counter() + LEAD_S
        workers().order(numbers, "do", replace(job, begin_s=begin_s))
        if not job.is_dry:
            self._sent[job.number] = job.record_count * len(numbers)
        return begin_s

    def _do(self, job: Job) -> list[Result]:
        self._order(job, self._numbers)
        return workers().answers(self._numbers)

    def _measure(self, way: Way, topic: str, pacing_cpu_s: float) -> Measurement:
        helpers = [way.helper.process.pid] if way.helper else []
        pids = [self._broker.pid, *helpers]
        self._broker.wait_for_records(topic, len(self._numbers))
        before_s = [cpu_s(pid) for pid in pids]
        job = self._job(2, job_seconds(JOB_S))
        results = self._do(job)
        record_count = self._sent[job.number]
        wanted = record_count + len(self._numbers)
        self._broker.wait_for_records(topic, wanted)
        broker_s, *helpers_s = (cpu_s(pid) - before for pid, before in zip(pids, before_s, strict=True))
        host_s = sum(result.cpu_s for result in results) + sum(helpers_s)
        latencies_ns = [latency for result in results for latency in result.latencies_ns]
        return {
            "broker_cpu_us": broker_s * 1e6 / record_count,
            "host_cpu_us": (host_s - pacing_cpu_s) * 1e6 / record_count,
            "pacing_cpu_us": pacing_cpu_s * 1e6 / record_count,
            **(percentiles(latencies_ns) if latencies_ns else {}),
        }

    def _kill_worker(self) -> None:
        """Let the first worker send for a while, and kill itself."""
        self._order(self._job(3, KILL_JOB_S / 2, is_fatal=True), self._numbers[:1])
        workers().wait_for_death(self._numbers[0])

    def _kill_helper(self, way: Way) -> None:
        """Kill the helper while the other workers send."""
        if way.helper:
            begin_s = self._order(self._job(4, KILL_JOB_S), self._numbers[1:])
            time.sleep(max(begin_s + KILL_JOB_S / 2 - time.perf_counter(), 0))
            way.helper.kill()
            way.helper.start()
            workers().answers(self._numbers[1:])

    def _close_clients(self, topic: str) -> None:
        """Send a last record from each worker, wait until they are in the log, and close the clients. A helper delivers
        records in order, so all earlier records are in the log by then.
        """
        others = self._numbers[1:]
        self._order(Job(5, 1, self._rate), others)
        workers().answers(others)
        _wait_until(lambda: not fate(self._broker.values(topic), 5, len(others)).lost, "have the last records arrived")
        workers().order(others, "close")
        workers().answers(others)

    def _losses(self, values: Sequence[bytes]) -> Measurement:
        fates = {number: fate(values, number, sent_count) for number, sent_count in self._sent.items()}
        if fates[2].lost:
            raise RuntimeError(f"{fates[2].lost} records were lost without a kill")
        helper = {"lost_by_helper": float(fates[4].lost)} if 4 in fates else {}
        doubled = float(sum(each.doubled for each in fates.values()))
        return {"lost_by_worker": float(fates[3].lost), **helper, "doubled": doubled}
