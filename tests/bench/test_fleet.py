# SPDX-License-Identifier: Apache-2.0
"""The model of a fleet: the simulation follows the rules of producers, and the page shows the model's figures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from bench.fleet.__main__ import FOLDER, price_rows, shape_rows
from bench.fleet.arrivals import BURST, KINDS, arrivals, worker_times
from bench.fleet.costs import BROKER_COUNTS, broker_prices, fit, load
from bench.fleet.producer import IN_FLIGHT, Outcome, Rules, simulate
from bench.fleet.shapes import ARENA, CLIENTS, Shape, load_of

SECONDS = 2.0


def run(rules: Rules, *records: tuple[float, int]) -> Outcome:
    times, partitions = zip(*records, strict=True)
    return simulate(rules, np.array(times), np.array(partitions), SECONDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_sends_at_its_rate(kind: str) -> None:
    times = worker_times(np.random.default_rng(1), kind, rate=5_000, seconds=20)
    assert len(times) == pytest.approx(100_000, rel=0.1)
    assert 0 <= times[0] <= times[-1] < 20
    assert (np.diff(times) >= 0).all()


def test_bursts_have_their_size() -> None:
    times = worker_times(np.random.default_rng(1), "bursts", rate=1_000, seconds=20)
    assert set(np.unique(times, return_counts=True)[1].tolist()) == {BURST}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of poisson"):
        worker_times(np.random.default_rng(1), "sometimes", rate=1, seconds=1)


def test_a_lonely_record_lingers_and_is_answered_a_round_trip_later() -> None:
    rules = Rules(along=0.5, linger_s=0.01, round_trip_s=0.02, request_s=0.001)
    outcome = run(rules, (0.5, 0))
    assert (outcome.record_count, outcome.batch_count, outcome.request_count) == (1, 1, 1)
    assert outcome.latencies_s == pytest.approx([0.031])


def test_a_full_batch_does_not_linger() -> None:
    rules = Rules(along=None, linger_s=1.0, batch_records=2, round_trip_s=0.02, request_s=0.001)
    assert run(rules, (0.5, 0), (0.6, 0)).latencies_s == pytest.approx([0.121, 0.021])


@pytest.mark.parametrize(("along", "requests"), [(None, 3), (0.0, 1), (0.5, 2)])
def test_batches_go_along_as_each_client_has_it(along: float | None, requests: int) -> None:
    """At the end of the first batch's linger, the second one has waited for 0.6 of its own, and the third for 0.3."""
    outcome = run(Rules(along=along, linger_s=0.01, request_s=0), (0.0, 0), (0.004, 1), (0.007, 2))
    assert (outcome.batch_count, outcome.request_count) == (3, requests)


def test_a_node_has_few_requests_without_an_answer_and_loses_no_record() -> None:
    rules = Rules(along=None, linger_s=0, batch_records=1, partition_count=1, round_trip_s=0.1, request_s=0)
    outcome = run(rules, *[(0.0, 0)] * (2 * IN_FLIGHT + 1))
    assert outcome.record_count == 2 * IN_FLIGHT + 1
    assert sorted({round(each, 3) for each in outcome.latencies_s}) == [0.1, 0.2, 0.3]


@pytest.mark.parametrize("along", [None, 0.0, 0.5])
def test_every_record_is_delivered_once(along: float | None) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print("seed", seed)
    times, partitions = arrivals(np.random.default_rng(seed), "bursts", 8, 500, 1, 12)
    rules = Rules(along=along, partition_count=12, node_count=3, batch_records=7)
    outcome = simulate(rules, times, partitions, 1)
    assert outcome.record_count == len(times) == len(outcome.latencies_s)
    assert min(outcome.latencies_s, default=1.0) >= rules.round_trip_s
    assert outcome.request_count <= outcome.batch_count <= outcome.record_count


def test_prices_are_found_again() -> None:
    rng = np.random.default_rng(3)
    runs = [dict(zip(BROKER_COUNTS, rng.integers(1, 1000, 3).tolist(), strict=True)) for _ in range(6)]
    wanted = {"request_count": 3e-4, "batch_count": 0.0, "record_count": 2e-6}
    seconds = [sum(price * each[name] for name, price in wanted.items()) for each in runs]
    assert fit(runs, BROKER_COUNTS, seconds).of == pytest.approx(wanted)


def test_a_fleet_of_arenas_has_fuller_batches_and_fewer_connections() -> None:
    shape = Shape(host_count=10, worker_count=64)
    clients, arena = (load_of(shape, design) for design in (CLIENTS, ARENA))
    assert clients.connections == 64 * arena.connections == 64 * 60
    assert clients.records == pytest.approx(arena.records, rel=0.1)
    assert clients.requests > 4 * arena.requests
    assert clients.batches > arena.batches


def rows(name: str) -> list[list[str]]:
    with Path(FOLDER, name).open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def test_the_tables_of_the_page_are_those_of_the_model() -> None:
    """All prices are compared, but only the first simulated shape, because the simulation of all takes seconds."""
    kept = load()
    assert rows("fleet-prices.csv") == list(price_rows(kept))
    assert rows("fleet-shapes.csv")[0] == next(shape_rows(broker_prices(kept)))
