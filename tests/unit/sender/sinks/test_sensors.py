# SPDX-License-Identifier: Apache-2.0
"""Averages, maxima and rates cover the last one to two windows. Totals cover the whole time."""

from __future__ import annotations

import pytest

from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.sender.sinks.kafka.metrics import ProduceMetrics
from shmaccum.sender.sinks.kafka.traffic import COUNTS, NODE_COUNTS, LoopTimes, Traffic
from shmaccum.sender.sinks.sensors import WINDOW_NS, Sensor, TotalRates, average_of, maximum_of
from shmaccum.sender.sinks.sink import Delivered

START_NS = 5 * NS_PER_S


def test_a_sensor_remembers_one_to_two_windows() -> None:
    sensor = Sensor(START_NS)
    sensor.add(10, START_NS)
    sensor.record(50, 2, 40, START_NS + WINDOW_NS)
    seen_ns = START_NS + WINDOW_NS + 10 * NS_PER_S
    assert (sensor.average(seen_ns), sensor.maximum(seen_ns), sensor.rate(seen_ns)) == (20, 40, 60 / 40)
    later_ns = START_NS + 2 * WINDOW_NS
    assert (sensor.average(later_ns), sensor.maximum(later_ns), sensor.rate(later_ns)) == (25, 40, 50 / 30)
    end_ns = START_NS + 4 * WINDOW_NS
    assert (sensor.average(end_ns), sensor.maximum(end_ns), sensor.rate(end_ns)) == (0, 0, 0)
    assert sensor.total == 60


def test_a_sensor_without_values_for_long_starts_again() -> None:
    sensor = Sensor(START_NS)
    sensor.add(10, START_NS)
    late_ns = START_NS + 100 * WINDOW_NS
    sensor.add(8, late_ns)
    assert (sensor.average(late_ns), sensor.rate(late_ns)) == (8, 8)
    assert sensor.meter("byte", late_ns + 4 * NS_PER_S) == {"byte-rate": 2, "byte-total": 18}


def test_many_sensors_are_read_as_one() -> None:
    sensors = [Sensor(START_NS), Sensor(START_NS), Sensor(START_NS)]
    sensors[0].record(30, 3, 20, START_NS)
    sensors[1].add(50, START_NS)
    assert (average_of(sensors, START_NS), maximum_of(sensors, START_NS)) == (20, 50)
    assert (average_of([], START_NS), maximum_of([], START_NS)) == (0, 0)


def test_rates_cover_one_to_two_windows() -> None:
    rates = TotalRates(START_NS)
    assert rates.read({"request": 10}, START_NS) == {"request": 10}  # less than a second counts as one
    assert rates.read({"request": 10}, START_NS + 5 * NS_PER_S) == {"request": 2}
    rates.sample({"request": 30}, START_NS + WINDOW_NS)
    assert rates.read({"request": 60, "response": 40}, START_NS + 40 * NS_PER_S) == {"request": 1.5, "response": 1}
    rates.sample({"request": 90, "response": 40}, START_NS + 2 * WINDOW_NS)
    seen = rates.read({"request": 90, "response": 43}, START_NS + 2 * WINDOW_NS)
    assert seen == {"request": 2, "response": 43 / 30}


def test_requests_of_a_borrower_count_like_those_of_the_sink() -> None:
    own, borrowed = ProduceMetrics(START_NS), ProduceMetrics(START_NS)
    for throttle_ms in (0, 20):  # a borrower sends no more after a response with a pause
        own.sent(1, 30, START_NS)
        own.answered(1, 5, throttle_ms, START_NS)
    delivered = Delivered(record_count=60, request_count=2, latency_sum_ns=10 * NS_PER_MS, latency_max_ns=5 * NS_PER_MS)
    borrowed.count_borrowed(1, delivered, 20, START_NS)
    assert borrowed.read(START_NS) == own.read(START_NS)
    assert own.read(START_NS)["produce-throttle-time-avg"] == 10


def test_the_traffic_of_brokers_has_a_rate_and_a_total_of_each_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "monotonic_ns", lambda: START_NS)
    traffic = Traffic(LoopTimes(select_count=4, wait_ns=NS_PER_S // 2, io_ns=NS_PER_S // 8))
    counts = {
        "connection-creation": (9, 10),
        "connection-close": (2, 3),
        "successful-authentication": (4, 5),
        "failed-authentication": (6, 7),
        "network-io": (30, 31),
        "request": (11, 12),
        "response": (13, 14),
        "outgoing-byte": (150, 160),
        "incoming-byte": (170, 180),
    }
    for index, node_id in enumerate(("1", "2")):
        node = traffic.node(node_id)
        assert traffic.node(node_id) is node
        assert [getattr(node, attribute) for attribute in COUNTS.values()] == [0] * len(counts)
        for name, attribute in COUNTS.items():
            setattr(node, attribute, counts[name][index])
        node.request_written(40 + index)
        node.requests -= 1
    expected: dict[str, float] = {
        "connection-count": 14,
        "request-size-avg": 40.5,
        "request-size-max": 41,
        "select-rate": 4,
        "select-total": 4,
        "io-wait-time-ns-total": NS_PER_S // 2,
        "io-wait-time-ns-avg": NS_PER_S // 8,
        "io-wait-ratio": 0.5,
        "io-time-ns-total": NS_PER_S // 8,
        "io-time-ns-avg": NS_PER_S // 32,
        "io-ratio": 0.125,
    }
    for name, of_nodes in counts.items():
        expected |= {f"{name}-rate": sum(of_nodes), f"{name}-total": sum(of_nodes)}
    for index, suffix in enumerate((".node-1", ".node-2")):
        expected |= {f"request-size-avg{suffix}": 40 + index, f"request-size-max{suffix}": 40 + index}
        for name in NODE_COUNTS:
            expected |= {f"{name}-rate{suffix}": counts[name][index], f"{name}-total{suffix}": counts[name][index]}
    assert traffic.read(START_NS) == expected
    traffic.sample()
    traffic.sample()
    assert {value for name, value in traffic.read(START_NS).items() if "-rate" in name} == {0}
