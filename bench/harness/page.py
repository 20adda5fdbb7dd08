# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.harness.page`` writes the page of benchmarks, and tables of other pages, from ``bench/results``.

``--adopt FOLDER`` first copies new results. ``--beside FOLDER --machine NAME`` adds those of another machine. ``--show
QUESTION`` prints all results of a question. With matplotlib, the command also draws the page's picture.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from bench.harness import machines
from bench.harness.machines import Elsewhere
from bench.harness.percentiles import is_percentile
from bench.harness.question import Figure
from bench.harness.results import RESULTS, Answer, load
from bench.harness.runner import find_question
from bench.harness.table import render, spell
from bench.harness.verdict import Reach, Verdict
from setup import ROOT

PAGE = ROOT / "docs" / "explanation" / "benchmarks.rst"
PICTURE = PAGE.with_suffix(".png")
README = ROOT / "README.rst"
KAFKA_PAGE = ROOT / "docs" / "how-to" / "kafka.rst"
BEGIN = ".. figures: python -m bench.harness.page writes what stands between this line and the next comment\n"
END = ".. end of figures\n"
PICTURE_COLOURS = 32
"""A picture in true colour would be four times as large."""
PICTURE_INCHES_WIDE, PICTURE_INCHES_PER_ROW, PICTURE_FONT_SIZE = 4.6, 0.4, 9
PICTURE_DOTS_PER_INCH = 80
"""The resolution of the picture. Names are above the rows, so that the picture is narrow enough for a phone."""
LOAD_MAX = 3.0
"""The maximum number of runnable programs per core, including a few servers and clients of the question."""
NOT_OF_THE_MACHINE = ("revision", "load before", "day")

HEAD = """\
Benchmarks
==========

{counts}

``python -m bench.harness.page`` writes this page from ``bench/results``. Each row names a question. ``python -m bench
NAME`` measures it again on your machine. ``python -m bench.harness.page --show NAME`` prints all of its results: every
contender, the spread of its rounds, the versions, and the guarantees. ``make bench`` measures all questions that need
no broker and no Spark, and ``make bench-full`` measures all.

The contenders of a question run in turn, after one warm-up each. A figure is the median of the rounds. A ratio is the
median of the ratios to the peer in the same round, because a slow round is slow for both. Its interval contains the
true median with a probability of 95 % (94 % for five rounds; the inverted sign test). A contender is *better* or
*worse* if the whole interval is more than 5 % away from 1, and *not different* if the whole interval is within 5 %.
Otherwise, the verdict is *undecided*. A goal is *reached* or *missed* if the whole interval is on one side of its
bound, and *open* otherwise. With fewer than five rounds, nothing is decided. :doc:`peers` describes the peers and their
guarantees.
"""

PICTURE_TEXT = """
.. image:: benchmarks.png
   :class: plot
   :alt: The ratio of shmaccum to its peer in each question, on a logarithmic scale. Larger is better.

The picture shows the ratio of each question's first comparison with its interval. A point to the right of the line is
better than the peer.
"""

GOALS_HEAD = """
Goals
-----

.. csv-table::
   :header: "what", "goal", "median, interval", "verdict", "compared with", "``python -m bench``"
   :widths: 36, 14, 18, 10, 28, 22

"""

QUESTIONS_HEAD = """
Questions
---------

Each row has the first comparison of a question: shmaccum, the peer in the same rounds, and the ratio with its interval
and verdict. Latencies have a row for each percentile. The last but one column has the ratio of the same comparison on
other machines, with its interval, revision, day and load.

Compare only ratios of one machine. Between machines, a ratio varies by up to a factor of two in most rows, and by far
more in some, because its two sides wait for different things. ``Producer.send`` depends on instructions and near
cache lines. A client with threads also pays for locks, wake-ups and memory. ``instructions`` counts instructions, and
depends only on compiler and interpreter.
In questions with a broker, the broker and its clients share the cores.

.. csv-table::
   :header: "question", "shmaccum", "peer", "ratio", "elsewhere", "``python -m bench``"
   :widths: 32, 24, 28, 14, 24, 20

"""

REASONS_HEAD = """
Reasons
-------

Each question in which shmaccum is worse than its peer or misses a goal has its reason here.

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
    """A row of the README's table: one contender in one figure, beside its peer."""

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
"""The throughput of a host, the cost of a call, and the latency, each beside the usual client."""

WORKERS = "kafka_workers"
WORKER_ROWS = {
    "shmaccum, flat out": "as fast as they can, 16 KiB each",
    "shmaccum, batches of 128 KiB, flat out": "as fast as they can, 128 KiB, the peer's 1 MB",
    "shmaccum, paced": "1,000 records/s each, 16 KiB each",
}
"""Contender -> its description in docs/how-to/kafka.rst."""
WORKER_FIGURES = ("records_per_s", "cpu_us_per_record", "records_per_batch")


def current(folder: Path = RESULTS) -> dict[str, Answer]:
    """Return all answers of a folder, with the goals that their questions have now."""
    found = load(folder)
    return {name: replace(answer, goals=list(find_question(name).goals)) for name, answer in found.items()}


# --- the README's table


def readme_table(answers: Mapping[str, Answer]) -> str:
    """Return the rows, and the machines on which they were measured."""
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
    """Replace the table of a page.

    Raises:
        ValueError: the page lacks the lines `BEGIN` and `END`.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{name} must have the lines {BEGIN!r} and {END!r}")
    return before + begin + table + end + after


def readme(text: str, answers: Mapping[str, Answer]) -> str:
    """Replace the table of the README."""
    return between_marks(text, readme_table(answers), README.name)


# --- the table of docs/how-to/kafka.rst


def kafka_page(text: str, answers: Mapping[str, Answer]) -> str:
    """Replace the table of docs/how-to/kafka.rst."""
    return between_marks(text, workers_table(answers[WORKERS]), KAFKA_PAGE.name)


def workers_table(answer: Answer) -> str:
    """Return a table that compares workers with a shared arena to the same number of workers with a client each."""
    rows = "".join(line for contender in WORKER_ROWS for line in _worker_row(answer, contender))
    return f"{WORKERS_HEAD}{rows}\n"


def _worker_row(answer: Answer, contender: str) -> Iterator[str]:
    yield f"   * - {WORKER_ROWS[contender]}\n"
    for name in WORKER_FIGURES:
        compared = answer.compared(contender, answer.figure(name))
        yield f"     - {f'{spell(compared.ratio)}, {compared.verdict.value}' if compared else 'not measured'}\n"


# --- the page


def page(answers: Mapping[str, Answer], elsewhere: Sequence[Elsewhere]) -> str:
    """Return the page as reStructuredText."""
    found = [answer for answer in answers.values() if not absent(answer)]
    parts = [HEAD.format(counts=_counts(found)), *_machines(found), *_disturbed(found), PICTURE_TEXT]
    parts += [GOALS_HEAD, *(_line(row) for answer in found for row in _goals(answer))]
    parts += [QUESTIONS_HEAD, *(_line(row) for answer in found for row in _question(answer, elsewhere))]
    parts += [
        REASONS_HEAD,
        *(f"- ``{answer.question}``: {reason}\n" for answer in found if (reason := _reason(answer))),
    ]
    parts += _unpublished(answers.values())
    return "".join(parts)


def _counts(answers: Iterable[Answer]) -> str:
    """Return the paragraph with the numbers of all verdicts of the page."""
    every = list(answers)
    verdicts = Counter(compared.verdict for answer in every for _, _, compared in answer.headlines())
    reaches = Counter(found.reach for answer in every for found in filter(None, map(answer.found, answer.goals)))
    better, worse, alike, undecided = (
        verdicts[each] for each in (Verdict.BETTER, Verdict.WORSE, Verdict.ALIKE, Verdict.OPEN)
    )
    return (
        f"Of {verdicts.total()} comparisons with a peer or a floor, shmaccum is better in {better} and worse in\n"
        f"{worse}; {alike} are not different, and {undecided} are undecided.\n"
        f"Of {reaches.total()} goals, {reaches[Reach.REACHED]} are reached, {reaches[Reach.MISSED]} are missed, and "
        f"{reaches[Reach.OPEN]} are open."
    )


def _line(cells: Sequence[str]) -> str:
    """Return a row of a csv-table."""
    return "   " + ", ".join('"' + cell.replace('"', '""') + '"' for cell in cells) + "\n"


def _machine_sentence(answer: Answer) -> str:
    facts = answer.machine
    return f"{facts['cores']} cores of {facts['cpu']}, Linux {facts['kernel'].partition('-')[0]}, {facts['python']}"


def _machines(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield a sentence for each machine. If there are several, it lists the questions that were measured there."""
    by_machine: dict[str, list[str]] = {}
    for answer in answers:
        facts = [f"{key} {value}" for key, value in answer.machine.items() if key not in NOT_OF_THE_MACHINE]
        by_machine.setdefault(", ".join(facts), []).append(answer.question)
    for facts_text, questions in by_machine.items():
        which = "" if len(by_machine) == 1 else f" ({', '.join(questions)})"
        yield f"\nMeasured on: {facts_text}{which}.\n"


def _disturbed(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield a sentence on the questions that were measured at a load of more than `LOAD_MAX` per core."""
    found = [
        f"``{answer.question}`` (load {answer.machine['load before']})"
        for answer in answers
        if float(answer.machine["load before"]) > LOAD_MAX * int(answer.machine["cores"])
    ]
    if found:
        yield (
            "\nOther programs ran during these questions, so their figures are those of a busy machine: "
            f"{', '.join(found)}.\n"
        )


def _spell_bound(bound: float) -> str:
    return f"{bound:,.0f}" if bound >= 1000 else f"{bound:.3g}"


def _goals(answer: Answer) -> Iterator[Sequence[str]]:
    """Yield the measured goals of a question."""
    for found in filter(None, map(answer.found, answer.goals)):
        sign = "≥" if found.figure.better == "higher" else "≤"
        unit = "of the peer" if found.goal.is_ratio else found.figure.unit
        value = _between(found.value, found.interval.low, found.interval.high)
        verdict = found.reach.value if found.reach is Reach.REACHED else f"**{found.reach.value}**"
        beside = f"{spell(found.compared.ratio)} of {found.compared.peer}" if found.compared else "no peer"
        goal = f"{sign} {_spell_bound(found.goal.bound)} {unit}"
        yield found.goal.what, goal, value, verdict, beside, f"``{answer.question}``"


def _question(answer: Answer, elsewhere: Sequence[Elsewhere]) -> Iterator[Sequence[str]]:
    """Yield the rows of a question."""
    command = f"``{answer.question}``"
    if not answer.headlines():
        series, figure = answer.series[0], answer.figures[0]
        yield (
            answer.title,
            f"{_median(answer, series.contender, figure)}, {series.contender}",
            "no peer",
            "",
            "",
            command,
        )
    for contender, figure, compared in answer.headlines():
        title = f"{answer.title}: {figure.what}" if is_percentile(figure.name) else answer.title
        ours = f"{_median(answer, contender, figure)}, {contender}"
        theirs = f"{_median(answer, compared.peer, figure)}, {compared.peer}"
        ratio = _between(compared.ratio, compared.interval.low, compared.interval.high)
        names = (answer.question, contender, compared.peer, figure.name)
        rows = [row for row in elsewhere if (row.question, row.contender, row.peer, row.figure) == names]
        others = "; ".join(map(_elsewhere, rows))
        yield title, ours, theirs, f"{ratio}, {compared.verdict.value}", others, command


def _elsewhere(row: Elsewhere) -> str:
    facts = f"{row.machine}, {row.revision}, {row.day}, load {row.load}"
    return f"{_between(row.ratio, row.low, row.high)} ({facts})"


def _between(ratio: float, low: float, high: float) -> str:
    return f"{spell(ratio)}, {spell(low)} to {spell(high)}"


def is_behind(answer: Answer) -> bool:
    """Return whether a headline is worse than its peer, or a goal is missed."""
    return any(compared.verdict is Verdict.WORSE for _, _, compared in answer.headlines()) or any(
        found.reach is Reach.MISSED for found in filter(None, map(answer.found, answer.goals))
    )


def _reason(answer: Answer) -> str:
    """Return the reason of a question that is behind, with the ratios of this answer."""

    def ratio(name: re.Match[str]) -> str:
        compared = answer.compared(name[1], answer.figures[0])
        if compared is None:
            raise ValueError(f"{answer.question}: the reason names {name[1]!r}, which has no ratio")
        return spell(compared.ratio)

    return re.sub(r"\{([^}]+)\}", ratio, find_question(answer.question).reason) if is_behind(answer) else ""


def absent(answer: Answer) -> dict[str, str]:
    """Return the peers that an answer lacks, each with the reason."""
    peer = answer.series[0].peer
    never = {} if answer.find(peer) else {peer: "it has not been measured yet"}
    return {**never, **answer.missing}


def _unpublished(answers: Iterable[Answer]) -> Iterator[str]:
    """Yield the questions that are not published, each with its missing peers and their reasons."""
    found = [(answer.question, reasons) for answer in answers if (reasons := absent(answer))]
    if found:
        yield "\nThese questions are not published, because a peer is missing:\n\n"
    for question, reasons in found:
        yield f"- ``{question}``: {'; '.join(f'{name}: {reason}' for name, reason in reasons.items())}\n"


def draw(answers: Mapping[str, Answer], path: Path) -> None:
    """Draw the page's picture. Raise ModuleNotFoundError without matplotlib."""
    import matplotlib as mpl
    from matplotlib import pyplot
    from PIL import Image  # matplotlib depends on it

    mpl.use("agg")
    found = [
        (answer, *headlined) for answer in answers.values() if not absent(answer) and (headlined := answer.headline())
    ]
    size = (PICTURE_INCHES_WIDE, 0.8 + PICTURE_INCHES_PER_ROW * len(found))
    drawing, panel = pyplot.subplots(figsize=size, layout="constrained")
    for place, (answer, _, figure, compared) in enumerate(reversed(found)):
        ratios = [compared.ratio, compared.interval.low, compared.interval.high]
        middle, low, high = (ratio if figure.better == "higher" else 1 / ratio for ratio in ratios)
        panel.plot([low, high], [place, place], color="tab:gray", linewidth=2)
        panel.plot([middle], [place], "o", color="tab:blue" if middle >= 1 else "tab:orange", markersize=5)
        name = f"{answer.question}, {compared.peer}"
        label = panel.text(0.01, place + 0.22, name, transform=panel.get_yaxis_transform(), fontsize=PICTURE_FONT_SIZE)
        label.set_bbox({"color": "white", "pad": 0.3})  # above the line at 1
        label.set_in_layout(False)
    panel.set_yticks([])
    panel.set_ylim(-0.6, len(found))
    panel.margins(x=0.02)
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_xscale("log")
    panel.tick_params(labelsize=PICTURE_FONT_SIZE)
    panel.set_xlabel("ratio to the peer, larger is better", fontsize=PICTURE_FONT_SIZE)
    panel.grid(axis="x", alpha=0.3)
    drawing.savefig(path, dpi=PICTURE_DOTS_PER_INCH)
    pyplot.close(drawing)
    with Image.open(path) as picture:
        picture.quantize(PICTURE_COLOURS).save(path, optimize=True)


# --- the command


def adopt(source: Path, target: Path = RESULTS) -> None:
    """Copy the results of `source` to `target`."""
    for path in sorted(source.glob("*.json")):
        shutil.copyfile(path, target / path.name)


def write() -> None:
    """Write all files, and the picture if matplotlib is installed."""
    answers = current()
    machines.save(machines.others(machines.load(), answers.values()))
    PAGE.write_text(page(answers, machines.load()), encoding="utf-8")
    for path, rewritten in ((README, readme), (KAFKA_PAGE, kafka_page)):
        path.write_text(rewritten(path.read_text(encoding="utf-8"), answers), encoding="utf-8")
    with contextlib.suppress(ModuleNotFoundError):
        draw(answers, PICTURE)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.harness.page", description=__doc__)
    parser.add_argument("--adopt", type=Path, metavar="FOLDER", help="first copy these results to bench/results")
    parser.add_argument(
        "--show", choices=sorted(load()), metavar="QUESTION", help="print all results of QUESTION, and write nothing"
    )
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="first add these results of another machine")
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
