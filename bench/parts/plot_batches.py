# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.parts.plot_batches TARGET.png`` draws the records per batch by the number of workers.

It needs matplotlib (the extra ``plot``). Each worker sends 1,000 records a second, at other times than the other
workers.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from bench.parts.kafka_fleet import BATCH_SIZE, Job, arena_fleet, client_fleet

WORKER_COUNTS = (1, 2, 4, 8, 16)
JOB = Job(1_500, rate=1_000)
REPETITIONS = 3
DPI = 80


def measure() -> dict[str, list[float]]:
    """Return the median records per batch for each number of workers, for both designs."""
    found: dict[str, list[float]] = {"one arena for all (shmaccum)": [], "a producer each (confluent-kafka)": []}
    for count in WORKER_COUNTS:
        fleets = (arena_fleet(count), client_fleet(count, **{"batch.size": BATCH_SIZE}))
        for (name, values), opened in zip(found.items(), fleets, strict=True):
            with opened as fleet:
                runs = [fleet.run(JOB)["records_per_batch"] for _ in range(REPETITIONS)]
            values.append(statistics.median(runs))
            print(f"{name}, {count} workers: {values[-1]:.1f}", flush=True)
    return found


def draw(found: dict[str, list[float]], target: Path) -> None:
    """Draw a line for each design."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), dpi=DPI)
    for (name, values), marker in zip(found.items(), "os", strict=True):
        axes.plot(WORKER_COUNTS, values, marker=marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKER_COUNTS, [str(count) for count in WORKER_COUNTS])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"workers, {JOB.rate:,} records/s each, 6 partitions, linger 5 ms")
    axes.set_ylabel("records per batch")
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(target)


def main() -> None:
    """Measure and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path, metavar="TARGET.png")
    target = parser.parse_args().target
    draw(measure(), target)


if __name__ == "__main__":
    main()
