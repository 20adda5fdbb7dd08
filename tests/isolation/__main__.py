# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.isolation leaderless-10 --minutes 1 --seed 1``: one table for each scenario.

The exit code is 1 when a rule of counts, or of waits in seconds, is broken. Other work of the machine changes
latencies, so a ratio of latencies is printed with an interval and does not affect the exit code.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shmaccum.arena import Arena
from tests.isolation.delays import blocked, fallen_back
from tests.isolation.refused_overflow import refuse
from tests.isolation.report import (
    Rule,
    block_rules,
    congestion_rules,
    fallback_rules,
    refusal_rules,
    rules,
    table,
    waiting_rules,
)
from tests.isolation.scenario import KINDS, Run, Settings
from tests.isolation.shares import congested, waiting
from tests.kafka.broker import running_cluster

REFUSAL_S = 60.0
BLOCK_MS = 60_000

Scenario = Callable[[str, Path, Settings], list[Rule]]


def run_kafka(name: str, arena_name: str, folder: Path, settings: Settings) -> list[Rule]:
    """Run a scenario with Apache Kafka, and print its table."""
    kind = KINDS[name]
    with running_cluster(folder, kind.broker_count) as cluster:
        outcome = Run(kind, settings, arena_name, folder, cluster).run()
    print(table(name, outcome, settings.seed))
    return list(rules(outcome, settings.seed))


def run_refused(arena_name: str, folder: Path, settings: Settings, *, kills: bool) -> list[Rule]:
    """Run an outage in which all brokers refuse connections. The arena has 4 MiB, and the sender has an overflow."""
    seconds = max(settings.seconds, REFUSAL_S)
    return refusal_rules(refuse(arena_name, folder, seconds, BLOCK_MS, kills=kills))


def run_congested(arena_name: str, folder: Path, settings: Settings, *, busy_count: int) -> list[Rule]:
    """Run busy topics, to which more is sent than the cluster accepts."""
    return congestion_rules(congested(arena_name, folder, settings.undisturbed_s, busy_count))


def run_waiting(arena_name: str, folder: Path, settings: Settings) -> list[Rule]:
    """Run 64 producers that wait for a topic without a leader."""
    return waiting_rules(waiting(arena_name, folder, settings.undisturbed_s))


def run_blocked(arena_name: str, folder: Path, settings: Settings) -> list[Rule]:
    """Run sends to a topic without a leader that wait until max_block_ms is over, beside a producer that sends at full
    rate.
    """
    return block_rules(blocked(arena_name, folder, settings.undisturbed_s, settings.seed))


def run_fallback(arena_name: str, folder: Path, _settings: Settings, *, waits: bool) -> list[Rule]:
    """Make the arena of a producer unusable, so that its records go to a fallback."""
    return fallback_rules(fallen_back(arena_name, folder, waits=waits))


SCENARIOS: Mapping[str, Scenario] = {
    **{name: partial(run_kafka, name) for name in KINDS},
    "refused-overflow": partial(run_refused, kills=False),
    "refused-overflow-killed-senders": partial(run_refused, kills=True),
    "one-busy-topic": partial(run_congested, busy_count=1),
    "eight-busy-topics": partial(run_congested, busy_count=8),
    "waiting-producers": run_waiting,
    "longest-block": run_blocked,
    "fallback": partial(run_fallback, waits=False),
    "fallback-of-waiting-producers": partial(run_fallback, waits=True),
}


def run(name: str, settings: Settings, *, is_kept: bool) -> bool:
    """Run a scenario, and print its verdicts. Return True if no decisive rule is broken.

    Args:
        name: the name of the scenario.
        settings: the settings of the scenario.
        is_kept: keep the scenario's folder, which has the outputs of senders and producers.
    """
    folder = Path(tempfile.mkdtemp(prefix="isolation-"))
    arena_name = f"isolation-{os.getpid()}"
    load = os.getloadavg()[0]
    try:
        verdicts = SCENARIOS[name](arena_name, folder, settings)
    finally:
        Arena.remove(arena_name, missing_ok=True)
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
    if name not in KINDS:
        print(f"{name} (load {load:.1f}, {os.getloadavg()[0]:.1f})")
    print(*verdicts, "", sep="\n", flush=True)
    return not any(rule.is_decisive and rule.is_kept is False for rule in verdicts)


def main() -> int:
    """Run the command line, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.isolation", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"all by default: {', '.join(SCENARIOS)}")
    parser.add_argument("--minutes", type=float, default=1.0, help="of both phases of a scenario together")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(2), "little"))
    parser.add_argument("--live-rate", type=float, default=2000.0, help="records a second of all live producers")
    parser.add_argument(
        "--dead-rate",
        type=float,
        default=0.0,
        help="records a second of a producer whose broker is dead, without a limit by default",
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders of the scenarios below TMPDIR")
    given = parser.parse_args()
    if unknown := set(given.scenarios) - set(SCENARIOS):
        parser.error(f"unknown scenarios: {', '.join(sorted(unknown))}; known are: {', '.join(SCENARIOS)}")
    logging.disable(logging.WARNING)
    settings = Settings(given.minutes * 60, given.live_rate, given.dead_rate, given.seed)
    are_kept = [run(name, settings, is_kept=given.keep) for name in given.scenarios or SCENARIOS]
    return 0 if all(are_kept) else 1


if __name__ == "__main__":
    sys.exit(main())
