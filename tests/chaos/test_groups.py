# SPDX-License-Identifier: Apache-2.0
"""Members of a consumer group and their server, killed at random: every record is consumed, and commits tell the truth.

A member notes what it consumed before it commits it, so a record that nobody noted and that a commit claims is a lie.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

TOPIC = "flights"
GROUP = "g"
PARTITION_COUNT = 3
MEMBER_COUNT = 3
RECORDS_A_TURN = 200
SHORT_KILLS = 8
LONG_KILLS = 300
DEADLINE_S = 60.0


class Host:
    """The server and the members, each a process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._server = self._start_server()
        self._members = [self._start_member(number) for number in range(MEMBER_COUNT)]
        self._ledger_count = MEMBER_COUNT

    def _start_server(self) -> subprocess.Popen[bytes]:
        command = ["serve", str(self._folder / "log"), f"--listen={self.address}", "--writable", "--quiet"]
        settings = [f"-Xpartitions={PARTITION_COUNT}", "-Xgroup_initial_rebalance_delay_ms=50"]
        server = subprocess.Popen([sys.executable, "-m", "shmaccum", *command, *settings])
        end_s = time.monotonic() + DEADLINE_S
        host, _, port = self.address.partition(":")
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return server
        raise AssertionError("the server does not listen")

    def _start_member(self, number: int) -> subprocess.Popen[bytes]:
        ledger = str(self._folder / f"ledger-{number}")
        command = [sys.executable, "-m", "tests.chaos.group_member", self.address, TOPIC, GROUP, ledger]
        return subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill_server(self) -> None:
        self._server.kill()
        self._server.wait()
        self._server = self._start_server()

    def kill_member(self, dice: random.Random) -> None:
        victim = self._members.pop(dice.randrange(len(self._members)))
        victim.kill()
        victim.wait()
        self._members.append(self._start_member(self._ledger_count))
        self._ledger_count += 1

    def noted(self) -> set[int]:
        """The numbers that any member has consumed; a death in a write may leave half a line."""
        lines = (line for path in self._folder.glob("ledger-*") for line in path.read_bytes().split(b"\n")[:-1])
        return {int(line) for line in lines}

    def close(self) -> None:
        for process in [*self._members, self._server]:
            process.terminate()
        for process in [*self._members, self._server]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@contextlib.contextmanager
def hosted(folder: Path) -> Iterator[Host]:
    with contextlib.closing(Host(folder)) as host:
        yield host


def committed_below_end(address: str) -> bool:
    """True when the group has committed the end of every partition."""
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=GROUP)
    with contextlib.closing(consumer):
        places = [TopicPartition(TOPIC, number) for number in range(PARTITION_COUNT)]
        ends = consumer.end_offsets(places)
        committed = {place: consumer.committed(place) or 0 for place in places}
        assert all(committed[place] <= ends[place] for place in places)
        return bool(committed == ends)


def run(folder: Path, kill_count: int, dice: random.Random) -> None:
    sent = 0
    with hosted(folder) as host:
        for _ in range(kill_count):
            with contextlib.closing(KafkaProducer(bootstrap_servers=host.address, acks="all")) as producer:
                for _ in range(RECORDS_A_TURN):
                    producer.send(TOPIC, b"%d" % sent, key=b"%d" % sent)
                    sent += 1
                producer.flush()
            if dice.random() < 0.3:
                host.kill_server()
            else:
                host.kill_member(dice)
        end_s = time.monotonic() + DEADLINE_S
        while not committed_below_end(host.address):
            assert time.monotonic() < end_s, f"of {sent} records {len(host.noted())} were consumed"
        assert host.noted() == set(range(sent))


@pytest.mark.timeout(240)
def test_every_record_is_consumed_whoever_is_killed(tmp_path: Path, seeded: Callable[[], random.Random]) -> None:
    run(tmp_path, SHORT_KILLS, seeded())


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_every_record_is_consumed_after_hundreds_of_kills(tmp_path: Path, seeded: Callable[[], random.Random]) -> None:
    run(tmp_path, LONG_KILLS, seeded())
