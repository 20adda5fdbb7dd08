# SPDX-License-Identifier: Apache-2.0
"""A relay's member dies at a system call of its turns. Its successor sends the missing outputs once.

The steps of an append within the arena make no system call; tests/crash and tests/native kill there.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.log.consumer import Consumer
from shmaccum.producer import Producer
from tests.support.system_calls import dies_at_system_call
from tests.unit.relay.relaying import (
    INPUT,
    PARTITIONS,
    each_once,
    make_log,
    make_relay,
    outputs,
    relay_all,
    send_outputs,
    sending,
)

INPUTS_A_TRIAL = 4
SHORT = 6
CALLS = 150
"""Approximate number of a member's system calls from its takeover to its commit."""
CALLS_MAX = 2000


class Trials:
    """A log and an arena whose members die one after another."""

    def __init__(self, arena: Arena, log: Path, producer: Producer) -> None:
        self._arena = arena
        self._log = log
        self._producer = producer
        self.input_count = 0

    def run(self, number: int) -> bool:
        """Kill a member at the system call of this number, and run another. Return False if there was no such call."""
        for _ in range(INPUTS_A_TRIAL):
            self._producer.send(INPUT, b"%d" % self.input_count, partition=self.input_count % 2)
            self.input_count += 1
        self._producer.flush()
        has_died = dies_at_system_call(self._prepare, number)
        self._go_on()
        assert outputs(self._log) == each_once(range(self.input_count)), f"a death at system call {number}"
        return has_died

    def _prepare(self) -> Callable[[], object]:
        relay = make_relay(self._log, Producer(self._arena, linger_ms=0))
        return lambda: relay_all(relay, INPUTS_A_TRIAL)

    def _go_on(self) -> None:
        with make_relay(self._log, self._producer) as relay:
            while not is_at_end(relay.consumer):
                with relay.turn(timeout_ms=100) as records:
                    for record in records:
                        send_outputs(relay, record)


def is_at_end(consumer: Consumer) -> bool:
    """True when the member has all partitions, and has committed their ends."""
    places = consumer.assignment()
    ends = consumer.end_offsets(places)
    return len(places) == PARTITIONS and all(consumer.committed(place) == end for place, end in ends.items())


@pytest.fixture
def trials(arena: Arena, tmp_path: Path) -> Iterator[Trials]:
    make_log(tmp_path / "log", range(0))
    with sending(arena, tmp_path / "log"), Producer(arena, linger_ms=0) as producer:
        yield Trials(arena, tmp_path / "log", producer)


def test_some_deaths(trials: Trials, seeded: Callable[[], random.Random]) -> None:
    chance = seeded()
    for _ in range(SHORT):
        trials.run(chance.randint(1, CALLS))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_death_at_every_system_call(trials: Trials) -> None:
    count = next(number for number in range(1, CALLS_MAX) if not trials.run(number))
    print(f"{count - 1} deaths")
    assert count > CALLS // 2
