# SPDX-License-Identifier: Apache-2.0
"""The questions about the flights, computed by Spark and by pandas. Both must count the same flights.

Each answer is a frame with a row per group: its keys, ``flights``, ``cancelled`` (flights that never left) and
``delay_min``, the sum of all delays at departure. All are whole numbers, so nothing has to be rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from examples.flights.data import data_folder

QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "hours": ("hour", "origin", "carrier"),
    "weather": ("sky",),
    "aircraft": ("maker",),
    "days": ("day", "origin"),
}
"""The keys of each answer's groups. The stream computes ``days``."""
MEASURES = ("flights", "cancelled", "delay_min")
UNKNOWN = "unknown"

SKIES = f"case when precip is null then '{UNKNOWN}' when precip > 0 then 'rain or snow' else 'dry' end"
KEYS_OF_SPARK: Mapping[str, str] = {"sky": SKIES, "maker": f"coalesce(manufacturer, '{UNKNOWN}')"}
MEASURES_OF_SPARK = (
    "count(1) flights",
    "count_if(dep_delay is null) cancelled",
    "coalesce(sum(dep_delay), 0) delay_min",
)


def measures() -> list[Any]:
    """The measures as aggregates of Spark."""
    from pyspark.sql.functions import expr

    return [expr(f"{text.rpartition(' ')[0]}").alias(text.rpartition(" ")[2]) for text in MEASURES_OF_SPARK]


def of_spark(events: Any, question: str) -> pd.DataFrame:
    """Returns an answer from a frame of events."""
    from pyspark.sql.functions import expr

    keys = [expr(KEYS_OF_SPARK.get(key, key)).alias(key) for key in QUESTIONS[question]]
    return in_order(events.groupBy(*keys).agg(*measures()).toPandas(), question)


def in_order(answer: pd.DataFrame, question: str) -> pd.DataFrame:
    """Returns the answer sorted, with types that make two answers comparable."""
    keys = list(QUESTIONS[question])
    typed = answer.astype(dict.fromkeys(MEASURES, "int64"))
    if "hour" in keys:
        typed = typed.astype({"hour": "int64"})
    return typed.sort_values(keys).reset_index(drop=True)[[*keys, *MEASURES]]


# --- the same without Spark


def read_flights(flight_count: int) -> pd.DataFrame:
    """Returns the first flights, joined by pandas, from the package's own files."""
    folder: Path = data_folder()
    flights = pd.read_csv(folder / "flights.csv.zip", nrows=flight_count)
    weather = pd.read_csv(folder / "weather.csv", usecols=["origin", "time_hour", "precip"])
    planes = pd.read_csv(folder / "planes.csv", usecols=["tailnum", "manufacturer"])
    joined = flights.merge(weather, on=["origin", "time_hour"], how="left").merge(planes, on="tailnum", how="left")
    joined["sky"] = joined["precip"].map(_sky)
    joined["maker"] = joined["manufacturer"].fillna(UNKNOWN)
    joined["day"] = joined["time_hour"].str[:10]
    return joined


def _sky(precipitation: float) -> str:
    if pd.isna(precipitation):
        return UNKNOWN
    return "rain or snow" if precipitation > 0 else "dry"


def of_pandas(flights: pd.DataFrame, question: str) -> pd.DataFrame:
    """Returns an answer from the frame of `read_flights`."""
    groups = flights.groupby(list(QUESTIONS[question]))["dep_delay"]
    found = pd.DataFrame(
        {"flights": groups.size(), "cancelled": groups.size() - groups.count(), "delay_min": groups.sum()}
    )
    return in_order(found.reset_index(), question)


def difference(name: str, found: pd.DataFrame, expected: pd.DataFrame) -> str | None:
    """Describes the first group in which two answers differ. None if they are equal."""
    keys = list(QUESTIONS[name])
    both = expected.merge(found, on=keys, how="outer", suffixes=("_expected", "_found"), indicator=True)
    wrong = both["_merge"] != "both"
    for measure in MEASURES:
        wrong |= both[f"{measure}_expected"] != both[f"{measure}_found"]
    if not wrong.any():
        return None
    first = both[wrong].iloc[0]
    group = ", ".join(f"{key} {first[key]}" for key in keys)
    told = [f"{first[f'{measure}_found']} instead of {first[f'{measure}_expected']} {measure}" for measure in MEASURES]
    return f"{name}: {int(wrong.sum())} groups differ from pandas; in {group}: {', '.join(told)}"


def mean_delay(answer: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Returns coarser groups: flights, the share that never left, and the mean delay of the others, in minutes."""
    sums = answer.groupby(keys)[list(MEASURES)].sum()
    departed = (sums["flights"] - sums["cancelled"]).where(lambda count: count > 0)
    return pd.DataFrame(
        {
            "flights": sums["flights"],
            "cancelled": sums["cancelled"] / sums["flights"],
            "delay": sums["delay_min"] / departed,
        }
    )
