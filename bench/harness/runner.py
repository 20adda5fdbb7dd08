# SPDX-License-Identifier: Apache-2.0
"""Measure a question in a new process, and remove everything that it leaves before the next one."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import bench.questions
from bench.harness.cleanup import marked
from bench.harness.machine import machine
from bench.harness.measuring import Measured, measure
from bench.harness.question import Question
from bench.harness.results import Answer, answer, from_json, save
from setup import ROOT

PART_OF_LIMIT = 0.8
SHARES, SHARE_MIN = 2.0, 15.0


@dataclass(frozen=True)
class Allowed:
    """The time for one question in seconds: for its rounds, until the last moment at which a round may begin, and until
    the question is killed.
    """

    wanted: float
    most: float
    limit: float


def allowed(wanted: float, limit: float, left: float, question_count: int) -> Allowed:
    """Return the time for one question if `question_count` questions have `left` seconds together.

    A question may take twice its share, because many need less. No round begins in the last fifth of the limit, because
    its result would be lost.
    """
    most = min(limit * PART_OF_LIMIT, max(SHARE_MIN, SHARES * left / question_count))
    return Allowed(min(wanted, most), most, limit)


def question_names() -> list[str]:
    """Return the names of all questions."""
    return sorted(module.name for module in pkgutil.iter_modules(bench.questions.__path__))


def find_question(name: str) -> Question:
    """Return the question of that name. Only its contenders import optional packages."""
    question = importlib.import_module(f"bench.questions.{name}").QUESTION
    assert isinstance(question, Question), f"bench.questions.{name} has no QUESTION"
    return question


def answer_here(name: str, seconds: float, seconds_max: float, repetitions: int | None) -> Answer:
    """Measure a question in this process."""
    question = find_question(name)
    before = machine()
    return answer(name, question, before, _measured(question, seconds, seconds_max, repetitions))


def _measured(question: Question, seconds: float, seconds_max: float, repetitions: int | None) -> Measured:
    contenders = question.contenders()
    rounds = 1 if question.is_exact else repetitions or question.repetitions
    has_warm_up = question.has_warm_up and not question.is_exact
    return measure(contenders, question.peer, rounds, seconds, seconds_max, has_warm_up=has_warm_up)


def command(*words: str) -> list[str]:
    """Return the command that runs `main` in a new process."""
    return [sys.executable, "-m", "bench.harness.runner", *words]


def answer_apart(name: str, time_allowed: Allowed, repetitions: int | None, folder: Path) -> Answer:
    """Measure a question in a new process. Raise RuntimeError if it fails."""
    limit = time_allowed.limit
    words = command(name, *map(str, (time_allowed.wanted, time_allowed.most, repetitions or 0, folder)))
    with marked() as environment:
        process = subprocess.Popen(words, cwd=ROOT, env=environment, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{name} was not answered within {limit:.0f} s") from None
        finally:
            _end_group(process)
    if code != 0:
        raise RuntimeError(f"{name} ended with {code}")
    return from_json((folder / f"{name}.json").read_text(encoding="utf-8"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group, with everything that the process started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """The program that `answer_apart` starts: NAME SECONDS SECONDS_MAX REPETITIONS FOLDER."""
    name, seconds, seconds_max, repetitions, folder = sys.argv[1:]
    save(answer_here(name, float(seconds), float(seconds_max), int(repetitions) or None), Path(folder))


if __name__ == "__main__":
    main()
