# SPDX-License-Identifier: Apache-2.0
"""The example that consumes, computes and produces is killed with its sender, and counts each order once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import pytest

from shmaccum.arena import Arena
from tests.support.arenas import end_senders, sender_pid
from tests.support.log_server import address_of, running
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import values_of
from tests.support.transactions import make

PROGRAM = Path(__file__).parents[2] / "examples/kafka/totals.py"
ORDER_COUNT = 40
"""The orders of a round."""


class Orders:
    """Numbers the orders, so that each total is unique."""

    def __init__(self, address: str) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": address})
        self.count = 0

    def add(self) -> None:
        for number in range(self.count, self.count + ORDER_COUNT):
            self._producer.produce("orders", b"%d 1000" % number, key=b"%d" % number)
        self.count += ORDER_COUNT
        assert self._producer.flush(WATCHDOG_S) == 0

    @property
    def totals(self) -> list[int]:
        return [1000 + number for number in range(self.count)]


def committed(log: Path) -> list[int]:
    """The totals that a reader of committed records gets, sorted."""
    return sorted(int(value) for value in values_of(log, "totals"))


@pytest.fixture
def totals(arena_name: str) -> Iterator[Arena]:
    with make(arena_name, "totals", transactional_id=arena_name) as arena:
        yield arena
        end_senders(arena)


def wait_for_transaction(arena: Arena, number: int, what: str) -> None:
    wait_until(lambda: arena.native.transaction[0] >= number, what)


def start(arena: Arena, address: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, PROGRAM, arena.name, address])


def kill(program: subprocess.Popen[bytes]) -> None:
    program.kill()
    program.wait(WATCHDOG_S)


@pytest.mark.parametrize("round_count", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_each_order_is_counted_once_whichever_process_is_killed(
    tmp_path: Path, totals: Arena, seeded: Callable[[], random.Random], round_count: int
) -> None:
    draws = seeded()
    with running(tmp_path) as server:
        address = address_of(server)
        orders = Orders(address)
        for _ in range(round_count):
            program = start(totals, address)
            try:
                begun = totals.native.transaction[0]
                wait_for_transaction(totals, begun + 1, "the program looks for the last end")
                orders.add()
                wait_for_transaction(totals, begun + 2, "orders are counted")
                if (sender := sender_pid(totals)) and draws.random() < 0.5:
                    os.kill(sender, signal.SIGKILL)
            finally:
                kill(program)
        program = start(totals, address)
        try:
            wait_until(lambda: committed(tmp_path) == orders.totals, "each order is counted once")
        finally:
            kill(program)
            end_senders(totals)
        assert committed(tmp_path) == orders.totals
