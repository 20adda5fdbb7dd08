# SPDX-License-Identifier: Apache-2.0
"""Short forms of the scenarios with Apache Kafka.

They fail on failed sends and on waits of seconds. Latencies are only printed. They need a machine that does
nothing else, so they have the mark of long runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.isolation.report import Rule, rules, table
from tests.isolation.scenario import KINDS, Run, Settings
from tests.kafka.broker import running_cluster
from tests.kafka.distribution import require

pytestmark = [pytest.mark.kafka, pytest.mark.soak, pytest.mark.timeout(1200), pytest.mark.xdist_group("isolation")]

SHORT_S = 30.0
DEAD_RATE = 5_000.0
"""Records a second of a producer whose records go to the overflow: an unlimited rate would fill the disk."""


def run(name: str, settings: Settings, arena_name: str, folder: Path) -> list[Rule]:
    """Runs a scenario, and returns the broken rules that fail it. No record may be lost, doubled or out of order."""
    require()
    kind = KINDS[name]
    with running_cluster(folder / "cluster", kind.broker_count) as cluster:
        outcome = Run(kind, settings, arena_name, folder, cluster).run()
    found = list(rules(outcome, settings.seed))
    print(table(name, outcome, settings.seed), *found, sep="\n")
    for group in outcome.groups.values():
        assert group.verdict.is_clean, group.verdict
    return [rule for rule in found if rule.is_decisive and rule.is_kept is False]


@pytest.mark.parametrize("name", KINDS)
def test_no_topic_or_broker_stops_the_others(
    name: str, arena_name: str, tmp_path: Path, seeded: Callable[[], Random]
) -> None:
    settings = Settings(SHORT_S, dead_rate=DEAD_RATE if KINDS[name].overflow else 0.0, seed=seeded().getrandbits(16))
    assert run(name, settings, arena_name, tmp_path) == []


def test_the_check_succeeds_where_two_processes_may_hold_half_of_the_arena(
    arena_name: str, tmp_path: Path, seeded: Callable[[], Random]
) -> None:
    settings = Settings(SHORT_S, seed=seeded().getrandbits(16), max_process_share=25)
    assert run("leaderless-10", settings, arena_name, tmp_path) == []
