# SPDX-License-Identifier: Apache-2.0
"""Every scenario."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.power_images.arena_scenarios import (
    ArenaScenario,
    ArenaTransactionScenario,
    DeadLetterScenario,
    LaterBuildScenario,
    OverflowScenario,
    ProcessScenario,
)
from tests.power_images.file_scenarios import (
    DamageScenario,
    GroupScenario,
    ServedTransactionScenario,
    ShippingScenario,
    StagingScenario,
    UsersScenario,
)
from tests.power_images.log_scenarios import (
    LogDeathScenario,
    LogDeletionScenario,
    LogScenario,
    LogTransactionScenario,
)
from tests.power_images.scenario import Scenario

SCENARIOS: dict[str, type[Scenario]] = {
    one.name: one
    for one in (
        LogScenario,
        LogDeathScenario,
        LogDeletionScenario,
        LogTransactionScenario,
        GroupScenario,
        ServedTransactionScenario,
        StagingScenario,
        ShippingScenario,
        UsersScenario,
        DamageScenario,
        ArenaScenario,
        ProcessScenario,
        LaterBuildScenario,
        ArenaTransactionScenario,
        OverflowScenario,
        DeadLetterScenario,
    )
}


def scenario_named(name: str) -> Scenario:
    """Return the scenario that ``NAME:LEVEL`` names."""
    kind, _, level = name.partition(":")
    return SCENARIOS[kind](level)


def each_scenario(names: Iterable[str]) -> Iterator[Scenario]:
    """Yield every scenario of these names, or ``NAME:LEVEL``, with each of its levels. An empty name selects every
    scenario.
    """
    for name in names:
        kind, _, level = name.partition(":")
        for one in [SCENARIOS[kind]] if kind else SCENARIOS.values():
            yield from (one(each) for each in one.levels if level in {"", each})
