# SPDX-License-Identifier: Apache-2.0
"""``python -m bench [QUESTION ...]`` measures the local questions, or the given ones."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.harness.drift import drift
from bench.harness.form import SIZE_VARIABLE, VARIABLE
from bench.harness.machine import machine
from bench.harness.measuring import note
from bench.harness.plots import plot
from bench.harness.results import Answer, lines, load
from bench.harness.runner import Allowed, allowed, answer_apart, find_question, question_names
from bench.harness.table import render
from setup import ROOT

FOLDER = ROOT / "build" / "bench" / "results"
SECONDS = 15.0
MINUTES = 11.0


def chosen(arguments: argparse.Namespace) -> list[str]:
    """Return the given questions, or all of the scope."""
    if arguments.questions:
        names: list[str] = arguments.questions
        return names
    scopes = ("local", "full") if arguments.full else ("local",)
    return [name for name in question_names() if find_question(name).scope in scopes]


def ask(name: str, time_allowed: Allowed, arguments: argparse.Namespace) -> Answer | None:
    """Measure a question. If it fails, print the reason and return None."""
    begin = time.monotonic()
    try:
        found = answer_apart(name, time_allowed, arguments.repetitions, arguments.results)
    except RuntimeError as error:
        note(str(error))
        return None
    note(f"  {name}: {time.monotonic() - begin:.0f} s")
    return found


def show(answer: Answer, console: Console, json_lines: Path | None) -> None:
    """Print an answer, and append its measurements to `json_lines` if it is given."""
    console.print(render(answer))
    if json_lines is not None:
        with json_lines.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines(answer))


def compare(answer: Answer) -> None:
    """Print the ratios that differ from the committed ones."""
    kept = load().get(answer.question)
    sentences = list(drift(kept, answer)) if kept else [f"{answer.question} has no results in bench/results"]
    print("\n".join(sentences) or "every ratio agrees with bench/results", flush=True)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*question_names(), []], help="default: all local questions")
    parser.add_argument(
        "--full", action="store_true", help="all questions, including those that need Spark or Kafka, or take long"
    )
    parser.add_argument("--repetitions", type=int, help="rounds of each question (default: the question's own number)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="seconds for the rounds of a question (default: 15)"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds after which a question is given up (default: the question's own limit)"
    )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="minutes for all questions together (default: 11)"
    )
    parser.add_argument("--short", action="store_true", help="shorten jobs of several seconds to a tenth")
    parser.add_argument("--megabytes", type=int, help="data that outage stores (default: 20,000, or 200)")
    parser.add_argument("--json", type=Path, help="append every measurement to this file as a line of JSON")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="draw each answer as FOLDER/QUESTION.png")
    parser.add_argument("--again", action="store_true", help="print the ratios that differ from those of bench/results")
    parser.add_argument(
        "--results", type=Path, default=FOLDER, help="the folder for QUESTION.json (default: build/bench/results)"
    )
    return parser.parse_args(words)


def main() -> None:
    """Measure one question after the other. If one fails, the others continue, and the exit code is 1."""
    arguments = parse()
    if arguments.short:
        os.environ[VARIABLE] = "1"
    if arguments.megabytes:
        os.environ[SIZE_VARIABLE] = str(arguments.megabytes)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print("\n".join(f"{key}: {value}" for key, value in machine().items()), highlight=False)
    names = chosen(arguments)
    failed = []
    end = time.monotonic() + arguments.minutes * 60
    for number, name in enumerate(names, start=1):
        note(f"[{number}/{len(names)}] {name} ...")
        question = find_question(name)
        limit_s = arguments.limit or question.limit_s
        left_s = limit_s if question.scope == "alone" else end - time.monotonic()
        time_allowed = allowed(arguments.seconds, limit_s, left_s, len(names) - number + 1)
        answer = ask(name, time_allowed, arguments)
        if answer is None:
            failed.append(name)
        else:
            show(answer, console, arguments.json)
            if arguments.plots is not None:
                note(f"  drawn: {plot(answer, arguments.plots)}")
            if arguments.again:
                compare(answer)
    if failed:
        sys.exit(f"not answered: {', '.join(failed)}")


if __name__ == "__main__":
    main()
