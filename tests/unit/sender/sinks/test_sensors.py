# SPDX-License-Identifier: Apache-2.0
"""Averages, maxima and rates cover the last one to two windows. Totals cover the whole time."""

from __future__ import annotations

from shmaccum.common.clock import NS_PER_S
from shmaccum.sender.sinks.sensors import WINDOW_NS, Sensor, TotalRates, average_of, maximum_of

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


def test_a_sensor_that_was_silent_for_long_starts_again() -> None:
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


def test_rates_are_of_what_was_counted_in_one_to_two_windows() -> None:
    rates = TotalRates(START_NS)
    assert rates.read({"request": 10}, START_NS) == {"request": 10}  # less than a second counts as one
    assert rates.read({"request": 10}, START_NS + 5 * NS_PER_S) == {"request": 2}
    rates.sample({"request": 30}, START_NS + WINDOW_NS)
    assert rates.read({"request": 60, "response": 40}, START_NS + 40 * NS_PER_S) == {"request": 1.5, "response": 1}
    rates.sample({"request": 90, "response": 40}, START_NS + 2 * WINDOW_NS)
    seen = rates.read({"request": 90, "response": 43}, START_NS + 2 * WINDOW_NS)
    assert seen == {"request": 2, "response": 43 / 30}
