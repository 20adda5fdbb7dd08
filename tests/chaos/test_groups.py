# SPDX-License-Identifier: Apache-2.0
"""Members of a consumer group and their server, killed at random: every record is consumed, and no commit passes an
unread record.

A member records what it consumed before it commits. So a committed offset past a record that no member recorded is
wrong. The test looks for one after each kill.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kafka import KafkaProducer

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.groups.offsets_file import OffsetsFile
from tests.chaos.group_member import HEARTBEAT_MS, SESSION_MS
from tests.support.processes import wait_until

TOPIC = "flights"
GROUP = "g"
PARTITION_COUNT = 3
RECORDS_A_TURN = 200
SERVER_SHARE = 0.3
"""The share of kills that end the server."""
LONG_KILLS = 300
DEADLINE_S = 60.0
CLASSIC = ("kafka-python", "confluent", "kafka-python")
CONSUMER = ("confluent-848",) * 3
SETTINGS = (
    f"-Xpartitions={PARTITION_COUNT}",
    "-Xgroup_initial_rebalance_delay_ms=50",
    f"-Xgroup_consumer_session_timeout_ms={SESSION_MS}",
    f"-Xgroup_consumer_heartbeat_interval_ms={HEARTBEAT_MS}",
)


class Ledgers:
    """The ledgers of all members: each record of each partition, and how often it was consumed.

    Attributes:
        counts: partition and offset -> how many members consumed that record.
        values: the numbers that were consumed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: Counter[Path] = Counter()
        self.counts: Counter[tuple[int, int]] = Counter()
        self.values: set[int] = set()

    def read(self) -> int:
        """Read new lines, and return the total. A process that dies during a write may leave half a line."""
        for path in self._folder.glob("ledger-*"):
            with open(path, "rb") as file:
                file.seek(self._read[path])
                whole = file.read().rpartition(b"\n")[0]
            for line in whole.splitlines():
                partition, offset, value = map(int, line.split())
                self.counts[partition, offset] += 1
                self.values.add(value)
            self._read[path] += len(whole) + bool(whole)
        return self.counts.total()


class Host:
    """The processes of the server and the members.

    Args:
        folder: the folder of the log and of the ledgers.
        clients: the client of each member.
    """

    def __init__(self, folder: Path, clients: Sequence[str]) -> None:
        self._folder = folder
        self.ledgers = Ledgers(folder)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._server = self._start_server()
        self._member_count = 0
        self._members = [self._start_member(client) for client in clients]

    def _start_server(self) -> subprocess.Popen[bytes]:
        command = ["serve", str(self._folder / "log"), f"--listen={self.address}", "--writable", "--quiet", *SETTINGS]
        server = subprocess.Popen([sys.executable, "-m", "shmaccum", *command])
        wait_until(self._listens, "the server listens", DEADLINE_S)
        return server

    def _listens(self) -> bool:
        host, _, port = self.address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    def _start_member(self, client: str) -> tuple[str, subprocess.Popen[bytes]]:
        self._member_count += 1
        arguments = [client, self.address, TOPIC, GROUP, str(self._folder / f"ledger-{self._member_count}")]
        command = [sys.executable, "-m", "tests.chaos.group_member", *arguments]
        return client, subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def kill_server(self) -> None:
        self._server.kill()
        self._server.wait()
        self._server = self._start_server()

    def kill_member(self, dice: random.Random) -> None:
        """Kill a member, and start another one with the same client."""
        client, killed = self._members.pop(dice.randrange(len(self._members)))
        killed.kill()
        killed.wait()
        self._members.append(self._start_member(client))

    def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition in the group's file."""
        offsets = OffsetsFile(str(self._folder / "log"), GROUP, is_writer=False).offsets
        return {place.partition: one.offset for place, one in offsets.items() if place.topic == TOPIC}

    def wait_for_more_than(self, count: int) -> None:
        """Wait until a member has consumed one more record."""
        wait_until(lambda: self.ledgers.read() > count, "a member consumes", DEADLINE_S)

    def expect_true_commits(self) -> None:
        """Check that every record below a committed offset was recorded. Offsets are read first: ledgers only grow."""
        committed = self.committed()
        self.ledgers.read()
        counts = self.ledgers.counts
        lies = [
            TopicPartition(TOPIC, partition)
            for partition, end in committed.items()
            if not all((partition, offset) in counts for offset in range(end))
        ]
        assert lies == [], f"committed and not consumed: {lies}"

    def close(self) -> None:
        processes = [*(process for _, process in self._members), self._server]
        for process in processes:
            process.terminate()
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@contextlib.contextmanager
def hosted(folder: Path, clients: Sequence[str]) -> Iterator[Host]:
    with contextlib.closing(Host(folder, clients)) as host:
        yield host


def send(host: Host, first: int, count: int) -> None:
    """Send records with these numbers, and wait for the acknowledgements."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=host.address, acks="all")) as producer:
        for number in range(first, first + count):
            producer.send(TOPIC, b"%d" % number, key=b"%d" % number)
        producer.flush()


def run(folder: Path, clients: Sequence[str], kills: Sequence[bool], dice: random.Random) -> None:
    """Send and kill in turn. Each kill occurs after some new records were consumed.

    Args:
        folder: the folder of the log and of the ledgers.
        clients: the client of each member.
        kills: True for a kill of the server, False for that of a member.
        dice: draws members and numbers of records.
    """
    begun_s = time.monotonic()
    sent = 0
    with hosted(folder, clients) as host:
        for is_server in kills:
            count = dice.randint(1, 2 * RECORDS_A_TURN)
            before = host.ledgers.read()
            send(host, sent, count)
            sent += count
            host.wait_for_more_than(before)
            if is_server:
                host.kill_server()
            else:
                host.kill_member(dice)
            host.expect_true_commits()
        wait_until(lambda: sum(host.committed().values()) == sent, f"all {sent} records are committed", DEADLINE_S)
        host.expect_true_commits()
        counts = host.ledgers.counts
        assert host.ledgers.values == set(range(sent))
        assert len(counts) == sent
    again = counts.total() - sent
    elapsed_s = time.monotonic() - begun_s
    print(f"{len(kills)} kills, {sum(kills)} of the server: {sent} records, {again} of them again, {elapsed_s:.0f} s")


@pytest.mark.parametrize("clients", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_every_record_is_consumed_whichever_process_is_killed(
    tmp_path: Path, seeded: Callable[[], random.Random], clients: Sequence[str]
) -> None:
    run(tmp_path, clients, [False, True], seeded())


@pytest.mark.chaos
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("clients", [CLASSIC, CONSUMER], ids=["classic", "consumer"])
def test_every_record_is_consumed_after_hundreds_of_kills(
    tmp_path: Path, seeded: Callable[[], random.Random], clients: Sequence[str]
) -> None:
    dice = seeded()
    run(tmp_path, clients, [dice.random() < SERVER_SHARE for _ in range(LONG_KILLS)], dice)
