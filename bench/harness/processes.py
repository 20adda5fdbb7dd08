# SPDX-License-Identifier: Apache-2.0
"""Processes that begin together, and the answer of each."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

Work = Callable[..., Any]
"""A module's function: called with its arguments once everybody is ready; prepares nothing itself."""


def _run(begin: Any, answer: Connection, prepare: Work, work: Work, arguments: tuple[Any, ...]) -> None:
    prepared = prepare(*arguments)
    begin.wait()
    started_s = time.perf_counter()
    answered = work(prepared, *arguments)
    answer.send((started_s, time.perf_counter(), answered))


def together(prepare: Work, work: Work, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], float]:
    """Forks a process for each of `arguments`: ``prepare(*arguments)``, and when all are ready ``work(prepared, ...)``.

    Returns the answers of the works, and the seconds from the first one's start to the last one's end, by their own
    clocks. The process that waits for them may wake when most is done.
    """
    context = multiprocessing.get_context("fork")
    begin = context.Barrier(len(arguments) + 1)
    pipes = [context.Pipe(duplex=False) for _ in arguments]
    processes = [
        context.Process(target=_run, args=(begin, theirs, prepare, work, each))
        for (_, theirs), each in zip(pipes, arguments, strict=True)
    ]
    for process in processes:
        process.start()
    begin.wait()
    starts_s, ends_s, answers = zip(*(ours.recv() for ours, _ in pipes), strict=True)
    for process in processes:
        process.join()
    return list(answers), max(ends_s) - min(starts_s)
