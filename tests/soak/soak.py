# SPDX-License-Identifier: Apache-2.0
"""Run two producers, a sender and a log at full rate for a given time, and check that nothing grows or drifts.

The sender appends to the log itself, or its pump (native/sender/pump.h) carries the batches to a server of the log.
Each second, a sample is taken: the resident, proportional and private memory, the descriptors and the threads of every
process, and the arena's slots and counters. At the end, none of them may have grown, and the log must have as many
records as were sent.

    python -m tests.soak.soak SECONDS [SAMPLES] [--pump]    SAMPLES: a file that gets a line of JSON for each second

A second in which all processes were stopped from outside is not counted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from shmaccum.arena import Arena, VerifyDepth
from shmaccum.log.files.reader import LogReader
from shmaccum.producer import Producer
from tests.kafka.broker import LOOPBACK, held_port
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "soak"
PARTITIONS = 6
VALUE = bytes(100)
MANY = [VALUE] * 1000
ROUND = 1000
SAMPLE_S = 1.0
STALLED_S = 3.0
WARM_SHARE = 0.25
"""The share of samples that do not count, because caches are still filling and lists are growing."""
WARM_RECORDS = 250_000
"""The number of records after which a producer counts as warm."""
PATIENCE = "1h"
"""The max_block_ms of the producers. If all processes are stopped for long, a producer that waits for memory must not
give up.
"""
GROWTH_MAX = 2 << 20
"""Bytes by which the private memory of a process may grow from its warm state to the end."""
DESCRIPTORS_MORE_MAX = 1
"""The number of additional descriptors that are accepted. A producer opens the wake FIFO when it first finds the sender
asleep, which may be late.
"""
LOG_OPTIONS = {
    "partitions": PARTITIONS,
    "segment_bytes": "16MiB",
    "retention_bytes": "32MiB",
    "retention_check_interval_ms": "500ms",
}
SHARED_MEMORY = Path("/dev/shm")
Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class ProcessSample:
    """One process at one moment; sizes in bytes."""

    name: str
    resident: int
    proportional: int
    private: int
    descriptor_count: int
    thread_count: int


@dataclass(frozen=True)
class Sample:
    """The sample of all processes and of the arena at one moment."""

    elapsed_s: float
    """The time in which all processes ran."""
    processes: tuple[ProcessSample, ...]
    sent_count: int
    delivered_count: int
    held_count: int
    """Records that were sent and not yet delivered. The number is approximate, because it results from three successive
    reads.
    """
    free_slot_count: int
    waiter_count: int


@dataclass(frozen=True)
class SoakReport:
    """The report of a passed soak."""

    samples: tuple[Sample, ...]
    sent_count: int
    seconds: float

    def __str__(self) -> str:
        lines = [f"{self.seconds:.0f} s, {self.sent_count:,} records sent, delivered and in the log's offsets"]
        lines.append(f"{self.sent_count / self.seconds:,.0f} records/s; {len(self.samples):,} samples")
        for name, rows in by_process(self.samples).items():
            first, last = rows[int(len(rows) * WARM_SHARE)], rows[-1]
            lines += [
                f"  {name}: {last.descriptor_count} descriptors, {last.thread_count} threads; from warm to the end",
                f"    private memory      {_kib(first.private)} to {_kib(last.private)}",
                f"      a line through all samples grows by {_kib(growth(rows))}",
                f"    proportional        {_kib(first.proportional)} to {_kib(last.proportional)}",
                f"    resident            {_kib(first.resident)} to {_kib(last.resident)}",
            ]
        return "\n".join(lines)


def _kib(size: float) -> str:
    return f"{size / 1024:,.0f} KiB"


def by_process(samples: Sequence[Sample]) -> dict[str, list[ProcessSample]]:
    """Return the samples of each process in order."""
    names = [process.name for process in samples[0].processes]
    return {name: [sample.processes[index] for sample in samples] for index, name in enumerate(names)}


def growth(rows: Sequence[ProcessSample]) -> float:
    """Return the bytes by which private memory grew since the process was warm. It is the slope of a line through the
    samples, times their number, so that a single spike is no growth.
    """
    sizes = np.array([row.private for row in rows[int(len(rows) * WARM_SHARE) :]], dtype=float)
    slope, _ = np.polyfit(np.arange(len(sizes)), sizes, 1)
    return float(slope * len(sizes))


def drift(counts: Sequence[int]) -> int:
    """Return the minimum of the second half minus the maximum of the first half.

    A descriptor that is open briefly, for instance while a segment is rolled, is no drift.
    """
    half = len(counts) // 2
    return min(counts[half:]) - max(counts[:half])


# --- the processes


def produce(arena_name: str, *, has_columns: bool) -> None:
    """Send at full rate until SIGTERM. Then deliver everything and leave."""
    is_over: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: is_over.append(number))
    with Producer(arena_name, linger_ms=5, max_block_ms=PATIENCE) as producer:
        send = producer.send
        while not is_over:
            if has_columns:
                producer.send_many(TOPIC, MANY)
            else:
                for _ in range(ROUND):
                    send(TOPIC, VALUE)


@contextmanager
def _running(*command: str) -> Iterator[Process]:
    """Yield a Python process, which is killed if it still exists at the end."""
    with subprocess.Popen([sys.executable, "-m", *command]) as process:
        try:
            yield process
        finally:
            process.kill()


def _stop(process: Process) -> None:
    process.terminate()
    assert process.wait(WATCHDOG_S) == 0


# --- sampling


def _sample_of(name: str, process: psutil.Process) -> ProcessSample:
    assert process.status() != psutil.STATUS_ZOMBIE, f"{name} has ended by itself"
    memory = process.memory_full_info()
    return ProcessSample(name, memory.rss, memory.pss, memory.uss, process.num_fds(), process.num_threads())


class Sampler:
    """Takes samples and measures time."""

    def __init__(self, arena: Arena, processes: dict[str, psutil.Process]) -> None:
        self._arena = arena
        self._processes = processes
        self._last_s = time.monotonic()
        self.elapsed_s = 0.0

    def sample(self) -> Sample:
        """Take the next sample, a second after the last one."""
        time.sleep(SAMPLE_S)
        now_s = time.monotonic()
        step_s, self._last_s = now_s - self._last_s, now_s
        self.elapsed_s += step_s if step_s < STALLED_S else SAMPLE_S
        native = self._arena.native
        delivered_count = native.counters()["records completed"]
        statistics = self._arena.statistics()
        return Sample(
            elapsed_s=self.elapsed_s,
            processes=tuple(_sample_of(name, process) for name, process in self._processes.items()),
            sent_count=statistics.record_count,
            delivered_count=delivered_count,
            held_count=statistics.record_count - delivered_count,
            free_slot_count=statistics.slots["FREE"],
            waiter_count=statistics.waiting_count,
        )


# --- the trial


def soak(
    arena_name: str, folder: Path, seconds: float, samples_path: Path | None = None, *, is_pumped: bool = False
) -> SoakReport:
    """Run the soak in a new arena, which the caller removes.

    Raises:
        AssertionError: something grew, drifted or remained.
    """
    begin_delivery = _deliver_by_pump if is_pumped else _deliver
    with Arena.create(arena_name) as arena, ExitStack() as stack:
        delivering = begin_delivery(stack, arena_name, folder)
        wait_until(lambda: arena.native.sender_is_alive, "the sender has begun")
        command = ("tests.soak.soak", "produce", arena_name)
        sends = stack.enter_context(_running(*command, "send"))
        sends_many = stack.enter_context(_running(*command, "send_many"))
        processes = {**delivering, "send": sends, "send_many": sends_many}
        wait_until(lambda: _are_warm(arena, sends.pid, sends_many.pid), "everybody is warm")
        watched = {name: psutil.Process(process.pid) for name, process in processes.items()}
        samples = _sample_for(seconds, Sampler(arena, watched), samples_path)
        _stop(sends)
        _stop(sends_many)
        _check_end(arena, folder)
        sent_count = arena.statistics().record_count
        for process in delivering.values():
            _stop(process)
    _check_flat(samples)
    if is_pumped:
        assert _calls_path(folder).stat().st_size > 0, "the pump carried nothing"
    return SoakReport(tuple(samples), sent_count, samples[-1].elapsed_s)


def _deliver(stack: ExitStack, arena_name: str, folder: Path) -> dict[str, Process]:
    """Run a sender to the log. Return it and its name."""
    sink = [f"--sink-set={name}={value}" for name, value in LOG_OPTIONS.items()]
    command = ("shmaccum.sender", arena_name, f"--sink=log:{folder}", "--no-log", *sink)
    return {"sender": stack.enter_context(_running(*command))}


def _deliver_by_pump(stack: ExitStack, arena_name: str, folder: Path) -> dict[str, Process]:
    """Run a sender to a server of the log, and the server. The sender ends first."""
    port = stack.enter_context(held_port())
    address = f"{LOOPBACK}:{port.getsockname()[1]}"
    options = [f"-X{name}={value}" for name, value in LOG_OPTIONS.items()]
    server = _running("shmaccum", "serve", str(folder), "--listen", address, "--writable", "--quiet", *options)
    command = ("tests.kafka.noted_sender", str(_calls_path(folder)), arena_name, f"--sink=kafka:{address}", "--no-log")
    serving = stack.enter_context(server)
    wait_until(lambda: _listens(address), "the server listens")
    return {"sender": stack.enter_context(_running(*command)), "server": serving}


def _listens(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as trial:
        return trial.connect_ex((host, int(port))) == 0


def _calls_path(folder: Path) -> Path:
    """Return the path of the file that gets a byte for each call of the pump."""
    return folder.with_name("pump-calls")


def _are_warm(arena: Arena, *pids: int) -> bool:
    sent = {row["pid"]: row["record_count"] for row in arena.native.processes()}
    return all(sent.get(pid, 0) > WARM_RECORDS for pid in pids)


def _sample_for(seconds: float, sampler: Sampler, samples_path: Path | None) -> list[Sample]:
    samples: list[Sample] = []
    with open(samples_path or os.devnull, "a", encoding="utf-8") as file:
        while sampler.elapsed_s < seconds:
            samples.append(sampler.sample())
            file.write(json.dumps(asdict(samples[-1])) + "\n")
            file.flush()
    return samples


def _check_end(arena: Arena, folder: Path) -> None:
    """After the producers have left, sent = delivered = in the log, and every slot and byte is free."""
    native = arena.native
    wait_until(lambda: native.state_counts()["FREE"] == arena.geometry["slot_count"], "everything is delivered")
    sent_count = arena.statistics().record_count
    counters = native.counters()
    reader = LogReader(folder)
    log_count = sum(reader.partition(TOPIC, partition).log_end_offset for partition in reader.partitions(TOPIC))
    assert sent_count == counters["records completed"] == log_count
    assert counters["batches failed"] == counters["batches expired"] == counters["batches quarantined"] == 0
    assert arena.verify(VerifyDepth.DEEP) == []
    assert native.errors() == [], native.errors()


def _check_flat(samples: Sequence[Sample]) -> None:
    held_max = max(sample.held_count for sample in samples)
    capacity = (32 << 20) // len(VALUE)
    assert min(sample.held_count for sample in samples) >= 0, "more was delivered than sent"
    assert held_max <= 2 * capacity, f"{held_max} records were held, more than the arena has room for"
    for name, rows in by_process(samples).items():
        warm = rows[int(len(rows) * WARM_SHARE) :]
        assert growth(rows) <= GROWTH_MAX, f"{name} grew by {growth(rows):.0f} bytes: {[row.private for row in warm]}"
        descriptors = [row.descriptor_count for row in rows]
        assert drift(descriptors) <= DESCRIPTORS_MORE_MAX, f"{name} has more and more descriptors: {descriptors}"
        threads = [row.thread_count for row in rows]
        assert drift(threads) <= 0, f"{name} has more and more threads: {threads}"


def main() -> None:
    """Run the command line."""
    if sys.argv[1] == "produce":
        produce(sys.argv[2], has_columns=sys.argv[3] == "send_many")
        return
    seconds, *paths = [argument for argument in sys.argv[1:] if argument != "--pump"]
    samples_path = Path(paths[0]) if paths else None
    name = f"shmaccum-soak-{os.getpid()}"
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        try:
            is_pumped = "--pump" in sys.argv
            print(soak(name, Path(folder) / "log", float(seconds), samples_path, is_pumped=is_pumped))
        finally:
            Arena.remove(name, missing_ok=True)


if __name__ == "__main__":
    main()
