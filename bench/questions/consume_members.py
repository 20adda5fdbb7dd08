# SPDX-License-Identifier: Apache-2.0
"""How long do 1,000 consumers of a group need to share 1,000 partitions, and to take over those of 50 killed ones?

Twenty processes have fifty consumers each, in one event loop. The group is complete when every consumer has one
partition. Then one process is killed with SIGKILL. The rebalance is complete when all partitions have owners again.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import signal
import time
from pathlib import Path

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.receiving import forked
from bench.parts.segments import tmpfs_folder
from shmaccum.config import LogSinkOptions
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogDirectory

OURS = "shmaccum, 20 processes"
TOPIC = "flights"
PROCESSES, MEMBERS_EACH = 20, 50
PARTITIONS = PROCESSES * MEMBERS_EACH
POLL_MS = 5000.0
CHECK_S = 0.002


class _Share:
    """Stores the number of partitions of one consumer in a byte of shared memory."""

    def __init__(self, shares: mmap.mmap, number: int, consumer: Consumer) -> None:
        self._shares = shares
        self._number = number
        self._consumer = consumer

    def on_partitions_assigned(self, _places: object) -> None:
        self._tell(len(self._consumer.assignment()))

    def on_partitions_revoked(self, places: list[object]) -> None:
        self._tell(len(self._consumer.assignment()) - len(places))

    def _tell(self, count: int) -> None:
        self._shares[self._number] = min(count, 255)


async def _member(folder: Path, shares: mmap.mmap, number: int) -> None:
    with Consumer(folder, group_id="bench", partition_assignment_strategy=["sticky"]) as consumer:
        consumer.subscribe([TOPIC], listener=_Share(shares, number, consumer))
        while True:
            await consumer.apoll(POLL_MS)


async def _members(folder: Path, shares: mmap.mmap, first: int) -> None:
    await asyncio.gather(*(_member(folder, shares, first + number) for number in range(MEMBERS_EACH)))


def _consume(folder: Path, shares: mmap.mmap, first: int) -> None:
    asyncio.run(_members(folder, shares, first))


def _run() -> Measurement:
    with tmpfs_folder() as folder, mmap.mmap(-1, PARTITIONS) as shares:
        with LogDirectory(folder, LogSinkOptions(partitions=PARTITIONS)) as directory:
            directory.create_topic(TOPIC)
            for number in range(PARTITIONS):
                directory.partition(TOPIC, number)
        processes = forked(_consume, [(folder, shares, first) for first in range(0, PARTITIONS, MEMBERS_EACH)])
        try:
            stopwatch = Stopwatch()
            for process in processes:
                process.start()
            while shares[:] != b"\1" * PARTITIONS:
                time.sleep(CHECK_S)
            joined_s = stopwatch.elapsed().wall_s
            stopwatch = Stopwatch()
            os.kill(processes[0].pid or 0, signal.SIGKILL)
            while sum(shares[MEMBERS_EACH:]) != PARTITIONS:
                time.sleep(CHECK_S)
            return {"join_s": joined_s, "rebalance_s": stopwatch.elapsed().wall_s}
        finally:
            for process in processes:
                process.kill()
                process.join()


def contenders() -> list[Contender]:
    """Return the group only. Clients of a coordinator are no peers, because they wait for its session time-out and its
    delay of joins.
    """
    return [Contender(OURS, _run)]


QUESTION = Question(
    title="1,000 consumers of one group in 20 processes share 1,000 partitions",
    figures=(
        Figure("join_s", "s", 1.0, "lower", "from the start of the processes until all have their share"),
        Figure("rebalance_s", "s", 1.0, "lower", "from SIGKILL of a process with 50 consumers until all have owners"),
    ),
    contenders=contenders,
    peer=OURS,
    repetitions=5,
    scope="full",
    goals=(Goal("1,000 members rebalance", OURS, "rebalance_s", 1.0),),
)
