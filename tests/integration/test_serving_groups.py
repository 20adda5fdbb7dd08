# SPDX-License-Identifier: Apache-2.0
"""One to four consumers of each client share three partitions, and survive the death of one."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.log_server import PARTITION_COUNT, produce, served

CLIENTS = ("kafka-python", "confluent", "aiokafka")
DEADLINE_S = 600.0
RECORD_COUNT = 30


class Member:
    """A consumer in its own process.

    Attributes:
        partitions: its current partitions.
        values: the records that it has read.
    """

    def __init__(self, client: str, address: str) -> None:
        command = [sys.executable, "-m", "tests.support.group_member", client, address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        self.partitions: list[int] = []
        self.values: list[int] = []
        self._rest = b""

    def check(self) -> None:
        """Read its latest reports."""
        *lines, self._rest = (self._rest + (self.output.read() or b"")).split(b"\n")
        for told in map(json.loads, lines):
            self.partitions = told.get("partitions", self.partitions)
            self.values += [told["value"]] if "value" in told else []

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.output.close()


class Team:
    """The members of a group."""

    def __init__(self, client: str, address: str) -> None:
        self._client = client
        self._address = address
        self.members: list[Member] = []
        self.dead: list[Member] = []

    def add(self) -> None:
        self.members.append(Member(self._client, self._address))

    def kill_one(self) -> None:
        """Kill a member that has a partition with SIGKILL."""
        killed = next(member for member in self.members if member.partitions)
        killed.process.kill()
        self.members.remove(killed)
        self.dead.append(killed)

    @property
    def shares(self) -> list[int]:
        """The partition count of each member, largest first. Empty while assignments overlap or one has no owner."""
        owned = sorted(partition for member in self.members for partition in member.partitions)
        counts = sorted((len(member.partitions) for member in self.members), reverse=True)
        return counts if owned == list(range(PARTITION_COUNT)) else []

    @property
    def values(self) -> set[int]:
        return {value for member in self.members + self.dead for value in member.values}

    def wait_until(self, is_true: Any, what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        with selectors.DefaultSelector() as selector:
            for member in self.members:
                selector.register(member.output, selectors.EVENT_READ)
            while not is_true():
                assert time.monotonic() < end_s, f"still waiting until {what}: {self.shares}"
                selector.select(0.1)
                for member in self.members:
                    member.check()

    def end(self) -> None:
        for member in self.members + self.dead:
            member.end()


def fair_shares(count: int) -> list[int]:
    """The partition counts of this many members, largest first."""
    return [len(range(index, PARTITION_COUNT, count)) for index in range(count)]


@pytest.fixture(params=CLIENTS)
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Team, str]]:
    """A group without members, and the address of a server with a few records."""
    with served(tmp_path / "log") as address:
        produce(address, range(RECORD_COUNT))
        found = Team(request.param, address)
        try:
            yield found, address
        finally:
            found.end()


@pytest.mark.parametrize("count", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3)), 4])
def test_partitions_are_shared_and_taken_over_from_a_killed_member(team: tuple[Team, str], count: int) -> None:
    members, address = team
    for _ in range(count):
        members.add()
    members.wait_until(lambda: members.shares == fair_shares(count), f"{count} members share the partitions")
    members.wait_until(lambda: members.values == set(range(RECORD_COUNT)), "every record is read")
    members.kill_one()
    if count == 1:
        members.add()
    left = max(count - 1, 1)
    members.wait_until(lambda: members.shares == fair_shares(left), f"{left} members have taken over")
    produce(address, range(RECORD_COUNT, 2 * RECORD_COUNT))
    members.wait_until(lambda: members.values == set(range(2 * RECORD_COUNT)), "every new record is read")
