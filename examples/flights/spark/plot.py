# SPDX-License-Identifier: Apache-2.0
"""The answers as a picture."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from examples.flights.spark.answers import mean_delay

COLOURS = {"EWR": "#4c78a8", "JFK": "#f58518", "LGA": "#54a24b"}
SMOOTHED_DAYS = 7


def save_plot(found: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Saves the delays by hour, by carrier and by day, as PNG.

    Args:
        found: the answers by question.
        path: the path of the picture.
    """
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # its first import warns about its font cache
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    hours, carriers, days = figure.subplot_mosaic([["hours", "carriers"], ["days", "days"]]).values()
    _plot_hours(hours, found["hours"])
    _plot_carriers(carriers, found["hours"])
    _plot_days(days, found["days"])
    for axes in (hours, carriers, days):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Flights from New York, 2013: mean delay at departure, minutes")
    figure.savefig(path, dpi=120)


def _plot_hours(axes: Any, answer: pd.DataFrame) -> None:
    for origin, of_origin in answer.groupby("origin"):
        delays = mean_delay(of_origin, ["hour"])["delay"].dropna()
        axes.plot(delays.index, delays, color=COLOURS.get(str(origin)), label=origin)
    axes.set_title("by hour of departure", loc="left")
    axes.set_xlabel("hour")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _plot_carriers(axes: Any, answer: pd.DataFrame) -> None:
    delays = mean_delay(answer, ["carrier"])["delay"].sort_values()
    axes.barh(delays.index, delays, color="#9d9da1")
    axes.set_title("by carrier", loc="left")


def _plot_days(axes: Any, answer: pd.DataFrame) -> None:
    for origin, of_origin in answer.groupby("origin"):
        delays = mean_delay(of_origin, ["day"])["delay"]
        delays.index = pd.to_datetime(delays.index)
        smooth = delays.rolling(SMOOTHED_DAYS, center=True, min_periods=1).mean()
        axes.plot(smooth.index, smooth, color=COLOURS.get(str(origin)), label=origin)
    axes.set_title(f"by day, from the stream (mean of {SMOOTHED_DAYS} days)", loc="left")
