# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.page`` writes docs/explanation/benchmarks.rst, and tables of other pages, from ``bench/results``.

``--adopt FOLDER`` takes over what was measured anew, before it writes.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path

from bench.harness.question import Figure
from bench.harness.results import RESULTS, Answer, Comparison, load
from bench.harness.table import caption, spell
from setup import ROOT

PAGE = ROOT / "docs" / "explanation" / "benchmarks.rst"
README = ROOT / "README.rst"
KAFKA_PAGE = ROOT / "docs" / "how-to" / "kafka.rst"
BEGIN = ".. figures: python -m bench.page writes what stands between this line and the next comment\n"
END = ".. end of figures\n"
NOT_OF_THE_MACHINE = ("revision", "load before", "day")

HEAD = """\
Benchmarks
==========

What was measured, written from ``bench/results`` by ``python -m bench.page``. Every question is asked again by the
command below its title; ``make bench`` asks all that need no broker and no Spark, ``make bench-full`` all.

The contenders of a question run in turn, after one warm-up each. A figure is the median of the rounds, ± their median
absolute deviation. A ratio is the median of the ratios to the peer round by round, since what slows a round slows both;
its interval holds the true median with 95 % (with 94 % for five rounds; the sign test turned around). A contender is
called better or worse where the whole interval lies beyond 5 %, not different where it lies within, and undecided
otherwise: programs that do the same differ by some percent because their bytes lie elsewhere.
"""

GOALS_HEAD = """\

Numbers to reach
----------------

.. list-table::
   :header-rows: 1
   :widths: 40 14 14 32 24

   * - what
     - goal
     - reached
     - beside the peer
     - ``python -m bench``
"""

QUESTION_TABLE_HEAD = """\
.. list-table:: {caption}
   :header-rows: 1
   :widths: 42 22 22 30

   * - contender
     - median
     - lowest to highest
     - ratio to its peer
"""

GUARANTEES_HEAD = """
.. list-table:: what each guarantees (:doc:`peers`)
   :header-rows: 1
   :widths: 44 14 14 14 14

   * - contender
     - keeps a
     - order by
     - checksum
     - sent, then kill -9
"""

README_HEAD = """
.. list-table::
   :header-rows: 1
   :widths: 34 18 38 10 20

   * - what
     - shmaccum
     - peer
     - ratio
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
    Row("``Producer.send``, one process", "producer_send", "Producer.send, no key", "ns_per_record"),
    Row("the same with a key", "producer_send", "Producer.send, key", "ns_per_record"),
    Row("``send_many``, calls of 10,000", "producer_many", "send_many", "records_per_s"),
    Row("``append_arrow``", "producer_many", "append_arrow", "records_per_s"),
    Row("``append_many`` to drained, 2 producers", "sender_drain", "append_many, sender, null:", "records_per_s"),
    Row("``Producer.send`` to drained, 2 producers", "sender_drain", "Producer.send, sender, null:", "records_per_s"),
    Row("full batches into a log on tmpfs", "log_append", "segment log, 32 a call", "bytes_per_s"),
    Row("batches of 16 KiB to a loopback socket", "kafka_socket", "shmaccum, batches of 16 KiB", "bytes_per_s"),
    Row("the core alone, in C: one append", "append_core", "shmaccum, 1 producer", "records_per_s"),
    Row("99.99 % of appends, 8 processes", "latency_core", "shmaccum", "p9999_ns"),
    Row("recovery of a full arena of 1 GiB", "recovery", "after the death of every process", "seconds"),
    Row("the same after a host crash", "recovery", "after a host crash", "seconds"),
)

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
    yield f"     - {_median(answer, compared.peer, figure)}, {compared.peer}\n" if compared else "     -\n"
    yield f"     - {spell(compared.ratio)}\n" if compared else "     -\n"
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


def page(answers: Mapping[str, Answer]) -> str:
    """The whole page, reStructuredText."""
    parts: list[str] = [HEAD, *_machines(answers.values()), *_goals(answers.values())]
    parts += [line for answer in answers.values() for line in _question(answer)]
    return "".join(parts)


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


def _goals(answers: Iterable[Answer]) -> Iterator[str]:
    yield GOALS_HEAD
    for answer in answers:
        for goal in answer.goals:
            found = answer.found(goal)
            if found is None:
                continue
            sign = "≥" if found.figure.better == "higher" else "≤"
            unit = "of the peer" if goal.is_ratio else found.figure.unit
            yield f"   * - {goal.what}\n"
            yield f"     - {sign} {goal.bound:g} {unit}\n"
            yield f"     - {spell(found.value)}{'' if found.is_reached else ', **not reached**'}\n"
            yield f"     - {_beside(found.compared)}\n"
            yield f"     - ``{answer.question}``\n"


def _beside(compared: Comparison | None) -> str:
    return f"{spell(compared.ratio)} of {compared.peer}" if compared else "none"


def _question(answer: Answer) -> Iterator[str]:
    yield f"\n{answer.question}\n{'-' * len(answer.question)}\n\n{answer.title}. ``{answer.command}``\n"
    for figure in answer.figures:
        yield "\n" + QUESTION_TABLE_HEAD.format(caption=caption(figure))
        for series in answer.series:
            yield from _contender(answer, series.contender, figure)
    yield from _guarantees(answer)
    yield from _notes(answer)


def _contender(answer: Answer, contender: str, figure: Figure) -> Iterator[str]:
    spread = answer.spread(contender, figure)
    if spread is None:
        return
    yield f"   * - {contender}\n"
    yield f"     - {spell(spread.median)} ± {spell(spread.deviation)}\n"
    yield f"     - {spell(spread.lowest)} to {spell(spread.highest)}\n"
    yield f"     - {_ratio(answer.compared(contender, figure))}\n"


def _ratio(compared: Comparison | None) -> str:
    if compared is None:
        return "the peer"
    between = f"{spell(compared.interval.low)} to {spell(compared.interval.high)}"
    return f"{spell(compared.ratio)} ({between}), {compared.verdict.value}"


def _guarantees(answer: Answer) -> Iterator[str]:
    """What each does with a record beside being fast."""
    found = {series.contender: series.guarantees for series in answer.series if series.guarantees}
    if found:
        yield GUARANTEES_HEAD
    for contender, guarantees in found.items():
        yield f"   * - {contender}\n"
        yield from (f"     - {word}\n" for word in astuple(guarantees))


def _notes(answer: Answer) -> Iterator[str]:
    """Versions, rounds, and who is missing."""
    versions = dict.fromkeys(series.version for series in answer.series if series.version)
    rounds = max((len(series.measurements) for series in answer.series), default=0)
    revision, day = answer.machine["revision"], answer.machine["day"]
    yield f"\n{rounds} rounds at revision {revision}, {day}, load {answer.machine['load before']} before."
    yield f" Versions: {', '.join(versions)}.\n" if versions else "\n"
    for name, reason in answer.missing.items():
        yield f"\nMissing: {name} ({reason}).\n"


# --- the command


def adopt(source: Path, target: Path = RESULTS) -> None:
    """Copies what was measured anew over what was kept."""
    for path in sorted(source.glob("*.json")):
        shutil.copyfile(path, target / path.name)


def write() -> None:
    """All files, in place."""
    answers = load()
    PAGE.write_text(page(answers), encoding="utf-8")
    for path, rewritten in ((README, readme), (KAFKA_PAGE, kafka_page)):
        path.write_text(rewritten(path.read_text(encoding="utf-8"), answers), encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--adopt", type=Path, metavar="FOLDER", help="results to take over first")
    arguments = parser.parse_args()
    if arguments.adopt is not None:
        adopt(arguments.adopt)
    write()


if __name__ == "__main__":
    main()
