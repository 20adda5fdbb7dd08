# SPDX-License-Identifier: Apache-2.0
"""An observation tells a sender that runs from one that has left and from one that died."""

from __future__ import annotations

import os

from shmaccum.arena import Arena
from shmaccum.observe.observation import Observer
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.accumulator import Accumulator
from tests.support.processes import Child, wait_until
from tests.support.transactions import running


def sender_facts(arena: Arena) -> dict[str, object]:
    facts = Observer(arena).observe().sender
    names = ("is_alive", "has_left", "state", "pid", "epoch")
    return {name: getattr(facts, name) for name in names}


def test_a_sender_runs_or_has_left_or_died(arena: Arena) -> None:
    never = {"is_alive": False, "has_left": True, "state": None, "pid": None, "epoch": 0}
    assert sender_facts(arena) == never
    with running(Sender(arena, MemorySink())):
        wait_until(lambda: arena.native.sender_is_alive, "the sender runs")
        alive = {"is_alive": True, "has_left": False, "state": "running", "pid": os.getpid(), "epoch": 1}
        assert sender_facts(arena) == alive
    assert sender_facts(arena) == {**never, "epoch": 1}

    def die() -> None:
        accumulator = Accumulator(Arena.attach(arena.name))  # a collected arena would detach
        accumulator.become_sender()
        os._exit(0)

    child = Child(die)
    child.join()
    assert sender_facts(arena) == {**never, "has_left": False, "pid": child.pid, "epoch": 2}
