# SPDX-License-Identifier: Apache-2.0
"""Producers, forked children, senders, standbys and readers killed and stopped at random, with a ledger.

An acknowledged record is delivered once, in its producer's order, at the offset that `future.get` returned. The arena
is empty at the end. No death delays a process for longer than 50 ms. `director` has the injuries.

``make test MARKERS=chaos ARGS="tests/chaos -s -n 0"`` runs them for SHMACCUM_CHAOS_SECONDS (600) each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from tests.chaos.delays import BUSY_LIMIT_NS, LIMIT_NS
from tests.chaos.director import Director
from tests.chaos.outcome import Outcome, Plan
from tests.chaos.zygote import can_unshare

SHORT_S = 5
SERVED_S = 3
LONG_S = float(os.environ.get("SHMACCUM_CHAOS_SECONDS", "600"))
LONG_KILLS = round(LONG_S * 10_000 / 600)
ROOMY = ("16MiB", "16KiB")
"""The sizes of memory and batches."""
TIGHT = ("128KiB", "4KiB")
"""Sizes so small that producers die while they wait for memory."""


def run(name: str, folder: Path, plan: Plan, sizes: tuple[str, str]) -> Outcome:
    memory, batch_size = sizes
    with Arena.create(name, buffer_memory=memory, batch_size=batch_size, process_count=128, waiter_count=128) as arena:
        outcome = Director(arena, folder, plan).run()
    print(outcome)
    return outcome


def test_nothing_acknowledged_is_lost_and_no_death_delays_a_survivor(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    plan = Plan(SHORT_S, seeded().getrandbits(32), inside=False)
    outcome = run(arena_name, tmp_path, plan, ROOMY)
    outcome.delays.expect_within(BUSY_LIMIT_NS)
    assert outcome.tally.sender_kill_count > 0
    assert outcome.tally.fork_count > 0


@pytest.mark.slow
def test_nothing_is_lost_where_memory_is_short_and_process_ids_mean_nothing(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    if not can_unshare():
        pytest.skip("this user may not make a PID namespace here (unshare --pid)")
    outcome = run(arena_name, tmp_path, Plan(SHORT_S, seeded().getrandbits(32), inside=True), TIGHT)
    assert any("namespace" in place for place in outcome.tally.kills)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["pump", "python"])
def test_nothing_is_lost_and_nothing_comes_twice_with_a_broker(
    path: str, arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    """Senders are killed while they send ordinary batches, and so is the broker."""
    outcome = run(arena_name, tmp_path, Plan(SERVED_S, seeded().getrandbits(32), inside=False, path=path), ROOMY)
    assert outcome.tally.kills["server"] > 0
    assert path == "pump" or outcome.tally.pumping_kill_count == 0


@pytest.mark.chaos
@pytest.mark.timeout(2 * LONG_S + 300)
@pytest.mark.parametrize("path", ["pump", "python"])
def test_nothing_is_lost_with_a_broker_for_long(
    path: str, arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    """Most of the senders with the role die while the pump is sending."""
    plan = Plan(LONG_S, seeded().getrandbits(32), inside=can_unshare(), path=path, kill_count=LONG_KILLS)
    outcome = run(arena_name, tmp_path, plan, ROOMY)
    assert outcome.tally.kills.total() >= LONG_KILLS
    assert path == "python" or outcome.tally.pumping_kill_count > outcome.tally.sender_kill_count / 10


@pytest.mark.chaos
@pytest.mark.timeout(2 * LONG_S + 300)
@pytest.mark.parametrize("sizes", [ROOMY, TIGHT], ids=["roomy", "tight"])
def test_nothing_is_lost_for_long(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random], sizes: tuple[str, str]
) -> None:
    """Ten thousand kills take ten minutes, or up to twenty on a busy machine."""
    plan = Plan(LONG_S, seeded().getrandbits(32), inside=can_unshare(), kill_count=LONG_KILLS)
    outcome = run(arena_name, tmp_path, plan, sizes)
    assert outcome.tally.kills.total() >= LONG_KILLS
    if sizes is ROOMY:
        outcome.delays.expect_within(LIMIT_NS)
