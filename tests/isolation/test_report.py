# SPDX-License-Identifier: Apache-2.0
"""One planted figure breaks each rule of a report. Without it, no rule is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest

from tests.isolation.arrivals import Verdict
from tests.isolation.measurements import BUCKETS, DISTURBED, ROUNDS, UNDISTURBED, bucket_of
from tests.isolation.refused_overflow import Refusal
from tests.isolation.report import (
    Rule,
    block_rules,
    congestion_rules,
    fallback_rules,
    refusal_rules,
    rules,
    spell_ns,
    table,
    waiting_rules,
)
from tests.isolation.scenario import KINDS, Group, Outcome
from tests.isolation.shares import Congestion

SECOND = 10**9


def group(ns: int = 1000, longest_ns: int = 1000, failure_count: int = 0, lost_count: int = 0) -> Group:
    """Return a group with sends of 1 us in the undisturbed phase, and of `ns` in the disturbed one."""
    histograms = {phase: np.zeros((ROUNDS, BUCKETS), dtype=np.uint64) for phase in (UNDISTURBED, DISTURBED)}
    histograms[UNDISTURBED][:, bucket_of(1000)] = 100
    histograms[DISTURBED][:, bucket_of(ns)] = 100
    failures = {UNDISTURBED: Counter[str](), DISTURBED: Counter({"BufferExhaustedError": failure_count})}
    sentences = {"BufferExhaustedError": "no buffer"}
    longest = {UNDISTURBED: 1000, DISTURBED: longest_ns}
    return Group(histograms, longest, failures, sentences, Verdict(2000, lost_count))


def broken(found: Iterable[Rule]) -> list[str]:
    """Return the sentences of the decisive rules that are broken."""
    return [rule.sentence for rule in found if rule.is_decisive and rule.is_kept is False]


SECONDS = {UNDISTURBED: 30.0, DISTURBED: 30.0}


def of(kind: str, live: Group, dead: Group | None = None, expired_count: int = 0) -> list[str]:
    groups = {"live": live, "dead": dead or group()}
    return broken(rules(Outcome(KINDS[kind], groups, SECONDS, counters={"batches expired": expired_count}), seed=1))


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_failures_breaks_no_rule(kind: str) -> None:
    assert of(kind, group()) == []


def test_a_failure_of_a_live_producer_breaks_a_rule_and_one_of_a_dead_producer_does_not() -> None:
    assert of("dead-broker", group(failure_count=1)) == ["no send of live producers fails: 1 of 2,000"]
    assert of("dead-broker", group(), group(failure_count=1)) == []


def test_a_long_wait_breaks_a_rule_where_there_is_an_overflow() -> None:
    for kind in ("outage", "dead-broker-overflow"):
        assert of(kind, group(longest_ns=2 * SECOND)) == ["no send waits longer than 1.5 s: 2.00 s"]
    assert of("dead-broker", group(), group(longest_ns=2 * SECOND)) == []


def test_lost_records_of_dead_partitions_are_excused_by_batches_that_expired_without_an_overflow() -> None:
    assert len(of("dead-broker", group(), group(lost_count=1))) == 1
    assert of("dead-broker", group(), group(lost_count=1), expired_count=1) == []
    assert len(of("dead-broker-overflow", group(), group(lost_count=1), expired_count=1)) == 1
    assert len(of("dead-broker", group(lost_count=1), expired_count=1)) == 1


def test_a_ratio_of_latencies_is_reported_and_decides_nothing() -> None:
    found = list(rules(Outcome(KINDS["dead-broker"], {"live": group(ns=2000)}, SECONDS), seed=1))
    assert [rule.is_kept for rule in found if not rule.is_decisive] == [True, False]
    assert broken(found) == []


def test_a_slower_pace_is_reported_and_decides_nothing() -> None:
    seconds = {UNDISTURBED: 30.0, DISTURBED: 60.0}
    found = list(rules(Outcome(KINDS["dead-broker"], {"live": group()}, seconds), seed=1))
    assert [rule.is_kept for rule in found if not rule.is_decisive] == [False, True]
    assert broken(found) == []


def test_a_table_has_a_row_for_each_group_and_phase() -> None:
    outcome = Outcome(KINDS["dead-broker"], {"live": group(failure_count=3), "dead": group()}, loads=[1.5])
    text = table("dead-broker", outcome, seed=1)
    assert sum(line.startswith(("  live  ", "  dead  ")) for line in text.splitlines()) == 4
    assert "live: 3 BufferExhaustedError: no buffer" in text


def test_the_rules_without_kafka_are_broken_by_planted_figures() -> None:
    good = Refusal(60.0, 10, [], 1.0, 1.0, 1, 0)
    assert broken(refusal_rules(good)) == []
    bad = Refusal(60.0, 10, ["no buffer"], 29.7, None, 0, 0, lost_count=1)
    assert len(broken(refusal_rules(bad))) == 4
    assert broken(congestion_rules(Congestion([400, 450], 850, 1000, 10, 0, 1000, 1000))) == []
    assert len(broken(congestion_rules(Congestion([100, 600], 700, 1000, 10, 1, 1000, 1000)))) == 3
    assert [broken(waiting_rules(share)) == [] for share in (0.01, 0.011)] == [True, False]
    assert [broken(block_rules([early_ns, 1])) == [] for early_ns in (0, -1)] == [True, False]


def test_delays_are_reported_and_decide_nothing() -> None:
    good, bad = 10_000_000, 10_000_001
    assert [rule.is_kept for rule in (*block_rules([0, good]), *fallback_rules({"cut": [good]}))] == [True] * 3
    assert [rule.is_kept for rule in (*block_rules([0, bad]), *fallback_rules({"cut": [bad]}))] == [True, False, False]
    assert broken([*block_rules([0, bad]), *fallback_rules({"cut": [bad]})]) == []


def test_a_time_is_spelled_with_its_unit() -> None:
    assert [spell_ns(ns) for ns in (5, 1500, 2_000_000, 37_500_000_000)] == ["5 ns", "1.5 us", "2 ms", "37.5 s"]
