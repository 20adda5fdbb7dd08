# SPDX-License-Identifier: Apache-2.0
"""What ``make run`` shows: workers that append into one arena, one of them killed, one sender that drains them all.

Each worker appends numbered records and notes how many were acknowledged. In the middle one of them dies by SIGKILL.
The sender checks every batch (CRC-32C by the ``crc32c`` package, every record decoded) and counts what arrives. At the
end the two are held against each other: nothing that was acknowledged is missing, and everything came in order.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.sharedctypes
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from typing import Any

import crc32c

from shmaccum._native import Batch
from shmaccum.accumulator import Accumulator, BatchResult
from shmaccum.arena import Arena, VerifyDepth

TOPIC = "demonstration"
WORKER_COUNT = 4
VICTIM = 2
RECORDS_PER_WORKER = 300_000
VALUE_SIZE = 100
CRC_START = 21
LINGER_NS = 5_000_000
REQUEST_SIZE_MAX = 1 << 20
MAINTAIN_EVERY_S = 0.1
IDLE_S = 0.0005


def _work(arena_name: str, acknowledged: Any, worker: int) -> None:
    """One worker process."""
    filler = bytes(VALUE_SIZE - 8)
    timestamp_ms = time.time_ns() // 1_000_000
    with Arena.attach(arena_name) as arena, Accumulator(arena) as accumulator:
        for number in range(RECORDS_PER_WORKER):
            accumulator.append(TOPIC, worker, timestamp_ms, None, number.to_bytes(8, "big") + filler)
            acknowledged[worker] = number + 1


@dataclass
class Delivery:
    """What the sender saw of all workers."""

    record_counts: list[int] = field(default_factory=lambda: [0] * WORKER_COUNT)
    batch_count: int = 0
    byte_count: int = 0
    problems: list[str] = field(default_factory=list)

    def take(self, batch: Batch) -> None:
        """Checks a batch as a broker would, and the order of its numbers."""
        wire_bytes = batch.tobytes()
        if crc32c.crc32c(wire_bytes[CRC_START:]) != batch.crc:
            self.problems.append(f"batch {batch.seq} of partition {batch.partition}: wrong checksum")
        for record in batch.decode():
            number = int.from_bytes((record[3] or b"")[:8], "big")
            if number != self.record_counts[batch.partition]:
                expected = self.record_counts[batch.partition]
                self.problems.append(f"worker {batch.partition}: record {number} came instead of {expected}")
            self.record_counts[batch.partition] = number + 1
        self.batch_count += 1
        self.byte_count += batch.size


def _deliver(accumulator: Accumulator, delivery: Delivery, *, is_last: bool) -> int:
    """One round of the sender: ready, drain, deliver, complete."""
    partitions, _ = accumulator.ready(LINGER_NS, is_last)
    batches, _ = accumulator.drain(partitions, REQUEST_SIZE_MAX)
    for batch in batches:
        delivery.take(batch)
        accumulator.complete(batch, BatchResult.SUCCEEDED)
    return len(batches)


class _Director:
    """Lets the workers run, kills one of them half-way."""

    def __init__(self, arena_name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.acknowledged = multiprocessing.sharedctypes.RawArray("q", WORKER_COUNT)
        self.workers: list[SpawnProcess] = [
            context.Process(target=_work, args=(arena_name, self.acknowledged, worker))
            for worker in range(WORKER_COUNT)
        ]
        self.is_killed = False

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    def is_running(self) -> bool:
        """False when every worker has ended; kills the victim on the way."""
        victim = self.workers[VICTIM]
        if not self.is_killed and self.acknowledged[VICTIM] >= RECORDS_PER_WORKER // 2 and victim.pid is not None:
            os.kill(victim.pid, signal.SIGKILL)
            self.is_killed = True
        return any(worker.is_alive() for worker in self.workers)


def _drive(accumulator: Accumulator, director: _Director, delivery: Delivery) -> float:
    """Drains until the workers are done and nothing is left; answers the seconds it took."""
    begin = maintained = time.monotonic()
    director.start()
    while True:
        is_last = not director.is_running()
        delivered = _deliver(accumulator, delivery, is_last=is_last)
        if time.monotonic() - maintained > MAINTAIN_EVERY_S:
            accumulator.maintain()
            maintained = time.monotonic()
        if delivered == 0 and is_last:
            accumulator.maintain()
            return time.monotonic() - begin
        if delivered == 0:
            time.sleep(IDLE_S)


def _table(acknowledged: Sequence[int], delivery: Delivery) -> str:
    lines = [f"{'worker':<10}{'acknowledged':>14}{'delivered':>12}{'missing':>9}   end"]
    for worker in range(WORKER_COUNT):
        delivered = delivery.record_counts[worker]
        missing = max(acknowledged[worker] - delivered, 0)
        end = "killed (SIGKILL)" if worker == VICTIM else "finished"
        lines.append(f"{worker:<10}{acknowledged[worker]:>14,}{delivered:>12,}{missing:>9,}   {end}")
    return "\n".join(lines)


def _problems(acknowledged: Sequence[int], delivery: Delivery, arena: Arena) -> list[str]:
    problems = list(delivery.problems)
    problems += [
        f"worker {worker}: {acknowledged[worker]} acknowledged, {delivery.record_counts[worker]} delivered"
        for worker in range(WORKER_COUNT)
        if delivery.record_counts[worker] < acknowledged[worker]
    ]
    problems += [finding.text for finding in arena.verify(VerifyDepth.DEEP, is_idle=True)]
    return problems


def run() -> int:
    """Runs the demonstration and prints what came of it; 0 when nothing was lost."""
    name = f"shmaccum-demonstration-{os.getpid()}"
    delivery = Delivery()
    print(f"{WORKER_COUNT} worker processes append {RECORDS_PER_WORKER:,} records of {VALUE_SIZE} bytes each into one")
    print("arena of 32 MiB; this process drains it, checks every batch, and kills one worker half-way.\n", flush=True)
    with Arena.create(name) as arena:
        try:
            with Accumulator(arena) as accumulator:
                accumulator.become_sender()
                director = _Director(name)
                seconds = _drive(accumulator, director, delivery)
            problems = _problems(director.acknowledged, delivery, arena)
        finally:
            Arena.remove(name)
    records = sum(delivery.record_counts)
    print(_table(director.acknowledged, delivery))
    print(f"\n{records:,} records in {delivery.batch_count:,} batches ({delivery.byte_count / 2**20:.0f} MiB,", end=" ")
    print(f"{records / max(delivery.batch_count, 1):.0f} records a batch) in {seconds:.1f} s, start-up included.")
    print("\n".join(problems) or "Nothing that was acknowledged is missing, all came in order, the arena is sound.")
    return 1 if problems else 0
