# SPDX-License-Identifier: Apache-2.0
"""``python -m bench [QUESTION ...]``: answers all questions, or those named."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
from pathlib import Path

import bench
from bench import harness

NOT_QUESTIONS = {"__main__", "harness", "spark_session", "draining_broker"}


def question_names() -> list[str]:
    """Every module of this package that asks something."""
    return sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if module.name not in NOT_QUESTIONS)


def answer(name: str, repetitions: int | None, lines: Path | None) -> str:
    """Measures one question and renders its table."""
    question = importlib.import_module(f"bench.{name}")
    harness.note(f"{name} ...")
    results = harness.measure(question.contenders(), repetitions or question.REPETITIONS)
    if lines is not None:
        harness.write_lines(lines, name, results)
    return harness.table(question.TITLE, results, question.FIGURES, question.PEER)


def ask(name: str, repetitions: int | None, lines: Path | None) -> None:
    """Prints the answer, unless a package is missing that the question needs."""
    try:
        print(f"\n{answer(name, repetitions, lines)}", flush=True)
    except ModuleNotFoundError as error:
        harness.note(f"{name} is not asked: {error}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("questions", nargs="*", choices=[*question_names(), []], help="all, if none is named")
    parser.add_argument("--repetitions", type=int, help="rounds of each question (default: what the question says)")
    parser.add_argument("--lines", type=Path, help="append every measurement to this file as a line of JSON")
    arguments = parser.parse_args()
    print("\n".join(f"{key}: {value}" for key, value in harness.machine().items()))
    for name in arguments.questions or question_names():
        ask(name, arguments.repetitions, arguments.lines)


if __name__ == "__main__":
    main()
