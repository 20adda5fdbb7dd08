# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.fleet`` writes the tables and the picture of docs/explanation/fleet.rst.

It only simulates, and starts no broker. The prices come from runs of ``python -m bench.fleet.check``. The picture needs
matplotlib (the extra ``plot``); ``--tables`` excludes it.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.fleet.check import WORKER_COUNT
from bench.fleet.costs import Prices, broker_prices, broker_seconds, client_prices, load
from bench.fleet.mock import PARTITION_COUNT as MOCK_PARTITIONS
from bench.fleet.shapes import ARENA, CLIENTS, DESIGNS, SEED, Load, Shape, load_of
from bench.harness.results import load as load_answers
from bench.questions.kafka_workers import OURS_PACED, PEER_PACED
from setup import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = ROOT / "docs" / "explanation"
HOSTS = (10, 100, 1_000, 10_000)
WORKERS = (8, 32, 128, 256)
LINGERS_S = (0.001, 0.005, 0.02, 0.1)
PARTITIONS = (6, 60, 600)
CHECK_SHAPE = Shape(host_count=1, worker_count=WORKER_COUNT, kind="paced", partition_count=6, broker_count=1)
DOTS_PER_INCH = 80

Row = list[str]


def spelled(number: float) -> str:
    """Return three significant digits, and a unit if the number is large."""
    for unit, size, least in (("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if number >= least:
            return f"{number / size:,.{max(0, 3 - len(str(int(number / size))))}f} {unit}"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def host_rows(prices: Prices) -> Iterator[Row]:
    """Yield a row with both designs for each number of hosts and workers."""
    for worker_count in WORKERS:
        one = {design: load_of(Shape(host_count=1, worker_count=worker_count), design) for design in DESIGNS}
        for host_count in HOSTS:
            row = [spelled(host_count), spelled(worker_count)]
            for what in _HOST_FIGURES:
                row += [spelled(host_count * what(one[design], prices)) for design in DESIGNS]
            yield row


_HOST_FIGURES: tuple[Callable[[Load, Prices], float], ...] = (
    lambda load, _: load.connections,
    lambda load, _: load.requests,
    lambda load, prices: load.cores(prices),
)


def shape_rows(prices: Prices) -> Iterator[Row]:
    """Yield a row for each kind of arrivals, linger and number of partitions, of a host with 64 workers."""
    for kind in ("poisson", "bursts"):
        for linger_s in LINGERS_S:
            for partition_count in PARTITIONS:
                shape = Shape(host_count=1, kind=kind, linger_s=linger_s, partition_count=partition_count)
                loads = [load_of(shape, design) for design in DESIGNS]
                row = [kind, f"{linger_s * 1e3:g} ms", str(partition_count)]
                row += [f"{each.records_per_batch:.1f}" for each in loads]
                row += [spelled(each.requests) for each in loads]
                row += [f"{each.p50_s * 1e3:.1f} / {each.p99_s * 1e3:.1f}" for each in loads]
                row.append(f"{loads[1].cores(prices) / loads[0].cores(prices):.2f}")
                yield row


def check_rows(kept: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each real run, with the simulation of the same work and the broker's time computed from the
    prices.
    """
    prices = broker_prices(kept)
    designs = {design.name: design for design in DESIGNS}
    for run, broker_s in zip(kept["runs"], broker_seconds(kept), strict=True):
        seconds = run["work_s"]
        shape = replace(CHECK_SHAPE, rate=run["record_count"] / seconds / WORKER_COUNT)
        load = load_of(shape, designs[run["design"]])
        yield [
            "Apache Kafka",
            designs[run["design"]].title,
            f"{spelled(run['record_count'] / seconds)}{'' if run['rate'] else ', flat out'}",
            f"{run['record_count'] / run['batch_count']:.1f}",
            f"{load.records_per_batch:.1f}",
            spelled(run["request_count"] / seconds),
            spelled(load.requests),
            f"{broker_s / run['record_count'] * 1e6:.1f}",
            f"{prices.cost_s(run) / run['record_count'] * 1e6:.1f}",
        ]


def quiet_rows() -> Iterator[Row]:
    """Yield the paced runs of ``kafka_workers`` on a quiet machine, with their simulation."""
    series = {each.contender: each for each in load_answers()["kafka_workers"].series}
    for design, contender in ((CLIENTS, PEER_PACED), (ARENA, OURS_PACED)):
        fill = statistics.median(series[contender].values("records_per_batch"))
        rate = statistics.median(series[contender].values("records_per_s"))
        load = load_of(replace(CHECK_SHAPE, rate=rate / WORKER_COUNT), design)
        row = ["Apache Kafka", design.title, f"{spelled(rate)}, quiet", f"{fill:.1f}", f"{load.records_per_batch:.1f}"]
        yield [*row, "", spelled(load.requests), "", ""]


def mock_rows(kept: dict[str, Any]) -> Iterator[Row]:
    """Yield a row for each real run on the mock cluster, with the simulation of the same work."""
    designs = {design.name: design for design in DESIGNS}
    for run in kept["mock_runs"]:
        rate = run["record_count"] / run["work_s"]
        shape = replace(CHECK_SHAPE, rate=rate / WORKER_COUNT, partition_count=MOCK_PARTITIONS)
        load = load_of(shape, designs[run["design"]])
        yield [
            "mock",
            designs[run["design"]].title,
            f"{spelled(rate)}{'' if run['rate'] else ', flat out'}",
            f"{run['record_count'] / run['batch_count']:.1f}",
            f"{load.records_per_batch:.1f}",
            spelled(run["request_count"] / run["work_s"]),
            spelled(load.requests),
            "",
            "",
        ]


def price_rows(kept: dict[str, Any]) -> Iterator[Row]:
    """Yield the prices in microseconds of processor time."""
    payers = {"a broker": broker_prices(kept)}
    payers |= {f"the host's processes, {design.title}": client_prices(kept, design.name) for design in DESIGNS}
    for payer, prices in payers.items():
        names = ("request_count", "batch_count", "record_count")
        yield [payer, *(f"{prices.of[name] * 1e6:.2f}" if name in prices.of else "" for name in names)]


def write(name: str, rows: Iterable[Row]) -> None:
    """Write a table of the page."""
    with (FOLDER / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print(f"docs/explanation/{name}", flush=True)


# --- the picture


def draw(prices: Prices, target: Path) -> None:
    """Draw four panels: connections, requests, the brokers' cores, and the latency."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(9, 6.4), layout="constrained")
    _draw_hosts(panels[0, 0], "connections at the brokers", lambda load: load.connections)
    _draw_hosts(panels[0, 1], "produce requests/s", lambda load: load.requests)
    _draw_hosts(panels[1, 0], "busy cores of all brokers", lambda load: load.cores(prices))
    _draw_latency(panels[1, 1])
    figure.savefig(target, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
    print(f"docs/explanation/{target.name}", flush=True)


def _draw_hosts(panel: Axes, what: str, figure: Callable[[Load], float]) -> None:
    for design, color in zip(DESIGNS, ("tab:orange", "tab:blue"), strict=True):
        for worker_count, style in ((8, ":"), (64, "-"), (256, "--")):
            one = figure(load_of(Shape(host_count=1, worker_count=worker_count), design))
            label = f"{design.title}, {worker_count} workers"
            panel.plot(HOSTS, [count * one for count in HOSTS], style, color=color, label=label)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("hosts")
    panel.set_ylabel(what)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=6)


def _draw_latency(panel: Axes) -> None:
    for design, color in ((CLIENTS, "tab:orange"), (ARENA, "tab:blue")):
        for share, style in ((0.5, "-"), (0.99, ":")):
            loads = [load_of(Shape(host_count=1, linger_s=linger_s), design) for linger_s in LINGERS_S]
            values = [(load.p50_s if share == 0.5 else load.p99_s) * 1e3 for load in loads]
            label = f"{design.title}, {share:.0%}"
            panel.plot([linger_s * 1e3 for linger_s in LINGERS_S], values, style, color=color, marker=".", label=label)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("linger, ms")
    panel.set_ylabel("ms from send to answer")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=6)


def main() -> None:
    """Write the tables and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", action="store_true", help="write the tables alone, without matplotlib")
    arguments = parser.parse_args()
    kept = load()
    prices = broker_prices(kept)
    print(f"seed {SEED}", flush=True)
    write("fleet-check.csv", itertools.chain(mock_rows(kept), quiet_rows(), check_rows(kept)))
    write("fleet-prices.csv", price_rows(kept))
    write("fleet-hosts.csv", host_rows(prices))
    write("fleet-shapes.csv", shape_rows(prices))
    if not arguments.tables:
        draw(prices, FOLDER / "fleet.png")


if __name__ == "__main__":
    main()
