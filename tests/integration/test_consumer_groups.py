# SPDX-License-Identifier: Apache-2.0
"""Groups of processes on one host after kill -9, SIGSTOP and fork. tests/chaos checks them with a ledger."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition as KafkaPythonTopicPartition

from shmaccum import Consumer, GroupModeError, TopicPartition
from shmaccum.log.files.directory import LogDirectory
from tests.support.log_server import running
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import TOPIC

GROUP = "workers"
PARTITIONS = 3
MEMBER = """
import json, os, sys, time
from shmaccum import Consumer

directory, mode = sys.argv[1:3]

class Listener:
    def tell(self, _places):
        owned = sorted(place.partition for place in consumer._group.membership.locks.owned)
        print(json.dumps({"owns": owned, "at": time.monotonic()}), flush=True)
    def on_partitions_assigned(self, places):
        self.tell(places)
    def on_partitions_revoked(self, places):
        print(json.dumps({"revoked": sorted(place.partition for place in places)}), flush=True)

consumer = Consumer(f"log:{directory}", group_id="workers", auto_offset_reset="earliest", enable_auto_commit=False,
                    partition_assignment_strategy=["cooperative-sticky"])
consumer.subscribe(["flights"], listener=Listener())
print(json.dumps({"owns": []}), flush=True)
if mode == "fork" and not os.fork():
    time.sleep(3600)
while True:
    consumer.poll(timeout_ms=1000)
"""


class Member:
    """A process that consumes."""

    def __init__(self, directory: Path, output: Path, mode: str) -> None:
        self.output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MEMBER, str(directory), mode], stdout=file, start_new_session=True
            )

    @property
    def owns(self) -> list[int] | None:
        """The partitions that it has reported: the assigned ones without the revoked ones."""
        owned: set[int] | None = None
        for line in self.output.read_bytes().rpartition(b"\n")[0].splitlines():
            found = json.loads(line)
            if "owns" in found:
                owned = set(found["owns"])
            elif "revoked" in found and owned is not None:
                owned -= set(found["revoked"])
        return None if owned is None else sorted(owned)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """End the process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LogDirectory]:
    """A log with one topic of three partitions."""
    with LogDirectory(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, PARTITIONS)
        for partition in range(PARTITIONS):
            directory.partition(TOPIC, partition)
        yield directory


@pytest.fixture
def start(log: LogDirectory, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    """Start members, which end with the test."""
    started: list[Member] = []

    def start_one(mode: str = "read") -> Member:
        member = Member(Path(log.path), tmp_path / f"member{len(started)}", mode)
        started.append(member)
        return member

    yield start_one
    for member in started:
        member.end()


def shares(members: list[Member]) -> list[list[int]] | None:
    """The partitions of each member, once every partition has one owner and the loads differ by at most one."""
    found = [member.owns for member in members]
    owned = [share for share in found if share is not None]
    sizes = [len(share) for share in owned]
    is_settled = len(owned) == len(found) and max(sizes) - min(sizes) <= 1
    return owned if is_settled and sorted(itertools.chain(*owned)) == list(range(PARTITIONS)) else None


def settled(members: list[Member]) -> list[list[int]]:
    wait_until(lambda: shares(members) is not None, "the partitions are shared")
    found = shares(members)
    assert found is not None
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_one_to_four_consumers_on_three_partitions_and_a_kill(
    start: Callable[..., Member], log: LogDirectory, count: int
) -> None:
    """The killed process had forked a child and was stopped. The child survives, and owns no partition."""
    members = [start("fork") for _ in range(count)]
    sizes = sorted(map(len, settled(members)))
    assert sizes == {1: [3], 2: [1, 2], 3: [1, 1, 1], 4: [0, 1, 1, 1]}[count]
    stopped = max(members, key=lambda member: len(member.owns or []))
    stopped.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    before = [member.owns for member in members]
    with Consumer(log.path, group_id=GROUP) as observer:
        assert [member.pid for member in observer.group_members() if member.is_stopped] == [stopped.process.pid]
    assert [member.owns for member in members] == before
    members.remove(stopped)
    begin_s = time.monotonic()
    stopped.kill()
    if not members:
        return
    settled(members)
    end_s = max(line["at"] for member in members for line in _lines(member) if "at" in line)
    print(f"takeover after kill -9 with {count} consumers: {(end_s - begin_s) * 1000:.1f} ms")
    assert end_s - begin_s < WATCHDOG_S / 2


def _lines(member: Member) -> list[dict[str, Any]]:
    return [json.loads(line) for line in member.output.read_bytes().splitlines()]


def test_a_stopped_consumer_keeps_its_partitions_and_is_shown(start: Callable[..., Member], log: LogDirectory) -> None:
    members = [start(), start()]
    settled(members)
    stopped, other = members
    before = stopped.owns
    stopped.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.process.pid, os.WSTOPPED | os.WNOWAIT)
    third = start()
    wait_until(lambda: third.owns is not None, "the third consumer joined")
    with Consumer(log.path, group_id=GROUP) as observer:
        shown = {member.pid: member.is_stopped for member in observer.group_members()}
    assert shown == {stopped.process.pid: True, other.process.pid: False, third.process.pid: False}
    assert not set(before or []) & set((other.owns or []) + (third.owns or []))
    stopped.process.send_signal(signal.SIGCONT)
    assert sorted(map(len, settled([*members, third]))) == [1, 1, 1]


def test_a_group_is_local_or_served(log: LogDirectory) -> None:
    place = TopicPartition(TOPIC, 0)
    with running(Path(log.path), is_writable=False) as server:
        address = "{}:{}".format(*server.address)
        with Consumer(log.path, TOPIC, group_id=GROUP) as consumer:
            consumer.poll()
            consumer.commit({place: 0})
            remote = KafkaConsumer(TOPIC, bootstrap_servers=address, group_id=GROUP)
            with pytest.raises(KafkaError, match="InconsistentGroupProtocol"):
                remote.poll(timeout_ms=WATCHDOG_S * 1000)
            remote.close(autocommit=False)
        remote = KafkaConsumer(TOPIC, bootstrap_servers=address, group_id=GROUP, auto_offset_reset="earliest")
        remote.poll(timeout_ms=0)
        wait_until(lambda: not remote.poll(timeout_ms=100) and len(remote.assignment()) == PARTITIONS, "it has joined")
        assert remote.committed(KafkaPythonTopicPartition(*place)) == 0
        with pytest.raises(GroupModeError, match="coordinated by a server"):
            Consumer(log.path, TOPIC, group_id=GROUP)
        remote.close()
