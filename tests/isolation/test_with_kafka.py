# SPDX-License-Identifier: Apache-2.0
"""Short forms of the scenarios with Apache Kafka. Failures and waits in seconds decide; latencies are printed alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.isolation.report import rules, table
from tests.isolation.scenario import KINDS, Run, Settings
from tests.kafka.broker import running_cluster
from tests.kafka.distribution import require

SHORT_S = 30.0
DEAD_RATE = 5_000.0
"""Records a second of a producer whose records go to the overflow: an unlimited rate would fill the disk."""


class NotIsolatedError(AssertionError):
    """A rule of isolation is broken. Anything else that goes wrong in a test is no expected failure."""


@pytest.mark.kafka
@pytest.mark.timeout(1200)
@pytest.mark.xfail(strict=True, raises=NotIsolatedError, reason="stuck partitions take the whole arena")
@pytest.mark.parametrize("name", KINDS)
def test_no_topic_or_broker_stops_the_others(
    name: str, arena_name: str, tmp_path: Path, seeded: Callable[[], Random]
) -> None:
    require()
    kind = KINDS[name]
    settings = Settings(SHORT_S, dead_rate=DEAD_RATE if kind.overflow else 0.0, seed=seeded().getrandbits(16))
    with running_cluster(tmp_path / "cluster", kind.broker_count) as cluster:
        outcome = Run(kind, settings, arena_name, tmp_path, cluster).run()
    found = list(rules(outcome, settings.seed))
    print(table(name, outcome, settings.seed), *found, sep="\n")
    for group in outcome.groups.values():
        assert group.verdict.is_clean, group.verdict
    broken = [rule for rule in found if rule.is_decisive and rule.is_kept is False]
    if broken:
        raise NotIsolatedError("\n".join(map(str, broken)))
