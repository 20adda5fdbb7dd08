# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.harness.page`` writes the page of benchmarks, and tables of other pages, from ``bench/results``.

``--adopt FOLDER`` first takes over new results. ``--beside FOLDER --machine NAME`` takes over those of another machine.
``--show QUESTION`` prints everything that is kept of a question. With matplotlib the command draws the page's picture
anew as well.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.harness import machines
from bench.harness.machines import Elsewhere
from bench.harness.question import Figure
from bench.harness.results import RESULTS, Answer, load
from bench.harness.table import render, spell
from setup import ROOT

PAGE = ROOT / "docs" / "explanation" / "benchmarks.rst"
PICTURE = PAGE.with_suffix(".png")
README = ROOT / "README.rst"
KAFKA_PAGE = ROOT / "docs" / "how-to" / "kafka.rst"
BEGIN = ".. figures: python -m bench.harness.page writes what stands between this line and the next comment\n"
END = ".. end of figures\n"
PICTURE_COLOURS = 32
"""A picture in true colour would take four times the bytes in the repository."""
LOAD_MAX = 3.0
"""Programs that want each core; a question's own servers and clients are a few."""
NOT_OF_THE_MACHINE = ("revision", "load before", "day")

HEAD = """\
Benchmarks
==========

This page is written from ``bench/results`` by ``python -m bench.harness.page``. Each row names a question.
``python -m bench NAME`` asks the question again on your machine. ``python -m bench.harness.page --show NAME`` prints
everything measured: every contender, the spread of its rounds, the versions, and the guarantees. ``make bench`` asks
all questions that need no broker and no Spark, ``make bench-full`` asks all.

The contenders of a question run in turn, after one warm-up each. A figure is the median of the rounds. A ratio is the
median of the ratios to the peer round by round, because a busy moment slows both. A contender is called better or worse
when the whole interval that holds the true median with 95 % lies beyond 5 % (94 % for five rounds; the sign test turned
around), alike when it lies within 5 %, and open otherwise. :doc:`peers` describes the peers and their guarantees.
"""

PICTURE_TEXT = """
.. image:: benchmarks.png
   :alt: For each question, how many times as good as its peer shmaccum is, on a logarithmic scale.

The picture shows the ratio of each question's first comparison with its interval. A point right of the line is better
than the peer.
"""

GOALS_HEAD = """
Goals
-----

.. csv-table::
   :header: "what", "goal", "reached", "compared with", "``python -m bench``"
   :widths: 40, 14, 14, 32, 24

"""

QUESTIONS_HEAD = """
Questions
---------

Each row has the first comparison of a question: ours, the peer in the same rounds, and the ratio with its verdict.

.. csv-table::
   :header: "question", "shmaccum", "peer", "ratio", "``python -m bench``"
   :widths: 36, 26, 30, 16, 20

"""

MACHINES_HEAD = """
Machines
--------

Compare ratios of one machine with each other. From machine to machine a ratio varies up to two times, because its two
sides wait for different things. ``Producer.send`` works mostly with its own core: instructions, and cache lines that
are near. A client with threads of its own pays for locks, wake-ups and memory as well. So the ratio depends on the
clock, the caches, the kernel, and the cost of a wake-up in a virtual machine. ``instructions`` counts instead of
timing, and depends on compiler and interpreter alone. In questions with a broker, the broker and its clients share
the cores that the page names.

A row has the first comparison of a question on another machine, and the same comparison here. Each cell has the ratio
and its interval. ``python -m bench.harness.page --beside FOLDER --machine NAME`` adds the results in FOLDER.

.. csv-table::
   :header: "contender", "compared with", "machine", "there", "ratio there", "ratio here", "``python -m bench``"
   :widths: 22, 22, 18, 10, 14, 14, 16

"""

README_HEAD = """
.. list-table::
   :header-rows: 1
   :widths: 30 16 26 22 12 18

   * - case
     - shmaccum
     - peer
     - ratio, interval
     - verdict
     - ``python -m bench``
"""


WORKERS_HEAD = """
.. list-table::
   :header-rows: 1
   :widths: 50 16 18 18

   * - workers send, in batches of
     - records/s
     - CPU per record
     - records per batch
"""


@dataclass(frozen=True)
class Row:
    """A row of the README's table: one contender in one figure, beside its peer or another one."""

    what: str
    question: str
    contender: str
    figure: str


ROWS = (
    Row("eight workers to Apache Kafka, as fast as they can", "kafka_workers", "shmaccum, flat out", "records_per_s"),
    Row("one ``send`` with a key", "producer_send", "Producer.send, key", "ns_per_record"),
    Row(
        "from a ``send`` to its delivered future, median",
        "latency_future",
        "Producer.send(...).get(), mock broker beside",
        "p50_ns",
    ),
)
"""What a user compares: the throughput of a host, the cost of a call, and the latency, each beside the usual client."""

WORKERS = "kafka_workers"
WORKER_ROWS = {
    "shmaccum, flat out": "as fast as they can, 16 KiB each",
    "shmaccum, batches of 128 KiB, flat out": "as fast as they can, 128 KiB, the peer's 1 MB",
    "shmaccum, paced": "1,000 records/s each, 16 KiB each",
}
"""Contender -> what docs/how-to/kafka.rst says of it."""
WORKER_FIGURES = ("records_per_s", "cpu_us_per_record", "records_per_batch")


# --- the README's table


def readme_table(answers: Mapping[str, Answer]) -> str:
    """Rows of what was measured, and where."""
    rows = "".join(line for row in ROWS if row.question in answers for line in _readme_row(answers[row.question], row))
    used = [answers[row.question] for row in ROWS if row.question in answers]
    machines = "".join(f"Measured on {sentence}.\n" for sentence in dict.fromkeys(map(_machine_sentence, used)))
    return f"{README_HEAD}{rows}\n{machines}\n"


def _readme_row(answer: Answer, row: Row) -> Iterator[str]:
    figure = answer.figure(row.figure)
    compared = answer.compared(row.contender, figure)
    yield f"   * - {row.what}\n"
    yield f"     - {_median(answer, row.contender, figure)}\n"
    if compared:
        low, high = compared.interval.low, compared.interval.high
        yield f"     - {_median(answer, compared.peer, figure)}, {compared.peer}\n"
        yield f"     - {_between(compared.ratio, low, high)}\n     - {compared.verdict.value}\n"
    else:
        yield "     -\n     -\n     -\n"
    yield f"     - ``{row.question}``\n"


def _median(answer: Answer, contender: str, figure: Figure) -> str:
    spread = answer.spread(contender, figure)
    return f"{spell(spread.median)} {figure.unit}" if spread else "not measured"


def between_marks(text: str, table: str, name: str) -> str:
    """A page with its table replaced.

    Raises:
        ValueError: it has no place for one.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{name} must have the lines {BEGIN!r} and {END!r}")
    return before + begin + table + end + after


def readme(text: str, answers: Mapping[str, Answer]) -> str:
    """The README with its table replaced."""
    return between_marks(text, readme_table(answers), README.name)


# --- the table of docs/how-to/kafka.rst


def kafka_page(text: str, answers: Mapping[str, Answer]) -> str:
    """docs/how-to/kafka.rst with its table replaced."""
    return between_marks(text, workers_table(answers[WORKERS]), KAFKA_PAGE.name)


def workers_table(answer: Answer) -> str:
    """Workers with one arena: their ratios to as many with a client each."""
    rows = "".join(line for contender in WORKER_ROWS for line in _worker_row(answer, contender))
    return f"{WORKERS_HEAD}{rows}\n"


def _worker_row(answer: Answer, contender: str) -> Iterator[str]:
    yield f"   * - {WORKER_ROWS[contender]}\n"
    for name in WORKER_FIGURES:
        compared = answer.compared(contender, answer.figure(name))
        yield f"     - {spell(compared.ratio) if compared else 'not measured'}\n"


# --- the page


def page(answers: Mapping[str, Answer], elsewhere: Sequence[Elsewhere]) -> str:
    """The whole page, reStructuredText."""
    parts = [HEAD, *_machines(answers.values()), *_disturbed(answers.values()), PICTURE_TEXT]
    parts += [GOALS_HEAD, *(_line(row) for answer in answers.values() for row in _goals(answer))]
    parts += [QUESTIONS_HEAD, *(_line(_question(answer)) for answer in answers.values()), *_missing(answers.values())]
    parts += [MACHINES_HEAD, *(_line(_beside(answers, row)) for row in elsewhere)]
    return "".join(parts)


def _line(cells: Sequence[str]) -> str:
    """A row of a csv-table."""
    return "   " + ", ".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def _machine_sentence(answer: Answer) -> str:
    facts = answer.machine
    return f"{facts['cores']} cores of {facts['cpu']}, Linux {facts['kernel'].partition('-')[0]}, {facts['python']}"


def _machines(answers: Iterable[Answer]) -> Iterator[str]:
    """Each machine once, with the questions that were asked on it where there are several."""
    by_machine: dict[str, list[str]] = {}
    for answer in answers:
        facts = [f"{key} {value}" for key, value in answer.machine.items() if key not in NOT_OF_THE_MACHINE]
        by_machine.setdefault(", ".join(facts), []).append(answer.question)
    for facts_text, questions in by_machine.items():
        which = "" if len(by_machine) == 1 else f" ({', '.join(questions)})"
        yield f"\nMeasured on: {facts_text}{which}.\n"


def _disturbed(answers: Iterable[Answer]) -> Iterator[str]:
    """The questions that were asked beside other work, for which each core had more than `LOAD_MAX` programs."""
    found = [
        f"``{answer.question}`` (load {answer.machine['load before']})"
        for answer in answers
        if float(answer.machine["load before"]) > LOAD_MAX * int(answer.machine["cores"])
    ]
    if found:
        yield (
            "\nOther work ran beside these questions. Their figures hold for a busy machine, and are to be asked for "
            f"again on a quiet one: {', '.join(found)}.\n"
        )


def _goals(answer: Answer) -> Iterator[Sequence[str]]:
    """The goals of a question that were measured."""
    for found in filter(None, map(answer.found, answer.goals)):
        sign = "≥" if found.figure.better == "higher" else "≤"
        unit = "of the peer" if found.goal.is_ratio else found.figure.unit
        value = f"{spell(found.value)}{'' if found.is_reached else ', **not reached**'}"
        beside = f"{spell(found.compared.ratio)} of {found.compared.peer}" if found.compared else "no peer"
        yield found.goal.what, f"{sign} {found.goal.bound:.3g} {unit}", value, beside, f"``{answer.question}``"


def _question(answer: Answer) -> Sequence[str]:
    """The row of a question."""
    command = f"``{answer.question}``"
    found = answer.headline()
    if found is None:
        series, figure = answer.series[0], answer.figures[0]
        return answer.title, f"{_median(answer, series.contender, figure)}, {series.contender}", "no peer", "", command
    contender, figure, compared = found
    ours = f"{_median(answer, contender, figure)}, {contender}"
    theirs = f"{_median(answer, compared.peer, figure)}, {compared.peer}"
    return answer.title, ours, theirs, f"{spell(compared.ratio)}, {compared.verdict.value}", command


def _beside(answers: Mapping[str, Answer], row: Elsewhere) -> Sequence[str]:
    """A comparison of another machine, beside ours."""
    there = _between(row.ratio, row.low, row.high)
    median = f"{spell(row.median)} {row.unit}"
    return row.contender, row.peer, row.machine, median, there, _ratio_here(answers, row), f"``{row.question}``"


def _ratio_here(answers: Mapping[str, Answer], row: Elsewhere) -> str:
    answer = answers.get(row.question)
    compared = answer.compared(row.contender, answer.figure(row.figure)) if answer else None
    if compared is None:
        return "not measured"
    return _between(compared.ratio, compared.interval.low, compared.interval.high)


def _between(ratio: float, low: float, high: float) -> str:
    return f"{spell(ratio)}, {spell(low)} to {spell(high)}"


def _missing(answers: Iterable[Answer]) -> Iterator[str]:
    """The contenders that could not run, with their reasons."""
    reasons = {f"{name}: {reason}": None for answer in answers for name, reason in answer.missing.items()}
    if reasons:
        yield "\nThese peers could not run:\n\n"
    for reason in reasons:
        yield f"- {reason}\n"


def draw(answers: Mapping[str, Answer], path: Path) -> None:
    """The page's picture. Raises ModuleNotFoundError without matplotlib."""
    import matplotlib as mpl
    from matplotlib import pyplot
    from PIL import Image  # matplotlib depends on it

    mpl.use("agg")
    found = [(answer, *headlined) for answer in answers.values() if (headlined := answer.headline())]
    drawing, panel = pyplot.subplots(figsize=(9, 1 + 0.22 * len(found)), layout="constrained")
    for place, (_, _, figure, compared) in enumerate(reversed(found)):
        ratios = [compared.ratio, compared.interval.low, compared.interval.high]
        middle, low, high = (ratio if figure.better == "higher" else 1 / ratio for ratio in ratios)
        panel.plot([low, high], [place, place], color="tab:gray", linewidth=2)
        panel.plot([middle], [place], "o", color="tab:blue" if middle >= 1 else "tab:orange", markersize=5)
    names = [f"{answer.question}, {compared.peer}" for answer, _, _, compared in reversed(found)]
    panel.set_yticks(range(len(names)), names, fontsize="small")
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("times as good as the peer", fontsize="small")
    panel.grid(axis="x", alpha=0.3)
    drawing.savefig(path, dpi=80)
    pyplot.close(drawing)
    with Image.open(path) as picture:
        picture.quantize(PICTURE_COLOURS).save(path, optimize=True)


# --- the command


def adopt(source: Path, target: Path = RESULTS) -> None:
    """Copies the results of `source` over the kept ones."""
    for path in sorted(source.glob("*.json")):
        shutil.copyfile(path, target / path.name)


def write() -> None:
    """All files, in place; the picture where matplotlib is installed."""
    answers = load()
    PAGE.write_text(page(answers, machines.load()), encoding="utf-8")
    for path, rewritten in ((README, readme), (KAFKA_PAGE, kafka_page)):
        path.write_text(rewritten(path.read_text(encoding="utf-8"), answers), encoding="utf-8")
    with contextlib.suppress(ModuleNotFoundError):
        draw(answers, PICTURE)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.harness.page", description=__doc__)
    parser.add_argument("--adopt", type=Path, metavar="FOLDER", help="results to take over first")
    parser.add_argument(
        "--show", choices=sorted(load()), metavar="QUESTION", help="print what is kept of it, and write nothing"
    )
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="results of another machine to take over first")
    parser.add_argument("--machine", metavar="NAME", help="the name of that machine on the page")
    arguments = parser.parse_args()
    if (arguments.beside is None) != (arguments.machine is None):
        parser.error("--beside and --machine belong together: give both")
    if arguments.show is not None:
        Console(width=None if sys.stdout.isatty() else 160).print(render(load()[arguments.show]))
        return
    if arguments.adopt is not None:
        adopt(arguments.adopt)
    if arguments.beside is not None:
        machines.keep(load(arguments.beside).values(), arguments.machine)
    write()


if __name__ == "__main__":
    main()
